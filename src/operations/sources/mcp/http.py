"""HTTP transports: streamable HTTP and HTTP+SSE. They are the SDK's transports with an HTTP client of this library.

With the HTTP client of the SDK, a refused connection or a failed authorisation ends the whole session, and the size of
bodies is not limited. `ErrorReportingClient` limits the size, and returns a JSON-RPC error as the response to a request
that fails. If the request or its response was lost, the error states whether the server may have executed the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, PARSE_ERROR, jsonrpc_message_adapter
from pydantic import ValidationError

from operations.errors import CallError
from operations.http import HTTPRequest
from operations.http.client import error_text
from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.limits import without_deep_tools
from operations.sources.mcp.oauth import oauth_provider
from operations.sources.mcp.protocol import RequestFailedError, RequestLostError, explain
from operations.sources.mcp.server_messages import substitute

T = TypeVar("T")

LOST = "operations/lost"
"""Field in the `data` of the JSON-RPC errors that `ErrorReportingClient` generates for lost requests."""
NOTIFICATION_SECONDS = 5.0
"""Time limit for the POST of a notification or of a response: the SDK sends no other messages until the POST ends."""
MAX_OTHER_BYTES = 1024 * 1024
"""Maximum number of bytes that are read from an error response, or from an authorisation server's response."""
DECODED_CHUNK_BYTES = 1024 * 1024
"""Maximum size of the decompressed chunks that httpx2 returns."""
EVENT_PIECE_BYTES = 16 * 1024
"""Number of decompressed bytes of an event stream that are parsed at a time."""
_REQUEST_ID = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),')
_CANCELLED_ID = re.compile(rb'\{"jsonrpc":"2\.0","method":"notifications/cancelled","params":\{"requestId":(\d+)[,}]')
_POST = "operations"
"""The extension of a request in which its `_Post` is kept."""
_SESSION = "mcp-session-id"
_SESSION_ERRORS = frozenset({-32000, -32001, -32600})
"""JSON-RPC error codes with which servers reject an unknown session; the HTTP status is 400 or 404."""
# The SDK has no codes for these errors, only message prefixes.
_STREAM_FAILED = "SSE stream "
_EVENT_TOO_LARGE = "SSE stream failed: Server-sent event exceeded"
_UNREADABLE = "Failed to parse "


class ResponseTooLargeError(Exception):
    """A response body exceeds `max_message_bytes`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the response exceeds max_message_bytes ({limit:,} bytes)")


@contextlib.asynccontextmanager
async def http_transport(config: MCPClientConfig, on_expired: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Open a transport to the server at the config's URL; yield the streams to read from and to write to."""
    assert config.url is not None
    auth = None if config.oauth is None else oauth_provider(config.url, config.oauth)
    async with (
        ErrorReportingClient(config, on_expired, auth=auth) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=config.max_message_bytes) as streams,
    ):
        yield streams


