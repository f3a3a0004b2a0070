"""Router: which call at a hub belongs to whom. It moves events between sessions without opening them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from operations.calls.codec import JSON, MSGPACK, PACKED, UNREADABLE, Codec, codec_of, transcode
from operations.calls.counters import Counters
from operations.calls.events import (
    VERSION,
    Aborted,
    Announced,
    CallAborted,
    CallRequested,
    Header,
    Worker,
)
from operations.calls.failures import failed_event, too_large, unavailable, unreadable, untranslatable
from operations.calls.registration import Registration
from operations.calls.sessions import Route, Session
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.recent import Recent

_log = logging.getLogger("operations")
_ANSWERS = frozenset({"call.responded", "call.completed", "call.error", "call.accepted"})
_MOST_ROUTES = 100_000
_REMEMBERED = 10_000


class Router:
    """Routes events between sessions by what is outside their payload."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.counters = Counters(lambda: sum(len(session.calls) for session in self.sessions.values()))
        self._registration = Registration(self.sessions, self.counters)
        self.offers = self._registration.offers
        self._lost: Recent[str, None] = Recent(_REMEMBERED)

    def join(self, session: Session) -> None:
        """Admit a session that said who it is."""
        self.sessions[session.name] = session

    def leave(self, session: Session, reason: str) -> None:
        """Take a session out: its operations go at once, its callers and workers are told."""
        if self.sessions.get(session.name) is not session:
            return
        del self.sessions[session.name]
        self._registration.leave(session)
        for route in list(session.work.values()):
            error = unavailable(route.operation_id, f"the worker was lost: {reason}", "unknown")
            self._lost[f"{session.peer}/{route.request_id}"] = None
            self._end_with(route, error)
        for route in list(session.calls.values()):
            self._end(route)
            self._abort_worker(route, f"the caller was lost: {reason}")

    def receive(self, session: Session, message: bytes) -> None:
        """Route one message; whatever is in it, this never raises."""
        try:
            first = message[:1]
            codec = MSGPACK if first >= PACKED else JSON if first == b"{" else codec_of(message)
            request = codec.decode_plain_request(message) if session.calls_hub else None
            header: Any = codec.decode_header(message) if request is None else request
        except UNREADABLE as error:
            self._refuse_unreadable(session, codec, message, error)
            return
        try:
            if request is not None or header.type == "call.requested":
                self._request(session, header, message, codec)
            else:
                self._route(session, header, message, codec)
        except (msgspec.ValidationError, CallError):
            self.counters.malformed += 1
        except Exception:  # noqa: BLE001  # one session must not stop the others
            self.counters.malformed += 1
            _log.exception("an event of %s could not be routed", session.name)

    def _route(self, session: Session, header: Header, message: bytes, codec: Codec) -> None:
        kind = header.type
        if kind in _ANSWERS:
            self.answer(session, header.id, message, self._is_last(session, header))
        elif kind in ("call.aborted", "call.credit"):
            self._control(session, header, message)
        elif kind == "worker.announced":
            self._registration.announce(session, msgspec.convert(codec.read(header.payload), Announced))
        elif kind == "worker.gone":
            self._registration.retire(session, msgspec.convert(codec.read(header.payload), Worker).worker_id)
        elif kind == "worker.asked":
            self._registration.watch(session)
        else:
            self.counters.dropped += 1

    def _request(self, session: Session, header: Header | CallRequested, message: bytes, codec: Codec) -> None:
        request_id = header.id
        if request_id.rpartition("-")[0] != session.peer:
            self.counters.foreign += 1
            return
        calls = session.calls
        if request_id in calls:
            self.counters.duplicate += 1
            return
        if len(calls) >= _MOST_ROUTES:
            self.counters.rejected += 1
            self._refuse(session, request_id, unavailable(header.to, "too many calls at once", "no"), codec)
            return
        offer = self.offers.get(header.to)
        if offer is None:
            self._refuse(session, request_id, self._explain_missing(header.to), codec)
            return
        worker = offer.sessions[0]
        if offer.pool:
            offer.sessions.append(offer.sessions.pop(0))
        identity: Identity | None = session.principal.identity
        if header.parent is not None or header.identity is not None or session.trusted:
            identity = self._identity(session, header)
        header.identity = identity
        route = Route(request_id, header.to, session, worker, identity, header.stream)
        take = worker.take
        session.calls_hub = take is not None
        if take is None or worker.open is None:
            self._forward(route, header, message, codec)
            return
        calls[request_id] = worker.work[request_id] = route
        if type(header) is Header:
            worker.open(header, codec)
        else:
            take(header, codec)  # type: ignore[arg-type]

    def _forward(self, route: Route, header: Header | CallRequested, message: bytes, codec: Codec) -> None:
        """Send a request on, its payload as it came."""
        if isinstance(header, CallRequested):
            header = codec.decode_header(message)
            header.identity = route.identity
        worker, forwarded = route.worker, codec.encode_wide(header)
        if worker.codec is not None:
            try:
                forwarded = transcode(forwarded, worker.codec)
            except CallError as problem:
                self._refuse(route.caller, header.id, untranslatable(header.to, "request", problem, "no"), codec)
                return
        if worker.max_payload is not None and len(forwarded) > worker.max_payload:
            error = too_large(header.to, "request", len(forwarded), worker.max_payload, "no")
            self._refuse(route.caller, header.id, error, codec)
            return
        route.caller.calls[header.id] = worker.work[header.id] = route
        worker.deliver(forwarded)

    def _identity(self, session: Session, header: Header | CallRequested) -> Identity | None:
        """Whom a request is for: the session's own principal, or who its worker is to the caller it is nested in.

        That there is such a caller only the hub says: the parent is a request that it gave to this very session and
        that is not over.
        """
        if session.trusted:
            return header.identity
        if header.identity is not None:
            self.counters.forged += 1
        parent = session.work.get(header.parent) if header.parent is not None else None
        return session.principal.identity_for(parent.identity) if parent is not None else session.principal.identity

    def _explain_missing(self, operation_id: str) -> CallError:
        if operation_id.rpartition(".")[0] in self._registration.namespaces:
            details = {"operationId": operation_id, "executed": "no"}
            return CallError(ErrorCode.OPERATION_NOT_FOUND, f"no operation {operation_id!r} is registered", details)
        return unavailable(operation_id, "no worker offers it", "no")

    def _is_last(self, session: Session, header: Header) -> bool:
        if header.type == "call.responded":
            route = session.work.get(header.id)
            return route is not None and not route.stream
        return header.type != "call.accepted"

    def answer(self, session: Session, request_id: str, message: bytes, last: bool) -> None:
        """Route an answer to whoever waits for it; after the last one nobody does."""
        route = session.work.get(request_id)
        if route is None:
            self._note_unexpected(session, request_id)
            return
        caller = route.caller
        if caller.codec is not None:
            try:
                message = transcode(message, caller.codec)
            except CallError as error:
                self._abort_worker(route, "the caller cannot read the answer")
                self._end_with(route, untranslatable(route.operation_id, "answer", error, "yes"))
                return
        if caller.max_payload is not None and len(message) > caller.max_payload:
            self._abort_worker(route, "the answer is too large for the caller")
            self._end_with(route, too_large(route.operation_id, "answer", len(message), caller.max_payload, "yes"))
            return
        if last:
            del session.work[request_id]
            caller.calls.pop(request_id, None)
        caller.deliver(message)

    def _note_unexpected(self, session: Session, request_id: str) -> None:
        """Count an answer that its sender has no call for: one that is over, or was, or somebody else's."""
        peer = request_id.rpartition("-")[0]
        if f"{session.peer}/{request_id}" in self._lost:
            # It had the call until its connection was lost, and the call may have gone to another since.
            self.counters.late += 1
        elif any(other.peer == peer and request_id in other.calls for other in self.sessions.values()):
            self.counters.foreign += 1
        else:
            self.counters.late += 1

    def _control(self, session: Session, header: Header, message: bytes) -> None:
        """Abort and credit: to the other side of the call, whichever side this is."""
        route = session.calls.get(header.id)
        target = route.worker if route is not None else None
        if route is None:
            route = session.work.get(header.id)
            target = route.caller if route is not None and header.type == "call.aborted" else None
        if route is None or target is None:
            self.counters.dropped += 1
            return
        if header.type == "call.aborted":
            self._end(route)
        target.send(message)

    def _refuse(self, session: Session, request_id: str, error: CallError, codec: Codec) -> None:
        session.send(codec.encode(failed_event(request_id, error, codec)))

    def _refuse_unreadable(self, session: Session, codec: Codec, message: bytes, problem: Exception) -> None:
        """Tell a peer whose request has an outside that cannot be read, so that it need not wait for its deadline."""
        self.counters.malformed += 1
        try:
            outline = codec.decode_outline(message)
        except UNREADABLE:
            return
        if outline.type == "call.requested" and outline.id.rpartition("-")[0] == session.peer:
            self._refuse(session, outline.id, unreadable(problem), codec)

    def _end_with(self, route: Route, error: CallError) -> None:
        self._end(route)
        self._refuse(route.caller, route.request_id, error, JSON)

    def _end(self, route: Route) -> None:
        route.caller.calls.pop(route.request_id, None)
        route.worker.work.pop(route.request_id, None)

    def _abort_worker(self, route: Route, reason: str) -> None:
        event = CallAborted(VERSION, route.request_id, "", Aborted(route.request_id, reason))
        route.worker.send(JSON.encode(event))
