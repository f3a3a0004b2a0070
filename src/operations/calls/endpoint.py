"""Endpoint: one end of a transport for the call protocol. It decodes each message once and hands it over."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from operations.calls.addresses import ASKS, WORKERS, namespace_of, operation_address, work_address
from operations.calls.codec import (
    CODEC_OF,
    JSON,
    PLAIN_ANSWER,
    PLAIN_REQUEST,
    UNREADABLE,
    Codec,
    codec_of,
    error_event,
    read_error,
)
from operations.calls.control import is_proven, write_abort
from operations.calls.events import (
    CallAborted,
    CallAccepted,
    CallCompleted,
    CallCredit,
    CallFailed,
    CallRequested,
    CallResponded,
    Event,
    WorkerAlive,
    WorkerAnnounced,
    WorkerAsked,
    WorkerGone,
)
from operations.calls.signature_format import is_signed, split
from operations.context import Grant
from operations.deadlines import TimerWheel
from operations.errors import CallError
from operations.failures import unreadable
from operations.pubsub import Arrival, Receive, Stop, Transport
from operations.recent import Recent
from operations.telemetry.counters import Counters

_log = logging.getLogger("operations")
_REMEMBERED = 2_000
_LONGEST_MESSAGE = 10_000
RECONNECTED_WITHIN = 3.0
"""Seconds after a reconnect by which other peers are connected again as well."""
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
"""The events that are accepted at each kind of address: a broker's permissions are by address, not by content."""


class Waiting(Protocol):
    """A call or stream that waits for its answers."""

    worker: str | None
    since: float
    """When it was last sent or last received a message, by the loop's clock."""

    @property
    def operation_id(self) -> str:
        """The operation that was called."""

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """Handle an answer."""

    def completed(self, event: CallCompleted) -> None:
        """Handle the end of a stream."""

    def failed(self, error: CallError) -> None:
        """Handle an error."""

    def accepted(self, worker: str) -> None:
        """Note which worker runs it."""

    def lost(self, reason: str) -> None:
        """Handle the loss of the connection."""

    def regained(self) -> None:
        """Handle the return of the connection."""


class Controlled(Protocol):
    """A call or stream that this end runs, as its caller controls it."""

    event: CallRequested
    credits: int
    """The number of the last credit that was accepted, where others hear it."""

    def abort(self, reason: str) -> None:
        """Cancel it."""

    def credit(self, items: int, size: int) -> None:
        """Allow more items."""


@runtime_checkable
class SignsNestedCalls(Protocol):
    """What a PendingRequestMap and a CallHandler need of a transport that signs; `SignedTransport` has it."""

    def for_grant(self, grant: Grant | None, *, as_worker: bool) -> Transport:
        """The transport that sends a request made with a grant, or by this process itself."""

    def root_of(self, event: CallRequested) -> object:
        """The root of a request that is being received; None where nobody signed it."""

    def record(self, event: CallRequested) -> Coroutine[Any, Any, bool] | None:
        """Note a request that is being received in the record that all workers share; False where it was there."""


Requests = Callable[[CallRequested, Codec, Arrival], None]
Notices = Callable[[Event], None]


