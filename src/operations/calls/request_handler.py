"""RequestHandler: the path of one request at a worker: decode, authenticate, dispatch, respond."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar

import msgspec

from operations.calls.codec import UNREADABLE, Codec
from operations.calls.control_messages import control_id
from operations.calls.endpoint import endpoint_of
from operations.calls.events import (
    NULL,
    VERSION,
    AcceptancePayload,
    CallAccepted,
    CallCompleted,
    CallProgress,
    CallRequested,
    CallResponded,
    CompletionPayload,
    ProgressPayload,
    ResponsePayload,
)
from operations.calls.held_requests import NO_HOLDER, HeldRequests, Holder, holder_of
from operations.calls.progress_sender import ProgressSender
from operations.calls.replay_protection import ReplayError
from operations.calls.requests import RoutedRequest, SignsNestedCalls
from operations.calls.streams import LEASE_SECONDS, CreditGate
from operations.catalogue import unknown_operation
from operations.context import Exposed, Grant, Identity
from operations.dispatch import Dispatcher, Request
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.failures import aborted, not_repeated, too_large, translate, unavailable, unreadable
from operations.pubsub import Arrival, Transport
from operations.recent import Recent
from operations.registry import OperationRegistry
from operations.spec import OperationType
from operations.wire import LARGE_MESSAGE, MAX_VALUES

Identify = Callable[[CallRequested], Identity | None]
"""Returns the caller of a request that the transport does not authenticate; None for an anonymous caller."""
ShowError = Callable[[CallError, str], CallError]
"""Returns the error of an operation as its callers may see it."""
_ACCEPT_SECONDS = 0.1
"""Seconds after which a call that still runs is reported to its caller as accepted."""
_MAX_ATTEMPTS = 8_192
"""Number of recent requests whose duplicates are recognised."""
_SESSION = re.compile("[.-]")
"""At a hub, a request id begins with the name of a session; these characters end the first part of that name."""
_MOST_IDENTITIES = 1_024
"""Number of decoded identities that are kept."""


class RequestHandler:
    """Runs the requests of one worker and sends their responses."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: OperationRegistry,
        transport: Transport,
        *,
        worker_id: str,
        identify: Identify | None,
        exposure: Exposed | None,
        show_error: ShowError | None = None,
        max_values: int | None = MAX_VALUES,
    ) -> None:
        self.registry = registry
        self.transport = transport
        self.endpoint = endpoint_of(transport)
        self.worker_id = worker_id
        self.show_error = show_error
        self.finished = 0
        """Number of calls that ended here."""
        self.failed = 0
        """Number of calls that ended here with an error."""
        self.acceptances = AcceptanceTimer()
        self.held = HeldRequests()
        self.recording: set[asyncio.Task[None]] = set()
        """Tasks that wait for the shared record of signed requests."""
        self._dispatcher = dispatcher
        self._identify = identify
        self._exposure = exposure
        self._trust = transport.capabilities.identity
        self._verifies = identify is not None or self._trust == "hub"
        """Whether callers are authenticated; if not, each sending peer has a separate queue."""
        self._max_values = None if self._trust == "caller" else max_values
        """Largest number of values in the input of a caller without rights; None for no limit."""
        self._signs = transport.optional(SignsNestedCalls) if identify is not None else None
        self._attempts: Recent[str, int] = Recent(_MAX_ATTEMPTS)
        """The attempt numbers of the last requests, by request id, so that no request runs twice."""
        self._identities: dict[bytes, Identity] = {}

    def close(self) -> None:
        """Refuse the requests that wait for the shared record, and send no more acceptances."""
        for task in list(self.recording):
            task.cancel()
        self.acceptances.close()

    def receive(self, event: CallRequested, codec: Codec, arrival: Arrival, route: RoutedRequest | None = None) -> None:
        """Run a request and respond to it, unless it is a duplicate."""
        attempts, request_id = self._attempts, event.id
        kind = StreamReply if event.stream else Reply
        reply = kind(self, request_id, event.payload.request_id, event.to, codec, arrival.sender, route)
        if (request_id in attempts.newer or request_id in attempts.older) and self._is_duplicate(event, reply):
            self.endpoint.counters.duplicate += 1
            return
        if self.start(event, reply):
            attempts.newer[request_id] = event.payload.attempt
            if len(attempts.newer) >= attempts.minimum:
                attempts.rotate()

    def _is_duplicate(self, event: CallRequested, reply: Reply) -> bool:
        """Return whether a request that was received before must not run.

        A copy of an attempt is ignored; so is a later attempt while an earlier one runs. After the earlier one has
        ended, a later attempt at a query runs again. At any other operation it gets an error, because the operation
        could run twice.
        """
        if (
            control_id(event.id) if self.endpoint.shares_control else event.id
        ) in self.endpoint.running or event.payload.attempt <= self._attempts[event.id]:
            return True
        spec = self.registry.get_spec(event.to)
        if spec is not None and spec.type is OperationType.QUERY:
            return False
        self._attempts.newer[event.id] = event.payload.attempt
        reply.refuse(not_repeated(event.to))
        return True

    def start(self, event: CallRequested, reply: Reply) -> bool:
        """Pass a request to the dispatcher. If it is refused, send its caller the error and return False."""
        try:
            request = self._read(event, reply)
            if self._max_values is not None and not reply.is_stored:
                self._limit(reply, request.grant.identity)
            if type(request.input) is msgspec.Raw:
                # A few megabytes of MessagePack may contain millions of lists: check the caller before decoding them.
                self._dispatcher.authorize(request)
                request.input = self._read_large(request.input, request.grant.identity, reply.codec)
            if event.payload.progress:
                reply.progress = ProgressSender(request.id, reply.send_progress)
                request.progress = reply.progress
            if reply.is_stored:
                reply.prepare(request)
            record = None if self._signs is None else self._record(self._signs, event, reply, request)
            request.suspended = reply.wait
            if record is None:
                self._dispatcher.start(request, reply.ended, reply.emit if isinstance(reply, StreamReply) else None)
                if not request.began and not request.is_over:
                    reply.wait(request)
            else:
                self._dispatch_recorded(record, reply, request)
        except CallError as error:
            reply.refuse(error)
            return False
        return True

    def _limit(self, reply: Reply, identity: Identity | None) -> None:
        """Limit the memory of a caller without rights: raise `UNAVAILABLE` if its other requests take too much."""
        if identity is not None and (identity.scopes or identity.resources):  # `has_rights`, inlined for speed
            return
        reply.is_limited = True
        if self.held.sizes and self.held.is_full(holder_of(identity, reply.sender)):
            self.endpoint.counters.rejected += 1
            raise unavailable(reply.operation_id, "the requests of this caller take too much memory", "no")

    def _read_large(self, input: msgspec.Raw, identity: Identity | None, codec: Codec) -> Any:
        """Decode a large input; the number of its values is limited if the caller has no rights."""
        if self._max_values is None or (identity is not None and identity.has_rights):
            return codec.read(input)
        return codec.read_limited(input, self._max_values)

    def _dispatch_recorded(self, record: Coroutine[Any, Any, bool], reply: Reply, request: Request) -> None:
        """Dispatch a request after it was added to the shared record of signed requests."""
        reply.register()
        reply.hold(request)
        task = asyncio.get_running_loop().create_task(self._dispatch_new(record, reply, request))
        self.recording.add(task)
        task.add_done_callback(self.recording.discard)
        # A task that is cancelled before its first step never awaits the coroutine.
        task.add_done_callback(lambda task: record.close())

    def _record(
        self, signs: SignsNestedCalls, event: CallRequested, reply: Reply, request: Request
    ) -> Coroutine[Any, Any, bool] | None:
        """Return a coroutine that adds a signed request to the shared record of signed requests.

        Return None if that is not necessary.
        """
        if request.grant.signature is None:
            return None
        spec = self.registry.get_spec(request.operation_id)
        if not reply.is_stored and (spec is None or spec.type is not OperationType.MUTATION):
            return None
        self._dispatcher.authorize(request)  # a caller without rights must not fill the record
        return signs.record(event)

    async def _dispatch_new(self, record: Coroutine[Any, Any, bool], reply: Reply, request: Request) -> None:
        """Dispatch a request, unless the shared record already has it."""
        try:
            try:
                is_new = await record
            finally:
                self.endpoint.running.pop(reply.control_id, None)
            if not is_new:
                raise ReplayError("ACCESS_DENIED", "refused: the request was already received")
            reply.note_recorded()
            if not reply.is_aborted:
                self._dispatcher.start(request, reply.ended, reply.emit if isinstance(reply, StreamReply) else None)
                if not request.began and not request.is_over:
                    reply.wait(request)
        except CallError as error:
            reply.refuse(error)
        except asyncio.CancelledError:
            reply.refuse(unavailable(request.operation_id, "the worker is shutting down", "no"))
            raise
        finally:
            if reply.request is None:  # the request ended, will not run, or has not suspended yet
                reply.unhold()

    def _read(self, event: CallRequested, reply: Reply) -> Request:
        """Return the request with its authenticated caller and its decoded input; a large input stays encoded."""
        payload = event.payload
        if self._exposure is not None and not self._exposure.serves(event.to):
            raise unknown_operation(event.to, ())
        if event.deadline is not None and (payload.deadline is None or event.deadline < payload.deadline):
            payload.deadline = event.deadline  # the hub may have set an earlier deadline
        input: Any = payload.input
        if type(input) is msgspec.Raw and memoryview(input).nbytes <= LARGE_MESSAGE:
            input = reply.codec.read(input)
        identity = self._authenticate(event, reply)
        if identity is not None and self._verifies:
            caller = identity.id
        else:
            caller = _SESSION.split(event.id, 1)[0] if self.endpoint.via_hub else event.id.rpartition("-")[0]
        return Request(
            operation_id=event.to,
            input=input,
            id=payload.request_id,
            parent_id=payload.parent_request_id,
            grant=Grant(
                identity=identity,
                token=event.grant or "",
                signature=None if self._signs is None else self._signs.root_of(event),
                origin=self.endpoint,
                deadline=payload.deadline,
                protocol="ws",
                exposure=self._exposure,
            ),
            caller=caller,
            deadline=payload.deadline,
            sent_at=payload.sent_at,
            metadata=payload.metadata,
        )

    def _authenticate(self, event: CallRequested, reply: Reply) -> Identity | None:
        """Return the caller that the transport or `identify` authenticates; None for an anonymous caller.

        On a transport that trusts its callers, this is the identity that the request claims.
        """
        claimed = event.payload.identity
        if self._trust == "caller":
            return claimed
        identity = None
        if reply.route is not None:
            identity = reply.route.identity
        elif self._trust == "hub" and event.identity is not NULL:
            raw = bytes(event.identity)
            identity = self._identities.get(raw) or self._read_identity(raw, event, reply.codec)
        if self._identify is not None:
            identity = self._identify(event)
        if claimed is not None and claimed != identity:
            self.endpoint.counters.forged += 1
        return identity

    def _read_identity(self, raw: bytes, event: CallRequested, codec: Codec) -> Identity | None:
        """Return the identity in the header, which a hub sets; the same bytes are decoded only once."""
        try:
            known = codec.read_identity(event.identity)
        except UNREADABLE as error:
            self.endpoint.counters.malformed += 1
            raise unreadable(error) from error
        if len(self._identities) >= _MOST_IDENTITIES:
            self._identities.clear()
        if known is not None:
            self._identities[raw] = known
        return known