class ErrorReportingClient(httpx2.AsyncClient):
    """An HTTP client for the SDK: a POST that fails gets a JSON-RPC error as its response; bodies are limited."""

    def __init__(self, config: MCPClientConfig, on_expired: Callable[[], None], *, auth: httpx2.Auth | None) -> None:
        super().__init__(
            headers=dict(config.headers),
            auth=auth,
            timeout=httpx2.Timeout(30.0, connect=min(30.0, config.connect_timeout), read=config.timeout),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            event_hooks={"request": [self._report_request], "response": [self._limit_body, self._report_response]},
        )
        self._config = config
        self._on_expired = on_expired
        self._posts: WeakValueDictionary[bytes, _Post] = WeakValueDictionary()
        """The requests without a complete response, by JSON-RPC id."""
        self._max_bytes = config.max_message_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; if a POST fails, return a JSON-RPC error as its response instead of raising."""
        if request.method == "GET":
            return await self._open_notifications(request, options)
        if request.method != "POST":
            return await super().send(request, **options)
        post = request.extensions[_POST] = _Post()
        if (found := _REQUEST_ID.match(request.content)) is not None:
            self._posts[found[1]] = post
        elif (found := _CANCELLED_ID.match(request.content)) is not None and found[1] in self._posts:
            self._posts.pop(found[1]).end(found[1])
        seconds = None if _is_request(request) else NOTIFICATION_SECONDS
        try:
            return await post.run(self._exchange(request, options), seconds)
        except ResponseTooLargeError as error:
            return _error_response(request, 502, INTERNAL_ERROR, str(error), {"limit": self._max_bytes})
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            lost = {"reason": explain(error), "executed": "no", "sent": False}
        except (OAuthFlowError, CallError) as error:
            lost = {"reason": f"authorisation failed: {explain(error)}", "executed": "no"}
        except Exception as error:  # noqa: BLE001  # an exception here would end the session for every call
            lost = {"reason": explain(error), "executed": "unknown"}
        return _error_response(request, 503, -32000, str(lost["reason"]), {LOST: lost})

    async def _exchange(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        response = await super().send(request, **options)
        lists_tools = b'"method":"tools/list"' in request.content[:200]
        if is_event_stream(response):
            return with_events(response, self._max_bytes, _prune) if lists_tools else response
        # Reading the body here turns a broken connection into an error response.
        body = await response.aread()
        if response.status_code >= 400:
            return self._explain_status(request, response, body)
        pruned = _prune(body) if lists_tools else body
        if pruned is body:
            return response
        headers = {"content-type": "application/json"}
        return httpx2.Response(response.status_code, headers=headers, content=pruned, request=request)

    async def _report_request(self, request: httpx2.Request) -> None:
        if self._config.on_request is not None:
            self._config.on_request(_plain_request(request))

    async def _report_response(self, response: httpx2.Response) -> None:
        if self._config.on_response is not None:
            sent = _plain_request(response.request)
            self._config.on_response(sent, response.status_code, response.headers.multi_items())

    async def _limit_body(self, response: httpx2.Response) -> None:
        """Limit the size of a decompressed body. In an event stream, the SDK limits each event instead."""
        if is_event_stream(response):
            response.stream = _EventBytes(response)
        elif _is_protocol(response.request) and response.request.method == "POST" and response.status_code < 400:
            response.stream = _LimitedBody(response, self._max_bytes, truncate=False)
        else:
            response.stream = _LimitedBody(response, min(self._max_bytes, MAX_OTHER_BYTES), truncate=True)
        response.headers.pop("content-encoding", None)

    def _explain_status(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
        """Return a JSON-RPC error for a response with status 400 or above.

        The response itself is returned if it is a JSON-RPC error or has status 404, unless the session has expired.
        """
        status = response.status_code
        data = _decode(body)
        error = _rpc_error(data)
        if self._is_expired(request, status, error):
            lost = {"reason": "the session expired on the server", "executed": "no", "renew": True}
            return _error_response(request, status, -32600, "session expired", {LOST: lost})
        if error is not None or status == 404:
            return response
        text = error_text(data) or body[:500].decode(errors="replace").strip()
        message = f"HTTP {status}{': ' if text else ''}{text}"
        if status in (502, 503, 504):
            lost = {"reason": message, "executed": "unknown"}
            return _error_response(request, status, -32000, message, {LOST: lost})
        return _error_response(request, status, INTERNAL_ERROR, message, {"status": status})

    async def _open_notifications(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        """Open the stream of notifications, with more retries than the SDK.

        This also detects an expired session before a call does.
        """
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        pauses = iter((0.1, 0.2, 0.5, 1.0, 2.0))
        while True:
            try:
                response = await super().send(request, **options)
            except httpx2.TransportError:
                await asyncio.sleep(next(pauses, 5.0))
                continue
            if response.status_code in (400, 404) and _SESSION in request.headers:
                self._on_expired()
            return response

    def _is_expired(self, request: httpx2.Request, status: int, error: Mapping[str, Any] | None) -> bool:
        if _SESSION not in request.headers or status not in (400, 404):
            return False
        return (error is None and status == 404) or (error is not None and error.get("code") in _SESSION_ERRORS)


class _Post:
    """A POST that ends when the call of its request is cancelled.

    A server need not respond to a cancelled request: without this class, the POST would last until the read timeout.
    """

    def __init__(self) -> None:
        self.last_event: bytes | None = None
        """The event that ends the stream of a cancelled request, so that the SDK does not resume the stream."""
        self._limit: asyncio.Timeout | None = None

    def end(self, request_id: bytes) -> None:
        """End the exchange, or the stream of its response, with an error as the response."""
        error = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32800,"message":"cancelled"}}' % request_id
        self.last_event = b"\n\ndata: %b\n\n" % error
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def run(self, exchange: Awaitable[T], seconds: float | None = None) -> T:
        """Return the outcome of a part of the exchange; raise `TimeoutError` after `end`, or after `seconds`."""
        try:
            async with asyncio.timeout(seconds if self.last_event is None else 0) as self._limit:
                return await exchange
        finally:
            self._limit = None


class _DecodedBody(httpx2.AsyncByteStream):
    """The decompressed body of a response; a subclass yields its pieces."""

    def __init__(self, response: httpx2.Response) -> None:
        self._encoded = httpx2.Response(
            response.status_code, headers=response.headers, stream=response.stream, request=response.request
        )

    async def aclose(self) -> None:
        await self._encoded.aclose()


class _LimitedBody(_DecodedBody):
    """A body with a size limit: with `truncate`, the rest is dropped; otherwise, raise `ResponseTooLargeError`."""

    def __init__(self, response: httpx2.Response, limit: int, *, truncate: bool) -> None:
        super().__init__(response)
        self._limit = limit
        self._truncate = truncate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async with contextlib.aclosing(self._encoded.aiter_bytes()) as chunks:
            async for chunk in chunks:
                if len(chunk) > left and not self._truncate:
                    raise ResponseTooLargeError(self._limit)
                yield chunk[:left]
                left -= len(chunk)
                if len(chunk) >= DECODED_CHUNK_BYTES:
                    await asyncio.sleep(0)  # let other tasks run: a received chunk may become thousands of these
                if left <= 0 and self._truncate:
                    return


class _EventBytes(_DecodedBody):
    """An event stream in small pieces, between which other tasks can run.

    A received chunk may decompress to hundreds of megabytes. The SDK would parse all its lines before other tasks run.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        post = self._encoded.request.extensions.get(_POST) or _Post()
        async with contextlib.aclosing(self._encoded.aiter_bytes()) as chunks:
            while True:
                try:
                    chunk = await post.run(anext(chunks, None))
                except TimeoutError:
                    if post.last_event is not None:
                        yield post.last_event
                    return
                if chunk is None:
                    return
                for start in range(0, len(chunk), EVENT_PIECE_BYTES):
                    yield chunk[start : start + EVENT_PIECE_BYTES]
                    await asyncio.sleep(0)