class Endpoint:
    """What the PendingRequestMaps and CallHandlers on one transport share: ids, pending calls, counters."""

    def __init__(self, transport: Transport, ends: list[Endpoint]) -> None:
        self.transport = transport
        self.peer = transport.peer
        self.request_address = operation_address if transport.capabilities.addresses_operations else work_address
        self.lifeline: object = None
        self.in_flight: list[Callable[[], int]] = []
        self.counters = Counters(lambda: sum(count() for count in self.in_flight))
        self.wheel = TimerWheel()
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, Controlled] = {}
        """The calls that run here, by their control id."""
        self.namespaces: dict[str, list[Requests]] = {}
        self.notices: list[Notices] = []
        self.before_resending: list[Callable[[], None]] = []
        """Called when the connection is back, before pending calls are sent again."""
        self._ends = ends
        self.ended: Recent[str, bool] = Recent(_REMEMBERED)
        """The last calls of this end that ended, and whether they were answered."""
        self._late_aborts: list[tuple[str, bytes]] = []
        self._repeat: asyncio.TimerHandle | None = None
        self._stops: dict[str, tuple[Stop, int]] = {}
        self.is_pipe = transport.capabilities.identity == "hub"
        self.is_overheard = transport.capabilities.overheard
        self.listen(f"inbox.{self.peer}")
        transport.watch(self._up, self._down)

    def listen(self, address: str, group: str | None = None) -> Stop:
        """Receive what is sent to an address; several listeners of one address get each message once."""
        stop, users = self._stops.get(address, (None, 0))
        if stop is None:
            stop = self.transport.listen(address, self._receiver(address), group=group)
        self._stops[address] = stop, users + 1
        return functools.partial(self._stop_listening, [address])

    def _stop_listening(self, addresses: list[str]) -> None:
        """Stop listening at an address; a second call does nothing."""
        while addresses:
            address = addresses.pop()
            stop, users = self._stops.pop(address)
            if users > 1:
                self._stops[address] = stop, users - 1
            else:
                stop()

    def _receiver(self, address: str) -> Receive:
        # A hub sends everything through one pipe, and lets nobody send what it may not.
        if self.is_pipe:
            return self.receive
        return functools.partial(self.receive, expected=_EXPECTED[address.partition(".")[0]])

    def receive(self, message: bytes, arrival: Arrival, expected: frozenset[type[Event]] | None = None) -> None:
        """Hand a message over; whatever it contains, this never raises."""
        try:
            codec = CODEC_OF.get(message[:1]) or codec_of(message)
            try:
                event = codec.decode_plain(message)
            except UNREADABLE:  # most are of another type, and some no events at all
                other = self._decode_other(codec, message, arrival)
                if other is None:
                    return
                event = other
            kind = type(event)
            if expected is not None and kind not in expected:
                self.counters.foreign += 1
            elif kind in _REQUESTS:
                if self.is_pipe or self._is_acceptable(event, codec, arrival):  # type: ignore[arg-type]
                    handlers = self.namespaces.get(event.to.rpartition(".")[0]) or (self._refuse_unoffered,)
                    handlers[0](event, codec, arrival)  # type: ignore[arg-type]
            elif kind in _ANSWERS and (waiting := self.waiting.get(event.id)) is not None:
                waiting.responded(event, codec, len(message))  # type: ignore[arg-type]
            else:
                self._dispatch(event, codec)
        except Exception:  # noqa: BLE001  # one message must not stop the reader
            self.counters.malformed += 1
            _log.exception("a message could not be handled")

    def _decode_other(self, codec: Codec, message: bytes, arrival: Arrival) -> Event | None:
        try:
            return codec.decode_any(message)
        except UNREADABLE as error:
            self.note_unreadable(codec, message, error, arrival)
            return None

    def is_answerable(self, request_id: str, arrival: Arrival) -> bool:
        """Return whether the answer to a request goes to its sender, where the transport knows the sender.

        An id begins with the name of the peer that the answer goes to. A request under another's id is counted as
        foreign and gets no answer: whoever has that id did not ask.
        """
        if arrival.sender is None or request_id.partition(".")[0] == arrival.sender:
            return True
        self.counters.foreign += 1
        return False

    def note_unreadable(self, codec: Codec, message: bytes, problem: Exception, arrival: Arrival) -> None:
        """Count a message that is not an event of ours; the sender of a request gets an error."""
        if is_signed(message):
            self.refuse_signed(message, arrival)
            return
        try:
            outline = codec.decode_outline(message)
        except UNREADABLE:
            self.counters.malformed += 1
            return
        if outline.type == "call.requested" and outline.id:
            self._refuse_unreadable(outline.id, problem, arrival)
        elif outline.type in KNOWN:
            self.counters.malformed += 1
        else:
            self.counters.dropped += 1

    def _refuse_unreadable(self, request_id: str, problem: object, arrival: Arrival) -> None:
        self.counters.malformed += 1
        if self.is_answerable(request_id, arrival):
            self.send_error(request_id, unreadable(problem), JSON)

    def refuse_signed(self, message: bytes, arrival: Arrival) -> None:
        """Tell the sender of a signed request that this worker does not check signatures."""
        signed = split(message)
        request = signed.request if signed is not None else b""
        try:
            outline = codec_of(request).decode_outline(request)
        except UNREADABLE:
            self.counters.malformed += 1
            return
        self.counters.rejected += 1
        text = "the request is signed, and this worker cannot check that: it has no SignedTransport"
        details = {"reason": "UNVERIFIABLE", "executed": "no"}
        if outline.type == "call.requested" and outline.id and self.is_answerable(outline.id, arrival):
            self.send_error(outline.id, CallError("ACCESS_DENIED", text, details), JSON)

    def _dispatch(self, event: Event, codec: Codec) -> None:
        if isinstance(event, CallResponded):
            self._note_unexpected(event.id)
        elif isinstance(event, CallCredit):
            self._credit(event)
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

    def _is_acceptable(self, event: CallRequested, codec: Codec, arrival: Arrival) -> bool:
        """Return whether a request is what it says, on a transport without a hub that checks that."""
        if event.payload.request_id != event.id:
            # A hub gives each request an id of its own, and the payload keeps the caller's; here both are one.
            self._refuse_unreadable(event.id, "the id in its payload differs from the event's id", arrival)
        elif self.is_answerable(event.id, arrival):
            if arrival.address == self.request_address(event.to):
                return True
            self.refuse_address(event, codec)
        return False

    def _refuse_unoffered(self, event: CallRequested, codec: Codec, arrival: Arrival) -> None:
        """Refuse a request for a namespace that this end does not serve."""
        if any(end.namespaces.get(namespace_of(event.to)) for end in self._ends if end is not self):
            return  # another end of the same peer, which shares this pipe, handles it
        self.counters.dropped += 1
        error = CallError("UNAVAILABLE", f"{event.to}: this worker does not offer it", {"executed": "no"})
        self.send_error(event.id, error, codec, event.payload.request_id)

    def refuse_address(self, event: CallRequested, codec: Codec) -> None:
        """Refuse a request for another operation than its address names: permissions to send are by address."""
        self.counters.foreign += 1
        text = f"{event.to}: the request was sent to the address of another operation"
        details = {"operationId": event.to, "reason": "WRONG_ADDRESS", "executed": "no"}
        self.send_error(event.id, CallError("ACCESS_DENIED", text, details), codec)

    def _credit(self, event: CallCredit) -> None:
        running, payload = self.running.get(event.id), event.payload
        if running is None:
            self._note_uncontrolled(event.id)
        elif self.is_overheard and (payload.number <= running.credits or not is_proven(running.event.id, payload)):
            self.counters.foreign += 1
        else:
            running.credits = payload.number
            running.credit(payload.items, payload.bytes)

    def _abort(self, event: CallAborted) -> None:
        running = self.running.get(event.id)
        if running is not None:
            if self.is_overheard and not is_proven(running.event.id, event.payload):
                self.counters.foreign += 1
            else:
                running.abort(event.payload.reason)
            return
        waiting = self.waiting.get(event.id)
        if waiting is not None:
            reason = event.payload.reason or "the worker cancelled the call"
            waiting.failed(CallError("ABORTED", reason, {"executed": "unknown"}))
            return
        self._note_uncontrolled(event.id)

    def _note_uncontrolled(self, request_id: str) -> None:
        """Count control of a call that no end of this peer runs or waits for."""
        if not any(request_id in end.running or request_id in end.waiting for end in self._ends):
            self.counters.dropped += 1

    def _note_unexpected(self, request_id: str) -> None:
        """Count an answer to no pending call: late, a duplicate, or foreign.

        Several ends of one peer share its inbox. An answer to another end's call is that end's to count.
        """
        answered = self.ended.get(request_id)
        if answered is not None:
            if answered:
                self.counters.duplicate += 1
            else:
                self.counters.late += 1
        elif not any(request_id in end.waiting or request_id in end.ended for end in self._ends):
            self.counters.foreign += 1

    def forget(self, request_id: str, *, answered: bool) -> None:
        """End a call of this end; a later answer is a duplicate if it was answered, else late."""
        if self.waiting.pop(request_id, None) is not None:
            self.ended[request_id] = answered

    def send(self, request_id: str, message: bytes) -> None:
        """Send an answer to the caller of a request."""
        self.transport.send(inbox_of(request_id), message)

    def send_error(self, request_id: str, error: CallError, codec: Codec, caller_id: str | None = None) -> None:
        """Send an error to the caller of a request."""
        self.transport.send(inbox_of(request_id), self.write_error(request_id, error, codec, caller_id))

    def write_error(self, request_id: str, error: CallError, codec: Codec, caller_id: str | None = None) -> bytes:
        """Return an error as bytes; what cannot be encoded is left out."""
        message = codec.encode(error_event(request_id, error, codec, caller_id))
        limit = self.transport.capabilities.max_payload
        if limit is None or len(message) <= limit:
            return message
        short = CallError(error.code, error.message[:_LONGEST_MESSAGE])
        return codec.encode(error_event(request_id, short, codec, caller_id))

    def send_abort(self, request_id: str, address: str, codec: Codec, reason: str = "") -> None:
        """Tell the caller of a request, or a hub, that this end cancelled it."""
        self.transport.send(address, write_abort(request_id, codec, reason, overheard=False))

    def abort_worker(self, request_id: str, address: str, codec: Codec, reason: str) -> None:
        """Tell the worker of a request that its caller cancelled it."""
        self.transport.send(address, write_abort(request_id, codec, reason, overheard=self.is_overheard))

    def confirm_abort(self, request_id: str, codec: Codec) -> None:
        """Tell a hub that the handler of an aborted request has ended, and its grant with it."""
        if self.is_pipe:
            self.send_abort(request_id, "", codec)

    def abort_when_up(self, request_id: str, address: str, codec: Codec, reason: str) -> None:
        """Send an abort when the connection is back."""
        self._late_aborts.append((address, write_abort(request_id, codec, reason, overheard=self.is_overheard)))

    def _send_late_aborts(self) -> None:
        for address, message in self._late_aborts:
            self.transport.send(address, message)

    def _repeat_late_aborts(self) -> None:
        """Send them once more: the worker may not have been connected the first time."""
        self._send_late_aborts()
        self._late_aborts.clear()

    def _up(self) -> None:
        for prepare in list(self.before_resending):
            prepare()
        if self._late_aborts:
            self._send_late_aborts()
            self._repeat = asyncio.get_running_loop().call_later(RECONNECTED_WITHIN, self._repeat_late_aborts)
        for waiting in list(self.waiting.values()):
            waiting.regained()

    def _down(self, reason: str) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
        for waiting in list(self.waiting.values()):
            waiting.lost(reason)


KNOWN: frozenset[str] = frozenset(
    kind.__struct_config__.tag for kind in Event.__args__ if isinstance(kind.__struct_config__.tag, str)
)


def inbox_of(request_id: str) -> str:
    """Return the address of a request's caller: the id begins with the name of its peer."""
    return f"inbox.{request_id.rpartition('-')[0]}"


def endpoint_of(transport: Transport) -> Endpoint:
    """Return the one endpoint of a transport.

    The endpoints of a transport and of its wrappers are kept in the transport's `attachment`: they share one inbox.
    """
    if not isinstance(transport.attachment, list):
        transport.attachment = []
    ends: list[Endpoint] = transport.attachment
    for endpoint in ends:
        if endpoint.transport is transport:
            return endpoint
    endpoint = Endpoint(transport, ends)
    ends.append(endpoint)
    return endpoint
