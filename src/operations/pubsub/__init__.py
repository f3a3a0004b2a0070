"""Transports: how bytes travel between peers. They know addresses and bytes, nothing of calls or operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

Receive = Callable[[bytes], None]
"""What a listener does with a message; called synchronously, on the loop, and it never raises."""
Undelivered = Callable[[str], None]
"""Told, with the reason, that nobody got a message: at once or later, where the transport comes to know."""
Stop = Callable[[], None]
"""Ends a listener or a watch; calling it again does nothing."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a transport promises; the call protocol makes up for the rest."""

    delivery: Literal["at-most-once", "at-least-once"] = "at-most-once"
    knows_no_responders: bool
    """Whether `undelivered` is called when nobody listens at an address."""
    tracks_peers: bool
    """Whether the far side is told when a peer is gone; without it, workers send heartbeats and callers leases."""
    groups: bool
    """Whether one listener of each group gets a message, so that workers share the load."""
    ordered: bool
    """Whether the messages of one sender to one address arrive in the order they were sent."""
    max_payload: int | None = None
    """The largest message in bytes."""
    identity: Literal["caller", "hub", "none"]
    """Whose word on a caller's identity is believed: the caller's own (a transport that only trusted code can reach),
    the hub's that authenticated it, or nobody's but a signature's."""
    claims_identity: bool = False
    """Whether a caller at this end may say on whose behalf it calls."""


class Transport(Protocol):
    """One end of a bus of bytes. Sending is synchronous and buffered: what one turn of the loop sends is one write."""

    @property
    def peer(self) -> str:
        """The name of this end, random and unique; its own address is `inbox.<peer>`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this transport promises."""

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send a message to whoever listens at `address`."""

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive what is sent to `address`; of the listeners of one group, one gets each message.

        A transport that is one pipe (a WebSocket) has no addresses at this end: each message goes once to each
        distinct `receive`, whatever addresses it listens at.
        """

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Be told each time the transport comes back, and each time it is lost, with the reason."""

    async def close(self) -> None:
        """Write what is buffered and leave the bus."""


def require_extra(module: str, extra: str) -> ImportError:
    """The error for an optional library that is missing: one line that says what to install."""
    return ImportError(f"{module} is not installed: pip install 'operations[{extra}]'")
