"""A streamable HTTP server that fails in every way: each has a defined outcome, and none hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import ErrorCode, OperationContext, OperationRegistry
from operations.sources.mcp import MCPClient, MCPClientConfig, MCPClientState, create_mcp_client
from operations.testing import error_of
from tests.ports import free_port
from tests.sources.mcp.hostile_http import HostileServer, hostile_server
from tests.waiting import until


@contextlib.asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[HostileServer, MCPClient, OperationRegistry]]:
    async with (
        hostile_server() as server,
        await create_mcp_client("h", MCPClientConfig(url=server.url, **options)) as client,
    ):
        registry = OperationRegistry()
        client.register_all(registry)
        yield server, client, registry


async def test_calls_continue_after_a_restart_and_a_mutation_is_never_replayed() -> None:
    async with connected() as (server, client, registry):
        await registry.execute("h.add")
        await server.stop()
        await server.start()
        error = await error_of(registry.execute("h.add"))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        assert server.added == 1
        assert (await registry.execute("h.add")).data[0]["text"] == "{}"
        assert (server.added, server.greeted) == (2, 2)
        assert client.state is MCPClientState.CONNECTED


async def test_a_session_that_expires_is_renewed_under_a_query() -> None:
    async with connected() as (server, _, registry):
        server.sessions.clear()
        assert (await registry.execute("h.echo", {"a": 1})).data[0]["text"] == '{"a": 1}'
        assert server.greeted == 2


async def test_many_calls_that_meet_an_expired_session_renew_it_once() -> None:
    async with connected() as (server, _, registry):
        server.sessions.clear()
        answers = await asyncio.gather(*(registry.execute("h.echo", {"n": n}) for n in range(20)))
        assert [json.loads(response.data[0]["text"])["n"] for response in answers] == list(range(20))
        assert server.greeted == 2


async def test_calls_fail_immediately_without_the_server_and_continue_after_its_restart() -> None:
    async with connected() as (server, _, registry):
        await server.stop()
        for name in ("h.echo", "h.add"):
            error = await error_of(registry.execute(name))
            assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        await server.start()
        assert (await registry.execute("h.echo")).data[0]["text"] == "{}"


async def test_one_call_that_cannot_connect_does_not_end_the_others() -> None:
    async with connected() as (server, client, registry):
        hanging = asyncio.create_task(registry.execute("h.hang"))
        await server.arrived.wait()
        session = client._connection.session
        assert (await registry.execute("h.echo")).data[0]["text"] == "{}"
        error = await error_of(registry.execute("h.cut_json"))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
        assert client._connection.session is session
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait((hanging,))
        await until(lambda: len(server.cancelled) == 1)


async def test_an_event_stream_that_ends_too_soon_may_have_run() -> None:
    async with connected() as (server, _, registry):
        error = await error_of(registry.execute("h.cut"))
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
        assert (await registry.execute("h.cut_once", {"a": 2})).data[0]["text"] == '{"a": 2}'
        assert server.cut == 2


async def test_a_result_of_twenty_megabytes_arrives_whole_as_one_event() -> None:
    async with connected() as (_, _, registry):
        assert len((await registry.execute("h.big")).data[0]["text"]) == 20_000_000


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, ErrorCode.EXECUTION_ERROR), (500, ErrorCode.EXECUTION_ERROR), (503, ErrorCode.UNAVAILABLE)],
)
async def test_a_failure_status_is_reported(status: int, code: ErrorCode) -> None:
    async with connected() as (_, _, registry):
        error = await error_of(registry.execute("h.status", {"status": status}))
        assert error.code is code
        assert f"HTTP {status}: go away" in error.message


@pytest.mark.parametrize("name", ["not_json", "html", "accepted"])
async def test_an_invalid_response_is_an_error(name: str) -> None:
    async with connected() as (_, _, registry):
        error = await error_of(registry.execute(f"h.{name}"))
        assert error.code in (ErrorCode.EXECUTION_ERROR, ErrorCode.UNAVAILABLE)
        assert (await registry.execute("h.echo")).data[0]["text"] == "{}"


async def test_a_hang_ends_with_the_deadline_though_the_server_ignores_the_cancellation() -> None:
    async with connected() as (server, _, registry):
        server.hanging_cancellations = True
        context = OperationContext(deadline=int(time.time() * 1000) + 500)
        error = await error_of(registry.execute("h.hang", {}, context))
        assert error.code is ErrorCode.TIMEOUT
        await until(lambda: len(server.cancelled) == 1)


async def test_a_client_is_opened_in_one_task_and_closed_in_another() -> None:
    async with hostile_server() as server:
        client = await asyncio.create_task(create_mcp_client("h", MCPClientConfig(url=server.url)))
        registry = OperationRegistry(client.operations)
        answers = await asyncio.gather(*(registry.execute("h.echo", {"n": n}) for n in range(50)))
        assert len(answers) == 50
        await asyncio.create_task(client.close())
        assert (await error_of(registry.execute("h.echo"))).details["executed"] == "no"


async def test_a_registry_follows_the_list_of_tools() -> None:
    async with hostile_server() as server:
        server.notifications = asyncio.Queue()
        async with await create_mcp_client("h", MCPClientConfig(url=server.url)) as client:
            registry = OperationRegistry()
            client.register_all(registry)
            echo, *others = server.tools
            server.tools = [{**echo, "description": "new"}, *others[1:], {"name": "grown", "inputSchema": {}}]
            server.notifications.put_nowait("notifications/tools/list_changed")
            await until(lambda: "h.grown" in registry)
            assert registry.get_spec("h.echo").description == "new"  # type: ignore[union-attr]
            assert f"h.{others[0]['name']}" not in registry
            assert f"h.{others[1]['name']}" in registry


async def test_headers_and_trace_context_are_sent() -> None:
    async with connected(headers={"x-team": "blue"}) as (_, _, registry):
        context = OperationContext(metadata={"traceparent": "00-aa-bb-01", "secret": "s"})
        headers = json.loads((await registry.execute("h.headers", {}, context)).data[0]["text"])
        assert (headers["x-team"], headers["traceparent"]) == ("blue", "00-aa-bb-01")
        assert "secret" not in headers


async def test_a_missing_server_is_unavailable() -> None:
    config = MCPClientConfig(url=f"http://127.0.0.1:{free_port()}/mcp", connect_timeout=2)
    error = await error_of(create_mcp_client("h", config))
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
