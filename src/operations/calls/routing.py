"""Router: the hub's tables, who offers what and which call belongs to whom. It moves events without opening them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from operations.access import check_access
from operations.calls.authentication import Principal
from operations.calls.codec import JSON, MSGPACK, PACKED, UNREADABLE, Codec, codec_of, transcode
from operations.calls.counters import Counters
from operations.calls.events import (
    VERSION,
    Aborted,
    Announced,
    CallAborted,
    CallRequested,
    Header,
    Registered,
    Worker,
    WorkerAnnounced,
    WorkerGone,
    WorkerRegistered,
)
from operations.calls.failures import failed_event, too_large, unavailable, unreadable, untranslatable
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.recent import Recent
from operations.spec import OperationSpec
from operations.wire import encode_json

_log = logging.getLogger("operations")
_ANSWERS = frozenset({"call.responded", "call.completed", "call.error", "call.accepted"})
_MOST_ROUTES = 100_000
_REMEMBERED = 10_000


class Session:
    """One peer at the hub: a spoke's connection, or the hub's own end."""

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
        """Whether an identity that this peer claims for its calls is believed."""
        self.peer = ""
        self.generation = 0
        self.codec: Codec | None = None
        """The one that it reads, where it does not read them all."""
        self.max_payload: int | None = None
        self.deliver = deliver
        self.take: Callable[[CallRequested, Codec], None] | None = None
        """How a peer in the hub's own process gets a request: as it was read, not written and read again."""
        self.open: Callable[[Header, Codec], None] | None = None
        """The same of a request of which only the outside was read."""
        self.calls_hub = False
        """Whether its last request was for the hub's own process: the next one is then read whole at once."""
        self.watches = False
        self.claims: dict[str, Announced] = {}
        self.calls: dict[str, Route] = {}
        self.work: dict[str, Route] = {}


class Route(msgspec.Struct, eq=False):
    """One call in flight: who made it, who runs it, on whose behalf."""

    request_id: str
    operation_id: str
    caller: Session
    worker: Session
    identity: Identity | None
    stream: bool


class Offer(msgspec.Struct, eq=False):
    """Who answers one operation: one session, or several that asked to share it and describe it alike."""

    spec: OperationSpec
    digest: bytes
    pool: bool
    sessions: list[Session]
    description: dict[str, Any]


