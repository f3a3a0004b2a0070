"""The interface of transports, which carry bytes between peers. It knows nothing of calls or operations.

`Transport` is the part that every transport implements. Other parts are optional Protocols (`Stores`, `KeepsRecords`,
`StoresKeys`, `InProcess`, `InRouterProcess`, `Flushes`, `ReportsBacklog`, `ReportsConnection`, `ReportsCongestion`):
`Transport.optional` returns such a part, or None if the transport does not have it. `TransportWrapper` is the base of
transports around another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

Undelivered = Callable[[str], None]
"""Called with the reason if a message was not delivered, as soon as the transport knows."""
Stop = Callable[[], None]
"""Function that ends a listener or a watch; a second call does nothing."""
Part = TypeVar("Part")
"""An optional Protocol."""
HEARTBEAT_SECONDS = 2.0
"""Default for the seconds between heartbeats, on every transport."""


MOST_HELD = 256 << 20
"""Limit in bytes for the memory of the stored messages that a peer holds from one address.

At the limit, the peer takes no further messages from the server.
"""
DECODED_FACTOR = 100
"""A stored message counts as this many times its length until `Delivery.weigh` is called: one byte of MessagePack can
be an empty list, which takes up to 100 bytes of memory.
"""


class DeliveryRefused(str):
    """A permanent reason for an undelivered message, such as missing permission to send to the address."""


def report_undelivered(messages: Iterable[tuple[bytes, Undelivered | None]], reason: str) -> None:
    """Report messages as undelivered, each to its callback."""
    for _, undelivered in messages:
        if undelivered is not None:
            undelivered(reason)


class Arrival(msgspec.Struct, frozen=True):
    """Where a message arrived; made by the transport and cached per address."""

    address: str
    """The address that the message was sent to, with the operation if addresses contain it (`work.shop/look`).

    It is empty on a transport that is one connection to a hub."""
    sender: str | None = None
    """The name of the sender, if the broker enforces it."""


Receive = Callable[[bytes, Arrival], None]
"""Function that receives a message; called synchronously, on the event loop. It must not raise."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The guarantees of a transport; the call protocol compensates for missing ones."""

    tracks_peers: bool
    """Whether peers are notified when another peer is lost; otherwise workers send heartbeats and callers renew leases.
    """
    max_payload: int | None = None
    """The largest message in bytes."""
    identity: Literal["caller", "hub", "none"]
    """Who states the identity of a caller.

    - `caller`: the caller itself, because only trusted code reaches the transport
    - `hub`: the hub that authenticated the caller
    - `none`: no one, so that only a signature proves the identity
    """
    claims_identity: bool = False
    """Whether a caller on this transport may set the identity of its calls."""
    addresses_operations: bool = False
    """Whether a request is sent to `work.<namespace>/<operation>`. If not, it is sent to `work.<namespace>`.

    Workers listen at `work.<namespace>` in both cases.
    """
    addresses_workers: bool = False
    """Whether a request can be addressed to a single worker: `direct.<peer>/<namespace>/<operation>`.

    It arrives at the worker's listener for `work.<namespace>`.
    """
    shares_control: bool = False
    """Whether peers that may send to `control.…` and `peer.…` can also receive the messages of other peers there."""
    durable: bool = False
    """Whether messages can be stored now: the transport has a `Stores` part, and the server supports storing."""
    codec: Literal["json", "msgpack"] = "json"
    """The format in which requests are encoded by default; `msgpack` only if the other end supports it."""
    heartbeat: float = HEARTBEAT_SECONDS
    """Seconds between heartbeats of workers; the same number for all peers of a bus."""
    bus: str = ""
    """The kind of the bus and the prefix of its names; a signed request is valid on no other bus."""


class Transport(Protocol):
    """A peer's connection to a bus that carries bytes.

    Sending is synchronous and buffered: messages of one iteration of the event loop are combined into few writes.
    """

    attachment: object | None
    """State of the call protocol for this transport; None until it is set."""

    @property
    def peer(self) -> str:
        """The name of this peer, random and unique; its own address is `inbox.<peer>`."""

    @property
    def capabilities(self) -> Capabilities:
        """The guarantees of this transport."""

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send a message to the listeners at `address`."""

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Call `receive` with each message that is sent to `address`.

        Of several listeners with the same `group`, only one gets each message. A WebSocket transport ignores `address`:
        it calls `receive` one time for each message that the hub sends, even if `receive` listens at several addresses.
        """

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Call `up` when a connection is established or restored, and `down` with the reason when it is lost."""

    def optional(self, kind: type[Part]) -> Part | None:
        """Return the part of this transport that implements an optional Protocol, or None."""

    async def close(self) -> None:
        """Write the buffer and disconnect."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is stored with a message, under its own key, and is kept longer than the message."""

    key: str
    """The first 16 characters identify the owner of the record; `list_records` lists by owner. The rest is random."""
    value: bytes
    """The small part of the record; lists of records contain it."""
    seconds: float
    """Seconds for which the record is kept."""
    body: bytes = b""
    """The large part of the record; lists of records do not contain it."""
    most: int = 0
    """The record is not created if its owner already has this number of records; 0 for no limit."""

    @property
    def owner(self) -> str:
        """The owner of the record, which is the start of `key`."""
        return self.key[:OWNER_LENGTH]


