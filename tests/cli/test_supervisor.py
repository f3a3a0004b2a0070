"""`ops worker --processes --reload`: several processes, restarted when they fail, replaced without refusing a call."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.driving import Project
from tests.cli.test_processes import TOKEN, fetched, line_with, running
from tests.ports import free_port
from tests.redis_servers import shared_server

pytestmark = pytest.mark.slow
WHO = """
import os
from operations import operation

@operation("who.am_i", type="query")
async def am_i() -> dict[str, int | str]:
    return {"pid": os.getpid(), "version": "one"}

@operation("who.die")
async def die() -> None:
    os._exit(9)
"""


@pytest.fixture
def who(tmp_path: Path) -> Project:
    project = Project(tmp_path / "who")
    url = shared_server("redis").url
    bus = f'[transports.bus]\nurl = "{url}"\noptions = {{ prefix = "{tmp_path.name}" }}\n'
    project.write("operations.toml", f'[sources.who]\npython = "./who"\n{bus}')
    project.write("who/who.py", WHO)
    return project


@pytest.fixture
def ready(who: Project) -> Iterator[tuple[subprocess.Popen[bytes], set[int]]]:
    """A supervisor whose two processes are ready, and their ids."""
    with running(who, "worker", "--processes", "2", "--reload", "--url", "bus", said="is ready") as (process, line):
        pids = {pid_in(line), pid_in(line_with(process, "is ready"))}
        yield process, pids


def pid_in(line: str) -> int:
    found = re.search(r"pid (\d+)", line)
    assert found is not None
    return int(found[1])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def test_processes_share_calls_and_stop_together(ready: tuple[subprocess.Popen[bytes], set[int]], who: Project) -> None:
    process, pids = ready
    assert len(pids) == 2
    assert who.run("call", "who.am_i", "--url", "bus").data["pid"] in pids
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert gone(pids)


def test_a_process_that_fails_is_started_again(ready: tuple[subprocess.Popen[bytes], set[int]], who: Project) -> None:
    process, pids = ready
    assert who.run("call", "who.die", "--url", "bus", "--timeout", "20").code != 0
    assert "ended with 9" in line_with(process, "ended with")
    again = pid_in(line_with(process, "is ready"))
    assert again not in pids
    assert who.run("call", "who.am_i", "--url", "bus").data["pid"] in pids | {again}


def test_a_reload_replaces_processes_without_refusing_a_call(
    ready: tuple[subprocess.Popen[bytes], set[int]], who: Project
) -> None:
    process, pids = ready
    codes: list[int] = []
    over = threading.Event()

    def call_on() -> None:
        while not over.is_set():
            codes.append(who.run("call", "who.am_i", "--url", "bus").code)

    calling = threading.Thread(target=call_on)
    calling.start()
    try:
        who.write("who/who.py", WHO.replace('"one"', '"two"'))  # --reload sees it
        line_with(process, "reloaded")
    finally:
        over.set()
        calling.join()
    assert set(codes) == {0}
    answer = who.run("call", "who.am_i", "--url", "bus").data
    assert (answer["version"], answer["pid"] in pids) == ("two", False)
    assert gone(pids)


def test_a_reload_that_fails_keeps_the_old_processes(
    ready: tuple[subprocess.Popen[bytes], set[int]], who: Project
) -> None:
    process, pids = ready
    (who.directory / "operations.toml").write_text("this is not TOML")
    line_with(process, "the old process continues")
    line_with(process, "the old process continues")
    assert all(map(is_alive, pids))


def test_processes_end_when_their_supervisor_is_killed(ready: tuple[subprocess.Popen[bytes], set[int]]) -> None:
    process, pids = ready
    process.kill()
    process.wait()
    assert gone(pids)


def test_each_process_has_its_own_health_port(who: Project) -> None:
    with running(who, "worker", "--processes", "2", "--health", "0", "--url", "bus", said="health is at") as (
        one,
        line,
    ):
        other = line_with(one, "health is at")
        urls = {line.split()[-1], other.split()[-1]}
        assert len(urls) == 2
        assert {fetched(f"{url}/healthz")[0] for url in urls} == {200}


def fetched_when_open(url: str) -> tuple[int, str]:
    """Fetch an address that a process is about to open."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return fetched(url)
        except urllib.error.URLError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_reload_passes_the_health_port_on(who: Project) -> None:
    port = free_port()
    words = ("worker", "--processes", "1", "--health", str(port), "--url", "bus")
    with running(who, *words, said="is ready") as (process, _):
        process.send_signal(signal.SIGHUP)
        line_with(process, "reloading")
        process.send_signal(signal.SIGHUP)  # the sources may have changed again since this reload began
        line_with(process, "reloaded")
        line_with(process, "reloaded")
        assert fetched_when_open(f"http://127.0.0.1:{port}/readyz") == (200, "ready\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_configuration_that_cannot_work_ends_the_supervisor(who: Project) -> None:
    done = who.run("worker", "--processes", "2", "--url", "nowhere", env=TOKEN)
    assert done.code == 2
