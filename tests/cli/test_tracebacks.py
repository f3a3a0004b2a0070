"""The traceback of a failed handler is in the log of the process that ran it, once, with the id of its request."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.driving import Project
from tests.cli.test_processes import TOKEN, running
from tests.nats_server import NatsServer
from tests.redis_servers import Server
from tests.serving.mcp.wire import message

pytestmark = pytest.mark.slow

WORK = '''
from operations import OperationContext, operation

def fail():
    raise RuntimeError("a bug in the work")

@operation(id="shop.fail", durable=True)
async def failing() -> str:
    """Fail."""
    return fail()

@operation(id="shop.outer")
async def outer(context: OperationContext) -> str:
    """Fail in a nested call."""
    return (await context.env.shop.fail()).data

@operation(id="shop.stream")
async def stream():
    """Fail in a stream."""
    yield 1
    fail()
'''
TRACE = re.compile(r"^RuntimeError: a bug in the work$", re.M)


@pytest.fixture
def work(project: Project) -> Project:
    project.write("work.py", WORK)
    project.write("operations.toml", '[sources.work]\npython = "work.py"\n[serve]\njobs = "memory"\n')
    return project


def stop(process: subprocess.Popen[bytes]) -> str:
    """Stop a process and return what it has printed since it was ready."""
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    return process.stderr.read().decode()


def check(log: str, count: int) -> None:
    """Check the tracebacks of a log, each with its request."""
    assert len(TRACE.findall(log)) == count, log
    assert log.count("Traceback (most recent call last):") == count
    assert log.count("in fail\n") == count
    ids = re.findall(r"shop\.\w+ failed \(request '([^']+)'\)", log)
    assert len(set(ids)) == count


def test_a_spoke_of_a_hub(work: Project, tmp_path: Path) -> None:
    folder = Project(tmp_path / "hub")
    folder.directory.mkdir()
    with running(folder, "hub", "--port", "0", said="hub listening on") as (hub, line):
        url = line.split()[4].rstrip(";")
        with running(work, "spoke", "--url", url, said="serving") as (spoke, _):
            for name in ("fail", "outer"):
                assert work.run("call", f"shop.{name}", "--url", url, env=TOKEN).code == 5
            assert work.run("sub", "shop.stream", "--url", url, env=TOKEN).code == 5
            check(stop(spoke), 3)
        assert "Traceback" not in stop(hub)


@pytest.mark.parametrize("kind", ["redis", "nats"])
def test_a_worker(kind: str, work: Project) -> None:
    server: Any = Server("redis").start() if kind == "redis" else NatsServer().start()
    try:
        with running(work, "worker", "--url", server.url, said="serving") as (worker, _):
            assert work.run("call", "shop.fail", "--url", server.url).code == 5  # durable
            assert work.run("call", "shop.outer", "--url", server.url).code == 5
            assert work.run("jobs", "submit", "shop.fail", "--wait", "--url", server.url).code == 5
            check(stop(worker), 3)
    finally:
        server.kill()


def post(url: str, body: Any, **headers: str) -> int:
    sent = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "accept": "*/*",
            "authorization": f"Bearer {TOKEN['OPERATIONS_TOKEN']}",
            **headers,
        },
    )
    try:
        with urllib.request.urlopen(sent, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def over_http(url: str) -> None:
    assert post(f"{url}/shop/fail", {}) == 500
    assert post(f"{url}/shop/outer", {}) == 500
    assert post(f"{url}/shop/fail", {}, prefer="respond-async, wait=20") == 500


def over_mcp(url: str) -> None:
    accept = "application/json, text/event-stream"
    for number, name in enumerate(("shop.fail", "shop.outer", "shop.fail")):
        called = message("tools/call", {"name": name, "arguments": {}}, id=number)
        version = called["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"]
        headers = {"accept": accept, "mcp-method": "tools/call", "mcp-name": name, "mcp-protocol-version": version}
        assert post(f"{url}/mcp", called, **headers) == 200


@pytest.mark.parametrize("use", [over_http, over_mcp])
def test_a_served_registry(use: Callable[[str], None], work: Project) -> None:
    with running(work, "serve", "--http", "0", said="serving 3") as (process, line):
        found = re.search(r"http://\S+:\d+", line)
        assert found is not None
        use(found[0])
        check(stop(process), 3)


def test_a_served_registry_logs_json(work: Project) -> None:
    words = ("serve", "--http", "0", "--log-format", "json", "--audit-log", "audit.jsonl")
    with running(work, *words, said="serving") as (process, line):
        found = re.search(r"http://\S+:\d+", line)
        assert found is not None
        assert post(f"{found[0]}/shop/fail", {}) == 500
        lines = stop(process).splitlines()
    (failure,) = [each for each in (json.loads(line) for line in lines) if "traceback" in each]
    assert (failure["operation"], failure["level"]) == ("shop.fail", "ERROR")
    (audited,) = [json.loads(line) for line in (work.directory / "audit.jsonl").read_text().splitlines()]
    assert audited["request_id"] == failure["request_id"]


def test_mcp_on_standard_input_and_output(work: Project) -> None:
    called = message("tools/call", {"name": "shop.outer", "arguments": {}})
    process = work.start("serve", "--mcp", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(called).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"]["isError"]
    check(process.communicate(timeout=60)[1].decode(), 1)


def test_a_worker_with_json_on_stderr(work: Project) -> None:
    server = Server("redis").start()
    try:
        process = work.start("worker", "--url", server.url, "--json")
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            while b"offering" not in process.stdout.readline():
                assert process.poll() is None
            assert work.run("call", "shop.fail", "--url", server.url).code == 5
            lines = [json.loads(line) for line in stop(process).splitlines()]
            (failure,) = [line for line in lines if "traceback" in line]
            assert (failure["level"], "a bug in the work" in failure["traceback"]) == ("error", True)
        finally:
            process.kill()
            process.communicate()
    finally:
        server.kill()