class Router:
    """Routes events between sessions by what is outside their payload."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.offers: dict[str, Offer] = {}
        self.namespaces: dict[str, int] = {}
        self._lost: Recent[str, None] = Recent(_REMEMBERED)
        self.counters = Counters(lambda: sum(len(session.calls) for session in self.sessions.values()))

    def join(self, session: Session) -> None:
        """Admit a session that said who it is."""
        self.sessions[session.name] = session

    def leave(self, session: Session, reason: str) -> None:
        """Take a session out: its operations go at once, its callers and workers are told."""
        if self.sessions.get(session.name) is not session:
            return
        del self.sessions[session.name]
        claims, session.claims = session.claims, {}
        for worker_id in claims:
            self._notify_watchers(WorkerGone(VERSION, "", "", Worker(worker_id)), session)
        self._withdraw(
            session, {operation_id for operation_id, offer in self.offers.items() if session in offer.sessions}
        )
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
            self._announce(session, header, codec)
        elif kind == "worker.gone":
            self._retire(session, msgspec.convert(codec.read(header.payload), Worker).worker_id)
        elif kind == "worker.asked":
            session.watches = True
            self._tell_all(session)
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
        if operation_id.rpartition(".")[0] in self.namespaces:
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
        self._deliver(target, message)

    def _announce(self, session: Session, header: Header, codec: Codec) -> None:
        announced = msgspec.convert(codec.read(header.payload), Announced)
        encode_json(announced.operations)  # or the error: they go on to others as JSON
        if not announced.worker_id.startswith(f"{session.peer}."):
            self.counters.foreign += 1
            return
        known = session.claims.get(announced.worker_id)
        if known is not None and announced.generation < known.generation:
            self.counters.dropped += 1
            return
        session.claims[announced.worker_id] = announced
        self._settle(session, announced)

    def _settle(self, session: Session, announced: Announced) -> None:
        """Grant what can be granted of an announcement, take back what is no longer in it, and answer."""
        accepted: list[str] = []
        rejected: dict[str, str] = {}
        for data in announced.operations:
            spec, reason = self._claim(session, data, pool=announced.pool)
            if reason is None:
                accepted.append(spec)
            else:
                rejected[spec] = reason
        wanted = {_id_of(data) for claim in session.claims.values() for data in claim.operations}
        held = {operation_id for operation_id, offer in self.offers.items() if session in offer.sessions}
        self._withdraw(session, held - wanted)
        if rejected:
            self.counters.rejected += len(rejected)
        event = WorkerRegistered(VERSION, "", announced.worker_id, Registered(accepted, rejected))
        self._deliver(session, JSON.encode(event))
        self._notify_watchers(self._visible(announced, session), session)

    def _claim(self, session: Session, data: dict[str, Any], *, pool: bool) -> tuple[str, str | None]:
        """The id, and why it cannot be had by this session; None where it now is."""
        try:
            spec = OperationSpec.from_dict(data)
        except CallError as error:
            return _id_of(data), error.message
        if not session.principal.may_register(spec.namespace):
            who = session.principal.identity.id
            return spec.id, f"{who!r} may not register in the namespace {spec.namespace!r}"
        digest = _digest(data)
        offer = self.offers.get(spec.id)
        if offer is None or offer.sessions == [session]:
            if offer is None:
                self.namespaces[spec.namespace] = self.namespaces.get(spec.namespace, 0) + 1
            self.offers[spec.id] = Offer(spec, digest, pool, [session], data)
            return spec.id, None
        if session in offer.sessions:
            return spec.id, None
        if not (pool and offer.pool):
            return spec.id, "another spoke offers it already, and both would have to ask for pooling to share it"
        if digest != offer.digest:
            return spec.id, "another spoke offers it with a different spec"
        offer.sessions.append(session)
        return spec.id, None

    def _withdraw(self, session: Session, operation_ids: Iterable[str]) -> None:
        """Take a session's operations away; whoever was refused one of them gets it now."""
        freed: set[str] = set()
        for operation_id in operation_ids:
            offer = self.offers[operation_id]
            offer.sessions.remove(session)
            if not offer.sessions:
                del self.offers[operation_id]
                freed.add(operation_id)
                left = self.namespaces[offer.spec.namespace] - 1
                if left:
                    self.namespaces[offer.spec.namespace] = left
                else:
                    del self.namespaces[offer.spec.namespace]
        for other in self.sessions.values() if freed else ():
            for announced in list(other.claims.values()):
                if other is not session and any(_id_of(data) in freed for data in announced.operations):
                    self._settle(other, announced)

    def _retire(self, session: Session, worker_id: str) -> None:
        """A worker takes no more calls; those it has go on."""
        if session.claims.pop(worker_id, None) is None:
            self.counters.dropped += 1
            return
        wanted = {_id_of(data) for claim in session.claims.values() for data in claim.operations}
        held = {operation_id for operation_id, offer in self.offers.items() if session in offer.sessions}
        self._withdraw(session, held - wanted)
        self._notify_watchers(WorkerGone(VERSION, "", "", Worker(worker_id)), session)
        self._deliver(session, JSON.encode(WorkerRegistered(VERSION, "", worker_id, Registered([], {}))))

    def _tell_all(self, session: Session) -> None:
        for other in list(self.sessions.values()):
            if other is not session:
                for announced in other.claims.values():
                    self._tell(session, self._visible(announced, other))

    def _visible(self, announced: Announced, owner: Session) -> WorkerAnnounced:
        """An announcement with only what its worker was granted."""
        granted = [
            data
            for data in announced.operations
            if (offer := self.offers.get(_id_of(data))) is not None and owner in offer.sessions
        ]
        return WorkerAnnounced(VERSION, "", "", msgspec.structs.replace(announced, operations=granted))

    def _notify_watchers(self, event: WorkerAnnounced | WorkerGone, origin: Session) -> None:
        for session in list(self.sessions.values()):
            if session.watches and session is not origin:
                self._tell(session, event)

    def _tell(self, session: Session, event: WorkerAnnounced | WorkerGone) -> None:
        """Tell a session of a worker: of its operations, those that the session may call."""
        if isinstance(event, WorkerAnnounced) and not session.trusted:
            identity = session.principal.identity
            callable_ones = [
                data
                for data in event.payload.operations
                if (offer := self.offers.get(_id_of(data))) is not None
                and check_access(offer.spec.access_control, identity).allowed
            ]
            event = msgspec.structs.replace(
                event, payload=msgspec.structs.replace(event.payload, operations=callable_ones)
            )
        self._deliver(session, JSON.encode(event))

    def _refuse(self, session: Session, request_id: str, error: CallError, codec: Codec) -> None:
        self._deliver(session, codec.encode(failed_event(request_id, error, codec)))

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
        self._deliver(route.worker, JSON.encode(event))

    def _deliver(self, session: Session, message: bytes) -> None:
        if session.codec is not None:
            message = transcode(message, session.codec)
        session.deliver(message)


def _id_of(data: dict[str, Any]) -> str:
    return f"{data.get('namespace', '')}.{data.get('name', '')}"


def _digest(data: dict[str, Any]) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(data, order="deterministic"), digest_size=16).digest()
