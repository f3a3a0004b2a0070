"""`ops ls`, `search`, `show`: list operations, from the cache."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from operations.config.trust import shell_quoted
from tests.cli.driving import OPS, Project

pytestmark = pytest.mark.slow
IDS = [
    "other.double",
    "shop.chatty",
    "shop.crash",
    "shop.fail",
    "shop.nested",
    "shop.photo",
    "shop.quote",
    "shop.send",
    "shop.slow",
    "shop.text",
    "shop.ticks",
]


def test_a_pipe_gets_a_line_with_tabs_for_each_operation(project: Project) -> None:
    done = project.run("ls")
    assert done.code == 0
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == IDS
    assert rows[6] == ["shop.quote", "query", "shop", "What some of an item would cost."]


def test_a_terminal_gets_a_tree_of_its_width(project: Project) -> None:
    for columns in (60, 100):
        with project.terminal("ls", columns=columns) as terminal:
            assert terminal.end() == 0
            assert "other  python\n  double  query" in terminal.shown
            assert "shop  python\n  chatty  mutation" in terminal.shown
            assert max(map(len, terminal.shown.splitlines())) <= columns
            assert "\x1b[1mshop\x1b[0m" in terminal.raw
    with project.terminal("ls", "--table", env={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert "shop.quote    query         shop   What some of an item would cost." in terminal.shown
        assert "\x1b[1m" not in terminal.raw


def test_a_terminal_without_a_width_gets_descriptions(project: Project) -> None:
    with project.terminal("ls", columns=0) as terminal:
        assert terminal.end() == 0
        assert "What some of an item would cost." in terminal.shown


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["other"], ["other.double"]),
        (["shop.q*"], ["shop.quote"]),
        (["--type", "subscription"], ["shop.ticks"]),
        (["--source", "other"], ["other.double"]),
        (["--tag", "money"], ["shop.quote"]),
        (["shop", "--type", "query"], ["shop.nested", "shop.photo", "shop.quote", "shop.text"]),
    ],
)
def test_filters(words: list[str], wanted: list[str], listed: Project) -> None:
    assert [entry["id"] for entry in listed.run("ls", "--json", *words).data] == wanted


def test_nothing_found_is_exit_code_3(project: Project) -> None:
    done = project.run("ls", "nowhere")
    assert done.code == 3
    assert "no operations match 'nowhere'" in done.err
    assert project.run("ls", "nowhere", "--json").data == []
    assert project.run("search", "zzzzzz").code == 3


def test_a_configuration_without_operations_is_not_a_failure(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("operations.toml", "")
    done = project.run("ls", "--json")
    assert (done.code, done.data, done.err) == (0, [], "")


def test_listing_opens_nothing_once_it_is_cached_and_notices_changes(project: Project) -> None:
    mark = project.directory / "imported"
    project.write("other/numbers.py", f"open({str(mark)!r}, 'a').write('x')\nfrom operations import operation\n")
    project.run("ls")
    imports = mark.read_text()
    for words in (["ls"], ["search", "quote"], ["show", "shop.quote"], ["ls", "--json"]):
        assert project.run(*words).code == 0
    assert mark.read_text() == imports
    project.write("other/more.py", '@__import__("operations").operation(id="other.new")\ndef new() -> int: return 1\n')
    assert "other.new" not in project.run("ls", "--cached").out
    assert "other.new" in project.run("ls").out
    project.run("ls", "--refresh")
    assert len(mark.read_text()) > len(imports)


@pytest.mark.parametrize("name", ["later", "./later"])
def test_a_failed_source_is_retried_once_its_directory_exists(name: str, project: Project) -> None:
    project.write("operations.toml", f'[sources.later]\npython = "{name}"\n[sources.doc]\nopenapi = "./doc.json"\n')
    assert "no such directory" in project.run("ls").err
    assert "doc.json: No such file or directory" in project.run("ls").err
    project.write("later/code.py", "from operations import operation\n@operation\ndef one() -> int: return 1\n")
    project.write("doc.json", '{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}')
    done = project.run("search", "one", "--json")
    assert [entry["id"] for entry in done.data] == ["code.one"]
    assert done.err == ""


def test_search_returns_the_best_match_first(project: Project) -> None:
    found = project.run("search", "send", "item").out.splitlines()
    assert found[0].startswith("shop.send\t")
    assert len(found) > 1
    assert project.run("search", "cost", "--json").data[0]["id"] == "shop.quote"
    assert project.run("search", "quot").out.startswith("shop.quote\t")
    assert len(project.run("search", "item", "--limit", "1").out.splitlines()) == 1


def test_an_operation_is_shown_with_its_fields_and_an_example_that_works(project: Project) -> None:
    done = project.run("show", "shop.quote")
    assert "shop.quote  query  from shop" in done.out
    assert "* item    string    the item's name" in done.out
    assert "count   integer   how many [1]" in done.out
    assert "colour  red|blue  [red]" in done.out
    example = next(line.strip() for line in done.out.splitlines() if line.strip().startswith("ops call"))
    assert project.run("-c", example, program=["bash"]).code == 0


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        ("['buyer', 'adult']", "buyer, adult"),
        ("{ any = ['buyer', 'seller'] }", "one of buyer, seller"),
        ("{ scopes = ['buyer'], any = ['a', 'b'] }", "buyer; one of a, b"),
        (
            "{ scopes = ['buyer'], resource_type = 'shelf', resource_action = 'read' }",
            "buyer; a resource of type shelf with action read",
        ),
        ("{ resource_type = 'shelf' }", "a resource of type shelf"),
        ("{ resource_action = 'read' }", "a resource with action read"),
    ],
)
def test_show_prints_the_scopes_and_the_resource_that_callers_need(project: Project, rule: str, needed: str) -> None:
    with (project.directory / "operations.toml").open("a") as file:
        file.write(f"\n[access]\n'shop.quote' = {rule}\n")
    assert f"\nremote callers need: {needed}\n" in project.run("show", "shop.quote").out
    assert "remote callers need" not in project.run("show", "shop.send").out


HOSTILE = {
    "a command as a name": {"$(touch pwned)": "x", "`touch pwned`": "1", "a;touch pwned;": "y", "a b": None},
    "a line break": {"x\ntouch pwned\n": "z"},
    "names that are quotes": {"it's": "it's", '"': '"; touch pwned; "'},
    "backslashes": {"a\\": "\\", "b'": "; touch pwned; '\\", "\\'": "\\n"},
    "an option": {"--output": "pwned"},
    "a file as a value": {"v": "@secret.txt", "w": ["@secret.txt"]},
    "a file as a name": {"@secret.txt": "x"},
    "a file within a name": {"v@secret.txt": "x"},
    "a file after an equals sign": {"v=@secret.txt": "x"},
}


@pytest.mark.parametrize("example", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_example_of_external_names_and_values_is_one_input(example: dict[str, Any], tmp_path: Path) -> None:
    """The example is copied to a shell: it must neither run a command nor read or write a file."""
    project = Project(tmp_path)
    schema = {
        "type": "object",
        "properties": {name: {"examples": [value]} for name, value in example.items()},
        "required": list(example),
    }
    project.write(
        "code/hostile.py",
        "from operations import Operation, OperationSpec, from_schema\n"
        "async def echo(input, context):\n    return {'input': input}\n"
        "spec = OperationSpec(name='echo', namespace='evil', type='query', "
        f"input_schema=from_schema({schema!r}))\n"
        "operation = Operation(spec=spec, handler=echo)\n",
    )
    project.write("operations.toml", "[sources.evil]\npython = './code'\n")
    project.write("secret.txt", "the secret")
    shown = project.run("show", "evil.echo").out
    command = shown[shown.index("  ops call") :].partition("\n  more: ")[0].strip()
    done = project.run("-c", command, program=["bash"])
    assert done.data == {"input": example}
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "text",
    ["", "tea", "a b", "it's", "\\", "x\\", "\\'; touch pwned #", "''\\\\''", "$(x)`y`!", "a\nb", "=ls", "~", "é*?"],
)
def test_words_are_quoted_for_every_shell(text: str) -> None:
    """In fish, a backslash in single quotes escapes a quote; in bash, sh and zsh it does not."""
    word = shell_quoted(text)
    assert re.fullmatch(r"('[^'\\]+'|\\['\\]|[A-Za-z0-9_@+:,./-])+|''", word)
    for shell in ("bash", "sh"):
        done = subprocess.run([shell, "-c", f"printf %s {word}"], capture_output=True, check=True)
        assert done.stdout.decode() == text


def test_names_in_hints_and_usage_are_quoted(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(
        "code/hostile.py",
        "from operations import CallError, Operation, OperationSpec, from_schema\n"
        "async def fail(input, context):\n    raise CallError('VALIDATION_ERROR', 'invalid input for x; touch pwned')\n"
        "schema = from_schema({'type': 'object', 'properties': {'$(touch pwned)': {}}})\n"
        "spec = OperationSpec(name='fail', namespace='evil', type='query', input_schema=schema)\n"
        "operation = Operation(spec=spec, handler=fail)\n",
    )
    project.write("operations.toml", "[sources.evil]\npython = './code'\n")
    assert "ops call evil.fail ['$(touch pwned)'=…]" in project.run("call", "evil.fail", "--help").out
    assert "hint: example: '$(touch pwned)'=…" in project.run("call", "evil.fail", "x").err
    assert "'$(touch pwned)':=\"@x\"" not in project.run("call", "evil.fail", "$(touch pwned)=@x").err
    assert "'$(touch pwned)':='\"@x\"'" in project.run("call", "evil.fail", "$(touch pwned)=@x").err
    failed = project.run("call", "evil.fail")
    assert (failed.code, "ops show" in failed.err) == (2, False)


def test_an_example_of_a_long_string_is_short(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(
        "code/long.py",
        "from operations import Operation, OperationSpec, from_schema\n"
        "async def read(input, context):\n    pass\n"
        "schema = {'properties': {'v': {'type': 'string', 'minLength': 10**11}}, 'required': ['v']}\n"
        "spec = OperationSpec(name='read', namespace='long', type='query', input_schema=from_schema(schema))\n"
        "operation = Operation(spec=spec, handler=read)\n",
    )
    project.write("operations.toml", "[sources.long]\npython = './code'\n")
    shown = project.run("show", "long.read")
    assert shown.code == 0
    assert len(shown.out) < 200_000


def test_every_example_of_the_shop_is_valid_input(project: Project) -> None:
    for operation_id in ("shop.send", "shop.text", "other.double"):
        shown = project.run("show", operation_id, "--json").data
        given = json.dumps(shown["example"])
        assert project.run("call", operation_id, "-", stdin=given).code == 0, given


def test_show_prints_schemas_and_a_program_that_runs(project: Project) -> None:
    schemas = project.run("show", "shop.quote", "--schema").data
    assert schemas["input"]["required"] == ["item"]
    program = project.run("show", "shop.quote", "item=tea", "--python").out
    ast.parse(program)
    path = project.write("program.py", program)
    done = project.run(str(path), program=["python"])
    assert done.out == "{'item': 'tea', 'total': 2.5, 'colour': 'red'}\n"
    stream = project.run("show", "shop.ticks", "count=2", "interval=0", "--python").out
    done = project.run(str(project.write("stream.py", stream)), program=["python"])
    assert done.out == "{'n': 0}\n{'n': 1}\n"


def test_an_unknown_operation_is_reported_with_the_nearest(project: Project) -> None:
    done = project.run("show", "shop.qoute")
    assert done.code == 3
    assert "did you mean shop.quote" in done.err


def test_an_empty_configuration_prints_a_hint(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("operations.toml", "")
    done = project.run("ls")
    assert done.code == 0
    assert done.out == ""
    assert "ops add" in done.err


def test_a_skipped_file_is_reported_when_its_operation_is_called(project: Project) -> None:
    project.write("shop/broken.py", "def (")
    for words in (["ls"], ["ls"], ["call", "shop.unheard", "a=1"]):
        done = project.run(*words)
        assert "broken.py was skipped: syntax error in line 1" in done.err
        assert done.code == (0 if words == ["ls"] else 3)
    assert project.run("ls", "--quiet").err == ""
    assert "skipped" not in project.run("call", "shop.quote", "item=tea").err
    project.write("shop/broken.py", "")
    assert project.run("ls").err == ""


def test_only_the_first_of_many_skipped_files_are_reported(project: Project) -> None:
    for number in range(7):
        project.write(f"shop/broken{number}.py", "def (")
    lines = project.run("ls").err.splitlines()
    assert len(lines) == 4
    assert "4 more were skipped: run 'ops doctor' to list them" in lines[-1]


@pytest.mark.parametrize("cache", ["/proc/no-such-folder", "/dev/null"])
def test_operations_that_cannot_be_cached_are_listed_anyway(cache: str, project: Project) -> None:
    environment = {"XDG_CACHE_HOME": cache}
    assert project.run("ls", env=environment).out == project.run("ls").out
    assert project.run("search", "double", env=environment).out.startswith("other.double\t")
    assert project.run("show", "shop.quote", "--json", env=environment).data["inputSchema"]["required"] == ["item"]
    assert project.run("call", "shop.quote", "item=tea", env=environment).code == 0
    project.environment.pop("HOME", None)
    project.environment.pop("XDG_CACHE_HOME", None)
    assert project.run("call", "shop.quote", "item=tea").code == 0


def test_a_changed_source_is_listed_although_the_cache_cannot_be_updated(project: Project) -> None:
    project.run("ls")
    project.write("other/more.py", '@__import__("operations").operation(id="other.new")\ndef new() -> int: return 1\n')
    listed = project.run("ls", program=("sh", "-c", f'ulimit -f 0; exec {OPS} "$@"', "sh"))
    assert "other.new" in listed.out
    assert "shop.quote" in listed.out


def test_a_terminated_listing_closes_the_source_it_is_opening(project: Project) -> None:
    ended = project.directory / "ended"
    script = f"trap 'touch {ended}; exit 0' TERM; echo started >&2; while read line; do :; done; touch {ended}"
    project.write("operations.toml", f'[sources.slow]\ncommand = \'sh\'\nargs = [\'-c\', """{script}"""]\n')
    process = project.start("ls", "--debug")
    assert process.stderr is not None
    assert process.stdout is not None
    with process.stderr, process.stdout:
        while b"slow: started" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 143
    assert ended.exists()


def test_defaults_are_shown_as_they_are_typed(project: Project) -> None:
    project.write(
        "other/defaults.py",
        "from operations import operation\n\n\n@operation(id='other.defaults', type='query')\n"
        "def defaults(text: str = '', flag: bool = False, name: str = 'tea') -> int:\n    return 1\n",
    )
    shown = [line.split() for line in project.run("show", "other.defaults").out.splitlines()]
    assert [line[-1] for line in shown if line[:1] in (["text"], ["flag"], ["name"])] == ['[""]', "[false]", "[tea]"]


BROKEN = """[sources.other]
python = "other"
[sources.gone]
url = "http://127.0.0.1:9/mcp"
"""


def test_a_refresh_fails_if_a_source_cannot_be_opened(project: Project) -> None:
    project.write("operations.toml", BROKEN)
    for words, hint in ((["--refresh"], ""), ([], " (use --refresh to retry)")):
        done = project.run("ls", *words)
        assert "other.double\t" in done.out
        assert done.err.endswith(f"All connection attempts failed{hint}\n")
        assert done.code == (0 if hint else 6)
    done = project.run("ls", "--refresh", "--json")
    assert (done.code, [entry["id"] for entry in done.data]) == (6, ["other.double"])
    assert json.loads(done.err.splitlines()[-1])["exitCode"] == 6
    # The cache cannot be written: the exit code is the same.
    assert project.run("ls", "--refresh", env={"XDG_CACHE_HOME": "/dev/null"}).code == 6


def test_a_failed_source_that_was_asked_for_fails_the_listing(project: Project) -> None:
    project.write("operations.toml", f'{BROKEN}[sources.doc]\nopenapi = "./doc.json"\n')
    assert [project.run("ls", "--source", name).code for name in ("other", "gone", "doc")] == [0, 6, 2]
    project.write("operations.toml", '[sources.doc]\nopenapi = "./doc.json"\n')
    assert (project.run("ls").code, project.run("ls", "--refresh").code) == (0, 2)
