"""`ops call`: input, output, exit codes."""

from __future__ import annotations

import json

import pytest

from tests.cli.driving import Done, Project

pytestmark = pytest.mark.slow


def test_data_is_json_on_stdout_and_one_line_of_meta_is_on_stderr(project: Project) -> None:
    done = project.run("call", "shop.quote", "item=tea", "count=4")
    assert done == Done(0, '{"item":"tea","total":10.0,"colour":"red"}\n', done.err)
    assert done.err.startswith("local · shop.quote · ")
    assert len(done.err.splitlines()) == 1
    assert project.run("call", "shop.quote", "item=tea", "-q").err == ""


def test_every_form_of_input_is_read(project: Project) -> None:
    project.write("input.json", '{"item": "tea", "to": {"city": "Rome"}}')
    wanted = {"item": "tea", "city": "Rome", "zip": 5, "tags": ["a", "b"]}
    words = ["item=tea", "to.city=Rome", "to.zip=5", "tags[]=a", "tags[]=b"]
    assert project.run("call", "shop.send", *words).data == wanted
    assert project.run("call", "shop.send", "@input.json", "to.zip=5", 'tags:=["a","b"]').data == wanted
    given = '{"item": "tea", "to": {"city": "Rome", "zip": 5}, "tags": ["a", "b"]}'
    assert project.run("call", "shop.send", "-", stdin=given).data == wanted
    assert project.run("call", "shop.send", given).data == wanted
    project.write("item.txt", "tea")
    assert project.run("call", "shop.send", "item@item.txt", "to:=@input.json").code == 2


def test_the_parts_of_the_envelope(project: Project) -> None:
    envelope = project.run("call", "shop.quote", "item=tea", "--envelope").data
    assert envelope["data"]["total"] == 2.5
    assert envelope["meta"]["source"] == "local"
    meta = project.run("call", "shop.quote", "item=tea", "--meta").data
    assert meta.keys() == envelope["meta"].keys()
    assert meta["operationId"] == "shop.quote"
    assert project.run("call", "shop.quote", "item=tea", "--meta", "--jq", ".source").out == '"local"\n'


def test_jq_programs(project: Project) -> None:
    assert project.run("call", "shop.quote", "item=tea", "--jq", ".total, .item").out == '2.5\n"tea"\n'
    assert project.run("call", "shop.quote", "item=tea", "--jq", ".item", "--raw").out == "tea\n"
    bad = project.run("call", "shop.quote", "item=tea", "--jq", ".[")
    assert bad.code == 2
    assert bad.err.startswith("error: --jq: ")
    wrong = project.run("call", "shop.quote", "item=tea", "--jq", ".item.x")
    assert wrong.code == 5
    assert wrong.err.startswith("error: --jq: ")


def test_jq_that_is_not_installed_names_the_extra(project: Project, blocked: list[str]) -> None:
    done = project.run("jq", "call", "shop.quote", "item=tea", "--jq", ".", program=blocked)
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: jq is not installed: pip install 'operations[cli]'\n"
    assert project.run("jq", "call", "shop.quote", "item=tea", program=blocked).code == 0


