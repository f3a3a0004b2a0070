"""Text from elsewhere reaches a terminal without control characters, in every mode; pipes get JSON unchanged."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from operations.cli.arguments import find_command, parse
from operations.cli.commands.jobs import _write_list
from operations.cli.processes import print_event
from operations.cli.terminal import printable, printable_json, styled_only
from operations.jobs import JobState, JobStatus
from tests.cli.driving import Project

EVIL = (
    "x\x1b]0;title\x07\x1b[2J\x08\x7f\x9b31m\x85"
    "\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u200b\u2060\ufeff\xad\U000e0041y"
)
BAD = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u200b\u2060-\u206f\ufeff\xad\U000e0000-\U000e007f]"
)
OURS = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[K|\r\n")
"""What the program itself writes: styles, the status line, line ends."""

MODULE = f"""
import sys
from operations import AccessControl, CallError, Operation, OperationSpec, from_schema

EVIL = {EVIL!r}
schema = from_schema({{
    "type": "object",
    "properties": {{"a": {{"type": "string", "description": EVIL, "enum": [EVIL, "b"]}}, EVIL: {{"default": EVIL}}}},
    "required": ["a"],
}})

def spec(name, type="query"):
    return OperationSpec(
        name=name, namespace="evil", type=type, title=EVIL, description=EVIL + " greets", tags=[EVIL],
        input_schema=schema if name == "strict" else from_schema(True),
        access_control=AccessControl((EVIL,)),
    )

async def value(input, context):
    return {{EVIL: [EVIL, 1]}}

async def text(input, context):
    return EVIL

async def fail(input, context):
    raise CallError(EVIL, EVIL, {{"body": EVIL, EVIL: EVIL}})

async def crash(input, context):
    raise RuntimeError(EVIL)

async def blocks(input, context):
    return [{{"type": "text", "text": EVIL}}]

async def ticks(input, context):
    yield {{"n": EVIL}}
    raise CallError("BROKEN", EVIL)

