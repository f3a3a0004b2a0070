"""`ops sub`: lines in a pipe, a live view on a terminal, and how streams end."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.driving import Project

pytestmark = pytest.mark.slow


def test_each_event_is_one_line_in_a_pipe(project: Project) -> None:
    done = project.run("sub", "shop.ticks", "count=3", "interval=0")
    assert done.lines == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert done.err.startswith("3 events · ")
    limited = project.run("sub", "shop.ticks", "--limit", "2", "--envelope")
    assert [line["data"] for line in limited.lines] == [{"n": 0}, {"n": 1}]
    assert limited.lines[0]["meta"]["source"] == "local"
    assert project.run("sub", "shop.ticks", "--limit", "2", "--jq", ".n").out == "0\n1\n"


def test_an_event_is_written_when_it_arrives(project: Project) -> None:
    process = project.start("sub", "shop.ticks", "interval=0.2")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"n": 0}
    assert json.loads(process.stdout.readline()) == {"n": 1}
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.communicate()


def test_a_signal_closes_the_handlers_generator(project: Project) -> None:
    mark = project.directory / "closed"
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        mark.unlink(missing_ok=True)
        process = project.start("sub", "shop.ticks", f"closed={mark}")
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == code
        assert mark.read_text() == "closed"
        assert b"Traceback" not in err


def test_a_terminal_that_is_closed_closes_the_stream(project: Project) -> None:
    mark = project.directory / "closed"
    with project.terminal("sub", "shop.ticks", "interval=0.05", f"closed={mark}") as terminal:
        terminal.until('{"n":2}')
        terminal.hang_up()
        assert terminal.process.wait(30) == 129
    assert mark.read_text() == "closed"


def test_nohup_is_respected(project: Project) -> None:
    process = project.start("-c", "exec nohup ops sub shop.ticks count=40", program="bash")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert len(out.splitlines()) == 39


def test_a_limit_closes_the_generator_too(project: Project) -> None:
    mark = project.directory / "closed"
    assert project.run("sub", "shop.ticks", f"closed={mark}", "--limit", "1").code == 0
    assert mark.read_text() == "closed"


def test_a_deadline_of_a_stream_is_exit_code_7(project: Project) -> None:
    done = project.run("sub", "shop.ticks", "--timeout", "0.3", "interval=0.01")
    assert done.code == 7
    assert done.lines[0] == {"n": 0}


def test_sub_rejects_an_operation_without_a_stream(project: Project) -> None:
    done = project.run("sub", "shop.quote")
    assert done.code == 2
    assert "use 'ops call shop.quote'" in done.err


def test_a_terminal_shows_a_live_view(project: Project) -> None:
    with project.terminal("sub", "shop.ticks", "interval=0.2") as terminal:
        terminal.until('#3 {"n":2}')
        terminal.until("events · Ctrl-C to stop")
        terminal.press("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.shown
    with project.terminal("sub", "shop.ticks", "count=2", "-q") as terminal:
        assert terminal.end() == 0
        assert "Ctrl-C" not in terminal.shown
