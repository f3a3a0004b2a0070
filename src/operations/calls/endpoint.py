"""Endpoint: the call protocol on one transport. An endpoint decodes each message once and passes the event on."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from math import isfinite
from typing import cast

from operations.calls.addresses import ASKS, WORKERS, namespace_of, operation_address, work_address
from operations.calls.codec import (
    CODEC_OF,
    JSON,
    LARGE_REQUEST,
    MSGPACK,
    PLAIN_REQUEST,
    PLAIN_RESPONSE,
    UNREADABLE,
    Codec,
    codec_of,
    error_event,
    part_reader,
    read_error,
)
from operations.calls.control_messages import has_valid_proof, write_abort
from operations.calls.events import (
    CallAborted,
    CallAccepted,
    CallCompleted,
    CallCredit,
    CallFailed,
    CallProgress,
    CallRequested,
    CallResponded,
    Event,
    EventHeader,
    WorkerAlive,
    WorkerAnnounced,
    WorkerAsked,
    WorkerGone,
)
from operations.calls.requests import PendingRequest, RoutedRequest, RunningRequest
from operations.calls.signature_format import is_signed, split
from operations.context import Progress
from operations.deadlines import TimerWheel
from operations.errors import CallError
from operations.failures import unreadable
from operations.progress import ProgressReporter
from operations.pubsub import Arrival, Receive, ReportsConnection, Stop, Transport
from operations.pubsub.protocols import InRouterProcess
from operations.recent import Recent
from operations.telemetry.counters import Counters
from operations.wire import LARGE_MESSAGE

_log = logging.getLogger("operations")
_MAX_ENDED = 2_000
"""Number of ended requests whose late and duplicate responses are recognised."""
_LONGEST_MESSAGE = 10_000
"""Number of characters of an error's message that are sent if the whole error exceeds the maximum payload."""
_NO_ADDRESS = Arrival("")
RECONNECTED_WITHIN = 3.0
"""Seconds after a reconnect within which the other peers are expected to reconnect, too."""
_REQUESTS: frozenset[type[Event]] = frozenset({CallRequested, PLAIN_REQUEST, LARGE_REQUEST})
_RESPONSES: frozenset[type[Event]] = frozenset({CallResponded, PLAIN_RESPONSE})
_EXPECTED: dict[str, frozenset[type[Event]]] = {
    "inbox": _RESPONSES | {CallCompleted, CallFailed, CallAccepted, CallProgress, CallAborted, WorkerAnnounced},
    "work": _REQUESTS,
}
"""The types of events that are accepted at the addresses of requests and responses.

Other types are rejected, because a broker grants permissions by address: a peer that may send only to the addresses of
responses must not be able to send a request there.
"""
_ReadNotice = Callable[[bytes, Codec], Event]
_read_control: _ReadNotice = part_reader(cast("type[Event]", CallAborted | CallCredit))
_NOTICES: dict[str, tuple[_ReadNotice, frozenset[str]]] = {
    "control": (_read_control, frozenset({"call.aborted", "call.credit"})),
    "peer": (_read_control, frozenset({"call.aborted", "call.credit"})),
    WORKERS: (
        part_reader(cast("type[Event]", WorkerAlive | WorkerAnnounced | WorkerGone)),
        frozenset({"worker.alive", "worker.announced", "worker.gone"}),
    ),
    ASKS: (part_reader(WorkerAsked), frozenset({"worker.asked"})),
}
"""The decoders and the types of events for the other kinds of addresses.

Events of other types are not decoded: on Redis, any caller can send any message to these addresses.
"""
_read_announced: _ReadNotice = part_reader(WorkerAnnounced)


RequestHandler = Callable[[CallRequested, Codec, Arrival, RoutedRequest | None], None]
NoticeHandler = Callable[[Event], None]


