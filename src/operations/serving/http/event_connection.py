"""EventConnection: the response that a stream of server-sent events is written to, with heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from operations.deadlines import TimerWheel
from operations.serving.asgi import REQUEST_ID_HEADER, Headers, Send

MEDIA_TYPE = "text/event-stream"
_HEADERS: Headers = [
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_RETRY = b"retry: 2000\n\n"
_HEARTBEAT = b":\n\n"
_MAX_BUFFERED = 64 << 10
_MAX_PUSHED = 64
"""Buffered bytes and events above which the handler waits until the server has sent them."""


class EventConnection:
    """The response that a stream is written to."""

    def __init__(self, send: Send, wheel: TimerWheel, heartbeat: float, request_id: str) -> None:
        self.is_open = False
        self.is_finished = False
        self._is_closed = False
        self._send = send
        self._wheel = wheel
        self._heartbeat = heartbeat
        self._request_id = request_id
        self._lock = asyncio.Lock()
        self._was_written = False
        self._task: asyncio.Task[None] | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._flushing: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether data was sent or is about to be sent."""
        return self.is_open or self._flushing is not None

    def push(self, chunk: bytes) -> Awaitable[None] | None:
        """Send an event together with others of this loop iteration. The result is awaited before the next event."""
        if self._is_closed:
            return None
        self._buffer.append(chunk)
        self._buffered += len(chunk)
        flushing = self._flushing
        if flushing is None:
            flushing = self._flushing = asyncio.get_running_loop().create_task(self._flush())
        return asyncio.shield(flushing) if self.is_full else None

    @property
    def is_full(self) -> bool:
        """Whether events wait for the server to send them."""
        return self._buffered > _MAX_BUFFERED or len(self._buffer) >= _MAX_PUSHED

    async def open(self) -> None:
        """Send the head of the response."""
        await self.write(b"")

    async def write(self, chunk: bytes) -> None:
        """Send events; return when the server has accepted them."""
        async with self._lock:
            await self._write(chunk)

    async def finish(self, chunk: bytes) -> None:
        """Send the last events and end the response."""
        async with self._lock:
            await self._write(self._take_buffer() + chunk, more=False)

    def finish_later(self, chunk: bytes) -> None:
        """End the response in a separate task."""
        if not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self.finish(chunk))

    def close(self) -> None:
        """Discard further events: the client disconnected, or the response is complete."""
        self._is_closed = True

    def expire(self) -> None:
        """Send a comment if no event was sent since the last check, so that proxies keep the connection open."""
        if self._is_closed or self.is_finished:
            return
        self._wheel.add(self, self._heartbeat)
        if not self._was_written and not self._lock.locked():
            self._task = asyncio.get_running_loop().create_task(self.write(_HEARTBEAT))
        self._was_written = False

    async def _flush(self) -> None:
        try:
            async with self._lock:
                while self._buffer:
                    await self._write(self._take_buffer())
        finally:
            self._flushing = None

    def _take_buffer(self) -> bytes:
        """Return and clear the buffer."""
        taken = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        return taken

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        if self._is_closed or self.is_finished:
            return
        self._was_written = chunk is not _HEARTBEAT
        self.is_finished = not more
        try:
            if not self.is_open:
                self.is_open = True
                headers = [*_HEADERS, (REQUEST_ID_HEADER, self._request_id.encode())]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                self._wheel.add(self, self._heartbeat)
                chunk = _RETRY + chunk
            await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
        except OSError:  # the client disconnected, which `receive` reports too
            self._is_closed = True
