"""`--json` with every command: stdout is JSON or empty, and every line of stderr is JSON."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operations.cli.arguments import find_command
from operations.cli.commands import SUMMARIES
from operations.cli.main import main
from tests.cli.conftest import make_project
from tests.cli.driving import Done, Project

LEAVES = [
    part.name
    for name in SUMMARIES
    for part in (find_command(name).parts or [find_command(name)])
    if part.run is not None
]
"""Every command, from the command table, so that a new command without a case fails."""
LASTING = {"hub", "spoke", "worker", "serve"}
JOBS = ["jobs submit", "jobs ls", "jobs show", "jobs wait", "jobs cancel", "jobs dead", "jobs retry"]
"""Commands that need a broker; test_jobs.py runs them with one."""
NO_BROKER = ["--url", "redis://127.0.0.1:9"]


class Case(NamedTuple):
    """A command that succeeds, and one that fails."""

    works: Sequence[str]
    fails: Sequence[str]
    code: int
    stdin: str = ""


CASES = {
    "init": Case(["init", "new"], ["init", "api.json"], 2),
    "add mcp": Case(["add", "mcp", "m", "--no-check", "--", "nothing"], ["add", "mcp", "m", "--", "./nothing-here"], 6),
    "add openapi": Case(["add", "openapi", "o", "./api.json"], ["add", "openapi", "o", "./nothing.json"], 2),
    "add py": Case(["add", "py", "p", "./extra"], ["add", "py", "shop", "./extra"], 2),
    "add --discover": Case(["add", "--discover"], ["add", "--discover", "nothing.json"], 2),
    "rm": Case(["rm", "other"], ["rm", "nothing"], 3),
    "edit": Case(["edit"], ["edit", "nothing"], 3),
    "trust": Case(["trust"], ["trust", "-c", "/"], 2),
    "doctor": Case(["doctor"], ["doctor", "-c", "dead/operations.toml"], 6),
    "ls": Case(["ls"], ["ls", "nothing.like.it"], 3),
    "search": Case(["search", "quote"], ["search", "zzzzzz"], 3),
    "show": Case(["show", "shop.quote"], ["show", "shop.qoute"], 3),
    "call": Case(["call", "shop.quote", "item=tea"], ["call", "shop.fail"], 5),
    "sub": Case(["sub", "shop.ticks", "count=2", "interval=0"], ["sub", "shop.quote", "item=tea"], 2),
    "map": Case(["map", "shop.quote"], ["map", "shop.fail"], 5, stdin='{}\n{"item":"tea"}\n'),
    "hub": Case(["hub", "--port", "0"], ["hub", "--host", "host.invalid"], 6),
    "spoke": Case(["spoke"], ["spoke", "--url", "nowhere"], 2),
    "worker": Case(["worker"], ["worker", "--url", "gopher://127.0.0.1"], 2),
    "serve": Case(["serve", "--http", "127.0.0.1:0"], ["serve", "--http", "host.invalid:1"], 2),
    "keys new": Case(["keys", "new", "ann", "--keys", "keys.json"], ["keys", "new", "ann"], 2),
    "keys ls": Case(["keys", "ls", "--keys", "keys.json"], ["keys", "ls"], 2),
    "keys revoke": Case(
        ["keys", "revoke", "AAAAAAAAAAAA", "--keys", "known.json"], ["keys", "revoke", "x", "--keys", "k.json"], 3
    ),
    "install": Case(["install", "cursor"], ["install", "emacs"], 2),
    "scan": Case(["scan", "./shop"], ["scan", "./empty"], 3),
    "stubs": Case(["stubs"], ["stubs", "--output", "/dev/null"], 2),
    "config show": Case(["config", "show"], ["config", "show", "-c", "bad/operations.toml"], 2),
    "config schema": Case(["config", "schema"], ["config", "schema", "more"], 2),
    "config path": Case(["config", "path"], ["config", "path", "-c", "/"], 3),
    "completion": Case(["completion", "bash"], ["completion", "tcsh"], 2),
    "version": Case(["version"], ["version", "more"], 2),
    **{
        name: Case([], [*name.split(), *NO_BROKER, *([] if name in ("jobs ls", "jobs dead") else ["shop.quote"])], 6)
        for name in JOBS
    },
}
BROKEN = {
    "toml": "[sources.shop\n",
    "key": '[sources.shop]\npyhton = "./shop"\n',
    "variable": 'include = ["${NO_SUCH_VARIABLE}"]\n',
}


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """A project with everything that the cases need."""
    project = make_project(tmp_path)
    project.write("extra/more.py", "from operations import operation\n\n@operation\ndef more() -> int: return 1\n")
    project.write("empty/nothing.py", "")
    project.write(".mcp.json", '{"mcpServers": {}}')
    project.environment |= {"EDITOR": "true", "VISUAL": "", "HOME": str(tmp_path)}
    known = {"id": "AAAAAAAAAAAA", "identity": "ann", "sha256": "0" * 64, "createdAt": 1.0}
    project.write("known.json", json.dumps([known]))
    project.write("bad/operations.toml", "[sources.shop\n")
    project.write("dead/operations.toml", '[sources.gone]\ncommand = "./no-such-program"\n')
    operation = {"operationId": "a", "responses": {"200": {"description": "fine"}}}
    document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {"/a": {"get": operation}}}
    project.write("api.json", json.dumps(document))
    return project


def records(text: str) -> list[dict[str, Any]]:
    """The lines of stderr, each an object with its level."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all(line["level"] in ("error", "warning", "info", "debug", "output") for line in lines), text
    assert all(isinstance(line["message"], str) for line in lines), text
    return lines


