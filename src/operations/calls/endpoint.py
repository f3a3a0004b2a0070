"""Endpoint: one end of a transport as the call protocol sees it. It decodes each message once and hands it on."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import weakref
from collections.abc import Callable

from operations.calls.addresses import ASKS, WORKERS, inbox_of, namespace_of, operation_address, work_address
from operations.calls.codec import JSON, MSGPACK, PACKED, PLAIN_ANSWER, PLAIN_REQUEST, UNREADABLE, Codec, codec_of
from operations.calls.counters import Counters
from operations.calls.deadlines import Deadlines
from operations.calls.events import (
    VERSION,
    Aborted,
    CallAborted,
    CallAccepted,
    CallCompleted,
    CallCredit,
    CallFailed,
    CallRequested,
    CallResponded,
    Event,
    Header,
    WorkerAlive,
    WorkerAnnounced,
    WorkerAsked,
    WorkerGone,
)
from operations.calls.failures import failed_event, unreadable, writable
from operations.calls.here import Here
from operations.calls.parties import InFlight, Running, Waiting
from operations.calls.sealing import is_sealed, split
from operations.errors import CallError
from operations.pubsub import Receive, Stop, Transport
from operations.recent import Recent

_log = logging.getLogger("operations")
_REMEMBERED = 10_000
_LONGEST_MESSAGE = 10_000
EVERYBODY_IS_BACK = 3.0
"""Seconds after a reconnect by which others are connected again as well."""
_REQUESTS: frozenset[type[Event]] = frozenset({CallRequested, PLAIN_REQUEST})
_ANSWERS: frozenset[type[Event]] = frozenset({CallResponded, PLAIN_ANSWER})
_EXPECTED: dict[str, frozenset[type[Event]]] = {
    "inbox": _ANSWERS | {CallCompleted, CallFailed, CallAccepted, CallAborted, WorkerAnnounced},
    "work": _REQUESTS,
    "control": frozenset({CallAborted, CallCredit}),
    "peer": frozenset({CallAborted, CallCredit}),
    WORKERS: frozenset({WorkerAlive, WorkerAnnounced, WorkerGone}),
    ASKS: frozenset({WorkerAsked}),
}
"""What is sent to which addresses: a bus that keeps peers from sending to some need not read what they send."""


Requests = Callable[[CallRequested, Codec], None]
Notices = Callable[[Event], None]


class Names:
    """The numbers behind a peer's name, of which none is given twice: a transport may be wrapped more than once.

    The ends that it has then hear the same inbox, and know by its number which of them an answer is for.
    """

    def __init__(self) -> None:
        self.workers = itertools.count(1)
        self._numbers = itertools.count()
        self._ends: weakref.WeakSet[Endpoint] = weakref.WeakSet()

    def join(self, endpoint: Endpoint) -> str:
        """How the ids of one more end begin; of the only one, as most are, with nothing but the peer's name."""
        self._ends.add(endpoint)
        number = next(self._numbers)
        return f"{endpoint.peer}-{number:x}." if number else f"{endpoint.peer}-"

    def others(self, endpoint: Endpoint) -> list[Endpoint]:
        """The other ends of the same peer."""
        return [other for other in self._ends if other is not endpoint]


_names: weakref.WeakValueDictionary[str, Names] = weakref.WeakValueDictionary()


