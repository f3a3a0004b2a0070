"""Session: one peer at a hub, from the handshake to the end of its connection."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from operations.calls.codec import CODECS, JSON, UNREADABLE, Codec, codec_of, transcode
from operations.calls.events import VERSION, Header, Hello, HubHello, HubWelcome, Welcome
from operations.context import Grant
from operations.identity.grants import Grants
from operations.identity.tokens import Principal
from operations.pubsub.link import BATCH_BYTES, SLOW_READER, Link
from operations.telemetry.counters import Counters

_HELLO_SECONDS = 5.0
_HELLO_BYTES = 4096
_SLOW_UNSENT = 4 << 20
_LEAST_READING = 1 << 20
_READING_SECONDS = 5.0
"""A peer with more than `_SLOW_UNSENT` bytes waiting must read so many bytes in so many seconds, or is disconnected."""
_MAX_UNSENT = 128 << 20
"""Bytes that may be waiting for the peers of one token to read them."""


class Session:
    """The state of one peer: a spoke, or the hub's own end."""

    def __init__(
        self,
        name: str,
        principal: Principal,
        deliver: Callable[[bytes], None],
        *,
        trusted: bool = False,
    ) -> None:
        self.name = name
        self.principal = principal
        self.trusted = trusted
        """Whether this peer may call on behalf of any identity."""
        self.peer = ""
        self.generation = 0
        self.codec: Codec | None = None
        """The only codec that the peer reads; None where it reads all of them."""
        self.max_payload: int | None = None
        self.deliver = deliver
        self.link: Link | None = None
        self.registers = False
        """Whether the peer has registered operations: it is a worker, and needs a grant for every call."""
        self.calls: dict[str, Route] = {}
        """The calls that this peer made, by its own request ids."""
        self.work: dict[str, Route] = {}
        """The calls that this peer runs, by the request ids that the hub made for it."""
        self.grants = Grants()
        """The grants of those calls."""
        self.key = os.urandom(16)
        """What the hub derives the ids and grants of this peer's requests with."""
        self.held: dict[str, tuple[Header, Codec]] = {}
        """Requests of this peer that wait until its earlier calls end, by its own request ids."""
        self.held_bytes = 0
        self.is_releasing = False
        """Whether the hub is about to forward some of them."""
        self.written: dict[str, msgspec.Raw] = {}
        """The identity of the peer as bytes, by codec."""

    def send(self, message: bytes) -> bool:
        """Send a message in a format that the peer reads; False where it is larger than the peer accepts."""
        if self.codec is not None:
            message = transcode(message, self.codec)
        if self.max_payload is not None and len(message) > self.max_payload:
            return False
        self.deliver(message)
        return True

    def write_identity(self, codec: Codec) -> msgspec.Raw:
        """Return the peer's own identity as bytes, and keep it in `written`: most requests carry it."""
        written = self.written[codec.name] = codec.write_identity(self.principal.identity)
        return written


class Route(msgspec.Struct, eq=False):
    """One call in flight."""

    id: str
    """The request id at the worker."""
    caller_id: str
    """The request id at the caller."""
    operation_id: str
    caller: Session
    worker: Session
    grant: Grant
    stream: bool
    expires: int | None = None
    """The second in which the hub ends it at the latest; None without a deadline."""
    has_ended: bool = False


class Host(Protocol):
    """What a connection needs of its hub."""

    heartbeat: float
    max_payload: int
    receive: Callable[[bytes, Session], None]
    """Routes a message."""

    @property
    def counters(self) -> Counters:
        """The counters of the hub."""

    def enter(self, connection: HubConnection) -> None:
        """Count a connection that was accepted."""

    def limit_unsent(self) -> None:
        """Disconnect the peers that leave the most unread, while all of them leave too much unread together."""

    def join(self, connection: HubConnection) -> bool:
        """Add a session whose handshake is complete; False where another peer owns its name."""

    def leave(self, connection: HubConnection, reason: str) -> None:
        """Remove a session whose connection is closed."""


