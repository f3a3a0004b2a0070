"""Transports: how bytes travel between peers. They know addresses and bytes, nothing of calls or operations."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.addresses import places, wrong_address

if TYPE_CHECKING:
    import ssl

Receive = Callable[[bytes], None]
"""What a listener does with a message; called synchronously, on the loop, and it never raises."""
Undelivered = Callable[[str], None]
"""Told, with the reason, that nobody got a message: at once or later, where the transport comes to know."""


class Refused(str):
    """A reason that waiting will not change: the server does not let this peer send there."""


UNTRUSTED = "UNTRUSTED_CERTIFICATE"
"""The reason of an error that waiting will not change either: the server's certificate is not believed."""
WRONG_PROTOCOL = "WRONG_PROTOCOL"
"""Nor this one: the server speaks TLS where none was expected, or none where it was."""
UNSUPPORTED = "UNSUPPORTED"
"""Nor this one: the server has not what is needed."""
HOPELESS = frozenset({UNTRUSTED, WRONG_PROTOCOL, UNSUPPORTED})


def untrusted(where: str, error: ssl.SSLCertVerificationError) -> CallError:
    """The error for a server whose certificate is not believed."""
    reason = f"no connection to {where}: its certificate is not trusted ({error.verify_message})"
    advice = "an authority of your own is trusted with tls=ssl.create_default_context(cafile=…)"
    return CallError(ErrorCode.UNAVAILABLE, f"{reason}; {advice}", {"executed": "no", "reason": UNTRUSTED})


def reason_of(error: Exception) -> str:
    """Why a connection failed, as people say it: without the number and the address that asyncio puts there."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


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
    addresses_operations: bool = False
    """Whether a request goes to `work.<namespace>/<operation>` instead of `work.<namespace>`, where workers listen."""
    durable: bool = False
    """Whether this is a DurableTransport."""
    codec: Literal["json", "msgpack"] = "json"
    """How requests are written unless their caller says: MessagePack where the other side said that it reads it."""


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


class Delivery(Protocol):
    """A stored message in the hands of one peer: while that peer lives and holds it, nobody else gets it."""

    @property
    def number(self) -> int:
        """How many times it was delivered, this one included; more than once where somebody died over it."""

    def done(self) -> None:
        """It was dealt with, and is forgotten."""

    def release(self) -> None:
        """Give it to somebody else."""

    def bury(self, reason: str) -> None:
        """Set it aside for somebody to look at; it is not delivered again."""


Take = Callable[[bytes, Delivery], None]
"""What a taker does with a stored message; as with Receive, and it must end with `done`, `release` or `bury`."""


class DurableTransport(Transport, Protocol):
    """A transport that can also store messages until somebody has dealt with them: at least once, in no order."""

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Keep a message until it is dealt with, and say so; another one of the same key is the same message."""

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Be given what is stored at an address, at most `limit` messages at a time, shared with all other takers."""


_OPENERS = {
    "memory": "operations.pubsub.memory:connect",
    "nats": "operations.pubsub.nats:connect",
    "redis": "operations.pubsub.redis:connect",
    "redis+cluster": "operations.pubsub.redis:connect",
    "redis+sentinel": "operations.pubsub.redis:connect",
    "rediss": "operations.pubsub.redis:connect",
    "rediss+cluster": "operations.pubsub.redis:connect",
    "rediss+sentinel": "operations.pubsub.redis:connect",
    "tls": "operations.pubsub.nats:connect",
    "unix": "operations.pubsub.redis:connect",
    # The only transport with a server of our own, which is a part of the call protocol.
    "ws": "operations.calls.spoke:Spoke",
    "wss": "operations.calls.spoke:Spoke",
}


def connect(url: str, **options: Any) -> AbstractAsyncContextManager[Any]:
    """Open the transport that a URL names: `async with connect("nats://127.0.0.1:4222") as transport:`.

    Its library is imported only now; one that is missing names the extra to install. The options are those of the
    transport: `operations.pubsub.memory|redis|nats.connect`, `operations.calls.spoke.Spoke`.
    """
    check_address(url)
    opener = _OPENERS[url.partition(":")[0].lower()]
    module, _, name = opener.partition(":")
    opened: AbstractAsyncContextManager[Any] = getattr(importlib.import_module(module), name)(url, **options)
    return opened


def check_address(url: str) -> None:
    """Raise a CallError that says what is wrong with the address of a transport; no library is needed for that."""
    scheme = url.partition(":")[0].lower()
    if scheme not in _OPENERS:
        raise wrong_address(url, f"{scheme!r} is not a transport's scheme; known are {', '.join(sorted(_OPENERS))}")
    places(url)


def require_extra(module: str, extra: str) -> ImportError:
    """The error for an optional library that is missing: one line that says what to install."""
    return ImportError(f"{module} is not installed: pip install 'operations[{extra}]'")
