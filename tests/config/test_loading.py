"""load_config: valid files, and the problems of invalid ones."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import CallError, ErrorCode, from_schema
from operations.config import Config, config_schema, describe_config, load_config, settings
from operations.config.file_writer import write_value
from operations.config.settings import EntryPointSettings, FileSettings, MCPSettings, OpenAPISettings, PythonSettings
from tests.config.files import load, problems, write

SCHEMA = from_schema(config_schema())

EVERYTHING = """
    policy = "strict"
    env_file = ".env"

    [sources.local]
    python = "shop"
    namespace = "shop"
    deny = ["*.internal_*"]

    [sources.files]
    command = "npx"
    args = ["-y", "server"]
    env = { ROOT = "${ROOT}" }
    timeout = 12

    [sources.remote]
    url = "https://example.com/mcp"
    headers = { X-Team = "a" }
    auth = { type = "bearer", token = "${TOKEN}" }

    [sources.api]
    openapi = "api.json"
    base_url = "https://example.com"
    retry = { attempts = 5 }
    cache = true
    policy = "off"

    [sources.api.security.key]
    type = "api_key"
    token = "abc"
    location = "query"

    [sources.crm]
    entry_point = "crm"
    options = { region = "eu" }

    [access]
    "shop.*" = ["shop"]
    "files.write" = { scopes = ["files"], any = ["a", "b"], resource_type = "disk", resource_action = "write" }

    [transports.bus]
    url = "redis://localhost:6379"
    options = { prefix = "x" }

    [hub]
    port = 9000

    [[hub.tokens]]
    token = "${TOKEN}"
    identity = "warehouse"
    namespaces = ["stock"]

    [hub.jwt]
    key_file = "key.pem"
    algorithms = ["ES256"]
    """


def test_every_key_of_a_file_is_read(tmp_path: Path) -> None:
    write(tmp_path, "export ROOT=/data\nTOKEN='from the file'", ".env")
    config = load(tmp_path, EVERYTHING, {"TOKEN": "from the environment"})
    assert [(name, source.kind) for name, source in config.sources.items()] == [
        ("local", "python"),
        ("files", "mcp"),
        ("remote", "mcp"),
        ("api", "openapi"),
        ("crm", "entry-point"),
    ]
    local, files, remote, api, crm = (source.settings for source in config.sources.values())
    assert isinstance(local, PythonSettings)
    assert (local.python, local.namespace, local.deny) == ("shop", "shop", ["*.internal_*"])
    assert isinstance(files, MCPSettings)
    assert (files.command, files.args, files.env, files.timeout) == ("npx", ["-y", "server"], {"ROOT": "/data"}, 12.0)
    assert isinstance(remote, MCPSettings)
    assert remote.auth is not None
    assert remote.auth.token == "from the environment"
    assert isinstance(api, OpenAPISettings)
    assert (api.retry.attempts, api.retry.statuses, api.policy) == (5, (429, 502, 503, 504), "off")
    assert api.security["key"].location == "query"
    assert isinstance(crm, EntryPointSettings)
    assert crm.options == {"region": "eu"}
    assert config.access["shop.*"].scopes == ["shop"]
    assert config.access["files.write"].any == ["a", "b"]
    assert config.transports["bus"].options == {"prefix": "x"}
    assert config.hub is not None
    assert (config.hub.port, config.hub.tokens[0].token) == (9000, "from the environment")
    assert config.policy == "strict"
    assert config.sources["files"].line == 9
    assert [path.name for path in config.files] == ["operations.toml", ".env"]


def test_the_table_of_a_project_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [project]
        name = "x"
        [tool.operations.sources.a]
        pyhton = "shop"
        """,
        "pyproject.toml",
    )
    assert problems(path) == ["pyproject.toml:4: tool.operations.sources.a.pyhton: unknown key; did you mean python?"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = ", "1: invalid TOML: Invalid value"),
        ("[a]\nb = 'x", '2: invalid TOML: Expected "\'"'),
        ("sorces = {}", "1: sorces: unknown key; did you mean sources?"),
        (
            "zzz = 1",
            "1: zzz: unknown key; expected one of access, env_file, hub, include, interceptors, policy, serve, "
            "sources, transports",
        ),
        ("[sources]\na = 3", "2: sources.a: expected a table"),
        ("sources = 1", "1: sources: expected a table of sources by name"),
        (
            "# a\n[sources.a]\nallow = ['x']",
            "2: sources.a: unknown kind of source: expected one of the keys python, command, url, openapi",
        ),
        ("[sources.a]\npython = 'x'\nopenapi = 'y'", "1: sources.a: python and openapi belong to different kinds"),
        ("[sources.a]\npython = 'x'\n\ntimeot = 3", "4: sources.a.timeot: unknown key; did you mean"),
        ("[sources.a]\npython = 3", "2: sources.a.python: expected a string, got an integer"),
        ("[sources.a]\ncommand = 'x'\ntimeout = 'soon'", "3: sources.a.timeout: expected a number, got a string"),
        ("[sources.a]\ncommand = 'x'\ntimeout = -1", "3: sources.a.timeout: expected a number > 0.0"),
        ("[sources.a]\ncommand = 'x'\nargs = ['a', 1]", "3: sources.a.args: at [1]: expected a string, got an integer"),
        ("[sources.a]\ncommand = 'x'\nargs = 'a b'", "3: sources.a.args: expected a list, got a string"),
        (
            "[sources.a]\npython = 'x'\npolicy = 'stict'",
            "3: sources.a.policy: unknown value 'stict'; did you mean strict?",
        ),
        ("[sources.a]\npython = ''", "2: sources.a.python: expected a string of length >= 1"),
        (
            "[sources.a]\npython = 'x'\nnamespace = 'a b'",
            "1: sources.a: invalid namespace: expected segments of letters",
        ),
        ("[sources.a]\npython = 'x'\nrename = { a = 'b c' }", "1: sources.a: rename: invalid name 'b c'"),
        ("[sources.a]\ncommand = 'x'\nurl = 'y'", "1: sources.a: command and url are both set"),
        ("[sources.a]\ncommand = 'x'\nheaders = { a = 'b' }", "1: sources.a: headers cannot be used by an MCP"),
        ("[sources.a]\ncommand = 'x'\ntype = 'http'", "1: sources.a: type http conflicts with a command"),
        ("[sources.a]\nurl = 'x'\nauth = { type = 'bearer' }", "1: sources.a: bearer requires token"),
        ("[sources.a]\nurl = 'x'\nauth = { type = 'basic' }", "1: sources.a: basic requires username and password"),
        ("[sources.a]\nurl = 'x'\nauth = { token = 'x' }", "3: sources.a.auth: missing required key type"),
        ("[sources.a]\nurl = 'x'\nauth = 'token'", "3: sources.a.auth: expected a table, not a string"),
        (
            "[sources.a]\nurl = 'x'\noauth = { client = 'x' }",
            "3: sources.a.oauth.client: unknown key; did you mean",
        ),
        ("[sources.a]\nopenapi='x'\n[sources.a.retry]\ntries = 3", "4: sources.a.retry.tries: unknown key"),
        ("[access]\n'a.*' = 'x'", "2: access.a.*: expected a list or a table, got a string"),
        ("[access]\n'a.*' = 5", "2: access.a.*: expected a list or a table, got a number"),
        ("[access]\n'a.*' = ['x', 5]", "2: access.a.*: at [1]: expected a string, got an integer"),
        ("[access]\n'a.*' = { scope = [] }", "2: access.a.*.scope: unknown key; did you mean scopes?"),
        (
            "[transports.a]\nurl = 'http://x'",
            "2: transports.a.url: 'http://x' is not a valid address: unknown scheme 'http'",
        ),
        (
            "[transports.a]\nurl = 'ws://x:99999'",
            "2: transports.a.url: 'ws://x:99999' is not a valid address: invalid port 99999",
        ),
        ("[hub]\nport = 70000", "2: hub.port: expected an integer <= 65535"),
        ("[hub]\nheartbeat = 0", "2: hub.heartbeat: expected a number >= 0.001"),
        ("[hub]\nheartbeat = nan", "2: hub.heartbeat: expected a number"),
        ("[hub]\nheartbeat = inf", "2: hub.heartbeat: expected a number <= 1000000000"),
        ("[hub]\nmax_payload = 0", "2: hub.max_payload: expected an integer >= 1"),
        (
            "[[hub.tokens]]\ntoken='a'\nidentity='a'\n[[hub.tokens]]\nidentity='b'",
            "4: hub.tokens[1]: missing required key token",
        ),
        (
            "[[hub.tokens]]\ntoken='a'\nidentity='a'\n[[hub.tokens]]\ntoken='a'\nidentity='b'",
            "4: hub.tokens[1]: duplicate token",
        ),
        ("[hub.jwt]\nalgorithms = ['ES256']", "1: hub.jwt: expected exactly one of key and key_file"),
        ("include = ['nothere.toml']", "1: include[0]: file not found"),
        ("include = ['operations.toml']", "1: include[0]: "),
        ("env_file = 'nothere.env'", "1: env_file: "),
        ("policy = '${NO}'", "1: policy: variable NO is not set: set it, or write ${NO:-default}"),
        ("include = [\n'${NO}']", "2: include[0]: variable NO is not set: set it, or write ${NO:-default}"),
        ("env_file = '${NO}'", "1: env_file: variable NO is not set: set it, or write ${NO:-default}"),
        ("[access]\n'*' = ['${NO}']", "2: access.*[0]: variable NO is not set: set it, or write ${NO:-default}"),
        ("[sources.a]\npython = '${a b}'", "2: sources.a.python: invalid ${…}: expected ${NAME}"),
        ("[sources.a]\npython = '${A'", "2: sources.a.python: unclosed ${"),
    ],
)
def test_problems_are_reported_with_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    found = problems(write(tmp_path, text))
    assert len(found) == 1, found
    assert found[0].startswith(f"operations.toml:{expected}")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("python = '${NO}'", "2: sources.a.python: variable NO is not set: set it, or write ${NO:-default}"),
        ("command='x'\nargs=[\n'a',\n'${NO}',\n]", "5: sources.a.args[1]: variable NO is not set"),
        ("openapi = 'x.json'\ntimeout = '${NO}'", "3: sources.a.timeout: variable NO is not set"),
        ("url = 'http://x'\nauth = { type = 'bearer', token = '${NO}' }", "3: sources.a.auth.token: variable NO"),
        ("entry_point = 'x'\ndisabled = '${NO}'", "3: sources.a.disabled: variable NO is not set"),
    ],
)
def test_an_unset_variable_disables_its_source_alone(tmp_path: Path, table: str, problem: str) -> None:
    text = f"[sources.a]\n{table}\n[sources.b]\npython = 'b'\n[transports.c]\nurl = 'ws://x'\n"
    config = load(tmp_path, text)
    found = config.sources["a"].problem
    assert found is not None
    assert found.startswith(f"{tmp_path}/operations.toml:{problem}")
    assert config.sources["b"].problem is None
    assert config.unset_variables == {"NO"}
    assert list(config.transports) == ["c"]
    assert load(tmp_path, text, {"NO": "1"}).unset_variables == frozenset()


