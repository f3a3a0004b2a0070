"""Router: event forwarding between the sessions of a hub, without decoding payloads."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable
from time import perf_counter
from weakref import WeakValueDictionary

from operations.access import access_error, check_access
from operations.calls.codec import CODEC_OF, JSON, MSGPACK, UNREADABLE, Codec, error_event, part_reader
from operations.calls.events import NULL, VERSION, AbortPayload, CallAborted, CreditPayload, EventHeader
from operations.calls.hub.directory import CallableOperation, HubDirectory
from operations.calls.hub.route_observer import RouteObserver, parent_of, read_code
from operations.calls.hub.session import (
    CONFIRM_SECONDS,
    MOST_SENT,
    MOST_UNCONFIRMED,
    CallerQueue,
    HubSession,
    RoutedCall,
    convert,
    request_size,
)
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.failures import aborted, not_converted, timed_out, too_large, unavailable, unreadable
from operations.identity.grants import CLOSING_SECONDS
from operations.pubsub.link import TURN_SECONDS
from operations.recent import Recent
from operations.telemetry.counters import Counters
from operations.wire import LARGE_MESSAGE

_log = logging.getLogger("operations")
_RESPONSES = frozenset({"call.responded", "call.completed", "call.error", "call.accepted", "call.progress"})
_INTERIM = frozenset({"call.accepted", "call.progress"})
"""Responses that do not end a call."""
_MOST_CALLS = 100_000
"""Largest number of calls of one caller, including those that are queued."""
_MOST_QUEUED_BYTES = 16 << 20
"""Largest size of the queued requests of one caller."""
_QUEUED_PER_TURN = 64
"""Number of queued requests of one caller that are forwarded in one iteration of the event loop."""
_MOST_UNREAD = 32 << 20
_MOST_UNREAD_WITHOUT_RIGHTS = 8 << 20
"""If a worker leaves more bytes than this unread, the hub refuses requests to the worker.

