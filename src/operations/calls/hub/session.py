"""HubSession, the state of one peer at a hub: calls and queue; also peer names, and limits on connections."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from operations.calls.codec import JSON, Codec, transcode
from operations.calls.events import VERSION, CallCredit, CreditPayload, EventHeader, HelloPayload
from operations.context import Grant, Identity
from operations.errors import CallError, ErrorCode
from operations.failures import NOT_CONVERTED, not_converted, too_large
from operations.identity.grants import Grants
from operations.identity.tokens import Principal
from operations.pubsub.link import SLOW_READER, Link
from operations.wire import has_more_values

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
MOST_SENT = 64 << 20
"""Largest total size of the requests of one caller without rights that were sent to workers and have not ended.

Further requests are queued, because a worker keeps the input of a call in memory while the call runs.
"""
MOST_UNCONFIRMED = 256 << 10
"""Largest total size of the requests of one caller without rights that no worker has confirmed.

A worker confirms a request by its outcome or by `call.accepted`. A worker handles requests in order of arrival, so that
requests of other callers wait for the unconfirmed ones.
"""
CONFIRM_SECONDS = 1.0
"""Seconds after which requests no longer count as unconfirmed: a worker may be slow, or may never confirm them."""
_CREDIT_SECONDS = 0.02
"""Interval at which collected credit is sent to a worker that reads slowly."""
_MOST_CREDIT = 1 << 30
_MAX_CONVERTED = 4 << 20
_MAX_CONVERTED_VALUES = 25_000
"""A message is converted to JSON if it has at most `_MAX_CONVERTED` bytes and this number of values.

The conversion of a value takes up to 1.5 µs.
"""
_NAME = re.compile(r"[A-Za-z0-9_-]{16,64}")
_MOST_NAMES = 1_000
"""Largest number of peer names that are kept for one identity."""
_MOST_OWNERS = 100_000
"""Largest number of identities whose peer names are kept."""


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
        self.accept: Accept | None = None
        """For a worker in the hub's own process: function that receives small requests without encoding them again."""
        self.link: Link | None = None
        self.is_worker = False
        """Whether the peer is a worker: it has registered operations. A worker's calls need a grant or `asWorker`."""
        self.calls: dict[str, RoutedCall] = {}
        """The calls of this peer that were sent to workers and have not ended, by the peer's own request ids."""
        self.running: dict[str, RoutedCall] = {}
        """The calls that this peer runs, by the request ids that the hub made for it."""
        self.credit: dict[RoutedCall, tuple[int, int]] = {}
        """By call: the credit (items, bytes) that the hub holds back until this worker has read its other messages."""
        self.grants = Grants()
        """The grants of the calls that this peer runs."""
        self.derivation = blake2b(os.urandom(16), digest_size=32)
        """A hash of a secret key.

        For each request of this peer, the hub copies the hash and derives the request id and the grant from the copy.
        """
        self.queue = CallerQueue()
        """The queue of this peer's own calls; the connections of one identity share it."""
        self.nested_queue = CallerQueue()
        """The queue of this peer's nested calls, which must not wait for the calls that they are nested in."""
        self.queued: dict[str, CallerQueue] = {}
        """The queue of each waiting request of this peer, by the peer's own request ids."""
        self.encoded_identity: dict[str, msgspec.Raw] = {}
        """The peer's own identity, encoded, by the name of the codec."""
        self.count_request: Callable[[], None] | None = None
        """Counts a request of this peer, except nested calls; raises an error if a limit is exceeded."""

    def send(self, message: bytes) -> bool:
        """Send a message in a format that the peer supports; return False if it is larger than the peer accepts.

        Raise a CallError if the message cannot be converted to that format.
        """
        if self.codec is not None:
            message = convert(message, self.codec)
        if self.max_payload is not None and len(message) > self.max_payload:
            return False
        self.deliver(message)
        return True

    def convert_request(self, message: bytes, operation_id: str) -> bytes:
        """Convert a request to this worker's codec.

        Raise a CallError if that is impossible, or if the result is too large.
        """
        if self.codec is not None:
            try:
                message = convert(message, self.codec)
            except CallError as problem:
                raise not_converted(operation_id, "request", problem, "no") from problem
        if self.max_payload is not None and len(message) > self.max_payload:
            raise too_large(operation_id, "request", len(message), self.max_payload, "no")
        return message

    def hold_credit(self, call: RoutedCall, items: int, size: int) -> None:
        """Add up the credit for this worker, which reads slowly, so that many messages become one."""
        if not self.credit:
            asyncio.get_running_loop().call_later(_CREDIT_SECONDS, self._send_credit)
        held_items, held_size = self.credit.get(call, (0, 0))
        self.credit[call] = (
            min(held_items + max(0, items), _MOST_CREDIT),
            min(held_size + max(0, size), _MOST_CREDIT),
        )

    def _send_credit(self) -> None:
        """Send the credit that was held back, as soon as this worker has read its other messages."""
        if self.credit and self.link is not None and self.link.is_slow:
            asyncio.get_running_loop().call_later(_CREDIT_SECONDS, self._send_credit)
            return
        credit, self.credit = self.credit, {}
        for call, (items, size) in credit.items():
            if not call.has_ended:
                self.send(JSON.encode(CallCredit(VERSION, call.id, "", CreditPayload(call.id, items, size))))

    def write_identity(self, identity: Identity | None, codec: Codec) -> msgspec.Raw:
        """Encode the identity of a request.

        The peer's own identity is also stored in `encoded_identity`, because most requests have it.
        """
        written = codec.write_identity(identity)
        if identity is self.caller:
            self.encoded_identity[codec.name] = written
        return written