def test_bytes_are_written_unchanged_to_a_pipe_or_a_file(project: Project) -> None:
    process = project.start("call", "shop.photo", "-q")
    out, err = process.communicate(timeout=60)
    assert (out, err) == (b"\x89PNG\x00\xff", b"")
    done = project.run("call", "shop.photo", "-o", "photo.png")
    assert done.out == ""
    assert (project.directory / "photo.png").read_bytes() == b"\x89PNG\x00\xff"
    back = project.run("call", "shop.photo", "data@photo.png", "--json")
    assert back.data == {"$bytes": "iVBORwD/"}
    with project.terminal("call", "shop.photo") as terminal:
        assert terminal.end() == 0
        assert "6 bytes: write them to a file with -o FILE or to a pipe" in terminal.shown
        assert "PNG" not in terminal.shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["shop.quote", "item=tea"], 0, "local"),
        (["shop.quote", "count=four"], 2, "error: invalid input for shop.quote\n  "),
        (["shop.quote", "itme=tea"], 2, "error: unknown field itme; did you mean item?"),
        (["shop.quote", "tea"], 2, "error: invalid input 'tea'"),
        (["shop.ticks"], 2, "error: shop.ticks is a subscription\nhint: use 'ops sub shop.ticks'"),
        (["shop.quote", "item=tea", "--dry-run"], 2, "error: shop.quote has no HTTP request\nhint: --dry-run needs"),
        (["shop.quotes"], 3, "error: unknown operation 'shop.quotes'; did you mean shop.quote"),
        (["shop.fail", "code=ACCESS_DENIED", "message=you may not"], 4, "error: you may not"),
        (["shop.fail"], 5, "error: OUT_OF_STOCK: nothing left"),
        (["shop.crash"], 5, "error: "),
        (["shop.fail", "code=UNAVAILABLE", "message=nobody there"], 6, "error: nobody there"),
        (["shop.slow", "--timeout", "0.1"], 7, "error: "),
    ],
)
def test_every_kind_of_failure_has_its_exit_code(words: list[str], code: int, message: str, project: Project) -> None:
    done = project.run("call", *words)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err
    assert bool(done.out) == (code == 0)


