"""`ops jobs` on real Redis and NATS servers: submit, list, wait, cancel, and dead letters that are retried."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cli.driving import Project
from tests.cli.test_processes import running
from tests.nats_server import NatsServer
from tests.redis_servers import Server

pytestmark = pytest.mark.slow

WORK = '''
import asyncio, os
from pathlib import Path
from operations import operation

@operation(id="work.add", durable=True)
async def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b

@operation(id="work.once")
async def once() -> str:
    """Run at most once."""
    return "once"

@operation(id="work.slow", durable=True)
async def slow() -> str:
    """Take a while."""
    await asyncio.sleep(600)
    return "done"

@operation(id="work.risky", durable=True)
async def risky() -> str:
    """End the worker, unless it was repaired."""
    if not Path("repaired").exists():
        os._exit(7)
    return "repaired"
'''


@pytest.fixture(params=["redis", "nats"])
def bus(request: pytest.FixtureRequest, project: Project) -> Iterator[Project]:
    """A project with one source and one bus, whose dead workers are noticed quickly."""
    server = Server("redis").start() if request.param == "redis" else NatsServer().start()
    more = ", ack_wait = 1.0" if request.param == "nats" else ""
    project.write("work.py", WORK)
    project.write(
        "operations.toml",
        f'[sources.work]\npython = "work.py"\n[transports.bus]\nurl = "{server.url}"\n'
        f"options = {{ heartbeat = 0.2{more} }}\n",
    )
    try:
        yield project
    finally:
        server.kill()


def test_jobs_are_submitted_listed_waited_for_and_cancelled(bus: Project) -> None:
    queued = bus.run("jobs", "submit", "work.add", "a:=1", "b:=2")
    assert queued.code == 0, queued.err
    job_id = queued.out.strip()
    assert bus.run("jobs", "show", job_id, "--json").data["state"] == "queued"
    with running(bus, "worker", said="serving 4 operations"):
        waited = bus.run("jobs", "wait", job_id, "--timeout", "30")
        assert (waited.code, waited.data) == (0, 3)
        assert bus.run("jobs", "submit", "work.add", "a=4", "--wait").data == 4
        slow = bus.run("jobs", "submit", "work.slow").out.strip()
        assert bus.run("jobs", "wait", slow, "--timeout", "0.1").code == 7
        assert bus.run("jobs", "cancel", slow, "--json").data["state"] == "cancelled"
        assert bus.run("jobs", "wait", slow).code == 6
        refused = bus.run("jobs", "submit", "work.once")
        assert (refused.code, "durable=True" in refused.err) == (2, True)
        failed = bus.run("jobs", "submit", "work.add", "--json").data["id"]
        assert bus.run("jobs", "wait", failed).code == 2
    listed = bus.run("jobs", "ls")
    assert [line.split()[2] for line in listed.out.splitlines()] == ["failed", "cancelled", "done", "done"]
    assert [job["id"] for job in bus.run("jobs", "ls", "--state", "failed", "--json").data] == [failed]
    shown = bus.run("jobs", "show", failed).out
    assert "operationId  work.add" in shown
    assert "VALIDATION_ERROR" in shown
    assert 'message      invalid input for work.add\n             (value): missing required property "a"' in shown
    missing = bus.run("jobs", "show", "work." + "0" * 48)
    assert missing.code == 3
    assert "ops jobs ls" in missing.err


def test_a_value_whose_type_no_worker_announces_is_a_string_with_a_note(bus: Project) -> None:
    untyped = bus.run("jobs", "submit", "work.add", "b=x", "a=21")
    assert untyped.code == 0
    assert "note: no worker announces work.add" in untyped.err
    assert "each key=value is sent as a string; write a:=21 to send JSON" in untyped.err
    for words in (["a:=21"], ['{"a": 21, "b": "x=y"}'], []):
        assert "note:" not in bus.run("jobs", "submit", "work.add", *words).err
    with running(bus, "worker", said="serving 4 operations"):
        failed = bus.run("jobs", "wait", untyped.out.strip(), "--timeout", "30")
        assert '/a: "21" is not an integer' in failed.err
        assert "note:" not in bus.run("jobs", "submit", "work.add", "a=21").err


def test_dead_letters_are_listed_and_retried(bus: Project) -> None:
    with running(bus, "worker", "--processes", "1", said="serving 4 operations"):
        job_id = bus.run("jobs", "submit", "work.risky").out.strip()
        dead: list[dict[str, object]] = []
        end = time.monotonic() + 90
        while not dead and time.monotonic() < end:
            dead = bus.run("jobs", "dead", "--json").data
        assert [job["id"] for job in dead] == [job_id]
        assert dead[0]["state"] == "dead"
        assert bus.run("jobs", "wait", job_id).code == 5
        bus.write("repaired", "")
        retried = bus.run("jobs", "retry", job_id, "--json").data["state"]
        assert retried in {"queued", "running", "done"}  # a worker may have finished it already
        assert bus.run("jobs", "wait", job_id, "--timeout", "60").data == "repaired"
        assert bus.run("jobs", "dead", "--json").data == []


def test_a_dead_letter_of_a_durable_call_is_listed_shown_and_retried(bus: Project) -> None:
    with running(bus, "worker", "--processes", "1", said="serving 4 operations"):
        called = bus.run("call", "--url", "bus", "work.risky", "--timeout", "90")
        assert (called.code, "ops jobs dead" in called.err) == (5, True), called.err
        while not (dead := bus.run("jobs", "dead", "--json").data):
            pass  # the caller gets its error before the worker has written the dead letter
        assert [(job["operationId"], job["state"], job["attempts"]) for job in dead] == [("work.risky", "dead", 4)]
        assert "dead-lettered after 3" in bus.run("jobs", "show", dead[0]["id"]).out
        bus.write("repaired", "")
        assert bus.run("jobs", "retry", dead[0]["id"], "--json").data["state"] in {"queued", "running", "done"}
        assert bus.run("jobs", "wait", dead[0]["id"], "--timeout", "60").data == "repaired"
        assert bus.run("jobs", "dead", "--json").data == []


def test_hints_name_only_transports_that_store_jobs(project: Project) -> None:
    for words in (["submit", "shop.quote"], ["ls", "--url", "nothing"]):
        done = project.run("jobs", *words)
        assert done.code == 2
        assert "redis://host:port or nats://host:port" in done.err
        assert "ws://" not in done.err
