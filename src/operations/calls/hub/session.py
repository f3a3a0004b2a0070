"""HubSession: one peer at a hub, from the handshake to the end of its connection."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from operations.calls.codec import CODECS, JSON, UNREADABLE, Codec, codec_of, transcode
from operations.calls.events import VERSION, EventHeader, HelloPayload, HubHello, HubWelcome, WelcomePayload
from operations.context import Grant, Identity
from operations.errors import CallError, ErrorCode
from operations.failures import NOT_CONVERTED, not_converted, too_large
from operations.identity.grants import Grants
from operations.identity.tokens import Principal
from operations.pubsub.link import BATCH_BYTES, SLOW_READER, LargeMessages, Link, Turn
from operations.telemetry.counters import Counters
from operations.wire import has_more_values

_HELLO_SECONDS = 5.0
_HELLO_BYTES = 4096
_SLOW_UNSENT = 4 << 20
"""Number of unsent bytes above which `SlowReaderCheck` checks how fast a peer reads."""
_LEAST_READING = 1 << 20
_READING_SECONDS = 5.0
"""Seconds in which a peer with more than `_SLOW_UNSENT` unsent bytes has to read `_LEAST_READING` bytes."""
_HEADER_BYTES = 512
"""Approximate memory of a queued request without its payload and its claimed identity."""
_INTERIM_PER_SECOND = 100
"""Largest number of interim responses of one call that are forwarded within a second.

Workers of this library send at most 51: one `call.accepted` and 50 `call.progress`."""
_INTERIM_BYTES = 1 << 16
"""Largest payload of an interim response that is forwarded."""
_MAX_UNSENT = 128 << 20
"""Largest number of unsent bytes of all peers of one token."""
_MAX_RECEIVED = 16 << 20
"""Largest number of received bytes that the hub holds for all peers of one token without rights."""
_MAX_HELD = 32 << 20
"""Largest number of received and unsent bytes of all peers of one token without rights."""
_MAX_WITHOUT_RIGHTS = 4 << 20
"""Largest message of a peer without rights: the hub keeps up to three copies, and needs 3 ns per byte to read the
header.
"""
_MOST_SENT = 64 << 20
"""Largest total size of the requests of one caller without rights that were sent to workers and have not ended.

Further requests are queued, because a worker keeps the input of a call in memory while the call runs.
"""
_MOST_UNCONFIRMED = 256 << 10
"""Largest total size of the requests of one caller without rights that no worker has confirmed.

