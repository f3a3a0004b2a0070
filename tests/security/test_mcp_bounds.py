"""An MCP server cannot make its client use memory without bound or wait for a response that it cannot read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from operations import CallError, ErrorCode, OperationContext, OperationRegistry
from operations.progress import MAX_EVENTS, MAX_MESSAGE_CHARACTERS
from operations.sources.mcp import MCPClientConfig, MCPOAuth, MCPServerRequest, create_mcp_client, is_progress, stdio
from operations.sources.mcp.http import EVENT_PIECE_BYTES, ErrorReportingClient
from operations.sources.mcp.server_messages import MAX_UNSENT_RESPONSES, LimitedResponses
from operations.testing import error_of
from tests.asgi_server import serving
from tests.sources.mcp.conftest import nothing_is_left  # noqa: F401  # a fixture that every test here uses
from tests.sources.mcp.hostile_http import HostileServer, hostile_server, nested
from tests.sources.mcp.peers import hostile
from tests.waiting import until

SMALL = 1_000_000
JSON = "application/json"
EVENTS = "text/event-stream"


@contextlib.asynccontextmanager
async def over_http(server: HostileServer, **options: Any) -> AsyncIterator[OperationRegistry]:
    # Without the bound, a response that never ends runs into the time limit, which is another error.
    config = MCPClientConfig(url=server.url, **{"timeout": 5.0, "max_message_bytes": SMALL, **options})
    async with await create_mcp_client("s", config) as client:
        registry = OperationRegistry()
        client.register_all(registry)
        yield registry


@contextlib.asynccontextmanager
async def over_stdio(
    mode: str = "tools", directory: Path | None = None, **options: Any
) -> AsyncIterator[OperationRegistry]:
    async with await create_mcp_client("s", hostile(mode, directory, **{"timeout": 5.0, **options})) as client:
        registry = OperationRegistry()
        client.register_all(registry)
        yield registry


@pytest.mark.parametrize("media_type", [JSON, EVENTS])
@pytest.mark.parametrize("encoding", [None, "gzip"])
async def test_a_response_over_the_limit_is_refused_without_its_end(media_type: str, encoding: str | None) -> None:
    async with hostile_server() as server, over_http(server) as registry:
        error = await error_of(registry.execute("s.endless", {"media_type": media_type, "encoding": encoding}))
        assert error.code is ErrorCode.EXECUTION_ERROR
        assert f"{SMALL}" in error.message.replace(",", "")
        assert (await registry.execute("s.echo")).data[0]["text"] == "{}"


@pytest.mark.parametrize("encoding", [None, "gzip"])
@pytest.mark.parametrize("media_type", ["text/plain", JSON, EVENTS])
async def test_only_the_beginning_of_an_error_body_is_read(media_type: str, encoding: str | None) -> None:
    async with hostile_server() as server, over_http(server) as registry:
        arguments = {"media_type": media_type, "encoding": encoding, "status": 500}
        error = await error_of(registry.execute("s.endless", arguments))
        assert error.code is ErrorCode.EXECUTION_ERROR
        assert "HTTP 500" in error.message
        assert len(error.message) < 1_000


async def test_a_compressed_event_stream_lets_other_tasks_run() -> None:
    """One received chunk of 8 KB with 2 million comments, which no event ends."""
    size = 8 << 20

    class OneChunk(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield gzip.compress(b": x\n" * (size // 4))

    passed = 0

    async def count() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(0)
            passed += 1

    async with ErrorReportingClient(MCPClientConfig(url="http://127.0.0.1:1/mcp"), lambda: None, auth=None) as client:
        request = client.build_request("POST", "/mcp", headers={"accept": EVENTS})
        headers = {"content-type": EVENTS, "content-encoding": "gzip"}
        response = httpx2.Response(200, headers=headers, stream=OneChunk(), request=request)
        for hook in client.event_hooks["response"]:
            await hook(response)
        counting = asyncio.create_task(count())
        received = 0
        async for piece in response.aiter_bytes():
            assert len(piece) <= EVENT_PIECE_BYTES
            received += len(piece)
        counting.cancel()
    assert received == size
    assert passed >= size // EVENT_PIECE_BYTES - 1


async def test_lines_of_a_server_that_are_not_messages_let_other_tasks_run(caplog: pytest.LogCaptureFixture) -> None:
    """All lines have arrived, so that reading them never waits."""
    count, passed = 2_000, 0
    stdout = asyncio.StreamReader()
    stdout.feed_data(b"x\n\n" * count)
    stdout.feed_eof()
    pump = stdio._Pump("s", cast("Any", SimpleNamespace(stdout=stdout)), SMALL)
    incoming, receive = anyio.create_memory_object_stream[SessionMessage | Exception](1)

    async def pass_turns() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(0)
            passed += 1

    counting = asyncio.create_task(pass_turns())
    with receive:
        await pump.read_messages(incoming)
    counting.cancel()
    assert passed >= 2 * count - 1
    logged = [record.getMessage() for record in caplog.records]
    assert (len(logged), logged[-1].endswith("; further ones are not logged")) == (stdio._MAX_IGNORED, True)


@pytest.mark.parametrize("event", ["event: endpoint\ndata: http://other.test/messages\n\n", ": nothing\n\n"])
async def test_a_server_over_sse_without_a_valid_endpoint_is_an_error_at_the_connect_timeout(event: str) -> None:
    async def respond(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield event
            await asyncio.sleep(60)

        return StreamingResponse(body(), media_type=EVENTS)

    with serving(Starlette(routes=[Route("/sse", respond)])) as url:
        config = MCPClientConfig(url=f"{url}/sse", sse=True, connect_timeout=1.0)
        async with asyncio.timeout(30):
            error = await error_of(create_mcp_client("s", config))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "no endpoint at its own origin within 1 s" in error.message


async def test_the_limit_is_that_of_one_message_and_a_message_of_that_size_is_read() -> None:
    async with hostile_server() as server, over_http(server, max_message_bytes=30_000_000) as registry:
        assert len((await registry.execute("s.big")).data[0]["text"]) == 20_000_000
    async with hostile_server() as server, over_http(server) as registry:
        error = await error_of(registry.execute("s.big"))
        assert error.code is ErrorCode.EXECUTION_ERROR


async def test_the_body_of_a_redirect_is_bounded() -> None:
    async with hostile_server() as server, over_http(server) as registry:
        error = await error_of(registry.execute("s.endless", {"media_type": EVENTS, "status": 307}))
        assert error.code is ErrorCode.EXECUTION_ERROR


async def test_the_body_of_the_last_response_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operations.sources.mcp.connection.CLOSE_SECONDS", 100.0)  # so that nothing forces the close
    async with hostile_server() as server:
        client = await create_mcp_client("s", MCPClientConfig(url=server.url, timeout=60.0))
        server.endless_bodies.add("DELETE")
        async with asyncio.timeout(30):
            await client.close()


async def test_the_metadata_of_an_authorisation_server_is_bounded(tmp_path: Path) -> None:
    async with hostile_server() as server:
        server.endless_bodies.add("oauth")
        issuer = server.url.removesuffix("/mcp")
        oauth = MCPOAuth(storage=tmp_path, client_id="me", client_secret="secret", issuer=issuer)
        config = MCPClientConfig(url=server.url, oauth=oauth, timeout=5.0, connect_timeout=20.0)
        error = await error_of(create_mcp_client("s", config))
        assert error.code is ErrorCode.UNAVAILABLE
        assert "authorisation failed" in error.message


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_request_over_the_limit_is_not_sent(transport: str) -> None:
    async with hostile_server() as server:
        opened = over_stdio(max_message_bytes=SMALL) if transport == "stdio" else over_http(server)
        async with opened as registry:
            error = await error_of(registry.execute("s.echo", {"a": "x" * SMALL}))
            assert error.code is ErrorCode.VALIDATION_ERROR
            assert "max_message_bytes" in error.message


@pytest.mark.parametrize("levels", [220, 2_000, 100_000])
@pytest.mark.parametrize("id_last", [False, True])
async def test_a_deep_response_over_stdio_is_an_error_immediately(levels: int, id_last: bool) -> None:
    async with over_stdio() as registry:
        error = await error_of(registry.execute("s.nested", {"levels": levels, "id_last": id_last}))
        assert error.code is ErrorCode.EXECUTION_ERROR
        assert "cannot be read" in error.message
        assert (await registry.execute("s.nested", {"levels": 100})).data["deep"]


@pytest.mark.parametrize("levels", [220, 2_000, 100_000])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_deep_response_over_http_is_an_error_immediately(levels: int, streams: bool) -> None:
    async with hostile_server() as server, over_http(server) as registry:
        error = await error_of(registry.execute("s.nested", {"levels": levels, "streams": streams}))
        assert error.code is ErrorCode.EXECUTION_ERROR
        assert "cannot be read" in error.message
        assert "\n" not in error.message
        assert (await registry.execute("s.nested", {"levels": 100, "streams": streams})).data["deep"]


@pytest.mark.parametrize("levels", [220, 100_000])
async def test_a_deep_response_over_sse_is_an_error_immediately(levels: int) -> None:
    events: asyncio.Queue[str] = asyncio.Queue()

    async def stream(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            yield "event: endpoint\ndata: /messages\n\n"
            while True:
                yield f"event: message\ndata: {await events.get()}\n\n"

        return StreamingResponse(body(), media_type=EVENTS)

    async def take(request: Request) -> Response:
        message = await request.json()
        about = {"name": "x", "version": "1"}
        server = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": about}
        tool = {"name": "nested", "inputSchema": {"type": "object"}}
        deep = f'{{"structuredContent": {{"deep": {"[" * levels + "]" * levels}}}}}'
        results = {"initialize": json.dumps(server), "tools/list": json.dumps({"tools": [tool]}), "tools/call": deep}
        if message["method"] in results:
            events.put_nowait(f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {results[message["method"]]}}}')
        return Response(status_code=202)

    routes = [Route("/sse", stream), Route("/messages", take, methods=["POST"])]
    with serving(Starlette(routes=routes)) as url:
        config = MCPClientConfig(url=f"{url}/sse", sse=True, timeout=30.0)
        async with await create_mcp_client("s", config) as client:
            registry = OperationRegistry(client.operations)
            error = await error_of(registry.execute("s.nested"))
    assert error.code is ErrorCode.EXECUTION_ERROR
    assert "cannot be read" in error.message


async def test_a_deep_schema_costs_only_its_tool_over_stdio(caplog: pytest.LogCaptureFixture) -> None:
    async with over_stdio("deep") as registry:
        assert [spec.id for spec in registry.list()] == ["s.echo", "s.first"]
        assert (await registry.execute("s.echo", {"a": 1})).data[0]["text"] == '{"a": 1}'
    assert "skipped tool 'deep': nested deeper than 200 levels" in caplog.text


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("levels", [220, 100_000])
async def test_a_deep_schema_costs_only_its_tool_over_http(
    streams: bool, levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with hostile_server() as server:
        deep = {"name": "deep", "inputSchema": {"type": "object", "default": nested(levels)}}
        server.tools = [*server.tools, deep]
        server.streams_lists = streams
        async with over_http(server) as registry:
            assert "s.echo" in registry
            assert "s.deep" not in registry
    assert "skipped tool 'deep': nested deeper than 200 levels" in caplog.text


@pytest.mark.parametrize("mode", ["heavy", "cursors"])
async def test_an_endless_list_is_truncated_by_its_bytes(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    async with over_stdio(mode, connect_timeout=20.0) as registry:
        assert len(registry) < 20
    assert "tools/list stopped after" in caplog.text
    assert "more than 16,777,216 bytes" in caplog.text


async def test_a_list_is_truncated_by_its_length(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("operations.sources.mcp.client.MAX_TOOLS", 120)
    async with over_stdio("pages") as registry:
        assert len(registry) == 120
    assert "tools/list stopped after 120 items: more than 120 items" in caplog.text


async def test_progress_to_a_slow_subscriber_is_bounded() -> None:
    async with over_stdio() as registry:
        returned = asyncio.Event()

        def report(progress: float, total: float | None, message: str | None) -> None:
            if progress == 3_000:
                returned.set()

        context = OperationContext(progress=report)
        async with contextlib.aclosing(
            registry.subscribe("s.flood", {"times": 3_000, "length": 10_000}, context)
        ) as stream:
            first = await anext(stream)
            assert is_progress(first)
            async with asyncio.timeout(30):
                await returned.wait()
            events = [event async for event in stream]
        *progress, result = events
        assert len(progress) <= MAX_EVENTS
        assert sum(len(event.data["message"]) for event in progress) <= MAX_MESSAGE_CHARACTERS
        assert progress[-1].data["progress"] == 3_000
        assert result.data[0]["text"] == "flooded"


async def test_progress_to_a_slow_callback_is_bounded() -> None:
    heard: list[float] = []
    release = asyncio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        await release.wait()
        heard.append(progress)

    async with over_stdio() as registry:
        before = len(asyncio.all_tasks())
        envelope = await registry.execute("s.flood", {"times": 3_000, "length": 10}, OperationContext(progress=report))
        assert envelope.data[0]["text"] == "flooded"
        assert len(asyncio.all_tasks()) <= before + 10
        release.set()
        await until(lambda: 3_000 in heard)
        assert len(heard) <= MAX_EVENTS + 1
        assert heard == sorted(heard)


async def test_a_callback_that_fails_costs_only_its_event(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        await asyncio.sleep(0)
        raise ValueError("no")

    caplog.set_level(logging.WARNING, "operations.mcp")
    async with over_stdio() as registry:
        await registry.execute("s.progress", {}, OperationContext(progress=report))
        await until(lambda: heard == [1, 2, 3])
    assert "the progress callback failed" in caplog.text


async def test_a_connection_over_the_limit_at_its_start_is_an_error() -> None:
    async with hostile_server() as server:
        with pytest.raises(CallError) as caught:
            async with over_http(server, max_message_bytes=100):
                pass
        assert caught.value.code in (ErrorCode.UNAVAILABLE, ErrorCode.EXECUTION_ERROR)


async def test_the_requests_of_a_server_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operations.sources.mcp.server_messages.MAX_SERVER_REQUESTS", 2)
    asked, release = asyncio.Semaphore(0), asyncio.Event()

    async def answer(request: MCPServerRequest) -> dict[str, Any]:
        asked.release()
        await release.wait()
        return {"action": "accept"}

    async with over_stdio(elicitation=answer, timeout=60.0) as registry:
        calls = [asyncio.create_task(registry.execute("s.ask")) for _ in range(2)]
        await asked.acquire()
        await asked.acquire()
        assert "more than 2 concurrent requests" in (await registry.execute("s.ask")).data[0]["text"]
        release.set()
        for call in calls:
            assert "accept" in (await call).data[0]["text"]
        assert "accept" in (await registry.execute("s.ask")).data[0]["text"]


@pytest.mark.parametrize("streams", [False, True])
async def test_the_request_of_a_cancelled_call_does_not_stay_open(streams: bool) -> None:
    """A server need not respond to a cancelled request, so that its connection and body would be kept for minutes."""
    async with hostile_server() as server, over_http(server, timeout=60.0) as registry:
        for _ in range(3):
            error = await error_of(registry.execute("s.hang", {"streams": streams, "text": "x" * 10_000}, timeout=0.3))
            assert error.code is ErrorCode.TIMEOUT
        await until(lambda: (server.abandoned, len(server.cancelled)) == (3, 3))
        assert (await registry.execute("s.echo")).data[0]["text"] == "{}"
        assert server.resumed == 0


async def test_requests_that_a_server_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of calls that have ended are still in the queue."""
    monkeypatch.setattr(stdio, "MAX_UNSENT_REQUESTS", SMALL)
    async with over_stdio("deaf", timeout=60.0) as registry:
        text = "x" * (SMALL // 4)
        await error_of(registry.execute("s.block", timeout=0.3))
        errors = [await error_of(registry.execute("s.block", {"text": text}, timeout=0.6)) for _ in range(5)]
        assert (errors[0].code, errors[-1].code) == (ErrorCode.TIMEOUT, ErrorCode.UNAVAILABLE)
        assert "the server does not read its requests" in errors[-1].message
        assert errors[-1].details["executed"] == "no"


async def test_responses_that_a_server_does_not_read_are_bounded() -> None:
    async with over_stdio(timeout=30.0) as registry:

        async def pongs() -> int:
            await asyncio.sleep(0.1)
            return int((await registry.execute("s.pongs")).data[0]["text"])

        await registry.execute("s.pings", {"times": 300, "length": 100_000})
        # A response of any size is sent when no other is unsent; it is written after the earlier ones.
        before = -1
        while before != (before := await pongs()):
            pass
        assert 0 < before <= MAX_UNSENT_RESPONSES // 100_000 + 2  # and those in the pipe
        await registry.execute("s.pings", {"times": 1, "length": 10_000_000})
        async with asyncio.timeout(30):
            while await pongs() <= before:
                pass


async def test_responses_that_a_transport_does_not_send_are_bounded() -> None:
    taken: list[SessionMessage] = []
    ready = asyncio.Event()

    class Slow:
        async def send(self, item: SessionMessage) -> None:
            taken.append(item)
            await ready.wait()

    stream = LimitedResponses("s", Slow())
    pong = SessionMessage(JSONRPCResponse(jsonrpc="2.0", id="x" * 1_000_000, result={}))
    sending = [asyncio.create_task(stream.send(pong)) for _ in range(100)]
    ping = SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping"))
    await until(lambda: len([each for each in sending if each.done()]) > 90)
    assert len(taken) == MAX_UNSENT_RESPONSES // 1_000_000
    ready.set()
    await asyncio.gather(*sending)
    await stream.send(ping)
    await stream.send(pong)
    assert taken[-2:] == [ping, pong]