Accept = Callable[[EventHeader, Codec, "RoutedCall"], None]
"""Function of a worker in the hub's own process that receives a request.

The identity of the caller is in the `RoutedCall`, not in the header.
"""


def convert(message: bytes, codec: Codec) -> bytes:
    """Convert a message for a peer that supports only JSON; raise a CallError if that fails or would take long."""
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
        """Total size of the requests that were sent to workers since `period` began, and that no worker confirmed."""
        self.period = 0
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
        call.period = self.period

    def confirm(self, call: RoutedCall) -> None:
        """Subtract the request of a call from the unconfirmed requests."""
        if call.period == self.period:
            self.unconfirmed_bytes -= call.size
            call.period = -1

    @property
    def is_large(self) -> bool:
        """Whether the sent requests are so large that further requests of a caller without rights have to wait."""
        if self.unconfirmed_bytes > MOST_UNCONFIRMED and time.monotonic() - self._period_began >= CONFIRM_SECONDS:
            self.period += 1
            self.unconfirmed_bytes = 0
        return self.unconfirmed_bytes > MOST_UNCONFIRMED or self.sent_bytes > MOST_SENT

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


class RoutedCall(Grant, eq=False):
    """One call in flight between two sessions. It is also the grant that the worker gets for nested calls."""

    id: str
    """The request id at the worker."""
    caller_id: str
    """The request id at the caller."""
    operation_id: str
    caller: HubSession
    worker: HubSession
    queue: CallerQueue
    """The queue in which the call is counted."""
    stream: bool
    size: int
    """Size of the request."""
    expiring: set[RoutedCall] | None = None
    """All calls that expire in the same second as this call, which is one of them; None without a deadline."""
    period: int = -1
    """The queue's `period` when the request was sent; -1 once the worker has confirmed the request in that period."""
    has_ended: bool = False
    began: float = 0.0
    """Time of `perf_counter` at which the call was forwarded, if the hub has observers."""
    interim: int = 0
    """Number of interim responses in the second that began at `interim_since`."""
    interim_since: float = 0.0

    def admits_interim(self, size: int) -> bool:
        """Count an interim response; return False if it is too large, or one of too many within a second."""
        now = time.monotonic()
        if now - self.interim_since >= 1.0:
            self.interim, self.interim_since = 0, now
        self.interim += 1
        return self.interim <= _INTERIM_PER_SECOND and size <= _INTERIM_BYTES


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
        """Number of bytes that wait to be written to the peers."""
        return sum(link.unsent_bytes for link in self.links)


class SlowReaderCheck:
    """Disconnects a peer that reads too slowly while many bytes wait to be sent to it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._timer: asyncio.TimerHandle | None = None
        self._unread = 0
        """Number of unsent bytes when the timer was started, plus bytes written since."""

    def wrote(self, size: int) -> None:
        """Count `size` bytes that were written for a slow peer."""
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


class PeerNames:
    """The owners of peer names: a name belongs to the identity that used it first.

    An identity that uses too many names loses its own oldest names; it cannot displace the names of other identities.
    """

    def __init__(self) -> None:
        self._reserved: set[str] = set()
        self._owners: dict[str, str] = {}
        self._names: OrderedDict[str, OrderedDict[str, bool]] = OrderedDict()
        """The names of each identity, and whether their peers have registered operations; least recently used first."""

    def reserve(self, name: str) -> None:
        """Reserve a name for the hub's own transport."""
        self._reserved.add(name)

    def claim(self, name: str, owner: str) -> bool:
        """Return whether a name is valid and belongs to `owner`; a free name is given to `owner`."""
        if _NAME.fullmatch(name) is None or name in self._reserved:
            return False
        if self._owners.setdefault(name, owner) != owner:
            return False
        names = self._names.setdefault(owner, OrderedDict())
        names.setdefault(name, False)
        names.move_to_end(name)
        self._names.move_to_end(owner)
        if len(names) > _MOST_NAMES:
            del self._owners[names.popitem(last=False)[0]]
        if len(self._names) > _MOST_OWNERS:
            for forgotten in self._names.popitem(last=False)[1]:
                del self._owners[forgotten]
        return True

    def note_worker(self, name: str) -> None:
        """Store that a peer has registered operations, so that the hub treats it as a worker when it reconnects."""
        owner = self._owners.get(name)
        if owner is not None:
            self._names[owner][name] = True

    def is_worker(self, name: str) -> bool:
        """Return whether a peer has registered operations on an earlier connection."""
        return self._names[self._owners[name]][name]