OWNER_LENGTH = 16
"""Number of characters at the start of a record's key that identify its owner."""


class TooManyRecords(DeliveryRefused):
    """The reason why a message was not stored: the owner of its record has too many records."""


class Delivery(Protocol):
    """A stored message that one peer holds. While that peer is alive, no other peer gets it."""

    @property
    def message(self) -> bytes:
        """The message as it is stored, with its signature if it is signed."""

    @property
    def record_key(self) -> str:
        """The key of the record that was stored with the message; empty without one. A sender can state any key."""

    @property
    def number(self) -> int:
        """Number of deliveries, this one included; greater than 1 if a peer that held the message was lost."""

    @property
    def is_redelivered(self) -> bool:
        """Whether the server reports that it delivered this message before; a sender cannot forge that."""

    @property
    def entry(self) -> str:
        """The id of the stored message: the same in each delivery, but different for a copy of the message.

        On Redis, a released message gets a new id. On NATS, a message that `store_again` stored has an empty one.
        """

    def weigh(self, decoded: int) -> None:
        """State how much memory the decoded message takes in addition to its bytes; see `MOST_HELD`."""

    def done(self, record: Record | None = None) -> None:
        """Delete the message, because it was handled. A record replaces the one that was stored with the message."""

    def note(self, record: Record) -> None:
        """Replace the value of the record that was stored with the message, if this peer still holds the message."""

    def release(self) -> None:
        """Release the message for another peer."""

    def dead_letter(self, reason: str, record: Record | None = None) -> None:
        """Move the message to the dead letters; it is not delivered again.

        If `record` is given, it is stored as the dead letter instead of the message. It replaces the record that was
        stored with the message. If there was none, `record` is added. If it cannot be added, for example because its
        owner already has `most` records, the message itself is moved.
        """


Take = Callable[[bytes, Delivery, Arrival], None]
"""Function that takes a stored message; called synchronously, on the event loop. It must not raise.

The delivery must end with `done`, `release` or `dead_letter`.
"""


@runtime_checkable
class Stores(Protocol):
    """Stores messages until they are handled; they are delivered at least once, in no particular order."""

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        """Store a message until it is handled, and call `stored`; call `undelivered` if it cannot be stored.

        A second message with the same key is dropped, and `stored` is called. A record needs a transport with
        `KeepsRecords`; the message is stored only if its record is stored, too.
        """

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take the messages stored at an address, at most `limit` at a time.

        Of the peers that take messages there, only one gets each message.
        """


@runtime_checkable
class KeepsRecords(Protocol):
    """Keeps records of stored messages, which every peer of the bus can read by their key."""

    async def read_record(self, address: str, key: str) -> tuple[bytes, bytes] | None:
        """Return the value and body of a record; None if there is no record. Raise a CallError if it cannot be read."""

    async def list_records(self, owner: str | None, most: int) -> list[tuple[str, str, bytes]]:
        """Return the address, key and value of at most `most` records: those of `owner`, or of all owners if None."""

    async def end_record(self, address: str, record: Record) -> bool:
        """Delete a stored message by its record's key, and replace the record; return False if the message is gone."""

    async def store_again(self, address: str, message: bytes, record: Record, *, sender: str) -> None:
        """Store a deleted message again, as `sender`: the peer that first stored it. Replace its record."""

    def watch_record(self, address: str, key: str, changed: Callable[[], None]) -> Stop:
        """Call `changed` when a record is replaced because its message was handled, deleted or dead-lettered.

        `changed` may also be called without a change, for example after a reconnect.
        """


@runtime_checkable
class StoresKeys(Protocol):
    """Stores keys that all peers of the bus share, so that a request with a key runs once."""

    async def store_key(self, key: str, seconds: float, entry: str = "") -> bool:
        """Store a key, at most for 25 hours. Return False if it is already stored: the request is a duplicate.

        `entry` is the id of a stored message, see `Delivery.entry`. If the key is already stored for the same message,
        the result is True: this is a further delivery and not a duplicate. Raise a CallError if the server cannot be
        reached.
        """

    def delete_key(self, key: str, entry: str = "") -> None:
        """Delete the key of a message that is about to be released, unless the key is stored for another `entry`.

        Do nothing if a released message keeps its entry (NATS), because `store_key` returns True for the same entry.
        """


