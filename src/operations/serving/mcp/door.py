"""MCPDoor: an exposure as an MCP server over streamable HTTP, as an ASGI application with an authenticated caller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from typing import Any, Protocol

from operations.dispatch import Dispatcher
from operations.serving.admission import Caller
from operations.serving.audit import AuditLog
from operations.serving.exposure import Exposure
from operations.serving.mcp import requests
from operations.serving.mcp.calls import CALLS_EACH, DEADLINE_SECONDS
from operations.serving.mcp.endpoint import VERSION, Endpoint
from operations.serving.mcp.listing import Tool

_log = logging.getLogger("operations.mcp")

MAX_BODY = 4 * 1024 * 1024
BODY_SECONDS = 30.0
_VERSION = VERSION.encode()
_NO_SDK = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Not supported by this server"}}'
_INTERNAL = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal server error"}}'


class Sessions(Protocol):
    """Serves what the own path does not."""

    async def handle(self, scope: Any, receive: Any, send: Any, caller: Caller) -> None:
        """Serve a request."""

    async def close(self) -> None:
        """End every session."""


class MCPDoor:
    """Serves the operations of an exposure at one path, whichever; every request has its own caller."""

    def __init__(
        self,
        exposure: Exposure,
        dispatcher: Dispatcher,
        *,
        name: str = "operations",
        version: str = "",
        instructions: str | None = None,
        state_key: bytes | None = None,
        audit: AuditLog | None = None,
        max_body: int = MAX_BODY,
        calls_each: int = CALLS_EACH,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.endpoint = Endpoint(
            exposure,
            dispatcher,
            name=name,
            version=version,
            instructions=instructions,
            state_key=state_key,
            audit=audit,
            calls_each=calls_each,
            deadline_seconds=deadline_seconds,
        )
        self._max_body = max_body
        self._sessions: Sessions | None = None
        self._is_open = False

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Serve while the block lasts; afterwards sessions and calls that wait for answers are ended."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            await self.endpoint.suspensions.close()
            if self._sessions is not None:
                await self._sessions.close()
                self._sessions = None

    async def __call__(self, scope: Any, receive: Any, send: Any, caller: Caller) -> None:
        """Serve one request of an admitted caller."""
        body = None
        routing = _routing(scope)
        if routing is not None:
            received = await receive()
            body = received.get("body", b"")
            if received.get("more_body", False) or len(body) > self._max_body:
                body = await self._read_body(body, receive)
            if body is None:
                await _respond(send, 413, b"")
                return
            message = requests.read(body)
            if message is not None and _agrees(routing, message):
                tool = self.endpoint.listing.tools.get(message.params.name)
                # Arguments that are headers too are compared by the SDK.
                if tool is None or not tool.has_headers:
                    await self._answer(message, tool, receive, send, caller)
                    return
        await self._pass_on(scope, receive, send, caller, body)

    async def _answer(
        self, message: requests.Message, tool: Tool | None, receive: Any, send: Any, caller: Caller
    ) -> None:
        work = requests.answer(self.endpoint, message, caller, tool)
        try:
            waiting = work.send(None)
        except StopIteration as done:  # fast path: a call that never waits needs no watching
            await _respond(send, *done.value)
            return
        except Exception as error:  # noqa: BLE001  # whatever it was, its text stays here
            requests.log_failure(message.method, error)
            await _respond(send, 200, _INTERNAL)
            return
        watch = _Disconnect(receive)
        try:
            status, body = await watch.run(work, waiting)
        except asyncio.CancelledError:
            if not watch.is_gone:
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return
        except Exception as error:  # noqa: BLE001  # whatever it was, its text stays here
            requests.log_failure(message.method, error)
            status, body = 200, _INTERNAL
        finally:
            watch.is_over = True
        await _respond(send, status, body)

    async def _pass_on(self, scope: Any, receive: Any, send: Any, caller: Caller, body: bytes | None) -> None:
        if not self._is_open:
            raise RuntimeError("enter `async with door.run()` first: an application mounts it in its lifespan")
        if self._sessions is None:
            try:
                from operations.serving.mcp.sdk.http import SDKDoor
            except ModuleNotFoundError as error:
                _log.error('MCP beyond tools of 2026-07-28 needs pip install "operations[mcp]": %s', error)
                await _respond(send, 501, _NO_SDK)
                return
            self._sessions = SDKDoor(self.endpoint, max_body=self._max_body)
        # Some servers leave the whitespace around header values, which the protocol says to ignore.
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        receive = receive if body is None else _replay(body, receive)
        await self._sessions.handle({**scope, "headers": headers}, receive, send, caller)

    async def _read_body(self, first: bytes, receive: Any) -> bytes | None:
        """Return a body of several parts; None for one that is too large, too slow, or cut off."""
        chunks, size = [first], len(first)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS):
                while size <= self._max_body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if not message.get("more_body", False):
                        return b"".join(chunks) if size <= self._max_body else None
        return None


class _Disconnect:
    """Continues a request's suspended work, and cancels it when the client closes the connection.

    The watching task ends with the response.
    """

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self.is_gone = False
        self.is_over = False

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
        """Await work that waits for something."""
        task = asyncio.current_task()
        assert task is not None
        self._watching = asyncio.create_task(self._watch(task))
        try:
            while True:
                try:
                    sent = yield waiting
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as thrown:  # noqa: BLE001  # passed on, as an await would
                    waiting = work.throw(thrown)
                else:
                    waiting = work.send(sent)
        except StopIteration as done:
            return done.value
        finally:
            waiting = None

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.is_over:
            self.is_gone = True
            task.cancel()


def _routing(scope: Any) -> dict[bytes, bytes] | None:
    """Return the headers of a request that the own path may answer; None for any other."""
    listed: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(listed)
    if scope["method"] != "POST" or len(headers) != len(listed):
        return None
    accept = headers.get(b"accept", b"")
    if headers.get(b"mcp-protocol-version", b"").strip(b" \t") != _VERSION or b"application/json" not in accept:
        return None
    is_json = headers.get(b"content-type", b"")[:16] == b"application/json"
    return headers if is_json and b"text/event-stream" in accept else None


def _agrees(routing: Mapping[bytes, bytes], message: requests.Message) -> bool:
    """Whether the routing headers say what the body says; the SDK refuses others."""
    if routing.get(b"mcp-method", b"").strip(b" \t") != message.method.encode():
        return False
    return (
        message.method != requests.CALL or routing.get(b"mcp-name", b"").strip(b" \t") == message.params.name.encode()
    )


def _replay(body: bytes, receive: Any) -> Any:
    """Return a `receive` that gives a body which was read already."""
    given = False

    async def replay() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _respond(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
