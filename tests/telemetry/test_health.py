"""HealthServer: three paths, bounded, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from operations import OperationRegistry
from operations.telemetry import CallMetrics, HealthServer, Readiness, health
from operations.testing import stub_operation
from tests.waiting import until


async def ask(server: HealthServer, request: bytes) -> bytes:
    """Return the response to raw bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split()[1])


async def test_health_and_readiness() -> None:
    readiness = Readiness()
    async with HealthServer(readiness) as server:
        assert status(await ask(server, get("/healthz"))) == 200
        answer = await ask(server, get("/readyz"))
        assert (status(answer), answer.endswith(b"starting\n")) == (503, True)
        readiness.ready()
        assert status(await ask(server, get("/readyz?verbose"))) == 200
        readiness.not_ready("stopping")
        assert b"stopping" in await ask(server, get("/readyz"))


async def test_metrics_are_those_of_its_sources() -> None:
    registry = OperationRegistry([stub_operation("a.b")], observers=[CallMetrics()])
    await registry.execute("a.b")
    async with HealthServer(Readiness(), lambda: [registry]) as server:
        answer = await ask(server, get("/metrics"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert b'operations_calls_total{operation="a.b",kind="local",outcome="ok"} 1' in body


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (get("/"), 404),
        (get("/../etc/passwd"), 404),
        (get("/healthz", "POST"), 405),
        (b"GET /healthz\r\n\r\n", 400),
        (b"\x16\x03\x01 x HTTP/2\r\n\r\n", 400),
    ],
)
async def test_everything_else_is_refused(request_bytes: bytes, expected: int) -> None:
    async with HealthServer(Readiness(None)) as server:
        assert status(await ask(server, request_bytes)) == expected
        head = await ask(server, get("/healthz", "HEAD"))
        assert head.endswith(b"\r\n\r\n")


async def test_a_long_or_slow_request_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_HEAD_SECONDS", 0.05)
    async with HealthServer(Readiness(None)) as server:
        assert await ask(server, b"GET /healthz HTTP/1.1\r\n") == b""  # never ended
        with contextlib.suppress(ConnectionError):  # it may be closed before everything was written
            assert await ask(server, b"x" * 100_000) == b""
        assert status(await ask(server, get("/healthz"))) == 200


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MAX_CONNECTIONS", 2)
    async with HealthServer(Readiness(None)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        held: list[Any] = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        await until(lambda: server._open == 2)
        with contextlib.suppress(ConnectionError):  # it may be closed before the request was written
            assert await ask(server, get("/healthz")) == b""
        for _, writer in held:
            writer.close()
        await until(lambda: server._open == 0)
        assert status(await ask(server, get("/healthz"))) == 200


async def test_a_source_that_fails_ends_one_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def measures(self) -> Any:
            raise KeyError("secret")

    async with HealthServer(Readiness(None), lambda: [Broken()]) as server:
        assert b"secret" not in await ask(server, get("/metrics"))
        assert status(await ask(server, get("/healthz"))) == 200
    assert "a health request failed" in caplog.text