def test_ctrl_c_during_a_call_is_130(project: Project) -> None:
    with project.terminal("call", "shop.slow") as terminal:
        terminal.until("calling shop.slow")
        terminal.press("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown


def test_a_terminal_gets_colours_and_indented_json_unless_disabled(project: Project) -> None:
    with project.terminal("call", "shop.quote", "item=tea") as terminal:
        assert terminal.end() == 0
        assert '\x1b[36m"item"\x1b[0m: \x1b[32m"tea"\x1b[0m' in terminal.raw
        assert '{\n  "item": "tea",\n  "total": 2.5,' in terminal.shown
        assert "local · shop.quote" in terminal.shown
    for words, environment in ((["--no-color"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})):
        with project.terminal("call", "shop.quote", "item=tea", *words, env=environment) as terminal:
            assert terminal.end() == 0
            assert "\x1b[3" not in terminal.raw
            assert '  "item": "tea"' in terminal.shown
    with project.terminal("call", "shop.quote", "item=tea", "--json") as terminal:
        assert terminal.end() == 0
        assert '{"item":"tea","total":2.5,"colour":"red"}' in terminal.shown


def test_results_cannot_send_terminal_escapes(project: Project) -> None:
    text = "\x1b]0;owned\x07\x1b[2J"
    with project.terminal("call", "shop.text", f"text={text}") as terminal:
        assert terminal.end() == 0
        assert "\x1b]0" not in terminal.raw
        assert "\x1b[2J" not in terminal.raw
        assert "\\x1b]0;owned" in terminal.shown
    with project.terminal("call", "shop.fail", f"message={text}") as terminal:
        assert terminal.end() == 5
        assert "\x1b]0" not in terminal.raw
    assert json.loads(project.run("call", "shop.text", f"text={text}").out) == text


def test_a_function_reaches_operations_of_sources_that_were_not_opened(project: Project) -> None:
    assert project.run("ls").code == 0
    assert project.run("call", "shop.nested").data == 5.0


def test_texts_are_plain_on_a_terminal_and_json_in_a_pipe(project: Project) -> None:
    assert project.run("call", "shop.text").out == '"one\\ntwo"\n'
    assert project.run("call", "shop.text", "--raw").out == "one\ntwo\n"
    with project.terminal("call", "shop.text") as terminal:
        assert terminal.end() == 0
        assert "one\ntwo\n" in terminal.shown


def test_printed_output_is_not_a_result_and_mismatches_are_notes(project: Project) -> None:
    done = project.run("call", "shop.chatty")
    assert done.data == {"a": "not a number"}
    assert "a word in between" in done.err
    assert "note: shop.chatty: " in done.err
    quiet = project.run("call", "shop.chatty", "-q")
    assert quiet.err == "a word in between\n"
    assert "operations" in project.run("call", "shop.chatty", "--debug").err
    mapped = project.run("map", "shop.chatty", "-q", stdin="{}\n{}\n")
    assert mapped.lines == [{"a": "not a number"}] * 2


def test_a_terminal_of_another_encoding_and_undecodable_arguments(project: Project) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert project.run("doctor", env=ascii_only).code == 0
    assert project.run("call", "shop.quote", "item=tea", env=ascii_only).code == 0
    done = project.run("-c", "ops call shop.quote item=$'\\xff'", program=["bash"])
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err


BLOCKING = '''
import time
from operations import operation

@operation(id="late.block", type="query")
def block(seconds: float = 60.0) -> str:
    """Hold up its thread."""
    time.sleep(seconds)
    return "done"

@operation(id="late.nan", type="query")
async def nan() -> float:
    """A number that JSON has no word for."""
    return float("nan")

@operation(id="late.mark")
async def mark(path: str) -> str:
    """Leave a mark."""
    open(path, "w").close()
    return path
'''


def test_a_running_thread_delays_neither_deadline_nor_ctrl_c(project: Project) -> None:
    project.write("other/late.py", BLOCKING)
    # Each would take a minute if the command waited for the thread.
    assert project.run("call", "late.block", "--timeout", "0.2", timeout=30).code == 7
    with project.terminal("call", "late.block") as terminal:
        terminal.until("calling late.block")
        terminal.press("\x03")
        assert terminal.end(timeout=30) == 130
    short = project.run("call", "late.block", "seconds=0.01")
    assert short.data == "done"


def test_invalid_unicode_is_reported_or_escaped(project: Project) -> None:
    project.write(
        "other/odd.py", "from operations import operation\n@operation\ndef text() -> str: return 'a\\ud800'\n"
    )
    for words, message in (([], "cannot be encoded as JSON"), (["--raw"], "cannot be encoded as UTF-8")):
        done = project.run("call", "odd.text", *words)
        assert (done.code, message in done.err) == (5, True)
    with project.terminal("call", "odd.text") as terminal:
        assert terminal.end() == 0
        assert "a\\ud800" in terminal.shown


def test_json_keeps_the_quotes_that_raw_takes_off(project: Project) -> None:
    assert project.run("call", "shop.text", "text=a", "--raw").out == "a\n"
    assert project.run("call", "shop.text", "text=a", "--raw", "--json").out == '"a"\n'


def test_a_note_is_not_written_into_the_status_line(project: Project) -> None:
    project.write(
        "other/noisy.py",
        "import asyncio, logging, os\nfrom operations import operation\n@operation\nasync def warn() -> int:\n"
        "    while not os.path.exists('go'):\n        await asyncio.sleep(0.01)\n"
        "    logging.getLogger('operations').warning('all is well')\n    return 1\n",
    )
    with project.terminal("call", "noisy.warn", "--no-color") as terminal:
        terminal.until("calling noisy.warn")
        project.write("go", "")
        assert terminal.end() == 0
        assert "calling noisy.warn\r\x1b[Knote: all is well\r\n" in terminal.raw


def test_a_result_that_json_cannot_carry_is_the_operations_failure(project: Project) -> None:
    project.write("other/late.py", BLOCKING)
    done = project.run("call", "late.nan")
    assert done.code == 5
    assert "the result cannot be encoded as JSON" in done.err
    mapped = project.run("map", "late.nan", stdin="{}\n{}\n")
    assert mapped.code == 5
    assert [line["error"]["code"] for line in mapped.lines] == ["EXECUTION_ERROR"] * 2


@pytest.mark.parametrize("place", ["no-such-folder/result", "shop"])
def test_an_operation_is_not_called_if_its_result_cannot_be_written(place: str, project: Project) -> None:
    project.write("other/late.py", BLOCKING)
    done = project.run("call", "late.mark", "path=mark", "-o", place)
    assert done.code == 2
    assert "--output: " in done.err
    assert not (project.directory / "mark").exists()


def test_a_jq_program_that_fails_for_a_line_fails_that_line(project: Project) -> None:
    done = project.run("map", "shop.text", "--jq", "tonumber", stdin='{"text": "1"}\n{"text": "x"}\n{"text": "3"}\n')
    assert done.code == 5
    assert [each if isinstance(each, int) else each["line"] for each in done.lines] == [1, 2, 3]
