"""BoundedProtocol: uvicorn's HTTP/1.1 with limits on request heads.

uvicorn limits neither the size of a request's head nor the time that it may take, keeps whitespace around header
values, and writes the head and the body of a response with two system calls.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

_MAX_HEAD_BYTES = 64 << 10
_MAX_HEADERS = 128
_HEAD_SECONDS = 10.0
_UNUSUAL = frozenset({b"connection", b"transfer-encoding"})
"""Headers of a response that change how it is written."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits on the bytes, headers and duration of request heads. Header values are stripped."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._closes = False
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def close_after_response(self) -> None:
        """Close the connection after the current or the next response, which contains `Connection: close`."""
        self._closes = True
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._stop_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data; refuse a head over the limit before it is parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and not self._ends_head(data):
                self._refuse()
                return
        super().data_received(data)
        if self._in_head and self._head_timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start a request head."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        # Like the base class, with a limit and stripped values; not a super() call, as this runs for every header.
        headers = self.headers
        if len(headers) >= _MAX_HEADERS:
            raise httptools.HttpParserError("too many headers")
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        headers.append((name, value.strip()))

    def on_headers_complete(self) -> None:
        """Finish a request head."""
        self._in_head = False
        if self._head_timer is not None:
            self._stop_timer()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Read the next request. One timer per connection, not one per response, closes idle connections."""
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._end_idle)

    def _end_idle(self) -> None:
        self._idle_timer = None
        if self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0 and self.cycle.response_complete:
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(max(left, 1.0), self._end_idle)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.__class__ = _Cycle
        if self._closes:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def _ends_head(self, data: bytes) -> bool:
        """Whether data that exceeds the limit contains the end of the head within the limit."""
        end = data.find(b"\r\n\r\n")
        return 0 <= end <= _MAX_HEAD_BYTES

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._time_out)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out(self) -> None:
        self._head_timer = None
        if self._in_head and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()


class _Cycle(RequestResponseCycle):
    """Writes a response whose length is known by one system call."""

    _head: Any = None
    """The start of the response, until its body comes."""

    async def send(self, message: Any) -> None:
        """Write a message of the application."""
        head = self._head
        if head is None:
            if message["type"] == "http.response.start" and not self.response_started:
                self._head = message
                self.response_started = True
            else:
                await super().send(message)
            return
        self._head = None
        if self.flow.write_paused or self.disconnected or not self._write_whole(head, message):
            self.response_started = False
            await super().send(head)
            await super().send(message)

    def _write_whole(self, head: Any, message: Any) -> bool:
        """Write head and body together; False for a response that is longer than this message, or unusual."""
        body: bytes = message.get("body", b"")
        if message.get("more_body", False) or self.scope["method"] == "HEAD":
            return False
        content = [STATUS_LINE[head["status"]]]
        for name, value in self.default_headers:
            content += (name, b": ", value, b"\r\n")
        length = None
        for name, value in head["headers"]:
            if b"\n" in value or b"\r" in value or b"\0" in value or name in _UNUSUAL:
                return False
            if name == b"content-length":
                length = value
            content += (name, b": ", value, b"\r\n")
        if length is None or int(length) != len(body):
            return False
        content += (b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n", body)
        self.transport.write(b"".join(content))
        self.waiting_for_100_continue = False
        self.chunked_encoding = False
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True
