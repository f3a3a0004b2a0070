"""WebSocketReader: passes the received bytes of a WebSocket to uvicorn's protocol in small chunks.

uvicorn parses all frames of a received chunk at once, and replies to every ping, even if the peer reads nothing.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from operations.pubsub.link import Turn

_SLICE_BYTES = 4 << 10
_LATE_SLICE_BYTES = 256
"""Number of bytes that are parsed at a time once the time limit of `turn` is exceeded; before, `_SLICE_BYTES`."""
_MAX_UNSENT = 1 << 20
"""Largest number of unsent bytes. Above this, no more frames are parsed, because each ping would add a pong."""


class WebSocketReader(asyncio.Protocol):
    """A layer between the transport and the protocol of a connection; for the protocol, this layer is the transport.

    The connections of a server share `turn`, a time limit for parsing in each iteration of the event loop. After that
    time, each connection parses one small slice per iteration.
    """

    def __init__(self, transport: asyncio.Transport, protocol: Any, turn: Turn) -> None:
        self._transport = transport
        self._protocol = protocol
        self._turn = turn
        self._unparsed = b""
        self._is_paused = False
        """Whether the protocol paused reading."""
        self._is_scheduled = False
        protocol.connection_made(self)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the transport, because the protocol uses this object as its transport."""
        return getattr(self._transport, name)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, or buffer them until earlier ones are parsed; called by asyncio."""
        self._unparsed += data
        if not self._is_scheduled:
            self._parse()

    def _parse(self) -> None:
        self._is_scheduled = False
        self._turn.begin()
        while self._unparsed and not self._is_waiting and not self._transport.is_closing():
            size = _LATE_SLICE_BYTES if perf_counter() > self._turn.end else _SLICE_BYTES
            part, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._protocol.data_received(part)
            if perf_counter() > self._turn.end:
                break
        if not self._unparsed and not self._is_waiting:
            self._transport.resume_reading()
            return
        self._transport.pause_reading()
        if not self._is_waiting:
            self._schedule()

    @property
    def _is_waiting(self) -> bool:
        return self._is_paused or self._transport.get_write_buffer_size() > _MAX_UNSENT

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._transport.is_closing():
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._parse)

    def pause_reading(self) -> None:
        """Stop reading; called by uvicorn's protocol."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read; called by uvicorn's protocol."""
        self._is_paused = False
        self._schedule()

    def pause_writing(self) -> None:
        """Forward to the protocol that the write buffer is full; called by asyncio."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Forward to the protocol that the write buffer has space; called by asyncio."""
        self._protocol.resume_writing()
        self._schedule()

    def eof_received(self) -> bool | None:
        """Forward the end of the data to the protocol; called by asyncio."""
        return self._protocol.eof_received()  # type: ignore[no-any-return]

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop unparsed bytes and forward the loss to the protocol; called by asyncio."""
        self._unparsed = b""
        self._protocol.connection_lost(exc)