class Account:
    """The connections of one token, and the limit on what they may leave unread together."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        """Of the token, which is not kept."""
        self.links: set[Link] = set()

    @property
    def is_exceeded(self) -> bool:
        """Whether more is unread than one token may cause."""
        return sum(link.unsent_bytes for link in self.links) > _MAX_UNSENT


class ReadingCheck:
    """Disconnects a peer that leaves much unread and reads little of it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        """What was waiting when the timer was set, and what was written since."""

    def wrote(self, size: int) -> None:
        """Note that so many bytes were written for a slow peer."""
        if self._timer is not None:
            self._unread += size
        elif self._link.unsent_bytes > _SLOW_UNSENT:
            self._start()

    def close(self) -> None:
        """Check nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        self._unread = self._link.unsent_bytes
        self._timer = asyncio.get_running_loop().call_later(_READING_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        unsent = self._link.unsent_bytes
        if unsent > _SLOW_UNSENT:
            if self._unread - unsent < _LEAST_READING:
                self._link.abort(SLOW_READER)
            else:
                self._start()


class HubConnection:
    """The hub's end of one spoke's link: the handshake, the token's expiry, the session."""

    def __init__(self, hub: Host, session: Session, account: Account) -> None:
        self.session = session
        self.account = account
        self.joined = False
        """Whether the handshake is complete."""
        self._hub = hub
        self._link: Link | None = None
        self._has_left = False
        self._reading: ReadingCheck | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def unsent(self) -> int:
        """Number of messages that were lost with the connection."""
        return self._link.unsent if self._link is not None else 0

    def opened(self, link: Link) -> None:
        """Wait for the hello, and for the token to expire."""
        self._link = self.session.link = link
        self.session.deliver = link.send
        self.account.links.add(link)
        self._hub.enter(self)
        link.max_message = _HELLO_BYTES
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(_HELLO_SECONDS, self._require_hello))
        expires_at = self.session.principal.expires_at
        if expires_at is not None:
            left = max(0.0, expires_at - time.time())
            self._timers.append(loop.call_later(left, link.close, "the token expired"))

    def received(self, message: bytes, link: Link) -> None:
        """Read the hello; later messages go to the router."""
        if self._has_left:
            return
        hello = _read_hello(message)
        if hello is None:
            self._hub.counters.malformed += 1
            link.abort("the first event is not a hello")
            return
        session = self.session
        session.peer, session.generation, session.max_payload = hello.peer, hello.generation, hello.max_payload
        codecs = frozenset(hello.codecs) & CODECS.keys() or {"json"}
        if len(codecs) < len(CODECS):
            (session.codec,) = (CODECS[name] for name in codecs)
        if not self._hub.join(self):
            self._hub.counters.foreign += 1
            link.abort("another spoke has this name")
            return
        self.joined = True
        self._welcome(link, tuple(sorted(codecs)), batch=hello.batch)

    def backlogged(self, link: Link, size: int) -> None:
        """Disconnect the peer if it or the peers of its token leave too much unread, or others if all peers do."""
        if self._reading is None:
            self._reading = ReadingCheck(link)
        self._reading.wrote(size)
        if self.account.is_exceeded:
            link.abort(SLOW_READER)
        self._hub.limit_unsent()

    def closed(self, link: Link, reason: str) -> None:
        """Remove the session and its operations."""
        if self._has_left:
            return
        self._has_left = True
        self.account.links.discard(link)
        if self._reading is not None:
            self._reading.close()
        for timer in self._timers:
            timer.cancel()
        link.receive, link.source = self.received, link
        self._hub.leave(self, reason)
        self.joined = False

    def abort(self, reason: str) -> None:
        """Abort the link; the session's operations are removed before this returns."""
        if self._link is not None:
            self._link.abort(reason)
            self.closed(self._link, reason)

    def _require_hello(self) -> None:
        if not self.joined and self._link is not None:
            self._link.abort("no hello came")

    def _welcome(self, link: Link, codecs: tuple[str, ...], *, batch: bool) -> None:
        session, hub = self.session, self._hub
        welcome = Welcome(
            session.name,
            codecs,
            hub.heartbeat,
            hub.max_payload,
            batch,
            session.principal.identity,
            list(session.principal.namespaces),
        )
        link.receive, link.source = hub.receive, session
        link.max_message = hub.max_payload
        if batch:
            link.batch_bytes = min(BATCH_BYTES, session.max_payload or BATCH_BYTES)
        link.send(JSON.encode(HubWelcome(VERSION, "", session.peer, welcome)))


def _read_hello(message: bytes) -> Hello | None:
    if len(message) > _HELLO_BYTES:
        return None
    try:
        event = codec_of(message).decode(message)
    except UNREADABLE:
        return None
    return event.payload if isinstance(event, HubHello) else None