def the_error(done: Done) -> dict[str, Any]:
    """The single error of a failed command, which is the last line."""
    errors = [line for line in records(done.err) if line["level"] == "error"]
    assert len(errors) == 1, done.err
    assert errors[0] is not None
    assert records(done.err)[-1] == errors[0]
    assert errors[0].keys() - {"traceback"} == {"level", "message", "code", "details", "hint", "exitCode"}
    assert errors[0]["exitCode"] == done.code
    assert "\x1b" not in done.err
    return errors[0]


def test_every_command_has_its_cases() -> None:
    assert set(CASES) == set(LEAVES)


@pytest.mark.parametrize("name", [name for name in LEAVES if name not in {*LASTING, *JOBS}])
def test_a_successful_command_prints_json_on_stdout_and_no_error(name: str, shop: Project) -> None:
    case = CASES[name]
    done = shop.run(*case.works[:2], "--json", *case.works[2:], stdin=case.stdin)
    lines = records(done.err)
    if name == "map":  # the line that lacks its item
        assert (done.code, the_error(done)["code"]) == (2, "USAGE_ERROR")
    else:
        assert done.code == 0, done.err
        assert not [line for line in lines if line["level"] == "error"]
    assert done.lines
    quiet = shop.run("--quiet", "--json", *case.fails, stdin=case.stdin)
    assert {line["level"] for line in records(quiet.err)} == {"error"}