def test_other_problems_of_a_source_without_its_variable_are_found(tmp_path: Path) -> None:
    assert problems(write(tmp_path, "[sources.a]\nopenapi = '${NO}'\ntimeout = 'x'\nnonsense = 1")) == [
        "operations.toml:3: sources.a.timeout: expected a number, got a string",
        "operations.toml:4: sources.a.nonsense: unknown key; expected one of "
        + problems(write(tmp_path, "[sources.a]\nopenapi = 'x'\nnonsense = 1"))[0].partition("expected one of ")[2],
    ]


def test_an_unset_variable_disables_its_transport_or_the_hub_alone(tmp_path: Path) -> None:
    text = (
        "[transports.a]\nurl = 'ws://x'\ntoken = '${NO}'\n[transports.b]\nurl = 'ws://y'\n"
        "[hub]\nport = 1\n[[hub.tokens]]\ntoken = '${NEITHER}'\nidentity = 'x'\n[sources.s]\npython = 's'"
    )
    config = load(tmp_path, text)
    assert (list(config.transports), config.hub, list(config.sources)) == (["b"], None, ["s"])
    path = tmp_path / "operations.toml"
    assert config.unusable == {
        "transports.a": f"{path}:3: transports.a.token: variable NO is not set: set it, or write ${{NO:-default}}",
        "hub": f"{path}:9: hub.tokens[0].token: variable NEITHER is not set: set it, or write ${{NEITHER:-default}}",
    }