A worker confirms a request by its outcome or by `call.accepted`. A worker handles requests in order of arrival, so that
requests of other callers wait for the unconfirmed ones.
"""
CONFIRM_SECONDS = 1.0
"""Seconds after which requests no longer count as unconfirmed: a worker may be slow, or may never confirm them."""
_MAX_CONVERTED = 4 << 20
_MAX_CONVERTED_VALUES = 25_000
"""Limits of a message that is converted to JSON: its bytes, and its values. A value takes up to 1.5 µs to convert."""


class HubSession:
    """The state of one peer: a spoke, or the hub's own process."""

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
        self.caller: Identity | None = principal.identity
        """The identity of this peer's own requests; None for an anonymous peer."""
        self.trusted = trusted
        """Whether this peer may call with any identity."""
        self.peer = ""
        self.generation = 0
        self.hello: HelloPayload | None = None
        """The hello of the peer; None for the hub's own process."""
        self.codec: Codec | None = None
        """The only codec that the peer supports, which is JSON; None if it supports all codecs."""
        self.max_payload: int | None = None
        self.deliver = deliver
        self.link: Link | None = None
        self.is_worker = False
        """Whether the peer has registered operations: it is a worker, and its calls need a grant or `asWorker`."""
        self.calls: dict[str, RoutedCall] = {}
        """The calls of this peer that were sent to workers and have not ended, by the peer's own request ids."""
        self.running: dict[str, RoutedCall] = {}
        """The calls that this peer runs, by the request ids that the hub made for it."""
        self.credit: dict[RoutedCall, tuple[int, int]] = {}
        """The credit (items, bytes) that the hub holds back until this worker has read its other messages, by call."""
        self.grants = Grants()
        """The grants of the calls that this peer runs."""
        self.key = os.urandom(16)
        """The key from which the hub derives the ids and grants of this peer's requests."""
        self.queue = CallerQueue()
        """The queue of this peer's own calls; the connections of one identity share it."""
        self.nested_queue = CallerQueue()
        """The queue of this peer's nested calls, which must not wait for the calls that they are nested in."""
        self.queued: dict[str, CallerQueue] = {}
        """The queue of each waiting request of this peer, by the peer's own request ids."""
        self.encoded_identity: dict[str, msgspec.Raw] = {}
        """The peer's own identity, encoded, by codec."""

    def send(self, message: bytes) -> bool:
        """Send a message in a format that the peer supports; return False if it is larger than the peer accepts."""
        if self.codec is not None:
            message = convert(message, self.codec)
        if self.max_payload is not None and len(message) > self.max_payload:
            return False
        self.deliver(message)
        return True

    def convert_request(self, message: bytes, operation_id: str) -> bytes:
        """Convert a request for this worker to its codec; raise a CallError if that is impossible or too large."""
        if self.codec is not None:
            try:
                message = convert(message, self.codec)
            except CallError as problem:
                raise not_converted(operation_id, "request", problem, "no") from problem
        if self.max_payload is not None and len(message) > self.max_payload:
            raise too_large(operation_id, "request", len(message), self.max_payload, "no")
        return message

    def write_identity(self, codec: Codec) -> msgspec.Raw:
        """Encode the peer's own identity, and keep it in `encoded_identity`: most requests need it."""
        written = self.encoded_identity[codec.name] = codec.write_identity(self.caller)
        return written


def convert(message: bytes, codec: Codec) -> bytes:
    """Convert a message for a peer that supports only JSON; raise a CallError if the conversion would take long."""
    is_short = message[:1] == b"{" or len(message) <= _MAX_CONVERTED_VALUES
    if not is_short and (len(message) > _MAX_CONVERTED or has_more_values(message, _MAX_CONVERTED_VALUES)):
        limits = f"{_MAX_CONVERTED >> 20} MiB with {_MAX_CONVERTED_VALUES:,} values"
        reason = f"a hub converts at most {limits} to JSON, the only format of the receiver"
        raise CallError(ErrorCode.VALIDATION_ERROR, reason, {"reason": NOT_CONVERTED})
    return transcode(message, codec)