class Endpoint(Here):
    """What the PendingRequestMaps and CallHandlers on one transport share: peer name, ids, tables, counters."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.peer = transport.peer
        self.request_address = operation_address if transport.capabilities.addresses_operations else work_address
        self.lifeline: object = None
        self.direct: list[InFlight] = []
        self.counters = Counters(lambda: len(self.running) + sum(target.in_flight for target in self.direct))
        self.deadlines = Deadlines()
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, Running] = {}
        self.namespaces: dict[str, list[Requests]] = {}
        self.notices: list[Notices] = []
        self._names = _names.setdefault(self.peer, Names())
        self._prefix = self._names.join(self)
        self._numbers = itertools.count(1)
        self._issued = 0
        self.new_worker = self._names.workers.__next__
        self._unanswered: Recent[str, None] = Recent(_REMEMBERED)
        self._owed: list[tuple[str, bytes]] = []
        self._settlement: asyncio.TimerHandle | None = None
        self._stops: dict[str, tuple[Stop, int]] = {}
        self._is_pipe = transport.capabilities.identity == "hub"
        self.hear(f"inbox.{self.peer}")
        listen_for_requests = getattr(transport, "listen_for_requests", None)
        if listen_for_requests is not None:
            listen_for_requests(self._request, self.open)
        self._unwatch = transport.watch(self._up, self._down)
        self.answer: Callable[[str, bytes, bool], None] = getattr(transport, "answer", self._answer)
        """Send an answer to whoever made a request, and whether it is the last one."""

    def new_id(self) -> str:
        """A request id that nobody else can have: this peer's random name and a counter."""
        self._issued = issued = next(self._numbers)
        return f"{self._prefix}{issued:x}"

    def _has_issued(self, request_id: str) -> bool:
        prefix, number = self._prefix, request_id.removeprefix(self._prefix)
        try:
            return request_id.startswith(prefix) and 0 < int(number, 16) <= self._issued
        except ValueError:
            return False

    def hear(self, address: str, group: str | None = None) -> Stop:
        """Receive what is sent to an address; the same one heard twice is delivered once."""
        stop, users = self._stops.get(address, (None, 0))
        if stop is None:
            receive = self.receive if self._is_pipe else self._receiver(address)
            stop = self.transport.listen(address, receive, group=group)
        self._stops[address] = stop, users + 1
        heard = [address]
        return lambda: self._unhear(heard)

    def _unhear(self, heard: list[str]) -> None:
        """Stop hearing an address, once however often it is asked for."""
        while heard:
            address = heard.pop()
            stop, users = self._stops.pop(address)
            if users > 1:
                self._stops[address] = stop, users - 1
            else:
                stop()

    def _receiver(self, address: str) -> Receive:
        return functools.partial(self.receive, expected=_EXPECTED[address.partition(".")[0]])

    def receive(self, message: bytes, expected: frozenset[type[Event]] | None = None) -> None:
        """Hand a message to whom it is for; whatever is in it, this never raises."""
        try:
            first = message[:1]
            codec = MSGPACK if first >= PACKED else JSON if first == b"{" else codec_of(message)
            try:
                event = codec.decode(message)
            except UNREADABLE as error:
                self.note_unreadable(codec, message, error)
                return
            kind = type(event)
            if expected is not None and kind not in expected:
                self.counters.foreign += 1
            elif kind in _REQUESTS:
                self._request(event, codec)  # type: ignore[arg-type]
            elif kind in _ANSWERS and (waiting := self.waiting.get(event.id)) is not None:
                waiting.responded(event, codec, len(message))  # type: ignore[arg-type]
            else:
                self._dispatch(event, codec)
        except Exception:  # noqa: BLE001  # one message must not stop the reader
            self._note_unhandled()

    def open(self, header: Header, codec: Codec) -> None:
        """Handle a request of which a router in this process has read the outside; this never raises either."""
        try:
            try:
                event = codec.decode_request(header)
            except UNREADABLE as error:
                self._refuse_unreadable(header.id, error)
                return
            self._request(event, codec)
        except Exception:  # noqa: BLE001  # one message must not stop the reader
            self._note_unhandled()

    def _note_unhandled(self) -> None:
        self.counters.malformed += 1
        _log.exception("a message could not be handled")

    def note_unreadable(self, codec: Codec, message: bytes, problem: Exception) -> None:
        """Count what is no event of ours: of a type we do not know, or no event at all; a request is refused."""
        if is_sealed(message):
            self.refuse_sealed(message)
            return
        try:
            outline = codec.decode_outline(message)
        except UNREADABLE:
            self.counters.malformed += 1
            return
        if outline.type == "call.requested" and outline.id:
            self._refuse_unreadable(outline.id, problem)
        elif outline.type in KNOWN:
            self.counters.malformed += 1
        else:
            self.counters.dropped += 1

    def _refuse_unreadable(self, request_id: str, problem: object) -> None:
        """Tell the sender of a request that cannot be read, so that it need not wait for its deadline."""
        self.counters.malformed += 1
        self.send_error(request_id, unreadable(problem), JSON)

    def refuse_sealed(self, message: bytes) -> None:
        """Tell the sender of a signed request that nobody checks signatures here."""
        sealed = split(message)
        request = sealed.request if sealed is not None else b""
        try:
            outline = codec_of(request).decode_outline(request)
        except UNREADABLE:
            self.counters.malformed += 1
            return
        self.counters.rejected += 1
        text = f"{outline.to}: the request is signed, and this worker cannot check that: it has no SignedTransport"
        details = {"reason": "UNVERIFIABLE", "executed": "no"}
        if outline.type == "call.requested" and outline.id:
            self.send_error(outline.id, CallError("ACCESS_DENIED", text, details), JSON)

    def _dispatch(self, event: Event, codec: Codec) -> None:
        if isinstance(event, CallResponded):
            self._note_unexpected(event.id)
        elif isinstance(event, CallCredit):
            running = self.running.get(event.id)
            if running is not None:
                running.credit(event.payload.items, event.payload.bytes)
            else:
                self._note_uncontrolled(event.id)
        elif isinstance(event, CallAborted):
            self._abort(event)
        elif isinstance(event, (CallCompleted, CallFailed, CallAccepted)):
            self._answer_waiting(event, codec)
        else:
            for notice in list(self.notices):
                notice(event)

    def _answer_waiting(self, event: CallCompleted | CallFailed | CallAccepted, codec: Codec) -> None:
        waiting = self.waiting.get(event.id)
        if waiting is None:
            self._note_unexpected(event.id)
        elif isinstance(event, CallCompleted):
            waiting.completed(event)
        elif isinstance(event, CallAccepted):
            waiting.accepted(event.payload.worker_id)
        else:
            waiting.failed(read_error(event, codec))

    def _request(self, event: CallRequested, codec: Codec) -> None:
        if event.payload.request_id != event.id:
            self._refuse_unreadable(event.id, "its payload has another id than the event around it")
            return
        handlers = self.namespaces.get(namespace_of(event.to))
        if not handlers:
            if any(end.namespaces.get(namespace_of(event.to)) for end in self._names.others(self)):
                return  # it is that end's, and came to all of them by the one pipe that they share
            self.counters.dropped += 1
            error = CallError("UNAVAILABLE", f"{event.to}: nobody offers it here", {"executed": "no"})
            self.send_error(event.id, error, codec)
            return
        handlers[0](event, codec)

    def _abort(self, event: CallAborted) -> None:
        running = self.running.get(event.id)
        if running is not None:
            running.abort(event.payload.reason)
            return
        waiting = self.waiting.get(event.id)
        if waiting is not None:
            reason = event.payload.reason or "the worker gave up"
            waiting.failed(CallError("ABORTED", reason, {"executed": "unknown"}))
            return
        self._note_uncontrolled(event.id)

    def _note_uncontrolled(self, request_id: str) -> None:
        """Count control of a call that this end has nothing to do with, unless another end of the peer has."""
        if not any(request_id in end.running or request_id in end.waiting for end in self._names.others(self)):
            self.counters.dropped += 1

    def _note_unexpected(self, request_id: str) -> None:
        """Count an answer that nobody waits for: late, a duplicate, or of a call that nobody made.

        One to another end of the same peer is that end's to count.
        """
        if request_id in self._unanswered:
            self.counters.late += 1
        elif self._has_issued(request_id):
            self.counters.duplicate += 1
        elif not any(end._has_issued(request_id) for end in self._names.others(self)):
            self.counters.foreign += 1

    def forget(self, request_id: str, *, answered: bool) -> None:
        """A call of this end is over; an answer that still comes is late where none had come, else a duplicate."""
        if self.waiting.pop(request_id, None) is not None and not answered:
            self.note_unanswered(request_id)

    def note_unanswered(self, request_id: str) -> None:
        """A call ends before its answer came: one that still comes is late."""
        self._unanswered[request_id] = None

    def _answer(self, request_id: str, message: bytes, last: bool) -> None:
        self.transport.send(inbox_of(request_id), message)

    def send_error(self, request_id: str, error: CallError, codec: Codec) -> None:
        """Tell the caller that its call ended in an error."""
        self.transport.send(inbox_of(request_id), self.write_error(request_id, error, codec))

    def write_error(self, request_id: str, error: CallError, codec: Codec) -> bytes:
        """An error as bytes; what cannot travel of it is left out."""
        message = codec.encode(failed_event(request_id, error, codec))
        limit = self.transport.capabilities.max_payload
        if limit is None or len(message) <= limit:
            return message
        short = CallError(error.code, error.message[:_LONGEST_MESSAGE])
        return codec.encode(failed_event(request_id, short, codec))

    def send_abort(self, request_id: str, address: str, codec: Codec, reason: str = "") -> None:
        """Tell the other side that this one gave up."""
        self.transport.send(address, _write_abort(request_id, codec, reason))

    def owe_abort(self, request_id: str, address: str, codec: Codec, reason: str) -> None:
        """Tell a worker that this side gave up, when the connection is back: until then it can be told nothing."""
        self._owed.append((address, _write_abort(request_id, codec, reason)))

    def _pay(self) -> None:
        for address, message in self._owed:
            self.transport.send(address, message)

    def _settle(self) -> None:
        """Say once more what was said when the connection came back: the worker may not have been there to hear it."""
        self._pay()
        self._owed.clear()

    def _up(self) -> None:
        if self._owed:
            self._pay()
            self._settlement = asyncio.get_running_loop().call_later(EVERYBODY_IS_BACK, self._settle)
        for waiting in list(self.waiting.values()):
            waiting.regained()

    def _down(self, reason: str) -> None:
        if self._settlement is not None:
            self._settlement.cancel()
        for waiting in list(self.waiting.values()):
            waiting.lost(reason)


KNOWN: frozenset[str] = frozenset(
    kind.__struct_config__.tag for kind in Event.__args__ if isinstance(kind.__struct_config__.tag, str)
)
# An endpoint holds its transport, so that no other transport can have the same id while the entry lives.
_endpoints: weakref.WeakValueDictionary[int, Endpoint] = weakref.WeakValueDictionary()


def endpoint_of(transport: Transport) -> Endpoint:
    """The one endpoint of a transport."""
    endpoint = _endpoints.get(id(transport))
    if endpoint is None:
        endpoint = _endpoints[id(transport)] = Endpoint(transport)
    return endpoint


def _write_abort(request_id: str, codec: Codec, reason: str) -> bytes:
    return codec.encode(CallAborted(VERSION, request_id, "", Aborted(request_id, writable(reason))))


def read_error(event: CallFailed, codec: Codec) -> CallError:
    """The error that travelled."""
    payload = event.payload
    try:
        details = codec.read(payload.details)
    except CallError:
        details = None
    return CallError(payload.code, payload.message, details)