operations = [Operation(spec=spec(each.__name__), handler=each) for each in (value, text, fail, crash, blocks)]
one, two, three, four, five = operations
six = Operation(spec=spec("ticks", "subscription"), stream=ticks)
seven = Operation(spec=spec("strict"), handler=value)
"""
SERVER = f"""
import sys
sys.stderr.write({EVIL!r} + "\\n")
sys.stderr.flush()
sys.stdin.readline()
sys.exit({EVIL!r})
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which every text is hostile."""
    made = Project(tmp_path_factory.mktemp("evil"))
    made.write("server.py", SERVER)
    made.write("broken/br\x1b[31mok\x9ben.py", f"raise RuntimeError({EVIL!r})")
    made.write("code/hostile.py", MODULE)
    made.write("items.ndjson", "{}\n")
    server = f"[sources.server]\ncommand = {json.dumps(sys.executable)}\nargs = ['server.py']\n"
    sources = f"[sources.evil]\npython = './code'\n[sources.broken]\npython = './broken'\n{server}"
    made.write("operations.toml", sources)
    made.run("ls", "-q")
    return made


COMMANDS = {
    "ls": ["ls"],
    "ls as a table": ["ls", "--table"],
    "ls as JSON": ["ls", "--json"],
    "ls again": ["ls", "--refresh"],
    "search": ["search", "greets"],
    "search as JSON": ["search", "greets", "--json"],
    "show": ["show", "evil.strict"],
    "show as JSON": ["show", "evil.strict", "--json"],
    "show the schema": ["show", "evil.strict", "--schema"],
    "show Python": ["show", "evil.strict", "--python"],
    "a result": ["call", "evil.value"],
    "a result as JSON": ["call", "evil.value", "--json"],
    "an envelope": ["call", "evil.value", "--envelope"],
    "an envelope as JSON": ["call", "evil.value", "--envelope", "--json"],
    "a string": ["call", "evil.text"],
    "a raw string": ["call", "evil.text", "--raw"],
    "a string as JSON": ["call", "evil.text", "--json"],
    "content blocks": ["call", "evil.blocks"],
    "jq": ["call", "evil.text", "--jq", "."],
    "jq raw": ["call", "evil.text", "--jq", ".", "--raw"],
    "a failure": ["call", "evil.fail"],
    "a failure as JSON": ["call", "evil.fail", "--json"],
    "a failure, debugged": ["call", "evil.fail", "--debug"],
    "a bug": ["call", "evil.crash"],
    "a bug, debugged": ["call", "evil.crash", "--debug"],
    "a bug, debugged as JSON": ["call", "evil.crash", "--debug", "--json"],
    "invalid input": ["call", "evil.strict"],
    "a server": ["call", "server.x", "--debug"],
    "a server as JSON": ["call", "server.x", "--debug", "--json"],
    "a stream": ["sub", "evil.ticks"],
    "a stream as JSON": ["sub", "evil.ticks", "--json"],
    "map": ["map", "evil.value", "-i", "items.ndjson"],
    "map as JSON": ["map", "evil.value", "-i", "items.ndjson", "--json"],
    "map of failures": ["map", "evil.fail", "-i", "items.ndjson"],
    "map of failures as JSON": ["map", "evil.fail", "-i", "items.ndjson", "--json"],
    "map without order": ["map", "evil.fail", "-i", "items.ndjson", "--unordered"],
    "doctor": ["doctor"],
    "doctor as JSON": ["doctor", "--json"],
    "scan": ["scan", "./code"],
    "scan as JSON": ["scan", "./code", "--json"],
    "scan of what is broken": ["scan", "./broken"],
    "an id": ["call", f"evil.{EVIL}".replace("\x00", "")],
    "a word": ["call", "evil.strict", f"{EVIL}=1"],
    "an option": ["call", f"--{EVIL}"],
    "a command": [EVIL],
    "a path": ["ls", "-c", f"./{EVIL}"],
    "config": ["config", "show"],
}


@pytest.mark.parametrize("colours", [True, False], ids=["colours", "plain"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_gets_no_control_characters(name: str, colours: bool, project: Project) -> None:
    env = {} if colours else {"NO_COLOR": "1"}
    with project.terminal(*COMMANDS[name], env=env) as terminal:
        terminal.end()
    assert len(terminal.raw) > 1
    assert BAD.findall(OURS.sub("", terminal.raw)) == [], terminal.raw
    if not colours:
        assert "\x1b[3" not in terminal.raw


@pytest.mark.parametrize("name", ["a result", "an envelope", "a string", "a failure", "a stream", "ls", "show", "map"])
def test_json_on_a_terminal_is_the_same_json(name: str, project: Project) -> None:
    words = COMMANDS[name] if "--json" in COMMANDS[name] else [*COMMANDS[name], "--json"]
    with project.terminal(*words, "-q", "--no-color") as terminal:
        terminal.end()
    piped = project.run(*words, "-q")
    shown = json.JSONDecoder()
    rest, found = terminal.shown.strip(), []
    while rest:
        value, end = shown.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    # Not splitlines: some of the characters end a line there.
    parts = [json.loads(line) for line in f"{piped.out}\n{piped.err}".split("\n") if line]

    def without_time(value: object) -> str:
        return re.sub(r'"timestamp": \d+', "", json.dumps(value))

    assert sorted(map(without_time, found)) == sorted(map(without_time, parts))
    assert found


def test_a_pipe_gets_json_and_text_unchanged(project: Project) -> None:
    assert project.run("call", "evil.value", "-q").data == {EVIL: [EVIL, 1]}
    assert "\x9b31m\x85\u202a" in project.run("call", "evil.value", "-q").out.replace("\u061c\u200e\u200f", "")
    assert project.run("call", "evil.text", "-q", "--raw").out == EVIL + "\n"


def test_notes_and_errors_are_safe_in_a_pipe_too(project: Project) -> None:
    for words in (["call", "evil.crash", "--debug"], ["call", "evil.fail"], ["ls", "--refresh"]):
        done = project.run(*words)
        assert BAD.findall(done.err) == [], done.err


def test_logs_of_other_libraries_are_escaped(project: Project, tmp_path: Path) -> None:
    code = (
        "import logging, sys, threading\n"
        "from operations.cli.main import main\n"
        "code = main(['call', 'evil.text', '-q'] if len(sys.argv) > 1 else ['call', 'evil.text'])\n"
        f"logging.getLogger('elsewhere').warning({EVIL!r})\n"
        f"def fail(): raise RuntimeError({EVIL!r})\n"
        "thread = threading.Thread(target=fail)\nthread.start()\nthread.join()\n"
    )
    with project.terminal(program=[sys.executable, "-c", code]) as terminal:
        assert terminal.end() == 0
    assert terminal.shown.count("x\\x1b]0;title") >= 2
    assert BAD.findall(OURS.sub("", terminal.raw)) == [], terminal.raw


def test_external_text_does_not_look_like_further_lines_of_the_program(tmp_path: Path) -> None:
    """A line break in a message of an operation, a job, a caller or a server must not begin a line of its own."""
    project = Project(tmp_path)
    project.write(
        "code/forged.py",
        "import logging\n"
        "from operations import CallError, OperationContext, operation\n"
        "FORGED = 'real\\nerror: forged\\n12:00:00 forged'\n"
        "@operation(id='forged.fail', type='query')\n"
        "async def fail() -> None:\n"
        "    raise CallError(FORGED, FORGED, {'hint': FORGED})\n"
        "@operation(id='forged.log', type='query')\n"
        "async def log() -> None:\n"
        "    logging.getLogger('operations').warning(FORGED)\n"
        "@operation(id='forged.ask', type='query')\n"
        "async def ask(context: OperationContext) -> str:\n"
        "    form = {'type': 'object', 'properties': {'a': {'title': FORGED, 'description': FORGED}}}\n"
        "    return (await context.ask(FORGED, form)).action\n",
    )
    project.write("operations.toml", "[sources.forged]\npython = './code'\n")
    for words in (["forged.fail"], ["forged.log"], ["forged.log", "--debug"]):
        shown = project.run("call", *words).err
        assert "12:00:00 forged" in shown
        assert not re.search("(?m)^(error: forged|12:00:00)", shown), shown
    with project.terminal("call", "forged.ask", env={"NO_COLOR": "1"}) as terminal:
        shown = terminal.until("optional): ")
        terminal.press("x\n")
        terminal.end()
    assert not re.search("(?m)^(error: forged|12:00:00)", shown.replace("\r", "")), shown


def test_jobs_and_events_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    job = JobStatus(id="j1", operation_id="a.b", state=JobState.FAILED, created_at=0, code="X\nj2", message="m\nn")
    args = parse(find_command("ls"), [], before={})
    _write_list(args, [job])
    print_event(args, "called", "http a.b\n12:00:00 http a.c OK")
    shown = capsys.readouterr()
    assert (len(shown.out.splitlines()), len(shown.err.splitlines())) == (1, 1)


def test_escapes_are_visible() -> None:
    assert printable("a\x1b[31m\x9b\u202e\tb\nc") == "a\\x1b[31m\\x9b\\u202e\tb\nc"
    assert printable_json('"\x9b\u202e\x7f"') == '"\\u009b\\u202e\\u007f"'
    assert styled_only("\x1b[31ma\x1b[0m\x1b[2J\x1b]0;t\x07") == "\x1b[31ma\x1b[0m\\x1b[2J\\x1b]0;t\\x07"