@runtime_checkable
class InProcess(Protocol):
    """Passes objects between peers by reference, because all of them are in this process."""

    def offer(self, address: str, target: Any) -> Stop:
        """Offer an object at an address, so that `reach` returns it to peers of this bus.

        If several objects are offered at one address, `reach` returns them in turn. Call the result to end the offer.
        """

    def reach(self, address: str) -> Any:
        """Return the object that is offered at an address, one of several in turn; None if no object is offered."""


@runtime_checkable
class InRouterProcess(Protocol):
    """Passes small requests from a hub's router to a worker in the same process, and responses back.

    Requests and responses are encoded once less than over a connection, and identities are not encoded.
    """

    def accept(self, receive: Callable[[Any, Any, Any], None]) -> None:
        """Call `receive` with each small request: its header, its codec and the router's object for the call.

        While there are several listeners, `receive` is not called.
        """

    @property
    def respond(self) -> Callable[[Any, bytes], None]:
        """Function that sends the response to a call of the router, and ends the call; it never raises.

        The message already has the caller's request id.
        """


@runtime_checkable
class Flushes(Protocol):
    """Reports when its server has processed everything that was sent."""

    async def flush(self) -> None:
        """Wait until the server has processed everything that was sent.

        By then, this peer has also received every message that the server sent before.
        """


@runtime_checkable
class ReportsBacklog(Protocol):
    """Reports which namespaces have a backlog of requests."""

    def backlog(self) -> Sequence[str]:
        """Return those namespaces of this peer in which requests wait because the workers are busy."""


@runtime_checkable
class ReportsConnection(Protocol):
    """Counts restored connections to a server, and dropped messages."""

    @property
    def reconnects(self) -> int:
        """Number of times that a lost connection was restored."""

    @property
    def unsent(self) -> int:
        """Number of messages that were dropped without a report to their sender, mostly while disconnected."""


CONGESTED_BYTES = 8 << 20
"""Unsent bytes above which a transport reports congestion."""
WRITTEN_NOW = 32 << 10
"""Size in bytes above which a message is written immediately. Congestion is then detected before the next message."""
MOST_UNSENT = 64 << 20
"""Unsent bytes above which a transport sends no requests."""
TOO_SLOW = "the server reads too slowly"


@runtime_checkable
class ReportsCongestion(Protocol):
    """Reports when its server reads more slowly than this peer sends."""

    def watch_congestion(self, changed: Callable[[bool], None]) -> Stop:
        """Call `changed(True)` when congestion begins (immediately if it has begun), `changed(False)` when it ends."""


class TransportWrapper:
    """A transport around another one: it forwards everything, and a subclass overrides the methods that it changes.

    The wrapper also forwards `store` and `take`: `optional(Stores)` returns the wrapper if the inner transport stores
    messages. For any other Protocol, `optional` returns the part of the inner transport.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        """The transport that carries the messages."""

    @property
    def attachment(self) -> object | None:
        """The state of the call protocol, shared with the inner transport, because both have the same inbox."""
        return self.inner.attachment

    @attachment.setter
    def attachment(self, state: object | None) -> None:
        self.inner.attachment = state

    @property
    def peer(self) -> str:
        """The name of the inner transport's peer."""
        return self.inner.peer

    @property
    def capabilities(self) -> Capabilities:
        """The guarantees of the inner transport."""
        return self.inner.capabilities

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send through the inner transport."""
        self.inner.send(address, message, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive messages from the inner transport."""
        return self.inner.listen(address, receive, group=group)

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Call `up` and `down` when the inner transport reconnects and when it loses its connection."""
        return self.inner.watch(up, down)

    def optional(self, kind: type[Part]) -> Part | None:
        """Return the inner transport's part that implements a Protocol; for `Stores`, return this wrapper instead.

        A wrapper never has `InRouterProcess`, because the wrapper would not see the messages of that part.
        """
        part = None if kind is InRouterProcess else self.inner.optional(kind)
        return self if part is not None and kind is Stores and isinstance(self, kind) else part

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        """Store through the inner transport."""
        self._stores().store(address, message, key=key, stored=stored, undelivered=undelivered, record=record)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take the messages that the inner transport stores."""
        return self._stores().take(address, take, limit=limit)

    async def close(self) -> None:
        """Close the inner transport."""
        await self.inner.close()

    def _stores(self) -> Stores:
        stores = self.inner.optional(Stores)
        if stores is None:
            raise TypeError(f"{type(self.inner).__name__} cannot store messages")
        return stores
