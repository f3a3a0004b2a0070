"""Link: one socket between two peers. It carries messages of bytes and knows nothing of events or operations.

A hub and its spokes use links only, so that the same hub runs on any socket: `pubsub.websocket` has the link over
picows, `calls.hub.asgi` the one over an ASGI server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from time import perf_counter
from typing import Any, Protocol

from operations.errors import CallError, ErrorCode

MAX_PAYLOAD = 16 << 20
"""The largest message by default, in bytes."""
MAX_UNSENT = 64 << 20
"""Bytes that may be waiting for a peer to read them; a server disconnects a peer with more."""
HEADROOM = 1024
"""Bytes that a frame may have beyond the largest message."""
BATCH_BYTES = 128 << 10
"""The largest batch of messages in one frame, by default."""
LARGE_MESSAGE = 256 << 10
"""Size in bytes above which a message is large: a server handles one large message per iteration of the event loop."""
CLOSE_SECONDS = 1.0
"""How long a peer may take to close a connection before it is aborted."""
TURN_MESSAGES = 64
TURN_SECONDS = 0.005
"""`TURN_MESSAGES` and `TURN_SECONDS`: the limits of one `Turn` in an iteration of the event loop."""
PROTOCOL = "operations.v1"
"""The WebSocket sub-protocol. A browser must offer it, and a second sub-protocol that carries its token."""
PROTOCOLS_HEADER = "Sec-WebSocket-Protocol"
SLOW_READER = "the peer reads too slowly"
_BEARER = "bearer."
_UNAUTHORIZED, _TOO_MANY = 401, 429


class Turn:
    """Limits the messages of one caller in each iteration of the event loop; all links of the caller share a turn.

    When the turn is over, each further link still handles one message, so that none of the links stops.
    """

    __slots__ = ("__weakref__", "_is_running", "_left", "end")

    def __init__(self) -> None:
        self.end = inf
        """Value of `perf_counter` at which the turn ends; infinite before `begin`."""
        self._left = 0
        self._is_running = False

    def begin(self) -> None:
        """Start the turn before messages of a link are handled, unless it has already started in this iteration."""
        if not self._is_running:
            self._is_running = True
            self._left, self.end = TURN_MESSAGES, perf_counter() + TURN_SECONDS
            asyncio.get_running_loop().call_soon(self._reset)

    def is_over(self) -> bool:
        """Count a message that was handled; return whether the next one has to wait for the next iteration."""
        self._left -= 1
        return self._left <= 0 or perf_counter() > self.end

    def _reset(self) -> None:
        self._is_running = False
        self.end = inf


class LargeMessages:
    """Limits a server to one large message per iteration of the event loop, for all its links together."""

    def __init__(self) -> None:
        self._is_taken = False

    def enter(self) -> bool:
        """Return whether a large message may be handled now; if so, the next one has to wait for the next iteration."""
        if self._is_taken:
            return False
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._release)
        return True

    def _release(self) -> None:
        self._is_taken = False


class Link(Protocol):
    """One socket. Messages that are sent in one iteration of the event loop are combined into few writes."""

    turn: Turn
    """Limit on the messages of this link that are handled in each iteration of the event loop."""
    large: LargeMessages
    """Limit on large messages, which the links of a server share."""
    receive: Callable[[bytes, Any], None]
    """Called with each message and `source`, synchronously; it must not raise."""
    source: Any
    """The object by which the link's user identifies the peer; at first the link itself."""
    batch_bytes: int
    """The largest batch of messages in one frame that the peer accepts (see `framing`); 0 if it accepts none."""
    max_message: int
    """The largest message that is accepted; a peer that sends a larger one is disconnected."""

    @property
    def received_bytes(self) -> int:
        """Bytes of the receive buffer, which never shrinks, and of the messages that wait to be handled."""

    @property
    def is_slow(self) -> bool:
        """Whether the peer reads more slowly than this side writes."""

    @property
    def unsent(self) -> int:
        """Number of messages that were never written because the connection had ended."""

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be written, control frames included."""

    def send(self, message: bytes) -> None:
        """Send a message; on a closed link it is dropped and counted as unsent."""

    def close(self, reason: str) -> None:
        """Write the buffer, send the peer the reason and close, without waiting for the peer."""

    def abort(self, reason: str) -> None:
        """Close immediately; drop the buffers of both directions."""

    async def wait_closed(self) -> None:
        """Return once the link is closed and every message that arrived before has been received."""


class Callbacks(Protocol):
    """Interface that the user of a link implements."""

    def opened(self, link: Link) -> None:
        """Called when the connection is open."""

    def received(self, message: bytes, link: Link) -> None:
        """Handle a message; called until `link.receive` is set to another function."""

    def backlogged(self, link: Link, size: int) -> None:
        """Called when `size` bytes were written to a slow link."""

    def drained(self, link: Link) -> None:
        """Called when the peer of a slow link has read most of what was written."""

    def receiving(self, link: Link) -> None:
        """Called when the link holds many received bytes, and more than before."""

    def closed(self, link: Link, reason: str) -> None:
        """Called when the connection is closed; nothing is received afterwards."""


Admit = Callable[[str | None], Callbacks]
"""Function that returns the callbacks for a new connection with this bearer token, before the connection is accepted.

Raises `ACCESS_DENIED`, which becomes HTTP 401, or another CallError, which becomes HTTP 429."""


class Listener(Protocol):
    """A server that accepts links."""

    @property
    def port(self) -> int:
        """The port that it listens at."""

    async def close(self) -> None:
        """Accept no more connections; those that are open stay open."""


def refusal_status(error: CallError) -> int:
    """Return the HTTP status of a connection that `Admit` refused."""
    return _UNAUTHORIZED if error.code is ErrorCode.ACCESS_DENIED else _TOO_MANY


def split_protocols(lines: Iterable[str]) -> list[str]:
    """Return the sub-protocols that a client offers in its `Sec-WebSocket-Protocol` headers."""
    return [name.strip() for line in lines for name in line.split(",")]


def bearer_token(authorization: str, protocols: Iterable[str]) -> str | None:
    """Return the token of a handshake, from `Authorization` or, for browsers, from a sub-protocol; None without one."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return next((name.removeprefix(_BEARER) for name in protocols if name.startswith(_BEARER)), None)
