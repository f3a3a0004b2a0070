"""HTTPExchange: one request of an HTTP/1.1 connection and its response, as `receive` and `send` of ASGI."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from operations.serving.asgi import PHRASES

_log = logging.getLogger("operations.serving")
_MAX_UNREAD_BYTES = 64 << 10
"""Number of bytes of a body that may wait for the application before the connection stops reading."""
_DISCONNECT = "http.disconnect"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {status: f"HTTP/1.1 {status} {phrase}\r\n".encode() for status, phrase in PHRASES.items()}
_WITHOUT_BODY = (204, 304)
_CONNECTION_HEADERS = (b"connection", b"transfer-encoding")
"""Headers that only the server writes. An application closes the connection by `Connection: close`."""


class Connection(Protocol):
    """The part of a connection that an exchange uses."""

    transport: asyncio.Transport
    state: Any
    """The state of the server; `default_headers` are the headers of every response."""
    drained: asyncio.Event | None
    """An event that is set when the client has read the written data; None while the client reads fast enough."""

    def pause_reading(self) -> None:
        """Stop reading from the client."""

    def resume_reading(self) -> None:
        """Read from the client."""

    def end_exchange(self, exchange: HTTPExchange) -> None:
        """End an exchange whose response is complete, and run the next request of the connection."""


class HTTPExchange:
    """A request and its response. The head of the response is written together with the first part of its body."""

    __slots__ = (
        "_connection",
        "_head",
        "_is_chunked",
        "_is_read",
        "_left",
        "_may_continue",
        "_news",
        "_parts",
        "_unread",
        "has_more",
        "is_disconnected",
        "is_over",
        "is_started",
        "keeps_alive",
        "scope",
        "task",
    )

    def __init__(self, connection: Connection, scope: dict[str, Any], *, keeps_alive: bool) -> None:
        self.scope = scope
        self.keeps_alive = keeps_alive
        """Whether the connection is used again after the response."""
        self.has_more = True
        """Whether a part of the request's body has not arrived."""
        self.is_started = False
        """Whether a part of the response was written."""
        self.is_disconnected = False
        self.is_over = False
        """Whether the response is complete or the client has disconnected."""
        self.task: asyncio.Task[None] | None = None
        self._connection = connection
        self._may_continue = True
        self._parts: list[bytes] = []
        self._unread = 0
        self._is_read = False
        self._news: asyncio.Event | None = None
        self._head: Any = None
        self._left: int | None = None
        """The number of body bytes still to be written, according to Content-Length; None without that header."""
        self._is_chunked = False

    async def run(self, app: Any, tasks: set[Any]) -> None:
        """Run the application for this request, then remove its task from `tasks`."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001  # the server answers every request
            _log.exception("internal error while serving an HTTP request")
        finally:
            tasks.discard(self.task)
            if not self.is_over:
                self._fail()

    def add(self, part: bytes) -> None:
        """Store a part of the body until the application receives it."""
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > _MAX_UNREAD_BYTES:
            self._connection.pause_reading()
        if self._news is not None:
            self._news.set()

    def end_body(self) -> None:
        """Mark the body as complete."""
        self.has_more = False
        if self._news is not None:
            self._news.set()

    def disconnect(self) -> None:
        """Notify the application that the client disconnected, and write nothing more."""
        self.is_over = self.is_disconnected = True
        if self._news is not None:
            self._news.set()

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body. After the last part, wait until the response or the connection ends."""
        while not self.is_over:
            if self._parts or not (self.has_more or self._is_read):
                body = b"".join(self._parts)
                self._parts.clear()
                self._unread = 0
                self._is_read = not self.has_more
                return {"type": "http.request", "body": body, "more_body": self.has_more}
            if self.has_more:
                self._request_more()
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        return {"type": _DISCONNECT}

    def _request_more(self) -> None:
        """Resume reading from the client; if the client waits for `100 Continue`, send that first.

        `100 Continue` is not written after the head of the response, because the client would read it as a part of the
        body.
        """
        if self._may_continue and not self.is_started:
            self._may_continue = False
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.scope["headers"]):
                self._connection.transport.write(_CONTINUE)
        self._connection.resume_reading()

    async def send(self, message: Any) -> None:
        """Write a part of the response."""
        if self.is_disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and self._head is None and not self.is_started:
            self._head = message
            return
        if kind != "http.response.body" or self.is_over or (self._head is None and not self.is_started):
            raise RuntimeError(f"unexpected ASGI message {kind!r}")
        connection = self._connection
        if connection.drained is not None:
            await connection.drained.wait()
            if self.is_disconnected:
                return
        body: bytes = message.get("body", b"")
        has_more: bool = message.get("more_body", False)
        head = b""
        if self._head is not None:
            head = self._write_head(self._head, None if has_more else len(body))
            self._head = None
        connection.transport.write(head + self._frame(body, has_more))
        self.is_started = True
        if not has_more:
            self._end()

    def _write_head(self, message: Any, length: int | None) -> bytes:
        """Return the head of the response. `length` is the length of its body, if that is known."""
        status: int = message["status"]
        parts: list[bytes] = []
        for name, value in (*self._connection.state.default_headers, *message.get("headers", ())):
            if name == b"content-length":
                self._left = int(value)
            elif name in _CONNECTION_HEADERS:
                self.keeps_alive = self.keeps_alive and value.lower() != b"close"
                continue
            parts += (name, b": ", value, b"\r\n")
        headers = b"".join(parts)
        # A value with a line break would start another header, or another response.
        if len(headers) - len(headers.translate(None, b"\r\n\0")) != len(parts) // 2:  # CR and LF of each header
            raise RuntimeError("a response header contains a control character")
        framing = self._choose_framing(status, length)
        closing = b"\r\n" if self.keeps_alive else b"connection: close\r\n\r\n"
        return b"".join((_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, headers, framing, closing))

    def _choose_framing(self, status: int, length: int | None) -> bytes:
        """Return the framing header (length or chunks) of the body, unless the application set it."""
        if self.scope["method"] == "HEAD" or status in _WITHOUT_BODY:
            self._left = 0
        elif self._left is None:
            if length is not None:
                self._left = length
                return b"content-length: %d\r\n" % length
            if self.scope["http_version"] == "1.1":
                self._is_chunked = True
                return b"transfer-encoding: chunked\r\n"
            self.keeps_alive = False  # the end of the connection is the end of the body
        return b""

    def _frame(self, body: bytes, has_more: bool) -> bytes:
        """Return a part of the body as it is written on the connection."""
        if self._is_chunked:
            part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return part if has_more else part + b"0\r\n\r\n"
        if self._left is None:
            return body
        if self.scope["method"] == "HEAD":
            return b""
        self._left -= len(body)
        if self._left < 0 or (self._left and not has_more):
            raise RuntimeError("the length of a response differs from its Content-Length")
        return body

    def _end(self) -> None:
        self.is_over = True
        if self._news is not None:
            self._news.set()
        self._connection.end_exchange(self)

    def _fail(self) -> None:
        """End a response that the application did not complete."""
        self.keeps_alive = False
        if not self.is_started:
            self._head, self._left = None, None
            body = b"Internal Server Error"
            head = {"status": 500, "headers": [(b"content-type", b"text/plain; charset=utf-8")]}
            self._connection.transport.write(self._write_head(head, len(body)) + self._frame(body, has_more=False))
        self._end()
