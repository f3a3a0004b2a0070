"""MCPEndpoint: an MCP server over streamable HTTP, for requests of authenticated callers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from operations.deadlines import resume
from operations.errors import ErrorCode
from operations.serving.admission import Caller
from operations.serving.asgi import JSON_TYPE, Response, wait_for_disconnect
from operations.serving.bodies import BodyReader, ClientDisconnectedError, check_values
from operations.serving.mcp import fast_path
from operations.serving.mcp.server import VERSION, MCPServer
from operations.serving.mcp.tasks import METHODS as TASK_METHODS
from operations.serving.mcp.tools import Tool
from operations.serving.refusals import RefusedError
from operations.wire import LARGE_MESSAGE

if TYPE_CHECKING:
    from operations.serving.mcp.sdk.http import SDKSessions  # imported for requests that need the SDK

_log = logging.getLogger("operations.mcp")

_INVALID_REQUEST = -32600
_VERSION = VERSION.encode()
_encode = msgspec.json.Encoder().encode
_NO_SDK = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Not supported by this server"}}'
_INTERNAL = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal server error"}}'


class MCPEndpoint:
    """Serves the operations of an exposure at any path. Every request has its own caller."""

    def __init__(self, mcp_server: MCPServer) -> None:
        self.mcp_server = mcp_server
        self._limits = limits = mcp_server.limits
        registry = mcp_server.exposure.registry
        self._bodies = BodyReader(registry, limits)
        self._streams: set[asyncio.Timeout] = set()
        """The time limits of the requests that stay open without a call: streams of notifications."""
        self._sessions: SDKSessions | None = None
        self._is_open = False

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve within the block; on exit, end sessions and suspended calls."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            await self.mcp_server.close()
            if self._sessions is not None:
                await self._sessions.close()
                self._sessions = None

    async def __call__(self, scope: Any, receive: Any, send: Any, caller: Caller) -> None:
        """Serve one request of an admitted caller."""
        headers = caller.headers
        body = None
        if scope["method"] == "POST":
            try:
                body = await self._bodies.read(receive, headers, caller.key)
                caller.check_current()
                if len(body) > LARGE_MESSAGE and not caller.has_rights:
                    check_values(body, self._limits.values)
                    caller.input_bytes = len(body)
                if body.lstrip()[:1] == b"[":  # the SDK would read thousands of messages before it refuses them
                    text = "expected one message: batches are not supported"
                    raise RefusedError(400, ErrorCode.VALIDATION_ERROR, text, "BATCH")
            except ClientDisconnectedError:
                return
            except RefusedError as refused:
                error = {"code": _INVALID_REQUEST, "message": refused.message}
                await _respond(send, refused.status, _encode({"jsonrpc": "2.0", "id": None, "error": error}))
                return
        if body is not None and _is_fast(scope, headers):
            routing = headers
            message = fast_path.read(body)
            if message is not None and message.method in TASK_METHODS and self.mcp_server.tasks is not None:
                await self._serve_task(message, routing, receive, send, caller)
                return
            if message is not None and _agrees(routing, message):
                tool = self.mcp_server.tool_list.tools.get(message.params.name)
                # If arguments are also sent as headers, the SDK compares both.
                if tool is None or not tool.has_headers:
                    await self._answer(message, tool, receive, send, caller)
                    return
        await self._pass_on(scope, receive, send, caller, body)

    async def _serve_task(
        self, message: fast_path.Message, routing: Mapping[bytes, bytes], receive: Any, send: Any, caller: Caller
    ) -> None:
        if _agrees(routing, message):
            await self._answer(message, None, receive, send, caller)
        else:  # the SDK does not know these methods
            error = {"code": fast_path.HEADER_MISMATCH, "message": "Header mismatch: Mcp-Method or Mcp-Name"}
            await _respond(send, 400, _encode({"jsonrpc": "2.0", "id": message.id, "error": error}))

    async def _answer(
        self, message: fast_path.Message, tool: Tool | None, receive: Any, send: Any, caller: Caller
    ) -> None:
        work = fast_path.answer(self.mcp_server, message, caller, tool)
        watch = None
        try:
            try:
                waiting = work.send(None)
            except StopIteration as done:  # a call that never suspends needs no watcher
                status, body = done.value
            else:
                watch = _Disconnect(receive)
                status, body = await resume(work, waiting)
        except asyncio.CancelledError:
            if watch is None or not watch.is_gone:
                raise
            watch.task.uncancel()
            return
        except Exception as error:  # noqa: BLE001  # the text of an exception is not sent
            fast_path.log_failure(message.method, error)
            status, body = 200, _INTERNAL
        finally:
            if watch is not None:
                watch.is_over = True
        await _respond(send, status, body)

    async def _pass_on(self, scope: Any, receive: Any, send: Any, caller: Caller, body: bytes | None) -> None:
        if not self._is_open:
            raise RuntimeError(
                "the endpoint is not running: enter `async with endpoint.run()` in the lifespan of the application"
            )
        if self._sessions is None:
            try:
                # In a thread: the SDK takes up to a second to import.
                sdk: Any = await asyncio.to_thread(import_module, "operations.serving.mcp.sdk.http")
            except ModuleNotFoundError as error:
                _log.error(
                    'without the extra `mcp`, only MCP 2026-07-28 tools are served: pip install "operations[mcp]" (%s)',
                    error,
                )
                await _respond(send, 501, _NO_SDK)
                return
            if self._sessions is None:  # another request may have created them meanwhile
                self._sessions = sdk.SDKSessions(self.mcp_server, max_body=self._limits.body_bytes)
        assert self._sessions is not None
        # Some servers keep whitespace around header values, which the protocol ignores.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        receive = receive if body is None else _replay(body, receive)
        size = 0 if body is None else len(body)
        scope = {**scope, "headers": headers}
        handling = self._sessions.handle(scope, receive, send, caller, size)
        expires_at = None if caller.principal is None else caller.principal.expires_at
        await self._handle_until(expires_at, handling, is_stream=_is_stream(scope))

    async def _handle_until(
        self, expires_at: float | None, handling: Coroutine[Any, Any, None], *, is_stream: bool
    ) -> None:
        """Handle a request until the credentials of its caller expire. `end_streams` ends a stream earlier."""
        limit = asyncio.timeout(None if expires_at is None else max(0.0, expires_at - time.time()))
        try:
            async with limit:
                if is_stream:
                    self._streams.add(limit)
                await handling
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._streams.discard(limit)

    def end_streams(self) -> None:
        """End the streams of notifications, because a token was revoked. Clients with valid tokens open new ones."""
        for limit in self._streams:
            limit.reschedule(asyncio.get_running_loop().time())


class _Disconnect:
    """Cancels the current task if the client disconnects before the response is complete."""

    def __init__(self, receive: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.is_gone = False
        self.is_over = False
        self._watching = asyncio.create_task(self._watch(receive))

    async def _watch(self, receive: Any) -> None:
        await wait_for_disconnect(receive)
        if not self.is_over:
            self.is_gone = True
            self.task.cancel()


def _is_fast(scope: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the headers of a POST request permit the fast path."""
    accept = headers.get(b"accept", b"")
    return (
        headers.get(b"mcp-protocol-version", b"").strip(b" \t") == _VERSION
        and b"application/json" in accept
        and b"text/event-stream" in accept
        and headers.get(b"content-type", b"")[:16] == b"application/json"
        and len(headers) == len(scope["headers"])  # the SDK refuses repeated headers
    )


def _is_stream(scope: Any) -> bool:
    """Whether a request stays open for notifications."""
    return scope["method"] == "GET" or (b"mcp-method", b"subscriptions/listen") in scope["headers"]


def _agrees(routing: Mapping[bytes, bytes], message: fast_path.Message) -> bool:
    """Whether the routing headers (`Mcp-Method`, `Mcp-Name`) match the body."""
    if routing.get(b"mcp-method", b"").strip(b" \t") != message.method.encode():
        return False
    name = routing.get(b"mcp-name", b"").strip(b" \t")
    if message.method in TASK_METHODS:
        return name == message.params.task_id.encode()
    return message.method != fast_path.CALL or name == message.params.name.encode()


def _replay(body: bytes, receive: Any) -> Any:
    """Return a `receive` that first returns a body that was already read."""
    given = False

    async def replay() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _respond(send: Any, status: int, body: bytes) -> None:
    await Response(status, [JSON_TYPE], body).send(send)