class CallerQueue:
    """The requests of one caller that wait at the hub until earlier calls have ended."""

    def __init__(self) -> None:
        self.calls = 0
        """Number of calls of this caller that were sent to workers and have not ended."""
        self.sent_bytes = 0
        """Total size of the requests of the calls that `calls` counts."""
        self.unconfirmed_bytes = 0
        """Total size of the requests that were sent to workers since `_period` began, and that no worker confirmed."""
        self._period = 0
        """Number of the current period. A new one begins when requests stay unconfirmed for `CONFIRM_SECONDS`."""
        self._period_began = 0.0
        self.requests: dict[tuple[HubSession, str], tuple[EventHeader, Codec]] = {}
        """The waiting requests in order of arrival, by session and request id of the session."""
        self.bytes = 0
        self.is_forwarding = False
        """Whether forwarding requests is scheduled."""
        self.is_unblocking = False
        """Whether forwarding requests is scheduled for the time when the unconfirmed ones no longer count."""

    def add_sent(self, call: RoutedCall) -> None:
        """Count a call whose request is sent to a worker."""
        if not self.unconfirmed_bytes:
            self._period_began = time.monotonic()
        self.calls += 1
        self.sent_bytes += call.size
        self.unconfirmed_bytes += call.size
        call.period = self._period

    def confirm(self, call: RoutedCall) -> None:
        """Subtract the request of a call from the unconfirmed requests."""
        if call.period == self._period:
            self.unconfirmed_bytes -= call.size
            call.period = -1

    @property
    def is_large(self) -> bool:
        """Whether the sent requests are so large that further requests of a caller without rights have to wait."""
        if self.unconfirmed_bytes > _MOST_UNCONFIRMED and time.monotonic() - self._period_began >= CONFIRM_SECONDS:
            self._period += 1
            self.unconfirmed_bytes = 0
        return self.unconfirmed_bytes > _MOST_UNCONFIRMED or self.sent_bytes > _MOST_SENT

    def add(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Queue a request."""
        self.requests[session, header.id] = header, codec
        self.bytes += request_size(header)
        session.queued[header.id] = self

    def remove(self, session: HubSession, request_id: str) -> tuple[EventHeader, Codec]:
        """Remove and return a request."""
        del session.queued[request_id]
        header, codec = self.requests.pop((session, request_id))
        self.bytes -= request_size(header)
        return header, codec


def request_size(header: EventHeader) -> int:
    """Return the approximate size of a queued request."""
    return memoryview(header.payload).nbytes + memoryview(header.identity).nbytes + _HEADER_BYTES


class RoutedCall(msgspec.Struct, eq=False):
    """One call in flight between two sessions."""

    id: str
    """The request id at the worker."""
    caller_id: str
    """The request id at the caller."""
    operation_id: str
    caller: HubSession
    worker: HubSession
    queue: CallerQueue
    """The queue in which the call is counted."""
    grant: Grant
    stream: bool
    size: int
    """Size of the request."""
    expires: int | None = None
    """The epoch second in which the hub ends the call at the latest; None without a deadline."""
    period: int = -1
    """The period of the queue in which the request was sent; -1 once the worker has confirmed it."""
    has_ended: bool = False
    began: float = 0.0
    """Time of `perf_counter` at which the call was forwarded, if the hub has observers."""
    interim: int = 0
    """Number of interim responses in the second that began at `interim_since`."""
    interim_since: float = 0.0

    def admits_interim(self, size: int) -> bool:
        """Whether to forward an interim response; their number per second and their size are limited."""
        now = time.monotonic()
        if now - self.interim_since >= 1.0:
            self.interim, self.interim_since = 0, now
        self.interim += 1
        return self.interim <= _INTERIM_PER_SECOND and size <= _INTERIM_BYTES


class ConnectionHost(Protocol):
    """The part of a hub that a connection uses."""

    heartbeat: float
    max_payload: int
    large: LargeMessages
    receive: Callable[[bytes, HubSession], None]
    """Function that routes a message."""

    @property
    def counters(self) -> Counters:
        """The counters of the hub."""

    def enter(self, connection: HubConnection) -> None:
        """Add an accepted connection to the connections of its token."""

    def limit_unsent(self) -> None:
        """Disconnect the peers with the most unsent bytes while the total is too large."""

    def join(self, connection: HubConnection) -> bool:
        """Add a session whose handshake is complete; return False if the peer's name is not available."""

    def leave(self, connection: HubConnection, reason: str) -> None:
        """Remove a session whose connection is closed."""


class TokenConnections:
    """The connections of one token, which share limits of received and unsent bytes."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        """A hash of the token; the token itself is not kept."""
        self.links: set[Link] = set()

    @property
    def received_bytes(self) -> int:
        """Number of received bytes that the hub holds."""
        return sum(link.received_bytes for link in self.links)

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the peers have not read."""
        return sum(link.unsent_bytes for link in self.links)


class SlowReaderCheck:
    """Disconnects a peer with many unsent bytes that reads too slowly."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        """Number of unsent bytes when the timer was started, plus bytes written since."""

    def wrote(self, size: int) -> None:
        """Note that `size` bytes were written for a slow peer."""
        if self._timer is not None:
            self._unread += size
        elif self._link.unsent_bytes > _SLOW_UNSENT:
            self._start()

    def close(self) -> None:
        """Stop the timer."""
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
    """The hub's side of one spoke's connection: handshake, expiry of the token, session."""

    def __init__(self, hub: ConnectionHost, session: HubSession, account: TokenConnections, turn: Turn) -> None:
        self.session = session
        self.account = account
        self._turn = turn
        self.joined = False
        """Whether the handshake is complete."""
        self._hub = hub
        self._link: Link | None = None
        self._has_left = False
        self._reading: SlowReaderCheck | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def unsent(self) -> int:
        """Number of messages that were not sent before the connection closed."""
        return self._link.unsent if self._link is not None else 0

    def opened(self, link: Link) -> None:
        """Start the timers for the hello and for the expiry of the token."""
        self._link = self.session.link = link
        link.turn, link.large = self._turn, self._hub.large
        self.session.deliver = link.send
        self.account.links.add(link)
        self._hub.enter(self)
        link.max_message = _HELLO_BYTES
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(_HELLO_SECONDS, self._require_hello))
        expires_at = self.session.principal.expires_at
        if expires_at is not None:
            left = max(0.0, expires_at - time.time())
            self._timers.append(loop.call_later(left, self.end, "the token expired"))

    def received(self, message: bytes, link: Link) -> None:
        """Handle the hello; later messages go to the router."""
        if self._has_left:
            return
        hello = _read_hello(message)
        if hello is None:
            self._hub.counters.malformed += 1
            link.abort("the first event was not a valid hello")
            return
        session = self.session
        session.peer, session.generation, session.max_payload = hello.peer, hello.generation, hello.max_payload
        session.hello = hello
        codecs = {JSON.name, *hello.codecs} & CODECS.keys()
        session.codec = JSON if len(codecs) < len(CODECS) else None
        if not self._hub.join(self):
            self._hub.counters.foreign += 1
            link.abort("another spoke has this name")
            return
        self.joined = True
        self._welcome(link, tuple(sorted(codecs)), batch=hello.batch)

    def backlogged(self, link: Link, size: int) -> None:
        """Enforce the limits of unsent bytes: of this peer, of its token, and of all peers together."""
        if not self.session.is_worker:  # other limits apply to a worker, whose connection its callers can fill
            if self._reading is None:
                self._reading = SlowReaderCheck(link)
            self._reading.wrote(size)
        unsent = self.account.unsent_bytes
        has_rights = self.session.principal.has_rights
        if unsent > (_MAX_UNSENT if has_rights else _MAX_HELD - self.account.received_bytes):
            link.abort(SLOW_READER)
        self._hub.limit_unsent()

    def drained(self, link: Link) -> None:
        """Do nothing: the hub does not pause for slow peers, but disconnects a peer that exceeds its limits."""

    def receiving(self, link: Link) -> None:
        """Enforce the limit of received bytes."""
        if not self.session.principal.has_rights and self.account.received_bytes > _MAX_RECEIVED:
            link.abort("the connections of this token have too much unhandled data")

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

    def end(self, reason: str) -> None:
        """Close the link; messages that arrive before it is closed are dropped."""
        if self._link is not None:
            self._link.close(reason)
            self.closed(self._link, reason)

    def _require_hello(self) -> None:
        if not self.joined and self._link is not None:
            self._link.abort("no hello was received in time")

    def _welcome(self, link: Link, codecs: tuple[str, ...], *, batch: bool) -> None:
        session, hub = self.session, self._hub
        most = hub.max_payload if session.principal.has_rights else min(hub.max_payload, _MAX_WITHOUT_RIGHTS)
        welcome = WelcomePayload(
            session.name,
            codecs,
            hub.heartbeat,
            most,
            batch,
            session.caller,
            list(session.principal.namespaces),
        )
        link.receive, link.source = hub.receive, session
        link.max_message = most
        if batch:
            link.batch_bytes = min(BATCH_BYTES, session.max_payload or BATCH_BYTES)
        link.send(JSON.encode(HubWelcome(VERSION, "", session.peer, welcome)))


def _read_hello(message: bytes) -> HelloPayload | None:
    if len(message) > _HELLO_BYTES:
        return None
    try:
        event = codec_of(message).decode(message)
    except UNREADABLE:
        return None
    return event.payload if isinstance(event, HubHello) else None
