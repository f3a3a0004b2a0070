"""SocketReader: reads one socket for picows, a limited number of bytes at a time.

picows doubles its read buffer whenever a read fills it, and handles all frames of a read together: a million empty
frames would delay other connections for seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from operations.pubsub.link import Turn

_READ_BYTES = 32 << 10
_SHORT_READ_BYTES = 256
"""Number of bytes that one read returns, and that it returns after the turn of its peer."""


class Reading(Protocol):
    """The part of a link that its reader uses."""

    turn: Turn
    unfinished: int
    """Number of bytes of the incomplete message, which the reader adds to and the link resets."""

    def note_unfinished(self) -> None:
        """Handle a read that left a message incomplete."""


class SocketReader(asyncio.BufferedProtocol):
    """Passes data from the transport of a connection to the protocol of picows."""

    def __init__(self, transport: asyncio.Transport, link: Reading) -> None:
        self._transport = transport
        self._link = link
        self._inner = cast("Any", transport.get_protocol())
        self._is_held = False
        """Whether `hold` was called."""
        self._waits = False
        """Whether reading continues in the next iteration of the event loop."""
        transport.set_protocol(self)

    def hold(self) -> None:
        """Read nothing until `release` is called."""
        self._is_held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Continue to read."""
        self._is_held = False
        self._resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer of the next read."""
        buffer: memoryview = self._inner.get_buffer(sizehint)
        return buffer[: _SHORT_READ_BYTES if self._link.turn.is_late else _READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames of a read; the next read waits for the next iteration if they took long."""
        link = self._link
        link.unfinished += nbytes
        if nbytes > _SHORT_READ_BYTES:
            link.turn.begin()
        self._inner.buffer_updated(nbytes)
        if link.turn.is_late and not self._waits:
            self._waits = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._continue)
        if link.unfinished:
            link.note_unfinished()

    def _continue(self) -> None:
        self._waits = False
        self._resume()

    def _resume(self) -> None:
        if not self._is_held and not self._waits and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        """Called by the transport."""
        return cast("bool | None", self._inner.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport. The protocol refers to its listener: without this the collector would free both."""
        inner, self._inner = self._inner, None
        inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by the transport."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Called by the transport."""
        self._inner.resume_writing()
