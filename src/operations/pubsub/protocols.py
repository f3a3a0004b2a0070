"""The transport seam: how bytes travel between peers. It knows addresses and bytes, nothing of calls or operations.

`Transport` is what every transport has. What only some have is an optional Protocol (`Stores`, `Remembers`,
`InProcess`, `Flushes`, `ReportsBacklog`), which `Transport.optional` returns or does not. `TransportWrapper` is the
base of transports around another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

Undelivered = Callable[[str], None]
"""Called with the reason when nobody gets a message: at once or later, where the transport finds out."""
Stop = Callable[[], None]
"""Ends a listener or a watch; calling it again does nothing."""
Part = TypeVar("Part")
"""An optional Protocol."""


class Refused(str):
    """A reason that waiting does not change: the server does not let this peer send there."""


class Arrival(msgspec.Struct, frozen=True):
    """Where a message arrived; made by the transport and cached per address."""

    address: str
    """The address that the message was sent to, with the operation where addresses name it (`work.shop/look`);
    empty where the transport is one pipe and the hub routes."""
    sender: str | None = None
    """The name of the sender, only where the broker enforces it."""


Receive = Callable[[bytes, Arrival], None]
"""Receives a message; called synchronously, on the loop, and never raises."""


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
    addresses_workers: bool = False
    """Whether a request can go to one worker that listens at `work.<namespace>`: to
    `direct.<peer>/<namespace>/<operation>`. It arrives as if it had been sent to all of them."""
    overheard: bool = False
    """Whether those who may send to `control.…` and `peer.…` also receive what others send there."""
    durable: bool = False
    """Whether messages can be stored now: there is a `Stores` part, and its server supports it."""
    codec: Literal["json", "msgpack"] = "json"
    """How requests are written unless their caller says: MessagePack where the other side said that it reads it."""
    heartbeat: float = 2.0
    """Seconds between signs of life of workers; all ends of a bus use the same number."""


class Transport(Protocol):
    """One end of a bus of bytes. Sending is synchronous and buffered: what one turn of the loop sends is one write."""

    attachment: object | None
    """Belongs to the call protocol, which keeps its state of this end here; None until then."""

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

    def optional(self, kind: type[Part]) -> Part | None:
        """The part of this transport that has an optional Protocol, or None."""

    async def close(self) -> None:
        """Write what is buffered and leave the bus."""


class Delivery(Protocol):
    """A stored message that one peer holds: while that peer lives and holds it, nobody else gets it."""

    @property
    def number(self) -> int:
        """How many times it was delivered, this one included; more than once where a holder died."""

    @property
    def is_redelivered(self) -> bool:
        """Whether the server says that it delivered this very message before; a sender cannot make it say so."""

    def done(self) -> None:
        """The message was handled; forget it."""

    def release(self) -> None:
        """Give it to somebody else."""

    def bury(self, reason: str) -> None:
        """Move it to the dead letters; it is not delivered again."""


Take = Callable[[bytes, Delivery, Arrival], None]
"""Takes a stored message; as with Receive, and it must end with `done`, `release` or `bury`."""


@runtime_checkable
class Stores(Protocol):
    """Stores messages until somebody has handled them: at least once, in no order."""

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Keep a message until it is handled, and say so; another one of the same key is the same message."""

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Be given what is stored at an address, at most `limit` messages at a time, shared with all other takers."""


@runtime_checkable
class Remembers(Protocol):
    """Has a record of keys that all ends of the bus share."""

    async def remember(self, key: str, seconds: float) -> bool:
        """Note a key for so long, at most a day; False where it was noted already. Raises where that is unknown."""

    def forget(self, key: str) -> None:
        """Take a key out again, where messages that are released count as new; elsewhere do nothing."""


@runtime_checkable
class InProcess(Protocol):
    """Hands objects from one end to another by reference, because both are in this process."""

    def offer(self, address: str, target: Any) -> Stop:
        """Let ends of this bus reach `target` at `address`; several share the load."""

    def reach(self, address: str) -> Any:
        """The next target that is offered at an address, or None."""


@runtime_checkable
class Flushes(Protocol):
    """Knows when its server has read what was sent."""

    async def flush(self) -> None:
        """Return once the server has processed what was sent so far, and what it sent before has been received."""


@runtime_checkable
class ReportsBacklog(Protocol):
    """Knows where requests wait longer than workers need."""

    def backlog(self) -> Sequence[str]:
        """The namespaces that this end serves and in which requests queue up."""


class TransportWrapper:
    """A transport around another one: it forwards everything, and a subclass overrides the verbs that it changes.

    `store` and `take` are such verbs too: `optional(Stores)` returns the wrapper itself where the inner transport
    stores. Every other optional part is the inner transport's own unless a subclass overrides `optional`.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        """The transport that carries the messages."""

    @property
    def attachment(self) -> object | None:
        """The state of the call protocol, shared with the inner transport: they have one inbox."""
        return self.inner.attachment

    @attachment.setter
    def attachment(self, state: object | None) -> None:
        self.inner.attachment = state

    @property
    def peer(self) -> str:
        """The name of the inner transport's end."""
        return self.inner.peer

    @property
    def capabilities(self) -> Capabilities:
        """What the inner transport promises."""
        return self.inner.capabilities

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send through the inner transport."""
        self.inner.send(address, message, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive what comes to the inner transport."""
        return self.inner.listen(address, receive, group=group)

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Be told what the inner transport tells."""
        return self.inner.watch(up, down)

    def optional(self, kind: type[Part]) -> Part | None:
        """The inner transport's part, with this wrapper's own `store` and `take`."""
        part = self.inner.optional(kind)
        return self if part is not None and kind is Stores and isinstance(self, kind) else part

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store through the inner transport."""
        self._stores().store(address, message, key=key, stored=stored, undelivered=undelivered)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take what the inner transport stores."""
        return self._stores().take(address, take, limit=limit)

    async def close(self) -> None:
        """Close the inner transport."""
        await self.inner.close()

    def _stores(self) -> Stores:
        stores = self.inner.optional(Stores)
        if stores is None:
            raise TypeError(f"{type(self.inner).__name__} cannot store messages")
        return stores
