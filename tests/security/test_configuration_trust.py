"""A configuration runs nothing before its user trusts it, and a file of another user is never used."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from operations import CallError, ErrorCode
from operations.cli.arguments import find_command
from operations.cli.commands import SUMMARIES
from operations.config import find_config, load_config
from operations.config.file_writer import write_config
from tests.asgi_server import serving
from tests.cli.driving import Done, Project

MODULE = """
from pathlib import Path
from operations import operation

Path(__file__).with_name("imported").touch()

@operation(id="a.greet", type="query")
def greet(name: str = "you") -> str:
    return "hello " + name
"""
PYTHON = "[sources.a]\npython = './code'\n"
COMMAND = "[sources.a]\ncommand = 'touch'\nargs = ['./started']\n"
SECRET = "s3cret-value-of-a-variable"

USES: dict[str, Sequence[str]] = {
    "ls": ["ls"],
    "search": ["search", "greet"],
    "show": ["show", "a.greet"],
    "call": ["call", "a.greet"],
    "sub": ["sub", "a.greet"],
    "map": ["map", "a.greet"],
    "hub": ["hub", "--port", "0", "--serve"],
    "spoke": ["spoke", "--url", "ws://127.0.0.1:9/"],
    "worker": ["worker", "--url", "ws://127.0.0.1:9/"],
    "doctor": ["doctor"],
    "serve": ["serve", "--http", "127.0.0.1:0"],
    "stubs": ["stubs"],
    "jobs submit": ["jobs", "submit", "a.greet"],
    "jobs ls": ["jobs", "ls"],
    "jobs show": ["jobs", "show", "a.b"],
    "jobs wait": ["jobs", "wait", "a.b"],
    "jobs cancel": ["jobs", "cancel", "a.b"],
    "jobs dead": ["jobs", "dead"],
    "jobs retry": ["jobs", "retry", "a.b"],
    "keys new": ["keys", "new", "ada"],
    "keys ls": ["keys", "ls"],
    "keys revoke": ["keys", "revoke", "ada"],
    "add mcp": ["add", "mcp", "more", "--", "true"],
    "add openapi": ["add", "openapi", "more", "./api.json"],
    "add py": ["add", "py", "more", "./more"],
}
"""The commands that open sources of a configuration, or write files that it names."""
OPENS_NOTHING = {
    *("init", "trust", "scan", "config show", "config schema", "config path", "completion"),
    *("install", "rm", "edit", "add --discover", "version"),
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A directory with an untrusted configuration."""
    made = Project(tmp_path / "project")
    del made.environment["OPERATIONS_TRUST"]
    made.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    made.environment["OPERATIONS_TOKEN"] = "t0ken"
    made.write("code/greetings.py", MODULE)
    made.write("operations.toml", PYTHON)
    return made


def ran(project: Project) -> list[str]:
    """What was run in a project."""
    return [name for name in ("code/imported", "started") if (project.directory / name).exists()]


def refused(done: Done, *texts: str, command: str = "ops trust") -> None:
    """Check that a command failed for lack of trust, with one line that lists the actions."""
    assert done.code == 4, done
    assert done.out == ""
    error, hint = done.err.splitlines()
    assert error.startswith("error: ")
    assert all(text in error for text in texts), error
    assert hint == f"hint: run `{command}` to trust it, or pass --trust or OPERATIONS_TRUST=1 for one command"