@pytest.mark.parametrize("name", LEAVES)
def test_a_failing_command_prints_one_json_error_with_the_same_exit_code(name: str, shop: Project) -> None:
    case = CASES[name]
    env = {"OPERATIONS_TOKEN": "a-token-of-the-hub"}
    done = shop.run(case.fails[0], "--json", *case.fails[1:], stdin=case.stdin, env=env)
    error = the_error(done)
    assert done.code == case.code, done.err
    assert error["code"]
    assert error["message"]
    assert len(done.lines) <= 2
    plain = shop.run(*case.fails, stdin=case.stdin, env=env)
    assert plain.code == done.code
    assert not plain.err.startswith("{")


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("place", ["before", "after", "middle"])
def test_usage_errors_are_json_at_any_position_of_the_option(
    name: str, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATIONS_PYTHON", "python")
    words = {
        "before": ["--json", *name.split(), "--no-such-option"],
        "after": [*name.split(), "--no-such-option", "--json"],
        "middle": [*name.split(), "--json", "--no-such-option"],
    }[place]
    code = main(words)
    shown = capsys.readouterr()
    assert shown.out == ""
    error = the_error(Done(code, shown.out, shown.err))
    assert (error["code"], error["exitCode"]) == ("USAGE_ERROR", 2)
    assert "--no-such-option" in error["message"]
    assert main([*words[: words.index("--json")], *words[words.index("--json") + 1 :]]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("words", ["cal", "add", "add mpc", "--quit", "call", "ls --type x", "-c"])
def test_an_unknown_command_is_a_json_error(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATIONS_PYTHON", "python")
    code = main(["--json", *words.split()])
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, "")
    assert the_error(Done(code, shown.out, shown.err))["code"] == "USAGE_ERROR"


def test_a_word_after_two_dashes_is_not_an_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATIONS_PYTHON", "python")
    assert main(["ls", "a", "--", "--json"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("name", ["", *SUMMARIES, *(leaf for leaf in LEAVES if " " in leaf)])
def test_help_is_data(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATIONS_PYTHON", "python")
    assert main([*name.split(), "--help", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    data = json.loads(shown.out)
    assert data["usage"].startswith(f"ops {name}".rstrip())
    if not name:
        assert {command["name"] for command in data["commands"]} == set(SUMMARIES)
        assert data["exitCodes"]["7"] == "deadline"
    elif name in LEAVES:
        assert "--json" in {option["name"] for option in data["options"]}
    else:
        assert {part["name"] for part in data["commands"]} <= set(LEAVES)


def test_the_version_is_data(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for words in (["--version", "--json"], ["--json", "--version"]):
        assert project.run(*words).data == {"name": "operations", "version": project.run("--version").out.split()[1]}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["call", "a.b"],
        ["sub", "a.b"],
        ["map", "a.b"],
        ["show", "a.b"],
        ["search", "a"],
        ["config", "show"],
        ["worker"],
        ["hub"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_a_broken_configuration_is_one_object(broken: str, words: list[str], tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("operations.toml", BROKEN[broken])
    done = project.run(*words, "--json")
    error = the_error(done)
    assert done.code == 2
    if words == ["doctor"]:
        assert [found["state"] for found in done.data if found["what"] == "configuration"] == ["bad"]
    else:
        assert done.out == ""
        assert error["code"] == "VALIDATION_ERROR"
        assert "operations.toml:" in error["message"]


def test_a_traceback_is_inside_the_object_and_the_log_beside_it(shop: Project) -> None:
    done = shop.run("call", "shop.crash", "--json", "--debug")
    error = the_error(done)
    assert (error["code"], done.code) == ("EXECUTION_ERROR", 5)
    assert error["traceback"].startswith("Traceback (most recent call last):")
    assert "traceback" not in the_error(shop.run("call", "shop.crash", "--json"))
    usage = the_error(shop.run("call", "--json", "--debug"))
    assert "UsageError" in usage["traceback"]


def test_errors_have_details_for_programs(shop: Project) -> None:
    error = the_error(shop.run("call", "shop.fail", "--json"))
    assert (error["code"], error["message"], error["details"]) == ("OUT_OF_STOCK", "nothing left", {"left": 0})
    error = the_error(shop.run("call", "shop.quote", "count=x", "--json"))
    assert (error["code"], error["hint"]) == ("VALIDATION_ERROR", "run 'ops show shop.quote' to see its input")


def test_details_that_are_not_json_are_printed_as_text(shop: Project) -> None:
    shop.write(
        "shop/odd.py",
        "from operations import CallError, operation\n"
        "loop = []\nloop.append(loop)\n"
        "class Odd:\n    def __str__(self): return 'an odd thing'\n"
        "@operation(id='shop.odd')\n"
        "async def odd(which: int) -> None:\n"
        "    raise CallError('ODD', 'odd \\udcff', [float('nan'), Odd(), loop, {1: b'x'}, {'a': Odd()}][which])\n",
    )
    expected = ["nan", "an odd thing", None, None, {"a": "an odd thing"}]
    for which, details in enumerate(expected):
        error = the_error(shop.run("call", "shop.odd", f"which={which}", "--json"))
        assert (error["code"], error["message"], error["exitCode"]) == ("ODD", "odd \\udcff", 5)
        assert details is None or error["details"] == details


def test_secrets_are_redacted_in_json_as_in_text(shop: Project) -> None:
    shop.write(
        "operations.toml",
        '[sources.shop]\npython = "./shop"\n[transports.bus]\nurl = "ws://127.0.0.1:1/"\ntoken = "${SHOP_TOKEN}"\n',
    )
    secret = 'sesame"99\\open'
    shop.write(
        "shop/leak.py",
        "import os\nfrom operations import CallError, operation\n"
        "@operation(id='shop.leak')\n"
        "async def leak() -> None:\n"
        "    token = os.environ['SHOP_TOKEN']\n"
        "    print(f'printed {token}')\n"
        "    raise CallError('LEAK', f'refused {token}', {'sent': [token], token: 1})\n",
    )
    done = shop.run("call", "shop.leak", "--json", "--debug", env={"SHOP_TOKEN": secret})
    error = the_error(done)
    assert error["message"] == "refused [redacted]"
    assert error["details"] == {"sent": ["[redacted]"], "[redacted]": 1}
    assert "[redacted]" in error["traceback"]
    assert {"level": "output", "message": "printed [redacted]"} in records(done.err)
    assert "sesame" not in done.err
    text = shop.run("call", "shop.leak", "--debug", env={"SHOP_TOKEN": secret})
    assert "refused [redacted]" in text.err


def test_notes_and_foreign_output_are_json_objects(shop: Project) -> None:
    shop.write("operations.toml", '[sources.shop]\npython = "./shop"\n[sources.gone]\ncommand = "./no-such-program"\n')
    shop.write(
        "shop/broken.py", "import sys\nprint('hello')\nsys.stderr.write('half a line')\nraise ValueError('no')\n"
    )
    done = shop.run("ls", "--json")
    assert done.code == 0
    assert "shop.quote" in {entry["id"] for entry in done.data}
    lines = records(done.err)
    assert {"level": "output", "message": "hello"} in lines
    assert [line["source"] for line in lines if "source" in line] == ["gone"]
    assert [line["reason"] for line in lines if "skipped" in line] == ["ValueError: no (line 4)"]
    assert {"level": "output", "message": "half a line"} in lines
    (shop.directory / "shop" / "broken.py").unlink()
    chatty = shop.run("call", "shop.chatty", "--json")
    assert chatty.data == {"a": "not a number"}
    levels = {line["level"]: line for line in records(chatty.err)}
    assert levels["output"]["message"] == "a word in between"
    assert levels["info"]["source"] == "local"
    assert levels["info"]["seconds"] > 0
    quiet = records(shop.run("call", "shop.chatty", "--json", "--quiet").err)
    assert [line["level"] for line in quiet] == ["output"]


def test_the_exit_code_of_map_is_explained_beside_the_lines(shop: Project) -> None:
    done = shop.run("map", "shop.quote", "--json", stdin='{"item":"tea"}\n{"count":1}\n')
    assert [("error" in line) for line in done.lines] == [False, True]
    error = the_error(done)
    assert error["message"].startswith("1 of 2 lines failed; the first was line 2: ")
    assert {"lines": 2, "failed": 1}.items() <= records(done.err)[0].items()


def test_an_interrupted_map_reports_its_progress_and_no_error(shop: Project) -> None:
    process = shop.start("map", "shop.quote", "--json", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"{}\n")
    process.stdin.flush()
    assert "error" in json.loads(line_of(process))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert [line["level"] for line in records(err.decode())] == ["info"]


def test_show_prints_its_texts_as_json_fields(shop: Project) -> None:
    assert "registry.execute" in shop.run("show", "shop.quote", "--python", "--json").data["python"]
    assert shop.run("show", "shop.quote", "--schema", "--json").data.keys() == {"input", "output"}
    shop.write("operations.toml", '[sources.o]\nopenapi = "./api.json"\nbase_url = "http://127.0.0.1:9"\n')
    data = shop.run("show", "o.a", "--curl", "--json").data
    assert data["curl"].startswith("curl -X GET")
    assert data["request"]["url"] == "http://127.0.0.1:9/a"


def test_bytes_written_to_a_file_stay_bytes(shop: Project) -> None:
    assert shop.run("call", "shop.photo", "--json", "-o", "photo.png").code == 0
    assert (shop.directory / "photo.png").read_bytes() == b"\x89PNG\x00\xff"


def test_on_a_terminal_nothing_is_drawn_between_the_objects(shop: Project) -> None:
    with shop.terminal("call", "shop.slow", "seconds=0.6", "--json") as terminal:
        assert terminal.end() == 0
        result, note = terminal.raw.replace("\r\n", "\n").splitlines()
    assert json.loads(result) == "done"
    assert json.loads(note)["level"] == "info"


def test_a_watch_prints_each_change_on_a_line(shop: Project) -> None:
    with running(shop, "scan", "./extra", "--watch", "--json") as process:
        assert json.loads(line_of(process))["added"] == ["more.more"]
        shop.write("extra/broken.py", "raise ValueError('no')\n")
        (skipped,) = json.loads(line_of(process))["skipped"]
        assert skipped["reason"] == "ValueError: no (line 1)"


def test_the_long_running_commands_print_events_on_stdout(shop: Project) -> None:
    token = {"OPERATIONS_TOKEN": "a-token-of-the-hub"}
    shop.write("shop/loud.py", "print('imported')\n")
    with running(shop, *CASES["hub"].works, "--json", "--quiet", env=token) as hub:
        listening = json.loads(line_of(hub))
        assert (listening["event"], listening["url"][:15]) == ("listening", "ws://127.0.0.1:")
        shop.write("operations.toml", f'[sources.o]\npython = "./other"\n[transports.h]\nurl = "{listening["url"]}"\n')
        for name in ("spoke", "worker"):
            with running(shop, *CASES[name].works, "--json", env=token) as process:
                events = [json.loads(line_of(process)) for _ in range(2)]
                assert [event["event"] for event in events] == ["connecting", "offering"]
                assert events[1]["operations"] == 1
                assert events[1]["time"] > 0
                added = json.loads(line_of(hub))
                assert (added["event"], added["operation"]) == ("added", "other.double")
                process.send_signal(signal.SIGTERM)
                assert json.loads(line_of(process))["event"] == "stopping"
                assert process.wait(30) == 0
                assert json.loads(line_of(hub))["event"] == "removed"


class running:
    """A command that lasts, with its lines on stdout; stderr must be objects."""

    def __init__(self, project: Project, *words: str, env: Mapping[str, str] | None = None) -> None:
        self._process = project.start(*words, env=env)

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        records(self._process.communicate(timeout=30)[1].decode())


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()
