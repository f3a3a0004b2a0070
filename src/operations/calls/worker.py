"""CallHandler: answers the requests of a transport from a registry. It alone publishes; handlers only return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

import msgspec

from operations.calls.addresses import namespaces_of
from operations.calls.caller import PendingRequestMap
from operations.calls.codec import UNREADABLE, Codec
from operations.calls.control import control_id
from operations.calls.endpoint import Endpoint, SignsNestedCalls, endpoint_of
from operations.calls.events import (
    NULL,
    VERSION,
    Accepted,
    CallAccepted,
    CallCompleted,
    CallRequested,
    CallResponded,
    Completed,
    Responded,
)
from operations.calls.intake import StoredIntake, StoredRequest
from operations.calls.presence import Announcer
from operations.calls.replays import ReplayError
from operations.calls.streams import LEASE_SECONDS, CreditGate
from operations.catalogue import unknown_operation
from operations.context import Grant, Identity
from operations.dispatch import CONCURRENCY, QUEUE, Dispatcher, Request
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.failures import aborted, too_large, translate, unavailable, unreadable
from operations.pubsub import Arrival, Flushes, InProcess, Stop, Stores, Transport
from operations.pubsub.limits import check_counts
from operations.recent import Recent
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationType
from operations.telemetry.counters import Counters
from operations.telemetry.metrics import Measure, measures_of

Identify = Callable[[CallRequested], Identity | None]
"""Authenticator for requests that the transport does not authenticate, such as signed ones."""

Serves = Callable[[Operation[Any]], bool]
"""Whether an operation of the registry is served."""
_ACCEPT_SECONDS = 0.1
_REMEMBERED = 8_192
_MOST_IDENTITIES = 1_024
_FLUSHED_WITHIN = 5.0


class CallHandler:
    """The worker's side of the call protocol: decode, authenticate, dispatch, encode.

    At most `concurrency` calls run at a time and `queue` more wait; requests beyond that fail with `executed: "no"`.
    The caller's identity is what the transport or `identify` authenticates, never what a payload claims.
    What is registered or removed later is announced without a call of the user's.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        pubsub: Transport,
        *,
        concurrency: int = CONCURRENCY,
        queue: int = QUEUE,
        pool: bool = False,
        identify: Identify | None = None,
        serves: Serves | None = None,
    ) -> None:
        check_counts(concurrency=concurrency)
        check_counts(queue=queue, least=0)
        self.registry = registry
        self.transport = pubsub
        self.endpoint: Endpoint = endpoint_of(pubsub)
        self.pending = PendingRequestMap(pubsub)
        self.dispatcher = Dispatcher(
            registry, concurrency=concurrency, queue=queue, counters=self.endpoint.counters, remote=self.pending
        )
        self._identify = identify
        self._serves = serves
        self._signs = pubsub.optional(SignsNestedCalls) if identify is not None else None
        self._recording: set[asyncio.Task[None]] = set()
        """Requests that wait for the record of signed requests."""
        self._concurrency = concurrency
        self._attempts: Recent[str, int] = Recent(_REMEMBERED)
        """The last requests and their attempts, so that none is run twice."""
        self._stored = StoredIntake(self.endpoint, self._take_stored)
        self._acceptor = Acceptor()
        self._identities: dict[bytes, Identity] = {}
        self._stops: dict[str, list[Stop]] = {}
        self._queues: dict[str, Stop] = {}
        self._stop_control = self.endpoint.listen(f"peer.{self.endpoint.peer}")
        self._announcer = Announcer(self._served, self.endpoint, pool=pool)
        self.worker_id = self._announcer.worker_id
        """The name of this worker on its transport."""
        self.endpoint.in_flight.append(self._count)
        self._refreshing: asyncio.Handle | None = None
        self._loop = asyncio.get_running_loop()
        self._unwatch_registry = registry.watch(self._registry_changed)
        self.refresh()

    @property
    def counters(self) -> Counters:
        """Counts of this end's messages."""
        return self.endpoint.counters

    @property
    def in_flight(self) -> int:
        """Number of calls and streams that run here or wait for a slot."""
        return self.dispatcher.in_flight

    @property
    def rejected(self) -> Mapping[str, str]:
        """The operations that the hub rejected, each with the reason."""
        return self._announcer.rejected

    def measures(self) -> Iterator[Measure]:
        """Return the metrics of this worker: its registry, its dispatcher, its end of the transport."""
        yield from measures_of([self.registry, self.dispatcher, self.counters])
        reconnects = getattr(self.transport, "reconnects", None)
        if reconnects is not None:
            yield Measure("operations_transport_reconnects_total", max(0, reconnects))

    async def registered(self, timeout: float | None = 30.0) -> None:
        """Wait until the hub has accepted the operations; raise `ACCESS_DENIED` where it rejected one.

        On a bus without a hub there is nobody to accept them, and this returns immediately.
        """
        await self._announcer.registered(timeout)

    def refresh(self) -> None:
        """Serve what the registry holds now; registering and unregistering does this by itself."""
        self._refreshing = None
        served = self._served()
        wanted = namespaces_of(operation.id for operation in served)
        for namespace in wanted - self._stops.keys():
            self._stops[namespace] = self._open(namespace)
        for namespace in self._stops.keys() - wanted:
            self._shut(namespace)
        store = self.transport.optional(Stores) if self.transport.capabilities.durable else None
        if store is not None:
            self._refresh_queues(store, served)
        self._announcer.announce()

    def _served(self) -> list[Operation[Any]]:
        """Return the operations to serve: all but those that were imported from this end of the transport."""
        served = [operation for operation in self.registry.operations.values() if operation.origin is not self.endpoint]
        return served if self._serves is None else [operation for operation in served if self._serves(operation)]

    def _registry_changed(self) -> None:
        """Announce a change, once for all that are made in one iteration of the loop."""
        if self._refreshing is None:
            loop = asyncio.get_running_loop() if self._loop.is_closed() else self._loop
            self._refreshing = loop.call_soon_threadsafe(self.refresh)

    def _refresh_queues(self, store: Stores, served: list[Operation[Any]]) -> None:
        """Take stored requests for the namespaces that have durable operations."""
        wanted = namespaces_of(operation.id for operation in served if operation.spec.durable)
        for namespace in wanted - self._queues.keys():
            self._queues[namespace] = store.take(f"queue.{namespace}", self._stored.take, limit=self._concurrency)
        for namespace in self._queues.keys() - wanted:
            self._queues.pop(namespace)()

    def _open(self, namespace: str) -> list[Stop]:
        endpoint = self.endpoint
        endpoint.namespaces.setdefault(namespace, []).append(self._requested)
        stops = [
            endpoint.listen(f"work.{namespace}", f"workers.{namespace}"),
            endpoint.listen(f"control.{namespace}"),
        ]
        in_process = self.transport.optional(InProcess)
        if in_process is not None:
            stops.append(in_process.offer(f"work.{namespace}", self.dispatcher))
        return stops

    def _shut(self, namespace: str) -> None:
        for stop in self._stops.pop(namespace):
            stop()
        self.endpoint.namespaces[namespace].remove(self._requested)

    def _stop_intake(self) -> None:
        """Take no change of the registry and no stored request any more."""
        self._unwatch_registry()
        if self._refreshing is not None:
            self._refreshing.cancel()
        for stop in self._queues.values():
            stop()
        self._queues.clear()

    async def drain(self, *, grace: float = 30.0) -> None:
        """Leave gracefully: take no new requests, wait for what runs, end it after `grace` seconds."""
        await self._announcer.leave()
        for namespace in list(self._stops):
            for stop in self._stops[namespace]:
                stop()
        self._stop_intake()
        flushes = self.transport.optional(Flushes)
        if flushes is not None:
            # Requests that the bus sent before it knew that this worker leaves are still to be answered.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(flushes.flush(), _FLUSHED_WITHIN)
        if self._recording:
            await asyncio.wait(list(self._recording))
        await self.dispatcher.drain(grace)
        await self.close()

    async def close(self) -> None:
        """Leave immediately: what still runs is cancelled, and its callers get an error."""
        self._announcer.close()
        for namespace in list(self._stops):
            self._shut(namespace)
        self._stop_intake()
        self._stored.release_all()
        for task in list(self._recording):
            task.cancel()
        await self.dispatcher.close()
        self._stop_control()
        self._stored.close()
        self._acceptor.close()
        if self._count in self.endpoint.in_flight:
            self.endpoint.in_flight.remove(self._count)

    def _count(self) -> int:
        return self.dispatcher.in_flight

    def forget(self, reply: Reply) -> None:
        """Tell the caller of a call that ended nothing more."""
        self._acceptor.waiting.pop(reply, None)

    def _requested(self, event: CallRequested, codec: Codec, arrival: Arrival) -> None:
        """Run a request and answer it, unless it came before."""
        attempts, request_id = self._attempts, event.id
        if (request_id in attempts.newer or request_id in attempts.older) and self._is_duplicate(event):
            self.counters.duplicate += 1
            return
        reply = StreamReply(self, event, codec) if event.stream else Reply(self, event, codec)
        if self._start(reply):
            attempts.newer[request_id] = event.payload.attempt
            if len(attempts.newer) >= attempts.minimum:
                attempts.rotate()

    def _is_duplicate(self, event: CallRequested) -> bool:
        """Return whether a request that came before must not run: only a later attempt of a query may."""
        if (
            control_id(event.id) if self.endpoint.is_overheard else event.id
        ) in self.endpoint.running or event.payload.attempt <= self._attempts[event.id]:
            return True
        spec = self.registry.get_spec(event.to)
        return spec is None or spec.type is not OperationType.QUERY

    def _take_stored(self, event: CallRequested, codec: Codec, arrival: Arrival, stored: StoredRequest) -> None:
        """Run a stored request; one that is refused is answered and settled like any other."""
        reply = StoredReply(self, event, codec, stored=stored)
        spec = self.registry.get_spec(event.to)
        if spec is not None and not spec.durable:
            details = {"operationId": event.to, "reason": "NOT_DURABLE", "executed": "no"}
            reply.refuse(CallError("ACCESS_DENIED", f"{event.to}: its requests are not stored", details))
        else:
            self._start(reply)

    def _start(self, reply: Reply) -> bool:
        """Hand a request to the dispatcher; False where it is refused, which its caller is told."""
        try:
            request = self._read(reply.event, reply.codec)
            record = None if self._signs is None else self._record(self._signs, reply, request)
            if record is None:
                self._dispatch(reply, request)
            else:
                self._dispatch_recorded(record, reply, request)
        except CallError as error:
            reply.refuse(error)
            return False
        return True

    def _dispatch(self, reply: Reply, request: Request) -> None:
        self.dispatcher.start(request, reply.ended, reply.emit if isinstance(reply, StreamReply) else None)
        if not request.is_over:
            # It did not end immediately: its caller can reach it, and is told which worker has it.
            reply.request, reply.since = request, asyncio.get_running_loop().time()
            reply.track()
            self._acceptor.waiting[reply] = None
            if self._acceptor.timer is None:
                self._acceptor.start()

    def _dispatch_recorded(self, record: Coroutine[Any, Any, bool], reply: Reply, request: Request) -> None:
        """Hand over a request once it is in the record of signed requests."""
        reply.track()
        task = asyncio.get_running_loop().create_task(self._dispatch_new(record, reply, request))
        self._recording.add(task)
        task.add_done_callback(self._recording.discard)
        # A task that is cancelled before its first step has not awaited it.
        task.add_done_callback(lambda task: record.close())

    def _record(self, signs: SignsNestedCalls, reply: Reply, request: Request) -> Coroutine[Any, Any, bool] | None:
        """Return what notes a signed request that must not run twice, in the record that all workers share."""
        if request.grant.signature is None:
            return None
        spec = self.registry.get_spec(request.operation_id)
        if isinstance(reply, StoredReply) or (spec is not None and spec.type is OperationType.MUTATION):
            return signs.record(reply.event)
        return None

    async def _dispatch_new(self, record: Coroutine[Any, Any, bool], reply: Reply, request: Request) -> None:
        """Hand over a request that no other worker had."""
        try:
            try:
                is_new = await record
            finally:
                self.endpoint.running.pop(reply.control_id, None)
            if not is_new:
                raise ReplayError("ACCESS_DENIED", "refused: the request was here already")
            if not reply.is_aborted:
                self._dispatch(reply, request)
        except CallError as error:
            reply.refuse(error)
        except asyncio.CancelledError:
            reply.refuse(unavailable(request.operation_id, "the worker left", "no"))
            raise

    def _read(self, event: CallRequested, codec: Codec) -> Request:
        """Return the decoded request of an authenticated caller."""
        payload = event.payload
        if self._serves is not None:
            operation = self.registry.get_operation(event.to)
            if operation is None or not self._serves(operation):
                raise unknown_operation(event.to, ())
        if event.deadline is not None:  # the hub may have set an earlier one
            payload.deadline = min(event.deadline, event.deadline if payload.deadline is None else payload.deadline)
        input: Any = payload.input
        return Request(
            operation_id=event.to,
            input=codec.read(input) if type(input) is msgspec.Raw else input,
            id=payload.request_id,
            parent_id=payload.parent_request_id,
            grant=Grant(
                identity=self._authenticate(event, codec),
                token=event.grant or "",
                signature=None if self._signs is None else self._signs.root_of(event),
                origin=self.endpoint,
                deadline=payload.deadline,
            ),
            caller=event.id.partition("-")[0] if self.endpoint.is_pipe else event.id.rpartition("-")[0],
            deadline=payload.deadline,
            sent_at=payload.sent_at,
            metadata=payload.metadata,
        )

    def _authenticate(self, event: CallRequested, codec: Codec) -> Identity | None:
        """Return the caller: as the transport authenticates it, else as `identify` does, else anonymous."""
        claimed = event.payload.identity
        given = None
        if event.identity is not NULL:
            raw = bytes(event.identity)
            given = self._identities.get(raw) or self._read_identity(raw, event, codec)
        trust = self.transport.capabilities.identity
        if trust == "caller":
            return claimed
        identity = given if trust == "hub" else None
        if self._identify is not None:
            identity = self._identify(event)
        if claimed is not None and claimed != identity:
            self.counters.forged += 1
        return identity

    def _read_identity(self, raw: bytes, event: CallRequested, codec: Codec) -> Identity | None:
        """Return the identity outside of the payload, which a hub sets; the same bytes are decoded once."""
        try:
            known = codec.read_identity(event.identity)
        except UNREADABLE as error:
            self.counters.malformed += 1
            raise unreadable(error) from error
        if len(self._identities) >= _MOST_IDENTITIES:
            self._identities.clear()
        if known is not None:
            self._identities[raw] = known
        return known