def test_every_problem_is_listed(tmp_path: Path) -> None:
    path = write(tmp_path, "[sources.a]\npython = 1\nx = 2\n[sources.b]\nurl = '${B'\n[hub]\nport = 'x'\n")
    assert [line.partition(": ")[0] for line in problems(path)] == [
        "operations.toml:2",
        "operations.toml:3",
        "operations.toml:5",
        "operations.toml:7",
    ]


def test_values_are_not_in_messages(tmp_path: Path) -> None:
    path = write(
        tmp_path, "[sources.a]\nurl = 'x'\nauth = { type = 's3cret-a', token = 1234567 }\nheaders = 's3cret-b'"
    )
    assert (
        problems(path)
        == [
            "operations.toml:3: sources.a.auth.type: expected one of bearer, api_key, basic, oauth2",
            "operations.toml:3: sources.a.auth.token: expected a string, got an integer",
            "operations.toml:4: sources.a.headers: expected a table, got a string",
        ]
        or set(problems(path)) == set()
    )
    path = write(tmp_path, "[sources.a]\nurl = 'x'\nheaders = { A = 'pa${ss w}rd', B = 'pa${ssword' }")
    assert not any("ss" in line.partition("headers")[2] for line in problems(path))


def test_included_files_are_merged(tmp_path: Path) -> None:
    write(tmp_path, "[sources.b]\npython = 'b'\n[access]\n'b.*' = ['b']", "more/b.toml")
    config = load(tmp_path, "include = ['more/b.toml']\n[sources.a]\npython = 'a'\n[access]\n'a.*' = ['a']")
    assert list(config.sources) == ["a", "b"]
    assert config.sources["b"].directory == tmp_path / "more"
    assert list(config.access) == ["a.*", "b.*"]


