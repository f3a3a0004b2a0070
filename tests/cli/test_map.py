"""`ops map`: order, failures by line, bounded memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.driving import OPS, Project

pytestmark = pytest.mark.slow
MIXED = '{"item": "tea"}\nnonsense\n\n{"itme": "x"}\n{"item": "honey", "count": 2}\n'


def test_results_are_in_the_order_of_the_lines_with_failures_in_their_place(project: Project) -> None:
    done = project.run("map", "shop.quote", "colour=blue", stdin=MIXED)
    first, bad, invalid, last = done.lines
    assert first == {"item": "tea", "total": 2.5, "colour": "blue"}
    assert (bad["line"], bad["error"]["code"]) == (2, "VALIDATION_ERROR")
    assert (invalid["line"], invalid["error"]["code"]) == (4, "VALIDATION_ERROR")
    assert last == {"item": "honey", "total": 5.0, "colour": "blue"}
    assert done.code == 2
    assert "4 lines, 2 failed" in done.err
    assert "first failure: line 2: malformed JSON" in done.err


@pytest.mark.parametrize("way", ["-i items.ndjson", "< items.ndjson"])
def test_the_progress_bar_has_the_number_of_lines_of_a_file(way: str, project: Project) -> None:
    project.write("items.ndjson", '{"seconds": 0.01}\n\n' * 39 + '{"seconds": 1.5}')
    command = f"{OPS} map shop.slow -j 1 {way} > results"
    with project.terminal("-c", command, program=["bash"]) as terminal:
        terminal.until("/40 lines")
        assert terminal.end() == 0
        assert "40 lines" in terminal.shown


def test_a_file_without_its_option_is_a_mistake_with_a_hint(project: Project) -> None:
    done = project.run("map", "shop.quote", "my items.ndjson", stdin="")
    assert (done.code, done.out) == (2, "")
    assert "hint: -i 'my items.ndjson' reads lines from a file" in done.err


def test_bytes_are_a_line_of_json_each(project: Project) -> None:
    done = project.run("map", "shop.photo", stdin="{}\n{}\n")
    assert done.lines == [{"$bytes": "iVBORwD/"}] * 2


def test_failures_may_go_to_a_separate_file(project: Project) -> None:
    project.write("items.ndjson", MIXED)
    done = project.run("map", "shop.quote", "-i", "items.ndjson", "--errors", "failed.ndjson", "-j", "2")
    assert [line["item"] for line in done.lines] == ["tea", "honey"]
    failed = [json.loads(line) for line in (project.directory / "failed.ndjson").read_text().splitlines()]
    assert [each["line"] for each in failed] == [2, 4]


def test_the_exit_code_reflects_the_failures(project: Project) -> None:
    assert project.run("map", "shop.quote", stdin='{"item": "tea"}\n').code == 0
    assert project.run("map", "shop.fail", stdin="{}\n{}\n").code == 5
    assert project.run("map", "shop.fail", stdin='{"code": "UNAVAILABLE"}\n').code == 6
    assert project.run("map", "shop.fail", stdin='{"code": "UNAVAILABLE"}\n{"code": "TIMEOUT"}\n').code == 5
    assert project.run("map", "shop.slow", "--timeout", "0.1", stdin="{}\n").code == 7
    stopped = project.run("map", "shop.fail", "--fail-fast", "-j", "1", stdin="{}\n{}\n{}\n")
    assert (stopped.code, len(stopped.lines)) == (5, 1)
    assert project.run("map", "shop.ticks", stdin="{}\n").code == 2
    assert project.run("map", "shop.quotes", stdin="{}\n").code == 3


def test_unordered_results_have_the_number_of_their_line(project: Project) -> None:
    lines = '{"seconds": 0.6}\n{"seconds": 0.01}\n'
    done = project.run("map", "shop.slow", "--unordered", "-j", "2", stdin=lines)
    assert done.lines == [{"line": 2, "data": "done"}, {"line": 1, "data": "done"}]
    ordered = project.run("map", "shop.slow", "-j", "2", "--envelope", stdin=lines)
    assert [line["meta"]["operationId"] for line in ordered.lines] == ["shop.slow"] * 2


def test_a_result_is_written_when_its_call_ends(project: Project) -> None:
    process = project.start("map", "shop.quote", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for item in ("tea", "honey"):
        process.stdin.write(json.dumps({"item": item}).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["item"] == item
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_ctrl_c_while_waiting_for_lines_is_130(project: Project) -> None:
    process = project.start("map", "shop.quote", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdin, process.stdout, process.stderr:
        process.stdin.write(b'{"item": "tea"}\n')
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().startswith(b"1 line \xc2\xb7 ")


def test_a_progress_bar_is_on_a_terminal_only(project: Project) -> None:
    lines = "".join(f'{{"item": "{number}"}}\n' for number in range(40_000))
    project.write("items.ndjson", lines)
    with project.terminal("-c", f"{OPS} map shop.quote -i items.ndjson > out.ndjson", program=["bash"]) as terminal:
        assert terminal.end() == 0
        assert "█" in terminal.raw
        assert "lines" in terminal.shown
    assert len((project.directory / "out.ndjson").read_text().splitlines()) == 40_000
    assert "█" not in project.run("map", "shop.quote", "-i", "items.ndjson").err


def test_a_hundred_thousand_lines_take_no_more_memory_than_a_thousand(project: Project) -> None:
    def peak(count: int) -> int:
        source = project.directory / f"{count}.ndjson"
        with source.open("w") as file:
            file.writelines(f'{{"item": "item number {number}", "count": {number}}}\n' for number in range(count))
        with source.open("rb") as given, (project.directory / "out.ndjson").open("wb") as out:
            process = subprocess.Popen(
                [OPS, "map", "shop.quote", "-q", "-j", "16"],
                stdin=given,
                stdout=out,
                cwd=project.directory,
                env=project.environment,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        results = Path(project.directory / "out.ndjson").read_text().splitlines()
        assert len(results) == count
        assert json.loads(results[-1])["total"] == 2.5 * (count - 1)
        return usage.ru_maxrss

    assert peak(100_000) < peak(1_000) + 24 * 1024