class Reply(msgspec.Struct, eq=False):
    """The way back of one call: one answer."""

    handler: CallHandler
    event: CallRequested
    codec: Codec
    request: Request | None = None
    """The call, where it did not end immediately and while it runs."""
    since: float = 0.0
    """When its caller could first control it, by the loop's clock; 0 while it cannot."""
    control_id: str = ""
    credits: int = 0
    is_aborted: bool = False

    def track(self) -> None:
        """Let the caller control the call."""
        endpoint = self.handler.endpoint
        self.control_id = control_id(self.event.id) if endpoint.is_overheard else self.event.id
        endpoint.running[self.control_id] = self

    def accept(self) -> None:
        """Tell the caller which worker has its call."""
        accepted = Accepted(self.event.payload.request_id, self.handler.worker_id)
        self._send(self.codec.encode(CallAccepted(VERSION, self.event.id, "", accepted)))

    def ended(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        """Send what became of the request."""
        if self.since:
            self.request = None
            self.handler.endpoint.running.pop(self.control_id, None)
            self.handler.forget(self)
        if self.is_aborted:
            self.handler.endpoint.confirm_abort(self.event.id, self.codec)
        elif error is not None:
            self._send_error(error)
        else:
            try:
                message = self._write_end() if envelope is None else self._write(envelope)
            except BaseException as problem:  # noqa: BLE001  # a result that cannot be encoded is the caller's error
                self._send_error(_unsendable(problem, self.event.to))
                return
            self._send(message)

    def refuse(self, error: CallError) -> None:
        """Tell the caller why its request does not run; a copy of another request gets no answer."""
        if not isinstance(error, ReplayError):
            self._send_error(error)

    def abort(self, reason: str) -> None:
        """Cancel the call: nobody waits for an answer."""
        self.is_aborted = True
        if self.request is not None:
            self.request.stop(aborted(self.event.to, reason))

    def credit(self, items: int, size: int) -> None:
        """Do nothing: a call has one answer and needs no credit."""

    def _write_end(self) -> bytes:
        raise CallError("EXECUTION_ERROR", f"{self.event.to}: the call ended without an answer")

    def _write(self, envelope: ResponseEnvelope[Any], sequence: int | None = None) -> bytes:
        event, handler = self.event, self.handler
        worker = handler.worker_id if sequence == 0 else None
        payload = Responded(event.payload.request_id, NULL, sequence, worker)
        message = self.codec.write_response(CallResponded(VERSION, event.id, "", payload), envelope)
        limit = handler.transport.capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(event.to, "answer", len(message), limit, "yes")
        return message

    def _send_error(self, error: CallError) -> None:
        event = self.event
        self._send(self.handler.endpoint.write_error(event.id, error, self.codec, event.payload.request_id))

    def _send(self, message: bytes) -> None:
        self.handler.transport.send(f"inbox.{self.event.id.rpartition('-')[0]}", message)


def _unsendable(problem: BaseException, operation_id: str) -> CallError:
    told = translate(problem, operation_id)
    return told if isinstance(told, CallError) else aborted(operation_id, "cancelled")


class StoredReply(Reply, kw_only=True):
    """The way back of a stored call: its request is settled after its answer was sent."""

    stored: StoredRequest

    def abort(self, reason: str) -> None:
        """Do nothing: a caller that leaves does not undo what was stored."""

    def refuse(self, error: CallError) -> None:
        """Answer and settle a request that does not run."""
        if self.stored.is_held:
            super().refuse(error)
            self.stored.done()

    def ended(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        """Send the answer, then settle the request; one that was given to another worker is answered by that one."""
        self.is_aborted = not self.stored.is_held
        super().ended(envelope, error)
        self.stored.done()

    def _send(self, message: bytes) -> None:
        self.stored.sent(message)
        super()._send(message)


class StreamReply(Reply):
    """The way back of a stream: numbered items as far as the caller's credit goes, then an end."""

    _gate: CreditGate = msgspec.field(default_factory=CreditGate)
    _heard: bool = True
    _sequence: int = 0

    def track(self) -> None:
        """Also expect signs of life from the caller, where the transport does not report its loss."""
        super().track()
        if not self.handler.transport.capabilities.tracks_peers:
            self.handler.endpoint.wheel.add(self, LEASE_SECONDS)

    def emit(self, envelope: ResponseEnvelope[Any]) -> Awaitable[None] | None:
        """Send an item; returns what to await where there is no credit for it yet."""
        message = self._write(envelope, self._sequence)
        self._sequence += 1
        if not self._gate.is_open:
            return self._send_later(message)
        self._send_item(message)
        return None

    def credit(self, items: int, size: int) -> None:
        """Allow more items; also shows that the caller is alive."""
        self._heard = True
        self._gate.grant(items, size)

    def expire(self) -> None:
        """End the stream where the caller sent nothing during its lease."""
        if self.request is None:
            return
        if self._heard:
            self._heard = False
            self.handler.endpoint.wheel.add(self, LEASE_SECONDS)
        else:
            self.request.stop(unavailable(self.event.to, "the caller sent the worker no sign of life", "unknown"))

    async def _send_later(self, message: bytes) -> None:
        await self._gate.wait()
        self._send_item(message)

    def _send_item(self, message: bytes) -> None:
        if not self.is_aborted:
            self._send(message)
            self._gate.spend(len(message))

    def _write_end(self) -> bytes:
        completed = Completed(self.event.payload.request_id, self._sequence)
        return self.codec.encode(CallCompleted(VERSION, self.event.id, "", completed))


class Acceptor:
    """Tells the callers of calls that run for a while which worker has them."""

    def __init__(self) -> None:
        self.waiting: dict[Reply, None] = {}
        """The calls whose callers are not told yet, the oldest first."""
        self.timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tell callers in a moment, unless their calls end soon."""
        self.timer = asyncio.get_running_loop().call_later(_ACCEPT_SECONDS, self._sweep)

    def close(self) -> None:
        """Tell nobody any more."""
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