def as_another_user(project: Project, *words: str, **env: str) -> Done:
    """Run a command as a user who owns none of the files."""
    code = (
        "import os, sys\nos.geteuid = lambda: 54321\nfrom operations.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    )
    return project.run(*words, program=[sys.executable, "-c", code], env=env)


def give_away(path: Path) -> None:
    """Give a file to another user, if root runs the tests; else skip the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away: the same is tested with another user's id")
    os.chown(path, 54321, -1, follow_symlinks=False)


def test_every_command_is_tested() -> None:
    leaves = {part.name for name in SUMMARIES for part in (find_command(name).parts or [find_command(name)])}
    assert leaves == {*USES, *OPENS_NOTHING}


def test_the_hint_names_a_file_that_is_not_the_nearest_configuration(project: Project) -> None:
    path = project.write("my own.toml", PYTHON)
    refused(project.run("ls", "-c", "my own.toml"), str(path), command=f"ops trust -c '{path}'")
    assert f"run 'ops trust -c '{path}'' to allow" in " ".join(project.run("doctor", "-c", "my own.toml").out.split())
    assert project.run("trust", "-c", str(path)).code == 0
    assert project.run("ls", "-c", "my own.toml").code == 0


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("text", [PYTHON, COMMAND], ids=["imports", "starts"])
def test_nothing_is_run_that_is_not_trusted(name: str, text: str, project: Project) -> None:
    path = project.write("operations.toml", text)
    done = project.run(*USES[name])
    assert ran(project) == []
    assert path.read_text() == text
    assert not (project.directory / ".cache").exists()
    would = "import ./code" if text == PYTHON else "start touch ./started"
    if name == "doctor":
        assert done.code == 4
        assert f"not trusted; actions: {would} (a)" in " ".join(done.out.split())
        assert "fix: run 'ops trust'" in done.out
    else:
        refused(done, f"{path} is not trusted; it would {would}")


def test_commands_that_open_no_source_need_no_trust(project: Project) -> None:
    assert project.run("config", "show").data["sources"]["a"]["python"] == "./code"
    assert project.run("config", "path").code == 0
    assert ran(project) == []


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server, and the credentials that reached it."""
    seen: list[str] = []

    async def answer(request: Request) -> Response:
        seen.append(f"{request.url} {request.headers.get('authorization')}")
        paths = {"/x": {"get": {"operationId": "x", "responses": {"200": {}}}}}
        return JSONResponse({"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths})

    with serving(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as url:
        yield url, seen


@pytest.mark.parametrize(
    ("table", "would"),
    [
        ('openapi = "{url}/openapi.json?key=${{AWS_SECRET_ACCESS_KEY}}"', "send ${{AWS_SECRET_ACCESS_KEY}} to {url}/"),
        ('url = "{url}/mcp"\nheaders = {{ X-Key = "${{AWS_SECRET_ACCESS_KEY}}" }}', "send ${{AWS_SECRET_ACCESS_KEY}}"),
        (
            'openapi = "{url}/o.json"\nauth = {{ type = "bearer", token = "${{A:-${{AWS_SECRET_ACCESS_KEY}}}}" }}',
            "send",
        ),
    ],
)
def test_no_variable_is_sent(table: str, would: str, project: Project, listener: tuple[str, list[str]]) -> None:
    url, seen = listener
    seen.clear()
    project.write("operations.toml", f"[sources.a]\n{table.format(url=url)}\n")
    for words in (["ls"], ["call", "a.x"], ["doctor"]):
        done = project.run(*words, env={"AWS_SECRET_ACCESS_KEY": SECRET})
        assert done.code == 4
        assert would.format(url=url) in done.out + done.err
        assert SECRET not in done.out + done.err
    assert seen == []


def test_a_document_without_variables_needs_no_trust(project: Project, listener: tuple[str, list[str]]) -> None:
    url, _ = listener
    project.write("operations.toml", f'[sources.a]\nopenapi = "{url}/openapi.json"\n')
    assert project.run("ls").out.startswith("a.x\t")
    assert "not needed" in project.run("doctor").out


def test_a_transport_is_not_connected_to(project: Project, listener: tuple[str, list[str]]) -> None:
    url, seen = listener
    seen.clear()
    address = url.replace("http://", "ws://")
    text = f'[transports.office]\nurl = "{address}/"\n[transports."ws://127.0.0.1:9/"]\nurl = "{address}/"\n'
    project.write("operations.toml", text)
    refused(project.run("call", "a.greet", "--url", "office"), f"connect to {address}/")
    # An address on the command line is used as it is, even if an untrusted file has a transport of that name.
    done = project.run("call", "a.greet", "--url", "ws://127.0.0.1:9/")
    assert done.code == 6
    assert "127.0.0.1:9" in done.err
    assert seen == []


def test_trust_in_a_transport_does_not_depend_on_its_variables(project: Project) -> None:
    text = '[transports.office]\nurl = "ws://127.0.0.1:9/"\ntoken = "${OFFICE_TOKEN}"\n'
    project.write("operations.toml", text)
    refused(project.run("ls"), "connect to ws://127.0.0.1:9/")
    trusted = project.run("trust", "--json")
    assert trusted.data["actions"] == [{"name": "office", "action": "connect to ws://127.0.0.1:9/"}]
    called = project.run("call", "a.greet", "--url", "office", env={"OFFICE_TOKEN": "one"})
    assert called.code == 6, called.err


SERVED = {
    "an issuer": (
        '[serve]\npublic_url = "http://127.0.0.1"\n'
        '[serve.issuer]\nurl = "https://issuer.test"\nkeys_url = "{url}/${{AWS_SECRET_ACCESS_KEY}}"\n',
        "send ${{AWS_SECRET_ACCESS_KEY}} to {url}/${{AWS_SECRET_ACCESS_KEY}}",
    ),
    "a title": (
        '[serve]\ntitle = "${{AWS_SECRET_ACCESS_KEY}}"\n',
        "send ${{AWS_SECRET_ACCESS_KEY}} from [serve] to callers",
    ),
    "an identity": (
        '[[hub.tokens]]\ntoken = "known"\nidentity = "${{AWS_SECRET_ACCESS_KEY}}"\n',
        "send ${{AWS_SECRET_ACCESS_KEY}} from [hub] to callers",
    ),
    "a scope": (
        '[access]\n"*" = ["${{AWS_SECRET_ACCESS_KEY}}"]\n',
        "send ${{AWS_SECRET_ACCESS_KEY}} from [access] to callers",
    ),
}


@pytest.mark.parametrize("what", SERVED)
def test_no_variable_is_sent_by_serving(what: str, project: Project, listener: tuple[str, list[str]]) -> None:
    url, seen = listener
    seen.clear()
    table, would = (text.format(url=url) for text in SERVED[what])
    project.write("api.json", '{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}')
    # An unset variable of an included file must not hide the table.
    project.write("more.toml", "[serve]\ntitle = '${UNSET_VARIABLE}'\n")
    project.write("operations.toml", f"include = ['more.toml']\n{table}[sources.a]\nopenapi = './api.json'\n")
    for words in (["serve", "--http", "127.0.0.1:0"], ["hub", "--port", "0"], ["ls"]):
        refused(project.run(*words, env={"AWS_SECRET_ACCESS_KEY": SECRET}), would)
    assert seen == []
    # Except in access rules, the variable need not be set.
    assert project.run("trust", env={"AWS_SECRET_ACCESS_KEY": SECRET} if what == "a scope" else {}).code == 0
    assert project.run("ls", env={"AWS_SECRET_ACCESS_KEY": SECRET}).code == 0


def test_settings_that_are_not_sent_need_no_trust(project: Project) -> None:
    text = "[[hub.tokens]]\ntoken = '${HUB_TOKEN:-t0ken}'\nidentity = 'ada'\n"
    project.write("operations.toml", f"{text}[serve]\nhttp = '127.0.0.1:${{PORT:-0}}'\nkeys = '${{KEYS:-keys.json}}'\n")
    assert project.run("ls").code == 0


def test_processes_of_a_worker_do_not_import_modules_of_the_current_directory(project: Project) -> None:
    head = '"openapi": "3.1.0", "info": {"title": "t", "version": "1"}'
    project.write("api.json", f'{{{head}, "paths": {{"/x": {{"get": {{}}}}}}}}')
    project.write("operations.toml", "[sources.a]\nopenapi = './api.json'\n")
    for name in ("operations", "msgspec"):
        project.write(f"{name}.py", "from pathlib import Path\n\nPath('started').touch()\n")
    with project.start("worker", "--url", "ws://127.0.0.1:9/", "--processes", "1") as process:
        assert process.stderr is not None
        seen = b""
        while b"cannot be reached" not in seen and b"starting another one" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.terminate()
        process.communicate(timeout=60)
    assert ran(project) == []


def test_completion_without_a_cache_prints_nothing(project: Project) -> None:
    def offered(env: dict[str, str]) -> list[str]:
        done = project.run("__complete", "bash", "ops call a.", env=env)
        assert (done.code, done.err) == (0, "")
        return done.out.splitlines()

    trusted = {"OPERATIONS_TRUST": "1"}
    assert offered({}) == []
    assert offered(trusted) == []  # completion opens no source
    assert ran(project) == []
    project.run("ls", env=trusted)
    assert offered(trusted) == ["a.greet"]
    assert offered({}) == []
    assert project.run("ls").code == 4
    assert project.run("ls", "--cached").code == 4


def test_a_command_trusts_it_from_then_on(project: Project) -> None:
    done = project.run("trust", "--json")
    assert done.data == {
        "config": str(project.directory / "operations.toml"),
        "trusted": True,
        "actions": [{"name": "a", "action": "import ./code"}],
    }
    assert ran(project) == []
    assert project.run("call", "a.greet").data == "hello you"
    assert "by ops trust, since 2" in project.run("doctor").out
    assert project.run("trust", "--revoke").code == 0
    assert project.run("ls").code == 4


@pytest.mark.parametrize(("words", "env"), [(["--trust"], {}), ([], {"OPERATIONS_TRUST": "1"})])
def test_one_command_is_trusted(words: list[str], env: dict[str, str], project: Project) -> None:
    assert project.run(*words, "call", "a.greet", env=env).data == "hello you"
    assert project.run("call", "a.greet").code == 4
    way = "--trust" if words else "OPERATIONS_TRUST=1"
    assert f"by {way}, for this command; allowed actions:\n" in project.run("doctor", *words, env=env).out
    assert not (project.directory.parent / "state").exists()


@pytest.mark.parametrize("value", ["0", "", "true", "no"])
def test_another_value_of_the_variable_trusts_nothing(value: str, project: Project) -> None:
    assert project.run("ls", env={"OPERATIONS_TRUST": value}).code == 4


def test_a_terminal_is_asked_once(project: Project) -> None:
    with project.terminal("call", "a.greet") as terminal:
        shown = terminal.until("Trust it? [y/N] ")
        assert f"{project.directory}/operations.toml is not trusted. Its actions:\n  import ./code  (a)" in shown
        assert ran(project) == []
        terminal.press("y\n")
        assert terminal.end() == 0
        assert "hello you" in terminal.shown
    with project.terminal("call", "a.greet") as terminal:
        assert terminal.end() == 0
        assert "Trust it?" not in terminal.shown
    assert "by a terminal, since" in project.run("doctor").out


@pytest.mark.parametrize("keys", ["n\n", "\n", "\x04", "\x03"], ids=["no", "enter", "end of input", "Ctrl-C"])
def test_only_yes_is_yes(keys: str, project: Project) -> None:
    with project.terminal("ls") as terminal:
        terminal.until("Trust it? [y/N] ")
        terminal.press(keys)
        assert terminal.end() == (130 if keys == "\x03" else 4)
    assert ran(project) == []
    assert project.run("ls").code == 4


def test_files_written_by_init_and_add_are_trusted(project: Project) -> None:
    (project.directory / "operations.toml").unlink()
    assert project.run("init", "-q").code == 0
    assert project.run("call", "hello.greet", "name=Ada").data == {"greeting": "Hello, Ada!"}
    assert "by ops init, since" in project.run("doctor").out
    assert project.run("add", "py", "more", "./code").code == 0
    assert project.run("call", "a.greet").data == "hello you"
    assert "by ops add, since" in project.run("doctor").out


@pytest.mark.parametrize("form", ["a directory", "a link"])
def test_init_does_not_trust_code_that_is_already_there(form: str, project: Project) -> None:
    (project.directory / "operations.toml").unlink()
    project.write("ops/hello.py" if form == "a directory" else "elsewhere/hello.py", MODULE)
    if form == "a link":
        (project.directory / "ops").symlink_to("elsewhere")
    done = project.run("init")
    assert (done.code, done.out.splitlines()[-1]) == (0, "Next: ops trust")
    refused(project.run("ls"), "it would import ./ops")
    assert ran(project) == []


def test_init_writes_no_file_through_a_link(project: Project) -> None:
    (project.directory / "operations.toml").unlink()
    (project.directory / "ops").mkdir()
    (project.directory / "ops" / "hello.py").symlink_to("../planted.py")
    assert project.run("init", "-q").code == 0
    assert not (project.directory / "planted.py").exists()


def test_the_directory_of_init_is_quoted(project: Project) -> None:
    done = project.run("init", "my dir; touch pwned")
    assert "Next: cd 'my dir; touch pwned' && ops call hello.greet name=Ada" in done.out


def test_adding_to_a_file_trusts_nothing_else_of_it(project: Project) -> None:
    project.write("more/other.py", MODULE.replace("a.greet", "b.greet"))
    project.write("operations.toml", COMMAND)
    before = (project.directory / "operations.toml").read_text()
    refused(project.run("add", "py", "more", "./more", "--no-check"), "start touch ./started")
    assert (project.directory / "operations.toml").read_text() == before
    project.write("operations.toml", COMMAND + "nonsense = 1\n")
    assert project.run("add", "py", "more", "./more", "--no-check").code == 0
    text = (project.directory / "operations.toml").read_text().replace("nonsense = 1\n", "")
    project.write("operations.toml", text)
    refused(project.run("ls"), "start touch ./started; import ./more")
    assert ran(project) == []


CHANGES = {
    "an argument": ("operations.toml", COMMAND, COMMAND.replace("./started", "./other")),
    "the command": ("operations.toml", COMMAND, COMMAND.replace("touch", "mkdir")),
    "its environment": ("operations.toml", COMMAND, COMMAND + "env = { LD_PRELOAD = './x.so' }\n"),
    "another source": ("operations.toml", PYTHON, PYTHON + "[sources.b]\npython = './more'\n"),
    "the module": ("operations.toml", PYTHON, PYTHON.replace("./code", "./more")),
    "the import path": ("operations.toml", PYTHON, PYTHON + "pythonpath = ['./more']\n"),
    "where credentials go": (
        "operations.toml",
        "[sources.a]\nopenapi = 'x.json'\nbase_url = 'http://127.0.0.1:1'\nheaders = { K = '${PATH}' }\n",
        "[sources.a]\nopenapi = 'x.json'\nbase_url = 'http://127.0.0.1:2'\nheaders = { K = '${PATH}' }\n",
    ),
    "a variable in another setting": (
        "operations.toml",
        "[sources.a]\nurl = 'http://127.0.0.1:1'\nheaders = { K = '${PATH}' }\n",
        "[sources.a]\nurl = 'http://127.0.0.1:1'\nheaders = { K = '${PATH}' }\nprotocol = '${HOME}'\n",
    ),
    "an editor's file": (
        ".mcp.json",
        json.dumps({"mcpServers": {"a": {"command": "true"}}}),
        json.dumps({"mcpServers": {"a": {"command": "touch", "args": ["./started"]}}}),
    ),
    "an included file": ("more.toml", COMMAND, COMMAND.replace("touch", "mkdir")),
    "a file of variables": (".env", "PROGRAM=true", "PROGRAM=touch"),
    "a server's file of variables": ("server.env", "A=1", "LD_PRELOAD=./x.so"),
}
ROOTS = {
    ".mcp.json": "include = ['.mcp.json']\n",
    "more.toml": "include = ['more.toml']\n",
    ".env": "env_file = '.env'\n[sources.a]\ncommand = '${PROGRAM}'\nargs = ['./started']\n",
    "server.env": COMMAND + "env_file = 'server.env'\n",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_actions_needs_consent_again(what: str, project: Project) -> None:
    name, before, after = CHANGES[what]
    project.write("operations.toml", ROOTS.get(name, ""))
    project.write(name, before)
    assert project.run("trust").code == 0
    assert "changed since" not in project.run("doctor").out
    for each in ran(project):
        (project.directory / each).unlink()
    project.write(name, after)
    done = project.run("ls")
    assert done.code == 4, done
    assert "operations.toml changed since it was trusted; it would " in done.err
    assert "changed since it was trusted" in project.run("doctor").out
    assert ran(project) == []


HARMLESS = {
    "a comment": PYTHON + "# more\n",
    "layout": PYTHON.replace(" = ", "="),
    "a filter": PYTHON + "deny = ['x']\nrename = { greet = 'hail' }\nnamespace = 'b'\n",
    "a time limit": PYTHON + "open_timeout = 5\n",
    "access rules": PYTHON + "[access]\n'*' = ['x']\n",
    "a source that is disabled": PYTHON + "[sources.b]\ncommand = 'true'\ndisabled = true\n",
}


@pytest.mark.parametrize("what", HARMLESS)
def test_other_changes_need_no_consent(what: str, project: Project) -> None:
    project.run("trust")
    project.write("operations.toml", HARMLESS[what])
    assert project.run("ls").code == 0
    assert ran(project) == ["code/imported"]


def test_trust_is_for_one_place(project: Project) -> None:
    project.run("trust")
    copied = project.directory / "copied"
    copied.mkdir()
    (copied / "operations.toml").write_text(PYTHON)
    assert project.run("ls", "-c", str(copied)).code == 4
    # A link to a trusted file would run code in the directory of the link.
    (copied / "operations.toml").unlink()
    (copied / "operations.toml").symlink_to(project.directory / "operations.toml")
    assert project.run("ls", "-c", str(copied / "operations.toml")).code == 4
    linked = project.directory.parent / "linked"
    linked.symlink_to(project.directory)
    assert project.run("ls", "-c", str(linked)).code == 0


def test_trust_records_are_private_and_their_owner_is_checked(project: Project) -> None:
    project.run("trust")
    (record,) = (project.directory.parent / "state" / "operations" / "trust").iterdir()
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    assert project.run("ls").code == 0
    record.chmod(0o622)  # other users could have written it
    assert project.run("ls").code == 4
    record.chmod(0o600)
    give_away(record)
    assert project.run("ls").code == 4


def test_a_file_of_another_user_is_never_used(project: Project) -> None:
    # Files of root are accepted, so a test that runs as root gives the file to another user.
    path = project.directory / "operations.toml"
    if os.geteuid() == 0:
        os.chown(path, 1, -1)
    for words in (
        ["ls"],
        ["ls", "--trust"],
        ["ls", "-c", str(path)],
        ["config", "show"],
        ["trust"],
        ["config", "path"],
    ):
        done = as_another_user(project, *words, OPERATIONS_TRUST="1")
        assert done.code == 4, (words, done)
        assert f"error: {path} belongs to another user (uid " in done.err
    done = as_another_user(project, "doctor", OPERATIONS_TRUST="1")
    assert done.code == 4
    assert "belongs to another user" in done.out
    assert ran(project) == []


def test_an_included_file_of_another_user_is_never_used(project: Project) -> None:
    project.write("operations.toml", "include = ['.mcp.json']\n")
    included = project.write(".mcp.json", json.dumps({"mcpServers": {"a": {"command": "touch", "args": ["started"]}}}))
    give_away(included)
    done = project.run("ls", "--trust")
    assert done.code == 4
    assert f"{included} belongs to another user (uid 54321) and is not used" in done.err
    assert ran(project) == []


def test_a_link_of_another_user_is_never_used(project: Project) -> None:
    own = project.write("mine.toml", PYTHON)
    path = project.directory / "operations.toml"
    path.unlink()
    path.symlink_to(own)
    assert project.run("ls", "--trust").code == 0
    give_away(path)
    assert project.run("ls", "--trust").code == 4


@pytest.mark.parametrize("shared", ["everybody can write to it", "it belongs to another user"])
def test_a_shared_directory_above_is_not_searched(shared: str, project: Project, tmp_path: Path) -> None:
    below = project.directory / "below"
    below.mkdir()
    assert find_config(below) == project.directory / "operations.toml"
    if shared == "everybody can write to it":
        project.directory.chmod(0o1777)
    else:
        give_away(project.directory)
    assert find_config(below) is None
    assert find_config(project.directory) == project.directory / "operations.toml"


def test_a_file_of_another_user_above_ends_the_search(project: Project) -> None:
    below = project.directory / "a" / "b"
    below.mkdir(parents=True)
    middle = project.write("a/operations.toml", COMMAND)
    give_away(middle)
    assert find_config(below) is None
    done = project.run("ls", "--trust", "-c", str(below))
    assert done.code == 4
    assert f"{middle} belongs to another user" in done.err
    assert ran(project) == []


def test_a_program_trusts_the_file_that_it_names(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.directory)
    environ = {"XDG_STATE_HOME": project.environment["XDG_STATE_HOME"]}
    path = project.directory / "operations.toml"
    assert load_config(path, environ=environ).path == path
    with pytest.raises(CallError, match=r"is not trusted; it would import \./code") as caught:
        load_config(environ=environ)
    assert caught.value.code is ErrorCode.ACCESS_DENIED
    assert load_config(environ={**environ, "OPERATIONS_TRUST": "1"}).path == path
    project.run("trust")
    assert load_config(environ=environ).path == path


def test_the_trust_prompt_shows_no_secrets_or_control_characters(project: Project) -> None:
    args = "args = ['--token', 'literal-s3cret', \"\\u001b]0;x\\u0007\\n\\u202e\"]"
    project.write("operations.toml", f"[sources.a]\ncommand = 'tool'\n{args}\n")
    done = project.run("ls")
    refused(done, "start tool --token [redacted]", "\\x1b]0;x\\x07", "\\u202e")
    assert "literal-s3cret" not in done.err
    with project.terminal("ls", env={"NO_COLOR": "1"}) as terminal:
        shown = terminal.until("Trust it? [y/N] ")
        assert "\x1b]" not in terminal.raw
        assert "\\x1b]0;x\\x07" in shown
        assert "literal-s3cret" not in shown


def test_a_line_break_does_not_add_a_line_to_the_trust_prompt(project: Project) -> None:
    lines = "\\n  import ./harmless  (b)" + "\\n" * 60
    project.write("operations.toml", f'[sources."a{lines}"]\ncommand = \'touch\'\nargs = ["./started{lines}"]\n')
    with project.terminal("ls", env={"NO_COLOR": "1"}, columns=1000) as terminal:
        shown = terminal.until("Trust it? [y/N] ")
    assert len(shown.splitlines()) == 3, shown


def test_no_tokens_are_stored_where_an_untrusted_file_says(project: Project) -> None:
    oauth = "oauth = { client_id = 'a', client_secret = 'b', storage = '~' }"
    project.write("operations.toml", f"[sources.a]\nurl = 'http://127.0.0.1:9/'\n{oauth}\n")
    refused(project.run("ls"), "it would store tokens in ~")


DEVICES = {
    "a document": "[sources.a]\nopenapi = './endless'\n",
    "a file of variables": "env_file = './endless'\n",
    "a server's file of variables": "[sources.a]\nurl = 'http://127.0.0.1:9'\nenv_file = './endless'\n",
    "an included file": "include = ['./endless']\n",
}


@pytest.mark.parametrize("what", [*DEVICES, "an editor's file"])
def test_a_pipe_is_not_read(what: str, project: Project) -> None:
    """Its content never ends if no process writes to it."""
    if what == "an editor's file":
        os.mkfifo(project.directory / ".mcp.json")
        assert project.run("add", "--discover", env={"HOME": str(project.directory)}, timeout=20).code == 3
        return
    os.mkfifo(project.directory / "endless")
    project.write("operations.toml", DEVICES[what])
    done = project.run("doctor", timeout=20)
    assert "it is a device or a pipe" in " ".join((done.out + done.err).split())


@pytest.mark.parametrize("what", [*DEVICES, "an editor's file"])
def test_a_huge_file_does_not_fill_the_memory(what: str, project: Project) -> None:
    """A sparse file of 1 TB takes no space in an archive."""
    path = project.directory / (".mcp.json" if what == "an editor's file" else "endless")
    path.touch()
    os.truncate(path, 1 << 40)
    if what == "an editor's file":
        assert project.run("add", "--discover", env={"HOME": str(project.directory)}, timeout=20).code == 3
        return
    project.write("operations.toml", DEVICES[what])
    done = project.run("doctor", timeout=20)
    assert "it is larger than " in " ".join((done.out + done.err).split())


def test_a_file_that_becomes_a_pipe_is_not_read_for_the_cache(project: Project) -> None:
    project.write("api.json", '{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}')
    project.write("more.toml", "[sources.a]\nopenapi = './api.json'\n")
    project.write("operations.toml", "include = ['./more.toml']\n")
    assert project.run("ls").code == 0
    (project.directory / "more.toml").unlink()
    os.mkfifo(project.directory / "more.toml")
    assert "it is a device or a pipe" in project.run("ls", timeout=20).err


def test_the_user_can_name_a_pipe(project: Project) -> None:
    project.write("api.json", '{"openapi": "3.1.0", "paths": {"/a": {"get": {"operationId": "get"}}}}')
    command = ["bash", "-c", f"{sys.executable} -m operations ls --openapi <(cat api.json)"]
    assert project.run(program=command).out.startswith("api.get\t")


@pytest.mark.parametrize("what", DEVICES)
def test_a_device_is_not_read(what: str, project: Project) -> None:
    """A clone may contain a link to a device that never ends; it is read before anybody is asked."""
    (project.directory / "endless").symlink_to("/dev/zero")
    project.write("operations.toml", DEVICES[what])
    done = project.run("doctor", timeout=20)
    assert "it is a device" in " ".join((done.out + done.err).split())


def test_a_document_does_not_read_files_through_links_out_of_its_directory(project: Project) -> None:
    project.write("private.json", '{"type": "string", "default": "the secret"}')
    api = project.directory / "api"
    api.mkdir()
    (api / "link.json").symlink_to("../private.json")
    parameter = {"name": "key", "in": "query", "schema": {"$ref": "link.json"}}
    paths = {"/a": {"get": {"operationId": "get", "parameters": [parameter]}}}
    main = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}
    project.write("api/main.json", json.dumps(main))
    project.write("operations.toml", "[sources.a]\nopenapi = './api/main.json'\nbase_url = 'http://127.0.0.1:9'\n")
    shown = project.run("show", "a.get")
    assert "key" in shown.out
    assert "the secret" not in shown.out + shown.err
    (api / "link.json").unlink()
    project.write("api/link.json", (project.directory / "private.json").read_text())
    assert "the secret" in project.run("show", "a.get").out


def test_a_file_that_is_nested_too_deeply_is_an_error_with_its_name(project: Project) -> None:
    path = project.write("operations.toml", "a = " + "[" * 100_000)
    done = project.run("ls")
    assert done.code == 2
    assert f"{path}:1: invalid TOML: nested too deeply" in done.err


def test_a_source_that_repairs_an_untrusted_file_does_not_make_it_trusted(project: Project) -> None:
    project.write("api.json", '{"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}}')
    project.write("operations.toml", COMMAND + "[sources.pets]\nopenapi = './api.json'\nbase_urll = 3\n")
    done = project.run("add", "openapi", "pets", "./api.json", "--replace")
    assert done.code == 4, done
    assert ran(project) == []
    assert "base_urll" in (project.directory / "operations.toml").read_text()


def test_a_file_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", bytes)  # a name that an attacker knows
    (tmp_path / "precious").write_text("kept")
    (tmp_path / f".operations.toml.{bytes(8).hex()}").symlink_to("precious")
    with pytest.raises((OSError, CallError)):
        write_config(tmp_path / "operations.toml", "")
    assert (tmp_path / "precious").read_text() == "kept"