class _ChangedEvents(httpx2.AsyncByteStream):
    """An event stream with the data of each event changed by a function."""

    def __init__(self, response: httpx2.Response, max_bytes: int, change: Callable[[bytes], bytes]) -> None:
        self._response = response
        self._change = change
        self._events = httpx2.EventSource(response, max_event_size=max_bytes)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self._events:
            fields = {"event": event.event, "id": event.id, "retry": event.retry}
            lines = [f"{name}: {value}" for name, value in fields.items() if value]
            lines += [f"data: {line}" for line in self._change(event.data.encode()).decode().split("\n")]
            yield ("\n".join(lines) + "\n\n").encode()

    async def aclose(self) -> None:
        await self._response.aclose()


def actual_failure(error: RequestFailedError) -> RequestLostError | RequestFailedError:
    """Return the original failure if `ErrorReportingClient` or the SDK generated the error, else the error itself."""
    data = error.data.get(LOST) if isinstance(error.data, Mapping) else None
    if isinstance(data, Mapping):
        return RequestLostError(
            str(data.get("reason")),
            executed="no" if data.get("executed") == "no" else "unknown",
            sent=data.get("sent") is not False,
            renew=data.get("renew") is True,
        )
    if error.code == CONNECTION_CLOSED and error.message.startswith(_EVENT_TOO_LARGE):
        return RequestFailedError(INTERNAL_ERROR, error.message)
    if error.code == CONNECTION_CLOSED and error.message.startswith(_STREAM_FAILED):
        return RequestLostError(error.message, executed="unknown")
    if error.code == PARSE_ERROR and error.message.startswith(_UNREADABLE):
        # pydantic's second line is the reason; the rest quotes the input.
        reason = "".join(error.message.splitlines()[1:2]).partition(" [type=")[0].strip()
        return RequestFailedError(PARSE_ERROR, f"the response cannot be read{': ' if reason else ''}{reason}")
    return error