`_MOST_UNREAD` applies to callers with rights, `_MOST_UNREAD_WITHOUT_RIGHTS` to all others.
"""
_MOST_CLAIMED = 4096
"""Largest size of a claimed identity that is decoded."""
_MOST_CONTROL = 4096
"""Largest payload of an abort or credit message that is forwarded; a larger one is reduced to the request id."""
_MOST_REJECTED = 4 << 20
"""Largest unreadable message that is searched for its id."""
_ENDED_KEPT = 10_000
"""Number of ended calls whose late responses are recognised as late."""
_ENDS_PER_TURN = 256
"""Number of calls that end in one iteration of the event loop when a session is lost or deadlines have passed."""
_EXPIRY_SECONDS = 2
"""The hub ends a call this many seconds after its deadline, if neither its caller nor its worker has ended it."""
CALLS_PER_CALLER = 4_096
"""Default limit for the calls of one caller that run at workers at the same time."""
_read_credit = part_reader(CreditPayload)


class Router:
    """Routes events by their header; only the two sessions of a call can affect the call.

    `closing_seconds` is the time for which a worker may still make nested calls after its request was aborted.
    `calls_per_caller` is the largest number of calls of one caller that were sent to workers and have not ended.
    Further calls are queued here, so that the requests of one caller never fill a worker's connection.
    """

    def __init__(self, *, closing_seconds: float = CLOSING_SECONDS, calls_per_caller: int = CALLS_PER_CALLER) -> None:
        self.sessions: dict[str, HubSession] = {}
        self.unsent = 0
        """Number of messages that were not sent because the connection of their peer was lost."""
        self.counters = Counters(
            lambda: sum(len(session.calls) for session in self.sessions.values()), lambda: self.unsent
        )
        self.directory = HubDirectory(self.sessions, self.counters)
        self.operations = self.directory.operations
        self.observers: tuple[RouteObserver, ...] = ()
        self._closing_seconds = closing_seconds
        self._calls_per_caller = calls_per_caller
        self._queues: WeakValueDictionary[str, CallerQueue] = WeakValueDictionary()
        """The queues of spokes, by the id of their identity."""
        self._issued = 0
        """Number of issued grants."""
        self._ended: Recent[str, None] = Recent(_ENDED_KEPT)
        """The last requests that ended before their worker responded."""
        self._expiring: dict[int, set[RoutedCall]] = {}
        """Calls by the second in which they expire."""
        self._expiry: asyncio.TimerHandle | None = None

    def join(self, session: HubSession) -> None:
        """Add a session whose handshake is complete."""
        self.sessions[session.name] = session
        if not session.trusted:
            session.queue = self._queues.setdefault(session.principal.identity.id, session.queue)

    def leave(self, session: HubSession, reason: str) -> None:
        """Remove a session and its operations, and end its calls.

        The callers of the calls that the session runs get errors. The workers of the calls that the session made get
        aborts.
        """
        if self.sessions.get(session.name) is not session:
            return
        del self.sessions[session.name]
        self.directory.leave(session)
        for observer in self.observers:
            observer.left(session, reason)
        session.grants.clear()
        session.credit.clear()
        for request_id, queue in list(session.queued.items()):
            queue.remove(session, request_id)
        work, session.running = session.running, {}
        calls, session.calls = session.calls, {}
        _end_in_turns(deque((*work.values(), *calls.values())), functools.partial(self._end_lost, session, reason))

    def _end_lost(self, session: HubSession, reason: str, call: RoutedCall) -> None:
        """End a call of a lost session."""
        if call.worker is session:
            self._fail(call, unavailable(call.operation_id, f"the worker was lost: {reason}", "unknown"))
        elif self._end(call, within=self._closing_seconds):
            self._abort_worker(call, f"the caller was lost: {reason}")

    def receive(self, message: bytes, session: HubSession) -> None:
        """Route one message; never raise, for any bytes."""
        try:
            codec = CODEC_OF[message[0]] if message else MSGPACK
            header = codec.decode_header(message)
            if codec is JSON and not message.isascii():
                message.decode()  # raises: invalid UTF-8 in the payload would end the receiver's connection
        except UNREADABLE as error:
            self._reject_unreadable(session, codec, message, error)
            return
        try:
            kind = header.type
            if kind == "call.requested":
                self._request(session, header, codec)
                return
            header.identity = NULL  # only requests need the identity, which may have any size
            if kind in _RESPONSES:
                self._answer(session, header, codec)
            else:
                self._route(session, header, codec)
        except (*UNREADABLE, CallError):
            self.counters.malformed += 1
        except Exception:  # noqa: BLE001  # one session must not stop the others
            self.counters.malformed += 1
            _log.exception("an event of %s could not be routed", session.name)

    def _route(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
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

    def _request(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Forward a request to a worker, drop a duplicate, or queue the request behind others of its caller."""
        if header.id in session.calls or header.id in session.queued:
            self.counters.duplicate += 1
        elif not header.id:
            self.counters.malformed += 1
        else:
            queue = session.queue if header.grant is None else session.nested_queue
            if queue.requests or self._is_full(queue, session):
                self._queue(queue, session, header, codec)
            else:
                self._forward(session, header, codec)

    def _is_full(self, queue: CallerQueue, session: HubSession) -> bool:
        """Return whether a caller's next request has to wait until earlier calls have ended."""
        if queue.calls >= self._calls_per_caller:
            return True
        if queue.unconfirmed_bytes <= MOST_UNCONFIRMED and queue.sent_bytes <= MOST_SENT:
            return False
        return queue.is_large and not session.principal.has_rights

    def _queue(self, queue: CallerQueue, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Queue a request until earlier calls of its caller have ended; refuse it if the queue is full."""
        size = queue.bytes + request_size(header)
        if queue.calls + len(queue.requests) >= _MOST_CALLS or size > _MOST_QUEUED_BYTES:
            self.counters.rejected += 1
            self._refuse(session, header.id, unavailable(header.to, "too many calls at once", "no"), codec)
            return
        header.payload = header.payload.copy()  # a view would keep the whole frame in memory
        if header.identity is not NULL:
            header.identity = header.identity.copy()
        header.namespaces = ()
        queue.add(session, header, codec)
        self._schedule_unblocking(queue)

    def _schedule_forwarding(self, queue: CallerQueue) -> None:
        if not queue.is_forwarding:
            queue.is_forwarding = True
            asyncio.get_running_loop().call_soon(self._forward_queued, queue)

    def _forward_queued(self, queue: CallerQueue) -> None:
        """Forward as many queued requests as the limits of the caller allow, in small groups."""
        end = perf_counter() + TURN_SECONDS  # a request may take 20 ms to convert for its worker
        for _ in range(_QUEUED_PER_TURN):
            if not queue.requests:
                queue.is_forwarding = False
                return
            session, request_id = next(iter(queue.requests))
            if self._is_full(queue, session):
                self._schedule_unblocking(queue)
                queue.is_forwarding = False
                return
            self._forward(session, *queue.remove(session, request_id))
            if perf_counter() > end:
                break
        asyncio.get_running_loop().call_soon(self._forward_queued, queue)

    def _schedule_unblocking(self, queue: CallerQueue) -> None:
        """Forward queued requests after `CONFIRM_SECONDS`, even if no worker confirms the requests that were sent."""
        if not queue.is_unblocking:
            queue.is_unblocking = True
            asyncio.get_running_loop().call_later(CONFIRM_SECONDS, self._unblock, queue)

    def _unblock(self, queue: CallerQueue) -> None:
        queue.is_unblocking = False
        if queue.requests:
            self._schedule_forwarding(queue)

    def cancel(self, call: RoutedCall, reason: str) -> bool:
        """End a call with `ABORTED`; return False if it has ended before."""
        if call.has_ended:
            return False
        self._abort_worker(call, reason)
        self._fail(call, aborted(call.operation_id, reason))
        return True

    def _forward(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Send a request to its worker, with the identity of its caller and a grant, or refuse it."""
        caller_id = header.id
        operation = self.operations.get(header.to)
        try:
            if session.count_request is not None and header.grant is None:
                session.count_request()
            if operation is None:
                raise self.directory.explain_missing(header.to)
            if header.grant is None and header.identity is NULL and not session.is_worker and not session.trusted:
                identity = session.caller
            else:
                identity = self._identify(session, header, codec)
                header.identity = NULL
            announced = operation.announced
            if announced.is_guarded:
                decision = check_access(announced.access, identity)
                if not decision.allowed:
                    raise access_error(announced.operation_id, decision, identity)
            self._send_to_worker(session, header, codec, operation, identity)
        except CallError as error:
            for observer in self.observers:
                observer.refused(session, caller_id, header.to, str(error.code))
            self._refuse(session, caller_id, error, codec)

    def _identify(self, session: HubSession, header: EventHeader, codec: Codec) -> Identity | None:
        """Return the identity that a request runs as.

        With a grant, this is the identity that the session's principal may use on behalf of the grant's caller. Without
        a grant, it is the identity of the session's own token; for a trusted session, the one that the request claims.
        Raise a CallError for a worker's request that has neither a grant nor `asWorker`.
        """
        claimed = self._read_claimed(session, header, codec)
        if header.grant is not None:
            grant = session.grants.present(header.grant)
            header.deadline = _earlier(header.deadline, grant.deadline)
            return session.principal.identity_for(grant.identity)
        if session.trusted:
            return claimed
        if session.is_worker and not header.as_worker:
            self.counters.rejected += 1
            message = (
                f"{header.to}: a worker's call needs the grant of a request that the worker is running; "
                "outside any request, pass as_worker=True to call with the worker's own rights"
            )
            raise _denied(message, "GRANT_REQUIRED")
        return session.caller

    def _read_claimed(self, session: HubSession, header: EventHeader, codec: Codec) -> Identity | None:
        """Return the identity that a request claims, or None; a claim of a spoke is counted as forged."""
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

    def _send_to_worker(
        self,
        session: HubSession,
        header: EventHeader,
        codec: Codec,
        operation: CallableOperation,
        identity: Identity | None,
    ) -> None:
        """Send a request to its worker; the payload is decoded only if the worker does not support its format."""
        parent = parent_of(session, header) if self.observers else None
        worker = operation.sessions[0]
        if operation.pool:
            operation.sessions.append(operation.sessions.pop(0))
        if worker.link is not None and worker.link.is_slow:
            self._check_load(worker, session, header.to)
        caller_id, deadline, expires_at = header.id, header.deadline, session.principal.expires_at
        # The id that the worker gets for the request and the token of its grant are unguessable. The id depends only on
        # the session and the caller's id, so that workers recognise duplicates; each grant has its own token. One hash
        # is cheaper than two random numbers. The id begins with the session, so that ids of different sessions differ.
        derivation = session.derivation.copy()
        derivation.update(caller_id.encode())
        derived = derivation.hexdigest()
        self._issued = number = self._issued + 1
        request_id, token = f"{session.name}-{derived[:32]}", f"{derived[32:]}{number}"
        queue = session.queue if header.grant is None else session.nested_queue
        header.id, header.grant = request_id, token
        message, accept = b"", worker.accept
        size = memoryview(header.payload).nbytes
        if accept is None or codec is JSON or size > LARGE_MESSAGE:
            own = session.encoded_identity.get(codec.name) if identity is session.caller else None
            header.identity, header.as_worker = own or session.write_identity(identity, codec), False
            message, accept = codec.encode(header), None
            size = len(message)
            if worker.codec is not None or (worker.max_payload is not None and size > worker.max_payload):
                message = worker.convert_request(message, header.to)
        ends = deadline if expires_at is None else _earlier(deadline, int(expires_at * 1000))
        call = RoutedCall(
            request_id,
            caller_id,
            header.to,
            session,
            worker,
            queue,
            header.stream,
            size,
            identity=identity,
            token=token,
            origin=request_id,
            deadline=ends,
        )
        session.calls[caller_id] = worker.running[request_id] = call
        queue.add_sent(call)
        worker.grants.held[token] = call
        if deadline is not None:
            second = deadline // 1000 + _EXPIRY_SECONDS
            if second not in self._expiring:
                self._add_expiry(second)
            call.expiring = self._expiring[second]
            call.expiring.add(call)
        if self.observers:
            call.began = perf_counter()
            # Before the worker gets the request: a worker in this process may end the call immediately.
            for observer in self.observers:
                observer.began(call, identity, parent, header, codec)
        if accept is None:
            worker.deliver(message)
        else:
            accept(header, codec, call)

    def _check_load(self, worker: HubSession, caller: HubSession, operation_id: str) -> None:
        """Raise `UNAVAILABLE` if the worker of a request reads too slowly."""
        most = _MOST_UNREAD if caller.principal.has_rights else _MOST_UNREAD_WITHOUT_RIGHTS
        if worker.link is not None and worker.link.unsent_bytes > most:
            self.counters.rejected += 1
            raise unavailable(operation_id, "the worker reads its requests too slowly", "no")

    def _answer(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Send a response to its caller; the last response ends the call."""
        call = session.running.get(header.id)
        if call is None:
            self._note_unexpected(session, header.id)
            return
        kind = header.type
        is_last = not call.stream if kind == "call.responded" else kind not in _INTERIM
        if kind in _INTERIM and not self._admit_interim(call, header):
            return
        header.id = call.caller_id
        message = self._fit(call, codec.encode(header))
        if message is None:
            return
        if is_last:
            self._end(call, answered=True, code=read_code(header, codec) if self.observers else "ok")
        elif kind == "call.responded":
            for observer in self.observers:
                observer.item(call)
        call.caller.deliver(message)

    def respond(self, call: RoutedCall, message: bytes) -> None:
        """Send a response that a worker in this process has written for the caller, and end the call; never raise."""
        if call.has_ended:
            self._note_unexpected(call.worker, call.id)
            return
        try:
            fitting = self._fit(call, message)
            if fitting is not None:
                self._end(call, answered=True, code="ok")
                call.caller.deliver(fitting)
        except Exception:  # noqa: BLE001  # one response must not stop the worker
            self.counters.malformed += 1
            _log.exception("a response of %s could not be routed", call.worker.name)

    def _fit(self, call: RoutedCall, message: bytes) -> bytes | None:
        """Return a response in a format that its caller supports.

        If that is impossible, or if the response is too large for the caller, end the call and return None.
        """
        caller = call.caller
        if caller.codec is not None:
            try:
                message = convert(message, caller.codec)
            except CallError as error:
                self._abort_worker(call, "the caller cannot decode the response")
                self._fail(call, not_converted(call.operation_id, "response", error, "yes"))
                return None
        if caller.max_payload is not None and len(message) > caller.max_payload:
            self._abort_worker(call, "the response is too large for the caller")
            self._fail(call, too_large(call.operation_id, "response", len(message), caller.max_payload, "yes"))
            return None
        return message

    def _admit_interim(self, call: RoutedCall, header: EventHeader) -> bool:
        """Handle a response that does not end its call; return whether to forward the response.

        The response also confirms that the worker has the request.
        """
        call.queue.confirm(call)
        if call.queue.requests:
            self._schedule_forwarding(call.queue)
        admitted = call.admits_interim(memoryview(header.payload).nbytes)
        self.counters.dropped += not admitted
        return admitted

    def _note_unexpected(self, session: HubSession, request_id: str) -> None:
        """Count a response of a session that does not run the request, or no longer runs it."""
        session.grants.confirm(request_id)
        if request_id in self._ended:
            self.counters.late += 1
        else:
            self.counters.foreign += 1

    def _control(self, session: HubSession, header: EventHeader, codec: Codec) -> None:
        """Forward an abort or credit message to the other side of the call."""
        call = session.calls.get(header.id)
        if call is not None:
            target, header.id = call.worker, call.id
        elif header.type == "call.aborted" and (call := session.running.get(header.id)) is not None:
            target, header.id = call.caller, call.caller_id
        else:
            self._control_unknown(session, header)
            return
        if memoryview(header.payload).nbytes > _MOST_CONTROL:
            header.payload = codec.raw({"requestId": header.id})
        if header.type == "call.aborted":
            self._end(call, within=self._closing_seconds if target is call.worker else 0.0)
        elif target.credit or (target.link is not None and target.link.is_slow):
            given = _read_credit(header.payload, codec)
            target.hold_credit(call, given.items, given.bytes)
            return
        target.send(codec.encode(header))

    def _control_unknown(self, session: HubSession, header: EventHeader) -> None:
        """Handle a control message for a call that no worker runs: the call is queued, has ended, or is unknown."""
        if header.id in session.queued:
            if header.type == "call.aborted":
                session.queued[header.id].remove(session, header.id)
            return
        session.grants.confirm(header.id)
        self.counters.dropped += header.id not in self._ended

    def _refuse(self, session: HubSession, request_id: str, error: CallError, codec: Codec) -> None:
        session.send(codec.encode(error_event(request_id, error, codec)))

    def _reject_unreadable(self, session: HubSession, codec: Codec, message: bytes, problem: Exception) -> None:
        """Respond with an error to a request with an unreadable header, so that its caller need not wait for a timeout.

        A message above `_MOST_REJECTED` bytes is only counted: its id is not read.
        """
        self.counters.malformed += 1
        if len(message) > _MOST_REJECTED:
            return
        try:
            outline = codec.decode_outline(message)
        except UNREADABLE:
            return
        if outline.type == "call.requested" and outline.id:
            self._refuse(session, outline.id, unreadable(problem), codec)

    def _fail(self, call: RoutedCall, error: CallError) -> None:
        """End a call with an error for its caller.

        The grant of the call stays valid for `closing_seconds`, so that the worker can clean up.
        """
        if self._end(call, within=self._closing_seconds, code=str(error.code)):
            self._refuse(call.caller, call.caller_id, error, JSON)

    def _abort_worker(self, call: RoutedCall, reason: str) -> None:
        event = CallAborted(VERSION, call.id, "", AbortPayload(call.id, reason))
        call.worker.send(JSON.encode(event))

    def _end(
        self, call: RoutedCall, *, within: float = 0.0, answered: bool = False, code: str = ErrorCode.ABORTED.value
    ) -> bool:
        """Remove a call that ended with `code`, and end its grant after `within` seconds.

        Return False if the call had ended before.
        """
        if call.has_ended:
            return False
        call.has_ended = True
        for observer in self.observers:
            observer.ended(call, code)
        caller, worker = call.caller, call.worker
        caller.calls.pop(call.caller_id, None)
        worker.running.pop(call.id, None)
        if within > 0:
            worker.grants.close(call, within)
        else:
            worker.grants.held.pop(call.token, None)
        queue = call.queue
        queue.calls -= 1
        queue.sent_bytes -= call.size
        if answered and call.period == queue.period:  # without a response, the worker may not have read the request
            queue.unconfirmed_bytes -= call.size
        if queue.requests:
            self._schedule_forwarding(queue)
        if call.expiring is not None:
            call.expiring.discard(call)
        if not answered:
            self._ended[call.id] = None
        return True

    def _add_expiry(self, second: int) -> None:
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(1.0, self._expire)
        self._expiring[second] = set()

    def _expire(self) -> None:
        """End the calls whose deadline passed `_EXPIRY_SECONDS` ago, and remove the seconds without calls."""
        now = time.time()
        due = [second for second, calls in self._expiring.items() if second <= now or not calls]
        _end_in_turns(deque(call for second in due for call in self._expiring.pop(second)), self._end_expired)
        self._expiry = asyncio.get_running_loop().call_later(1.0, self._expire) if self._expiring else None

    def _end_expired(self, call: RoutedCall) -> None:
        """End a call whose deadline has passed."""
        if not call.has_ended:
            self.counters.expired += 1
            self._abort_worker(call, "the deadline passed")
            self._fail(call, timed_out(call.operation_id, "unknown"))


def _end_in_turns(calls: deque[RoutedCall], end: Callable[[RoutedCall], None]) -> None:
    """End calls in small groups, so that other work is not delayed."""
    for _ in range(min(len(calls), _ENDS_PER_TURN)):
        end(calls.popleft())
    if calls:
        asyncio.get_running_loop().call_soon(_end_in_turns, calls, end)


def _earlier(first: int | None, second: int | None) -> int | None:
    """Return the earlier of two deadlines; None means that there is no deadline."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def _denied(message: str, reason: str) -> CallError:
    return CallError(ErrorCode.ACCESS_DENIED, message, {"reason": reason, "executed": "no"})