class Endpoint:
    """The state that PendingRequestMaps and CallHandlers on one transport share: ids, pending calls, counters."""

    def __init__(self, transport: Transport, ends: list[Endpoint]) -> None:
        self.transport = transport
        self.peer = transport.peer
        self.request_address = operation_address if transport.capabilities.addresses_operations else work_address
        self.liveness: object = None
        self.in_flight: list[Callable[[], int]] = []
        connection = transport.optional(ReportsConnection)
        self.counters = Counters(
            lambda: sum(count() for count in self.in_flight), lambda: 0 if connection is None else connection.unsent
        )
        self.wheel = TimerWheel()
        self.pending: dict[str, PendingRequest] = {}
        """The requests that this side made, by their id."""
        self.progress: dict[str, ProgressReporter] = {}
        """The reporters that call the progress callbacks of pending requests, by request id."""
        self.running: dict[str, RunningRequest] = {}
        """The requests that run here, by their control id."""
        self.namespaces: dict[str, list[RequestHandler]] = {}
        """The handlers of requests, by the namespace that they serve."""
        self.notice_handlers: list[NoticeHandler] = []
        self.before_resending: list[Callable[[], None]] = []
        """Functions to call when the connection is restored, before pending calls are sent again."""
        self._siblings = ends
        self.ended: Recent[str, bool] = Recent(_MAX_ENDED)
        """The last requests of this side that ended, and whether they got a response."""
        self._late_aborts: list[tuple[str, bytes]] = []
        self._repeat: asyncio.TimerHandle | None = None
        self._stops: dict[str, tuple[Stop, int]] = {}
        self.via_hub = transport.capabilities.identity == "hub"
        self.shares_control = transport.capabilities.shares_control
        self.listen(f"inbox.{self.peer}")
        transport.watch(self._up, self._down)
        self.router = transport.optional(InRouterProcess)
        """The hub's router, if it is in this process."""
        if self.router is not None:
            self.router.accept(self._accept)

    def listen(self, address: str, group: str | None = None) -> Stop:
        """Listen at an address, and return the function that stops listening.

        If there are several listeners at one address, each message is handled once.
        """
        stop, users = self._stops.get(address, (None, 0))
        if stop is None:
            stop = self.transport.listen(address, self._receiver(address), group=group)
        self._stops[address] = stop, users + 1
        return functools.partial(self._stop_listening, [address])

    def _stop_listening(self, addresses: list[str]) -> None:
        """Stop listening at the addresses, and empty the list, so that a second call does nothing."""
        while addresses:
            address = addresses.pop()
            stop, users = self._stops.pop(address)
            if users > 1:
                self._stops[address] = stop, users - 1
            else:
                stop()

    def _receiver(self, address: str) -> Receive:
        # A hub uses no addresses: it checks which events each peer may send.
        if self.via_hub:
            return self.receive
        kind = address.partition(".")[0]
        if kind in _NOTICES:
            return functools.partial(self._receive_notice, kind=kind)
        return functools.partial(self.receive, expected=_EXPECTED[kind])

    def _receive_notice(self, message: bytes, arrival: Arrival, kind: str) -> None:
        """Decode a control message, or a message about workers, and handle it; never raise, for any bytes.

        Of these, only announcements may be large.
        """
        codec, (read, types) = codec_of(message), _NOTICES[kind]
        if len(message) > LARGE_MESSAGE:
            if kind != WORKERS:
                self.counters.malformed += 1
                return
            read = _read_announced
        try:
            event = read(message, codec)
        except UNREADABLE:
            self._note_unexpected_notice(codec, message, types)
            return
        try:
            self._dispatch(event, codec)
        except Exception:  # noqa: BLE001  # one message must not stop the reader
            self.counters.malformed += 1
            _log.exception("a message could not be handled")

    def receive(self, message: bytes, arrival: Arrival, expected: frozenset[type[Event]] | None = None) -> None:
        """Decode a message and pass it to the call or handler that it belongs to; never raise, for any bytes."""
        try:
            codec = CODEC_OF[message[0]] if message else MSGPACK
            try:
                # The input of a large request is decoded after its caller's rights are checked.
                if len(message) <= LARGE_MESSAGE:
                    event = codec.decode_plain(message)
                else:
                    event = codec.decode_large(message, only_requests=expected is _REQUESTS)
            except UNREADABLE as error:  # usually an event of another type, sometimes not an event
                other = self._decode_other(codec, message, error, arrival)
                if other is None:
                    return
                event = other
            kind = type(event)
            if expected is not None and kind not in expected:
                self.counters.foreign += 1
            elif kind in _REQUESTS:
                if self.via_hub or self._is_acceptable(event, codec, arrival):  # type: ignore[arg-type]
                    handlers = self.namespaces.get(event.to.rpartition(".")[0]) or (self._refuse_unoffered,)
                    handlers[0](event, codec, arrival, None)  # type: ignore[arg-type]
            elif kind in _RESPONSES and (pending := self.pending.get(event.id)) is not None:
                pending.responded(event, codec, len(message))  # type: ignore[arg-type]
            else:
                self._dispatch(event, codec)
        except Exception:  # noqa: BLE001  # one message must not stop the reader
            self.counters.malformed += 1
            _log.exception("a message could not be handled")

    def _note_unexpected_notice(self, codec: Codec, message: bytes, types: frozenset[str]) -> None:
        """Count a message that cannot be decoded as one of the events of its address."""
        try:
            kind = codec.decode_outline(message).type
        except UNREADABLE:
            self.counters.malformed += 1
            return
        if kind in types:
            self.counters.malformed += 1
        elif kind in EVENT_TYPES:
            self.counters.foreign += 1
        else:
            self.counters.dropped += 1

    def _accept(self, header: EventHeader, codec: Codec, route: RoutedRequest) -> None:
        """Handle a request whose header the router of this process has decoded; never raise."""
        try:
            event = codec.read_request(header)
        except UNREADABLE:
            header.identity = codec.write_identity(route.identity)
            self.receive(codec.encode(header), _NO_ADDRESS)
            return
        try:
            handlers = self.namespaces.get(event.to.rpartition(".")[0]) or (self._refuse_unoffered,)
            handlers[0](event, codec, _NO_ADDRESS, route)
        except Exception:  # noqa: BLE001  # one message must not stop the router
            self.counters.malformed += 1
            _log.exception("a message could not be handled")

    def _decode_other(self, codec: Codec, message: bytes, problem: Exception, arrival: Arrival) -> Event | None:
        if len(message) <= LARGE_MESSAGE:
            try:
                return codec.decode_any(message)
            except UNREADABLE as error:
                problem = error
        self.note_unreadable(codec, message, problem, arrival)
        return None

    def is_answerable(self, request_id: str, arrival: Arrival) -> bool:
        """Return whether the response to a request goes to the peer that sent it; True if the sender is unknown.

        A request id begins with the name of the peer that gets the response. A request whose id names another peer than
        its sender is counted as foreign and gets no response: the named peer did not send it.
        """
        if arrival.sender is None or request_id.partition(".")[0] == arrival.sender:
            return True
        self.counters.foreign += 1
        return False

    def note_unreadable(self, codec: Codec, message: bytes, problem: Exception, arrival: Arrival) -> None:
        """Count a message that cannot be decoded; if it is a request, send its sender an error."""
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
        elif outline.type in EVENT_TYPES:
            self.counters.malformed += 1
        else:
            self.counters.dropped += 1

    def _refuse_unreadable(self, request_id: str, problem: object, arrival: Arrival) -> None:
        self.counters.malformed += 1
        if self.is_answerable(request_id, arrival):
            self.send_error(request_id, unreadable(problem), JSON)

    def refuse_signed(self, message: bytes, arrival: Arrival) -> None:
        """Refuse a signed request: this worker does not verify signatures."""
        signed = split(message)
        request = signed.request if signed is not None else b""
        try:
            outline = codec_of(request).decode_outline(request)
        except UNREADABLE:
            self.counters.malformed += 1
            return
        self.counters.rejected += 1
        text = "this worker cannot verify the signature of the request: it has no SignedTransport"
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
        elif isinstance(event, CallProgress):
            self._report_progress(event)
        elif isinstance(event, (CallCompleted, CallFailed, CallAccepted)):
            self._answer_waiting(event, codec)
        else:
            for handle in list(self.notice_handlers):
                handle(event)

    def _answer_waiting(self, event: CallCompleted | CallFailed | CallAccepted, codec: Codec) -> None:
        pending = self.pending.get(event.id)
        if pending is None:
            self._note_unexpected(event.id)
        elif isinstance(event, CallCompleted):
            pending.completed(event)
        elif isinstance(event, CallAccepted):
            pending.accepted(event.payload.worker_id)
        else:
            pending.failed(read_error(event, codec))

    def report_progress(self, request_id: str, callback: Progress) -> None:
        """Report the progress of a pending request to `callback`."""
        self.progress[request_id] = ProgressReporter(callback)

    def _report_progress(self, event: CallProgress) -> None:
        """Report the progress of a pending call; drop progress that arrives after the end of the call."""
        reporter, payload = self.progress.get(event.id), event.payload
        if reporter is None:
            self.counters.dropped += 1
        elif isfinite(payload.progress) and isfinite(payload.total or 0.0):
            reporter.report(payload.progress, payload.total, payload.message)

    def _is_acceptable(self, event: CallRequested, codec: Codec, arrival: Arrival) -> bool:
        """Return whether id, sender and address of a request match; refuse the request if they do not."""
        if event.payload.request_id != event.id:
            # Only a hub gives a request another id than the one in its payload.
            self._refuse_unreadable(event.id, "the id in its payload differs from the event's id", arrival)
        elif arrival.sender is None or self.is_answerable(event.id, arrival):
            if arrival.address == self.request_address(event.to):
                return True
            self.refuse_address(event, codec)
        return False

    def _refuse_unoffered(
        self, event: CallRequested, codec: Codec, arrival: Arrival, route: RoutedRequest | None
    ) -> None:
        """Refuse a request for a namespace that this peer does not serve."""
        if any(end.namespaces.get(namespace_of(event.to)) for end in self._siblings if end is not self):
            return  # another endpoint of the same peer handles the request
        self.counters.dropped += 1
        error = CallError("UNAVAILABLE", f"{event.to}: this worker does not serve it", {"executed": "no"})
        self.send_error(event.id, error, codec, event.payload.request_id)

    def refuse_address(self, event: CallRequested, codec: Codec) -> None:
        """Refuse a request that was sent to the address of another operation or namespace.

        A broker grants permissions by address: a peer must not run operations that its permissions exclude.
        """
        self.counters.foreign += 1
        text = f"{event.to}: the request was sent to the address of another operation"
        details = {"operationId": event.to, "reason": "WRONG_ADDRESS", "executed": "no"}
        self.send_error(event.id, CallError("ACCESS_DENIED", text, details), codec)

    def _credit(self, event: CallCredit) -> None:
        running, payload = self.running.get(event.id), event.payload
        if running is None:
            self._note_uncontrolled(event.id)
        elif self.shares_control and (payload.number <= running.credits or not has_valid_proof(running.id, payload)):
            self.counters.foreign += 1
        else:
            running.credits = payload.number
            running.credit(payload.items, payload.bytes)

    def _abort(self, event: CallAborted, *, is_last: bool = False) -> None:
        running = self.running.get(event.id)
        if running is not None:
            if self.shares_control and not has_valid_proof(running.id, event.payload):
                self.counters.foreign += 1
            else:
                running.abort(event.payload.reason)
            return
        pending = self.pending.get(event.id)
        if pending is not None:
            reason = event.payload.reason or "the worker cancelled the call"
            pending.failed(CallError("ABORTED", reason, {"executed": "unknown"}))
        elif is_last:
            self._note_uncontrolled(event.id)
        else:
            # A call that arrived in this iteration of the event loop may be added to `running` only in the next one.
            asyncio.get_running_loop().call_soon(functools.partial(self._abort, event, is_last=True))

    def _note_uncontrolled(self, request_id: str) -> None:
        """Count a control message for a call that no endpoint of this peer runs or waits for."""
        if not any(request_id in end.running or request_id in end.pending for end in self._siblings):
            self.counters.dropped += 1

    def _note_unexpected(self, request_id: str) -> None:
        """Count a response without a pending call as late, as a duplicate, or as foreign.

        All endpoints of one peer receive the messages of its inbox. Each counts only the responses to its own calls.
        """
        answered = self.ended.get(request_id)
        if answered is not None:
            if answered:
                self.counters.duplicate += 1
            else:
                self.counters.late += 1
        elif not any(request_id in end.pending or request_id in end.ended for end in self._siblings):
            self.counters.foreign += 1

    def forget(self, request_id: str, *, answered: bool) -> None:
        """Remove a pending call; a later response counts as a duplicate if the call was answered, else as late."""
        if self.pending.pop(request_id, None) is not None:
            self.ended[request_id] = answered

    def send(self, request_id: str, message: bytes) -> None:
        """Send a response to the caller of a request."""
        self.transport.send(inbox_of(request_id), message)

    def send_error(self, request_id: str, error: CallError, codec: Codec, caller_id: str | None = None) -> None:
        """Send an error to the caller of a request."""
        self.transport.send(inbox_of(request_id), self.write_error(request_id, error, codec, caller_id))

    def write_error(self, request_id: str, error: CallError, codec: Codec, caller_id: str | None = None) -> bytes:
        """Return an error as bytes; an error above the maximum payload loses its details and the end of its message."""
        message = codec.encode(error_event(request_id, error, codec, caller_id))
        limit = self.transport.capabilities.max_payload
        if limit is None or len(message) <= limit:
            return message
        short = CallError(error.code, error.message[:_LONGEST_MESSAGE])
        return codec.encode(error_event(request_id, short, codec, caller_id))

    def send_abort(self, request_id: str, address: str, codec: Codec, reason: str = "") -> None:
        """Send an abort to the caller of a request, or to a hub."""
        self.transport.send(address, write_abort(request_id, codec, reason, with_proof=False))

    def abort_worker(self, request_id: str, address: str, codec: Codec, reason: str) -> None:
        """Send an abort to the worker of a request."""
        self.transport.send(address, write_abort(request_id, codec, reason, with_proof=self.shares_control))

    def confirm_abort(self, request_id: str, codec: Codec) -> None:
        """Report to a hub that the handler of an aborted request has ended; the hub then ends the request's grant."""
        if self.via_hub:
            self.send_abort(request_id, "", codec)

    def abort_when_up(self, request_id: str, address: str, codec: Codec, reason: str) -> None:
        """Send an abort when the connection is restored, and again `RECONNECTED_WITHIN` seconds later."""
        self._late_aborts.append((address, write_abort(request_id, codec, reason, with_proof=self.shares_control)))

    def _send_late_aborts(self) -> None:
        for address, message in self._late_aborts:
            self.transport.send(address, message)

    def _repeat_late_aborts(self) -> None:
        """Send the aborts of `abort_when_up` a second time: a worker may reconnect later than this process."""
        self._send_late_aborts()
        self._late_aborts.clear()

    def _up(self) -> None:
        for prepare in list(self.before_resending):
            prepare()
        if self._late_aborts:
            self._send_late_aborts()
            self._repeat = asyncio.get_running_loop().call_later(RECONNECTED_WITHIN, self._repeat_late_aborts)
        for pending in list(self.pending.values()):
            pending.regained()

    def _down(self, reason: str) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
        for pending in list(self.pending.values()):
            pending.lost(reason)


EVENT_TYPES: frozenset[str] = frozenset(
    kind.__struct_config__.tag for kind in Event.__args__ if isinstance(kind.__struct_config__.tag, str)
)


def inbox_of(request_id: str) -> str:
    """Return the address of a request's caller, whose peer name is the first part of the request id."""
    return f"inbox.{request_id.rpartition('-')[0]}"


def endpoint_of(transport: Transport) -> Endpoint:
    """Return the endpoint of a transport; create it on the first call.

    The transport's `attachment` is a list of endpoints: that of the transport itself, and those of its wrappers, such
    as a SignedTransport. All of them share one inbox.
    """
    if not hasattr(transport, "attachment"):
        message = f"invalid transport of type {type(transport).__name__}: expected an open transport"
        raise TypeError(f"{message}, such as that of `async with connect(url) as transport`")
    if not isinstance(transport.attachment, list):
        transport.attachment = []
    ends: list[Endpoint] = transport.attachment
    for endpoint in ends:
        if endpoint.transport is transport:
            return endpoint
    endpoint = Endpoint(transport, ends)
    ends.append(endpoint)
    return endpoint