def test_a_name_in_two_files_is_an_error_that_names_both(tmp_path: Path) -> None:
    write(tmp_path, "\n[sources.a]\npython = 'b'", "b.toml")
    path = write(tmp_path, "include = ['b.toml']\n[sources.a]\npython = 'a'")
    assert problems(path) == ["b.toml:1: sources.a: duplicate source name, first defined in operations.toml:2"]


def test_a_source_that_is_disabled_is_not_looked_at(tmp_path: Path) -> None:
    config = load(tmp_path, "[sources.a]\nurl = '${NOT_SET}'\ndisabled = true\n[sources.b]\npython = 'b'")
    assert list(config.sources) == ["b"]


def test_a_variable_may_replace_a_number_or_a_boolean(tmp_path: Path) -> None:
    text = "[sources.a]\nopenapi = 'x'\ntimeout = '${T}'\ncache = '${C:-true}'\nreconnect = '${R:-two}'"
    path = write(tmp_path, text)
    assert problems(path, {"T": "2.5"}) == ["operations.toml:5: sources.a.reconnect: expected an integer, got a string"]
    found = load(tmp_path, text, {"T": "2.5", "R": "3"}).sources["a"].settings
    assert isinstance(found, OpenAPISettings)
    assert (found.timeout, found.cache, found.reconnect) == (2.5, True, 3)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert problems(tmp_path / "nothere.toml") == ["nothere.toml:1: file not found"]
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'")
    assert problems(tmp_path / "latin.toml")[0].startswith("latin.toml:1: cannot be read: ")
    assert problems(write(tmp_path, '{\n "a": 1 2\n}', "a.json"))[0].startswith("a.json:2: invalid JSON: ")
    assert problems(write(tmp_path, "[]", "a.json")) == ["a.json:1: expected an object at the top level"]
    write(tmp_path, "A=1\nnonsense\n", ".env")
    path = write(tmp_path, "env_file = '.env'")
    assert problems(path) == [".env:2: expected NAME=value"]


KEYS = sorted(
    {
        name
        for kind in vars(settings).values()
        if isinstance(kind, type) and issubclass(kind, settings.Settings)
        for name in kind.__struct_fields__
    }
)
LEAVES = st.one_of(
    st.sampled_from(["", "x", "${X}", "${Y:-1}", "${", "bearer", "memory:", "http://x", "strict", "a.b", "*"]),
    st.booleans(),
    st.integers(-2, 70000),
    st.floats(allow_nan=False, allow_infinity=False),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, "a"]), inner, max_size=4),
    max_leaves=20,
)
SOURCES = st.dictionaries(st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from(KEYS), TREES, max_size=5))


@given(st.dictionaries(st.sampled_from(FileSettings.__struct_fields__), TREES, max_size=4), SOURCES, st.booleans())
def test_any_file_is_a_configuration_or_a_list_of_problems(
    tree: dict[str, Any], sources: dict[str, Any], has_sources: bool
) -> None:
    tree = {**tree, "sources": sources} if has_sources else tree
    text = "".join(f"{name} = {write_value(value)}\n" for name, value in tree.items())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "operations.toml"
        path.write_text(text)
        config = _load_or_problem(path)
        if isinstance(config, CallError):
            assert config.code is ErrorCode.VALIDATION_ERROR
            assert all(line.startswith(directory) for line in config.message.splitlines())
        else:
            describe_config(config)
            # A file that loads matches the published schema, except for variables, whose values the schema does not
            # know.
            if "${" not in text:
                assert SCHEMA.errors(tomllib.loads(text)) == []


def _load_or_problem(path: Path) -> Config | CallError:
    try:
        return load_config(path, environ={"X": "1"})
    except CallError as error:
        return error