def _plain_request(request: httpx2.Request) -> HTTPRequest:
    """Return the method, URL and headers of a request, for `on_request` and `on_response`."""
    return HTTPRequest(method=request.method, url=str(request.url), headers=request.headers.multi_items())


def _is_protocol(request: httpx2.Request) -> bool:
    """Whether a request goes to the MCP server, not to an authorisation server."""
    return "text/event-stream" in request.headers.get("accept", "")


def is_event_stream(response: httpx2.Response) -> bool:
    """Whether the SDK reads a response event by event."""
    return (
        200 <= response.status_code < 300
        and response.request.method in ("GET", "POST")
        and _is_protocol(response.request)
        and response.headers.get("content-type", "").lower().startswith("text/event-stream")
    )


def _is_request(request: httpx2.Request) -> bool:
    """Whether a POST sends a JSON-RPC request: a notification has no id, a response has no method."""
    before, method, _ = request.content[:200].partition(b'"method":')
    return bool(method) and b'"id":' in before


def _prune(message: bytes) -> bytes:
    """Return a message without tools that are nested too deeply; the same object if the SDK can parse it unchanged."""
    try:
        jsonrpc_message_adapter.validate_json(message, by_name=False)
    except ValidationError:
        return without_deep_tools(message) or message
    return message


def with_events(response: httpx2.Response, max_bytes: int, change: Callable[[bytes], bytes]) -> httpx2.Response:
    """Return the response with the data of each event changed by a function; an event has at most `max_bytes`."""
    headers = {"content-type": "text/event-stream"}
    stream = _ChangedEvents(response, max_bytes, change)
    return httpx2.Response(response.status_code, headers=headers, stream=stream, request=response.request)


def _decode(body: bytes) -> Any:
    """Return the JSON value of a body; None if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _rpc_error(data: Any) -> Mapping[str, Any] | None:
    error = data.get("error") if isinstance(data, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("code"), int) else None


def _error_response(request: httpx2.Request, status: int, code: int, message: str, data: Any) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": data}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=msgspec.json.encode(body), request=request)


MAX_EVENT_BYTES = 1024 * 1024
"""Maximum size of an event in bytes; the SDK has the same limit."""


@contextlib.asynccontextmanager
async def sse_transport(config: MCPClientConfig, on_ended: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Open a transport over HTTP+SSE, for servers that do not have streamable HTTP yet; yield its two streams.

    The SDK's transport only logs a POST that fails, and the caller waits until the time limit. Here a failed POST ends
    the session, so that the request fails and the next call opens another session. If a server names no endpoint, or an
    endpoint at another origin, connecting fails after `connect_timeout`.
    """
    assert config.url is not None
    provider = None if config.oauth is None else oauth_provider(config.url, config.oauth)

    def make_client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return _SSEClient(config, on_ended, auth=provider)  # with the config's headers and time limits

    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(config.connect_timeout):
                opened = sse_client(config.url, httpx_client_factory=make_client)
                streams = await stack.enter_async_context(opened)
        except TimeoutError:
            reason = f"the server named no endpoint at its own origin within {config.connect_timeout:g} s"
            raise TimeoutError(reason) from None
        yield streams


class _SSEClient(ErrorReportingClient):
    """An HTTP client that ends the session if a request fails. The event stream has no read timeout."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; end the session if it fails."""
        if request.method == "GET":
            request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        try:
            response = await httpx2.AsyncClient.send(self, request, **options)
        except BaseException:
            self._on_expired()
            raise
        if request.method == "POST" and response.status_code >= 400:
            self._on_expired()
        if request.method == "GET" and is_event_stream(response):
            return with_events(response, MAX_EVENT_BYTES, lambda message: substitute(message) or message)
        return response