class Reply(msgspec.Struct, eq=False):
    """The response to one call."""

    handler: RequestHandler
    id: str
    """The request id, which a hub may have set."""
    caller_id: str
    """The request id that the caller chose."""
    operation_id: str
    codec: Codec
    sender: str | None = None
    """The name of the sender, if the broker states it."""
    route: RoutedRequest | None = None
    """The request at the router, if the router is in this process and has passed the request on."""
    request: Request | None = None
    """The call while it is queued or suspended; None before and afterwards."""
    since: float = 0.0
    """Time (of the loop's clock) from which the caller can control the call; 0 before that."""
    control_id: str = ""
    credits: int = 0
    is_aborted: bool = False
    progress: ProgressSender | None = None
    is_limited: bool = False
    """Whether the memory of the request is counted while it waits."""
    holder: Holder = NO_HOLDER
    """The caller for which the memory is counted."""
    held: int = 0
    """The number of bytes that are counted for the request at present."""
    is_stored: ClassVar[bool] = False
    """Whether the request was stored by its transport."""

    def prepare(self, request: Request) -> None:
        """Check and complete a stored request before it is dispatched."""

    def note_recorded(self) -> None:
        """Note that the shared record has the request, so that other deliveries of the request are copies."""

    def register(self) -> None:
        """Register the call, so that its caller can control it."""
        endpoint = self.handler.endpoint
        self.control_id = control_id(self.id) if endpoint.shares_control else self.id
        endpoint.running[self.control_id] = self

    def wait(self, request: Request) -> None:
        """Register a call that is queued or suspended, count its memory, and schedule `call.accepted` for it.

        Most calls end in their first step and need none of this.
        """
        if not self.since:
            self.request, self.since = request, asyncio.get_running_loop().time()
            self.register()
            self.hold(request)
            acceptances = self.handler.acceptances
            acceptances.waiting[self] = None
            if acceptances.timer is None:
                acceptances.start()

    def hold(self, request: Request) -> None:
        """Count the memory of a request until `unhold`, if the memory of the request is limited."""
        if self.is_limited and not self.held:
            self.holder = holder_of(request.grant.identity, self.sender)
            self.held = self.handler.held.add(self.holder, request)

    def unhold(self) -> None:
        """Stop counting the memory of a request that has ended, or that will not run."""
        if self.held:
            self.handler.held.remove(self.holder, self.held)
            self.held = 0

    def accept(self) -> None:
        """Report to the caller which worker runs its call."""
        accepted = AcceptancePayload(self.caller_id, self.handler.worker_id)
        self._send(self.codec.encode(CallAccepted(VERSION, self.id, "", accepted)))

    def ended(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        """Send the outcome of the request; if its caller aborted it, only confirm that to a hub."""
        self.handler.finished += 1
        if error is not None:
            self.handler.failed += 1
        if self.progress is not None:
            self.progress.end()
        if self.since:
            self.unregister()
        if self.held:
            self.unhold()
        if self.is_aborted:
            self.handler.endpoint.confirm_abort(self.id, self.codec)
        elif error is not None:
            self._send_error(error)
        else:
            route, router = self.route, self.handler.endpoint.router
            try:
                if envelope is None:
                    message, route = self._write_end(), None
                else:
                    message = self._write(envelope, self.id if route is None else route.caller_id)
            except BaseException as problem:  # noqa: BLE001  # for example, the result cannot be encoded
                self._send_error(_unsendable(problem, self.operation_id))
                return
            if route is None or router is None:
                self._send(message)
            else:
                router.respond(route, message)

    def unregister(self) -> None:
        """Remove a call that has ended from the calls that its caller can control."""
        self.request = None
        self.handler.endpoint.running.pop(self.control_id, None)
        self.handler.acceptances.waiting.pop(self, None)

    def send_progress(self, payload: ProgressPayload) -> None:
        """Send the progress of the call, unless its caller cancelled it."""
        if not self.is_aborted:
            self._send(self.codec.encode(CallProgress(VERSION, self.id, "", payload)))

    def refuse(self, error: CallError) -> None:
        """Send the error of a refused request; a replayed request gets no response."""
        if not isinstance(error, ReplayError):
            self._send_error(error)

    def abort(self, reason: str) -> None:
        """Cancel the call; its caller expects no response."""
        self.is_aborted = True
        if self.request is not None:
            self.request.stop(aborted(self.operation_id, reason))

    def credit(self, items: int, size: int) -> None:
        """Do nothing: a call has one response and needs no credit."""

    def _write_end(self) -> bytes:
        raise CallError("EXECUTION_ERROR", f"{self.operation_id}: the call ended without a result")

    def _write(self, envelope: ResponseEnvelope[Any], response_id: str, sequence: int | None = None) -> bytes:
        handler = self.handler
        worker = handler.worker_id if sequence == 0 else None
        payload = ResponsePayload(self.caller_id, NULL, sequence, worker)
        message = self.codec.write_response(CallResponded(VERSION, response_id, "", payload), envelope)
        limit = handler.transport.capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(self.operation_id, "response", len(message), limit, "yes")
        return message

    def _send_error(self, error: CallError) -> None:
        if self.handler.show_error is not None:
            error = self.handler.show_error(error, self.operation_id)
        self._send(self.handler.endpoint.write_error(self.id, error, self.codec, self.caller_id))

    def _send(self, message: bytes) -> None:
        handler = self.handler
        # A hub routes responses by their id.
        handler.transport.send("" if handler.endpoint.via_hub else f"inbox.{self.id.rpartition('-')[0]}", message)


def _unsendable(problem: BaseException, operation_id: str) -> CallError:
    translated = translate(problem, operation_id)
    return translated if isinstance(translated, CallError) else aborted(operation_id, "cancelled")


class StreamReply(Reply):
    """The response to a stream: numbered items, as many as the caller grants credit for, then an end."""

    _gate: CreditGate = msgspec.field(default_factory=CreditGate)
    _is_renewed: bool = True
    """Whether the caller sent a message since the current lease began."""
    _sequence: int = 0

    def register(self) -> None:
        """Register the call; if the transport does not report lost peers, also start the lease of the stream."""
        super().register()
        if not self.handler.transport.capabilities.tracks_peers:
            self.handler.endpoint.wheel.add(self, LEASE_SECONDS)

    def emit(self, envelope: ResponseEnvelope[Any]) -> Awaitable[None] | None:
        """Send an item and return None; without credit, return a coroutine that sends the item later."""
        message = self._write(envelope, self.id, self._sequence)
        self._sequence += 1
        if not self._gate.is_open:
            return self._send_later(message)
        self._send_item(message)
        return None

    def credit(self, items: int, size: int) -> None:
        """Allow more items; the message also shows that the caller is alive."""
        self._is_renewed = True
        self._gate.grant(items, size)

    def expire(self) -> None:
        """End the stream if the caller sent nothing during the lease; otherwise begin a new lease."""
        if self.request is None:
            return
        if self._is_renewed:
            self._is_renewed = False
            self.handler.endpoint.wheel.add(self, LEASE_SECONDS)
        else:
            self.request.stop(unavailable(self.operation_id, "the caller did not renew its lease", "unknown"))

    async def _send_later(self, message: bytes) -> None:
        await self._gate.wait()
        self._send_item(message)

    def _send_item(self, message: bytes) -> None:
        if not self.is_aborted:
            self._send(message)
            self._gate.spend(len(message))

    def _write_end(self) -> bytes:
        completed = CompletionPayload(self.caller_id, self._sequence)
        return self.codec.encode(CallCompleted(VERSION, self.id, "", completed))


class AcceptanceTimer:
    """Sends `call.accepted` for calls that run longer than about 0.1 s, so that their callers know the worker."""

    def __init__(self) -> None:
        self.waiting: dict[Reply, None] = {}
        """The calls for which `call.accepted` was not sent yet, the oldest first."""
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer."""
        self.timer = asyncio.get_running_loop().call_later(_ACCEPT_SECONDS, self._sweep)

    def close(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()

    def _sweep(self) -> None:
        oldest = asyncio.get_running_loop().time() - _ACCEPT_SECONDS * 0.9
        for reply in list(self.waiting):
            if reply.since > oldest:
                break
            del self.waiting[reply]
            reply.accept()
        self.timer = None
        if self.waiting:
            self.start()
