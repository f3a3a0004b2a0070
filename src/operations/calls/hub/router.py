"""Router: event forwarding between the sessions of a hub, without decoding payloads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from hashlib import blake2b

from operations.access import access_error, check_access
from operations.calls.codec import CODEC_OF, JSON, UNREADABLE, Codec, codec_of, error_event, transcode
from operations.calls.events import NULL, VERSION, Aborted, CallAborted, Header
from operations.calls.hub.directory import Directory, Offer
from operations.calls.hub.session import Route, Session
from operations.context import Grant, Identity
from operations.errors import CallError, ErrorCode
from operations.failures import timed_out, too_large, unavailable, unreadable, untranslatable
from operations.identity.grants import CLOSING_SECONDS
from operations.recent import Recent
from operations.telemetry.counters import Counters

_log = logging.getLogger("operations")
_ANSWERS = frozenset({"call.responded", "call.completed", "call.error", "call.accepted"})
_MOST_CALLS = 100_000
"""How many calls one session may have, those that wait until its earlier calls end included."""
_MOST_HELD = 16 << 20
"""How many bytes of requests of one session wait."""
_HEADER_BYTES = 512
"""What a request takes beside its payload and the identity that it claims."""
_HELD_PER_TURN = 64
_MOST_UNREAD = 32 << 20
"""Bytes that a worker may leave unread before it gets no more requests."""
_MOST_CLAIMED = 4096
"""Bytes of an identity that a spoke claims which are read at all."""
_MOST_CONTROL = 4096
"""Bytes of an abort or credit that are forwarded: a larger payload is replaced, as no peer needs to accept it."""
_ENDED_KEPT = 10_000
_ENDS_PER_TURN = 256
_EXPIRY_SECONDS = 2
"""How long after its deadline a call ends at the latest, if neither its caller nor its worker ends it."""


CALLS_PER_SESSION = 4_096


class Router:
    """Routes events by what is outside their payload; only the two sessions of a call can touch it.

    `closing_seconds` is how long a worker may still call for the caller of a request that was aborted.
    `calls_per_session` is how many calls of one session are with workers at a time; the next ones wait here, so that a
    worker's connection is never full of one caller's requests.
    """

    def __init__(self, *, closing_seconds: float = CLOSING_SECONDS, calls_per_session: int = CALLS_PER_SESSION) -> None:
        self.sessions: dict[str, Session] = {}
        self.counters = Counters(lambda: sum(len(session.calls) for session in self.sessions.values()))
        self.directory = Directory(self.sessions, self.counters)
        self.offers = self.directory.offers
        self._closing_seconds = closing_seconds
        self._calls_per_session = calls_per_session
        self._issued = 0
        """Number of grants that were issued."""
        self._ended: Recent[str, None] = Recent(_ENDED_KEPT)
        """Requests that ended before their worker responded."""
        self._expiring: dict[int, set[Route]] = {}
        """Calls by the second in which they expire."""
        self._expiry: asyncio.TimerHandle | None = None

    def join(self, session: Session) -> None:
        """Add a session whose handshake is complete."""
        self.sessions[session.name] = session

    def leave(self, session: Session, reason: str) -> None:
        """Remove a session: its operations go immediately, its callers and workers are told."""
        if self.sessions.get(session.name) is not session:
            return
        del self.sessions[session.name]
        self.directory.leave(session)
        session.grants.clear()
        session.held.clear()
        work, session.work = session.work, {}
        calls, session.calls = session.calls, {}
        self._end_in_turns(deque((*work.values(), *calls.values())), session, reason)

    def _end_in_turns(self, routes: deque[Route], session: Session, reason: str) -> None:
        """End the calls of a lost session, however many, without delaying others."""
        for _ in range(min(len(routes), _ENDS_PER_TURN)):
            route = routes.popleft()
            if route.worker is session:
                self._fail(route, unavailable(route.operation_id, f"the worker was lost: {reason}", "unknown"))
            elif self._end(route, within=self._closing_seconds):
                self._abort_worker(route, f"the caller was lost: {reason}")
        if routes:
            asyncio.get_running_loop().call_soon(self._end_in_turns, routes, session, reason)

    def receive(self, message: bytes, session: Session) -> None:
        """Route one message; whatever it contains, this never raises."""
        try:
            codec = CODEC_OF.get(message[:1]) or codec_of(message)
            header = codec.decode_header(message)
        except UNREADABLE as error:
            self._refuse_unreadable(session, codec, message, error)
            return
        try:
            kind = header.type
            if kind == "call.requested":
                self._request(session, header, codec)
            elif kind in _ANSWERS:
                self._answer(session, header, codec)
            else:
                self._route(session, header, codec)
        except (*UNREADABLE, CallError):
            self.counters.malformed += 1
        except Exception:  # noqa: BLE001  # one session must not stop the others
            self.counters.malformed += 1
            _log.exception("an event of %s could not be routed", session.name)

    def _route(self, session: Session, header: Header, codec: Codec) -> None:
        kind = header.type
        if kind in ("call.aborted", "call.credit"):
            self._control(session, header, codec)
        elif kind == "worker.announced":
            self.directory.announce(session, header, codec)
        elif kind == "worker.gone":
            self.directory.retire(session, header, codec)
        elif kind == "worker.asked":
            self.directory.watch(session)
        else:
            self.counters.dropped += 1

    def _request(self, session: Session, header: Header, codec: Codec) -> None:
        """Give a request to a worker, unless it came before or others of its session have to end first."""
        if header.id in session.calls or header.id in session.held:
            self.counters.duplicate += 1
        elif not header.id:
            self.counters.malformed += 1
        elif len(session.calls) >= self._calls_per_session or session.held:
            self._hold(session, header, codec)
        else:
            self._forward(session, header, codec)

    def _hold(self, session: Session, header: Header, codec: Codec) -> None:
        """Keep a request until earlier calls of its session have ended."""
        size = _size(header)
        if len(session.calls) + len(session.held) >= _MOST_CALLS or session.held_bytes + size > _MOST_HELD:
            self.counters.rejected += 1
            self._refuse(session, header.id, unavailable(header.to, "too many calls at once", "no"), codec)
            return
        header.payload = header.payload.copy()  # a part of the frame would keep all of it
        if header.identity is not NULL:
            header.identity = header.identity.copy()
        header.namespaces = ()
        session.held[header.id] = header, codec
        session.held_bytes += size

    def _unhold(self, session: Session, request_id: str) -> tuple[Header, Codec]:
        header, codec = session.held.pop(request_id)
        session.held_bytes -= _size(header)
        return header, codec

    def _release(self, session: Session) -> None:
        """Forward requests that waited, as many as fit, in turns."""
        for _ in range(_HELD_PER_TURN):
            if not session.held or len(session.calls) >= self._calls_per_session:
                break
            self._forward(session, *self._unhold(session, next(iter(session.held))))
        else:
            asyncio.get_running_loop().call_soon(self._release, session)
            return
        session.is_releasing = False

    def _forward(self, session: Session, header: Header, codec: Codec) -> None:
        """Send a request to its worker, with the identity of its caller and a grant."""
        caller_id = header.id
        offer = self.offers.get(header.to)
        try:
            if offer is None:
                raise self._explain_missing(header.to)
            if header.grant is None and header.identity is NULL and not session.registers and not session.trusted:
                identity: Identity | None = session.principal.identity
                header.identity = session.written.get(codec.name) or session.write_identity(codec)
            else:
                identity = self._identify(session, header, codec)
                header.identity = codec.write_identity(identity)
            claim = offer.claim
            if claim.is_guarded:
                decision = check_access(claim.access, identity)
                if not decision.allowed:
                    raise access_error(claim.operation_id, decision, identity)
            self._give(session, header, codec, offer, identity)
        except CallError as error:
            self._refuse(session, caller_id, error, codec)

    def _identify(self, session: Session, header: Header, codec: Codec) -> Identity | None:
        """Return the identity that a request runs as, which only a grant or the session's own token gives."""
        claimed = self._read_claimed(session, header, codec)
        if header.grant is not None:
            grant = session.grants.present(header.grant)
            header.deadline = _earlier(header.deadline, grant.deadline)
            return session.principal.identity_for(grant.identity)
        if session.trusted:
            return claimed
        if session.registers and not header.as_worker:
            self.counters.rejected += 1
            message = (
                f"{header.to}: a worker calls with the grant of the request that it runs; "
                "outside any request pass as_worker=True to call with the worker's own rights"
            )
            raise _denied(message, "GRANT_REQUIRED")
        return session.principal.identity

    def _read_claimed(self, session: Session, header: Header, codec: Codec) -> Identity | None:
        """Return the identity that a request claims; from a spoke it is counted and not believed."""
        if header.identity is NULL:
            return None
        if not session.trusted and memoryview(header.identity).nbytes > _MOST_CLAIMED:
            self.counters.forged += 1
            return None
        try:
            claimed = codec.read_identity(header.identity)
        except UNREADABLE as error:
            self.counters.malformed += 1
            raise unreadable(error) from error
        if claimed is not None and not session.trusted:
            self.counters.forged += 1
        return claimed

    def _give(self, session: Session, header: Header, codec: Codec, offer: Offer, identity: Identity | None) -> None:
        """Send a request to its worker, with the payload as it came."""
        worker = offer.sessions[0]
        if offer.pool:
            offer.sessions.append(offer.sessions.pop(0))
        if worker.link is not None and worker.link.is_slow:
            self._check_load(worker, header.to)
        caller_id, deadline, expires_at = header.id, header.deadline, session.principal.expires_at
        # Nobody can guess the worker's id of a request, or the token of its grant. The id is the same for the same
        # request, so that workers recognise duplicates; each grant has its own token. One hash is cheaper than two
        # random numbers. The id begins with the session, so that workers know whose requests are whose.
        derived = blake2b(session.key + caller_id.encode(), digest_size=32).hexdigest()
        self._issued = number = self._issued + 1
        request_id, token = f"{session.name}-{derived[:32]}", f"{derived[32:]}{number:x}"
        header.id, header.grant, header.as_worker = request_id, token, False
        message = codec.encode(header)
        if worker.codec is not None or (worker.max_payload is not None and len(message) > worker.max_payload):
            message = self._convert_request(message, header.to, worker)
        ends = deadline if expires_at is None else _earlier(deadline, int(expires_at * 1000))
        grant = Grant(identity=identity, token=token, origin=request_id, deadline=ends)
        route = Route(request_id, caller_id, header.to, session, worker, grant, header.stream)
        session.calls[caller_id] = worker.work[request_id] = route
        worker.grants.held[token] = grant
        if deadline is not None:
            route.expires = second = deadline // 1000 + _EXPIRY_SECONDS
            if second not in self._expiring:
                self._add_expiry(second)
            self._expiring[second].add(route)
        worker.deliver(message)

    def _check_load(self, worker: Session, operation_id: str) -> None:
        """Refuse a request for a worker that reads too slowly."""
        link = worker.link
        if link is not None and link.is_slow and link.unsent_bytes > _MOST_UNREAD:
            self.counters.rejected += 1
            raise unavailable(operation_id, "the worker reads its requests too slowly", "no")

    def _convert_request(self, message: bytes, operation_id: str, worker: Session) -> bytes:
        """Return a request as its worker reads it; raise where that is not possible."""
        if worker.codec is not None:
            try:
                message = transcode(message, worker.codec)
            except CallError as problem:
                raise untranslatable(operation_id, "request", problem, "no") from problem
        if worker.max_payload is not None and len(message) > worker.max_payload:
            raise too_large(operation_id, "request", len(message), worker.max_payload, "no")
        return message

    def _explain_missing(self, operation_id: str) -> CallError:
        if operation_id.rpartition(".")[0] in self.directory.namespaces:
            details = {"operationId": operation_id, "executed": "no"}
            return CallError(ErrorCode.OPERATION_NOT_FOUND, f"no operation {operation_id!r} is registered", details)
        return unavailable(operation_id, "no worker offers it", "no")

    def _answer(self, session: Session, header: Header, codec: Codec) -> None:
        """Send an answer to its caller; the last one ends the call."""
        route = session.work.get(header.id)
        if route is None:
            self._note_unexpected(session, header.id)
            return
        caller = route.caller
        header.id = route.caller_id
        message = codec.encode(header)
        if caller.codec is not None:
            try:
                message = transcode(message, caller.codec)
            except CallError as error:
                self._abort_worker(route, "the caller cannot read the answer")
                self._fail(route, untranslatable(route.operation_id, "answer", error, "yes"))
                return
        if caller.max_payload is not None and len(message) > caller.max_payload:
            self._abort_worker(route, "the answer is too large for the caller")
            self._fail(route, too_large(route.operation_id, "answer", len(message), caller.max_payload, "yes"))
            return
        kind = header.type
        is_last = not route.stream if kind == "call.responded" else kind != "call.accepted"
        if is_last:
            self._end(route, answered=True)
        caller.deliver(message)

    def _note_unexpected(self, session: Session, request_id: str) -> None:
        """Count an answer to a request that its sender does not run, or no longer runs."""
        session.grants.confirm(request_id)
        if request_id in self._ended:
            self.counters.late += 1
        else:
            self.counters.foreign += 1

    def _control(self, session: Session, header: Header, codec: Codec) -> None:
        """Forward an abort or credit to the other side of the call."""
        route = session.calls.get(header.id)
        if route is not None:
            target, header.id = route.worker, route.id
        elif header.type == "call.aborted" and (route := session.work.get(header.id)) is not None:
            target, header.id = route.caller, route.caller_id
        else:
            self._control_unknown(session, header)
            return
        if memoryview(header.payload).nbytes > _MOST_CONTROL:
            header.payload = codec.raw({"requestId": header.id})
        if header.type == "call.aborted":
            self._end(route, within=self._closing_seconds if target is route.worker else 0.0)
        target.send(codec.encode(header))

    def _control_unknown(self, session: Session, header: Header) -> None:
        """Handle control of a call that no worker has: it waits here, or its aborted handler ended, or it is over."""
        if header.id in session.held:
            if header.type == "call.aborted":
                self._unhold(session, header.id)
            return
        session.grants.confirm(header.id)
        self.counters.dropped += header.id not in self._ended

    def _refuse(self, session: Session, request_id: str, error: CallError, codec: Codec) -> None:
        session.send(codec.encode(error_event(request_id, error, codec)))

    def _refuse_unreadable(self, session: Session, codec: Codec, message: bytes, problem: Exception) -> None:
        """Reject a request with an unreadable header before it times out."""
        self.counters.malformed += 1
        try:
            outline = codec.decode_outline(message)
        except UNREADABLE:
            return
        if outline.type == "call.requested" and outline.id:
            self._refuse(session, outline.id, unreadable(problem), codec)

    def _fail(self, route: Route, error: CallError) -> None:
        """End a call with an error for its caller; a worker that runs it still has time to clean up."""
        if self._end(route, within=self._closing_seconds):
            self._refuse(route.caller, route.caller_id, error, JSON)

    def _abort_worker(self, route: Route, reason: str) -> None:
        event = CallAborted(VERSION, route.id, "", Aborted(route.id, reason))
        route.worker.send(JSON.encode(event))

    def _end(self, route: Route, *, within: float = 0.0, answered: bool = False) -> bool:
        """Forget a call, and end its grant; False where it has ended before."""
        if route.has_ended:
            return False
        route.has_ended = True
        caller, worker = route.caller, route.worker
        caller.calls.pop(route.caller_id, None)
        worker.work.pop(route.id, None)
        if within > 0:
            worker.grants.close(route.grant, within)
        else:
            worker.grants.held.pop(route.grant.token, None)
        if caller.held and not caller.is_releasing:
            caller.is_releasing = True
            asyncio.get_running_loop().call_soon(self._release, caller)
        if route.expires is not None:
            bucket = self._expiring.get(route.expires)
            if bucket is not None:
                bucket.discard(route)
                if not bucket:
                    del self._expiring[route.expires]
        if not answered:
            self._ended[route.id] = None
        return True

    def _add_expiry(self, second: int) -> None:
        self._expiring[second] = set()
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(1.0, self._expire)

    def _expire(self) -> None:
        """End the calls whose deadline has passed some time ago."""
        now = time.time()
        due = [second for second in self._expiring if second <= now]
        self._expire_in_turns(deque(route for second in due for route in self._expiring.pop(second)))
        self._expiry = asyncio.get_running_loop().call_later(1.0, self._expire) if self._expiring else None

    def _expire_in_turns(self, routes: deque[Route]) -> None:
        for _ in range(min(len(routes), _ENDS_PER_TURN)):
            route = routes.popleft()
            if not route.has_ended:
                self.counters.expired += 1
                self._abort_worker(route, "the deadline passed")
                self._fail(route, timed_out(route.operation_id, "unknown"))
        if routes:
            asyncio.get_running_loop().call_soon(self._expire_in_turns, routes)


def _earlier(first: int | None, second: int | None) -> int | None:
    """Return the earlier of two deadlines."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _size(header: Header) -> int:
    """Return about how many bytes it takes to keep a request."""
    return memoryview(header.payload).nbytes + memoryview(header.identity).nbytes + _HEADER_BYTES


def _denied(message: str, reason: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, message, {"reason": reason, "executed": "no"})
