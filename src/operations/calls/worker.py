"""CallHandler: answers the requests of a transport from a registry. It alone publishes; handlers only return."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from operations.calls.addresses import namespaces_of
from operations.calls.caller import PendingRequestMap
from operations.calls.codec import UNREADABLE, Codec
from operations.calls.endpoint import Endpoint, SignsNestedCalls, endpoint_of, inbox_of
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
from operations.context import Grant, Identity
from operations.dispatch import CONCURRENCY, QUEUE, Dispatcher, Outcome, Request, Running
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.failures import aborted, too_large, translate, unavailable, unreadable
from operations.pubsub import Arrival, Flushes, InProcess, Stop, Stores, Transport
from operations.pubsub.limits import check_counts
from operations.recent import Recent
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationType
from operations.telemetry.counters import Counters

Identify = Callable[[CallRequested], Identity | None]
"""Authenticator for requests that the transport does not authenticate, such as signed ones."""

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
        return [operation for operation in self.registry.operations.values() if operation.origin is not self.endpoint]

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

    def _requested(self, event: CallRequested, codec: Codec, arrival: Arrival) -> None:
        """Run a request and answer it, unless it came before."""
        attempts, request_id = self._attempts, event.id
        if (request_id in attempts.newer or request_id in attempts.older) and self._is_duplicate(event):
            self.counters.duplicate += 1
            return
        make = StreamReply if event.stream else Reply
        reply = make(self.endpoint, self.worker_id, event, codec)
        if self._start(reply, codec):
            attempts.newer[request_id] = event.payload.attempt
            if len(attempts.newer) >= attempts.least:
                attempts.turn()

    def _is_duplicate(self, event: CallRequested) -> bool:
        """Return whether a request that came before must not run: only a later attempt of a query may."""
        if (
            self.endpoint.control_id(event.id) in self.endpoint.running
            or event.payload.attempt <= self._attempts[event.id]
        ):
            return True
        spec = self.registry.get_spec(event.to)
        return spec is None or spec.type is not OperationType.QUERY

    def _take_stored(self, event: CallRequested, codec: Codec, arrival: Arrival, stored: StoredRequest) -> None:
        """Run a stored request; one that is refused is answered and settled like any other."""
        reply = StoredReply(self.endpoint, self.worker_id, event, codec, stored)
        spec = self.registry.get_spec(event.to)
        if spec is not None and not spec.durable:
            details = {"operationId": event.to, "reason": "NOT_DURABLE", "executed": "no"}
            reply.refuse(CallError("ACCESS_DENIED", f"{event.to}: its requests are not stored", details))
        else:
            self._start(reply, codec)

    def _start(self, reply: Reply, codec: Codec) -> bool:
        """Hand a request to the dispatcher; False where it is refused, which its caller is told."""
        try:
            request = self._read(reply.event, codec)
            record = self._record(reply, request)
            if record is None:
                self._dispatch(reply, request)
            else:
                self.endpoint.running[self.endpoint.control_id(reply.event.id)] = reply
                task = asyncio.get_running_loop().create_task(self._dispatch_new(record, reply, request))
                self._recording.add(task)
                task.add_done_callback(self._recording.discard)
                # A task that is cancelled before its first step has not awaited it.
                task.add_done_callback(lambda task: record.close())
        except CallError as error:
            reply.refuse(error)
            return False
        return True

    def _dispatch(self, reply: Reply, request: Request) -> None:
        emit = reply.emit if isinstance(reply, StreamReply) else None
        running = self.dispatcher.start(request, reply.ended, emit)
        if not running.is_over:
            reply.track(running)
            self._acceptor.add(reply)

    def _record(self, reply: Reply, request: Request) -> Coroutine[Any, Any, bool] | None:
        """Return what notes a signed request that must not run twice, in the record that all workers share."""
        if self._signs is None or request.grant.signature is None:
            return None
        spec = self.registry.get_spec(request.operation_id)
        if isinstance(reply, StoredReply) or (spec is not None and spec.type is OperationType.MUTATION):
            return self._signs.record(reply.event)
        return None

    async def _dispatch_new(self, record: Coroutine[Any, Any, bool], reply: Reply, request: Request) -> None:
        """Hand over a request that no other worker had."""
        try:
            try:
                is_new = await record
            finally:
                self.endpoint.running.pop(self.endpoint.control_id(reply.event.id), None)
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
        if event.deadline is not None:  # the hub may have set an earlier one
            payload.deadline = min(event.deadline, event.deadline if payload.deadline is None else payload.deadline)
        identity = self._authenticate(event, codec)
        input: Any = payload.input
        if type(input) is msgspec.Raw:
            input = codec.read(input)
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
            ),
            deadline=payload.deadline,
            sent_at=payload.sent_at,
            metadata=payload.metadata,
        )

    def _authenticate(self, event: CallRequested, codec: Codec) -> Identity | None:
        """Return the caller: as the transport authenticates it, else as `identify` does, else anonymous."""
        claimed = event.payload.identity
        trust = self.transport.capabilities.identity
        given = None if event.identity is NULL else self._read_identity(event, codec)
        if trust == "caller":
            return claimed
        identity = given if trust == "hub" else None
        if self._identify is not None:
            identity = self._identify(event)
        if claimed is not None and claimed != identity:
            self.counters.forged += 1
        return identity

    def _read_identity(self, event: CallRequested, codec: Codec) -> Identity | None:
        """Return the identity outside of the payload, which a hub sets; the same bytes are decoded once."""
        raw = bytes(event.identity)
        known = self._identities.get(raw)
        if known is None:
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


class Reply:
    """The way back of one call: one answer."""

    __slots__ = ("_codec", "_endpoint", "_worker_id", "event", "is_aborted", "running", "since")

    def __init__(self, endpoint: Endpoint, worker_id: str, event: CallRequested, codec: Codec) -> None:
        self.event = event
        self.running: Running | None = None
        self.since = 0.0
        """When it was put in the endpoint's table of running calls, by the loop's clock; 0 while it is not there."""
        self._endpoint = endpoint
        self._worker_id = worker_id
        self._codec = codec
        self.is_aborted = False

    def track(self, running: Running) -> None:
        """Make a call that did not end immediately reachable for its caller."""
        self.running = running
        self.since = asyncio.get_running_loop().time()
        self._endpoint.running[self._endpoint.control_id(self.event.id)] = self

    def accept(self) -> None:
        """Tell the caller which worker has its call."""
        event = CallAccepted(VERSION, self.event.id, "", Accepted(self.event.payload.request_id, self._worker_id))
        self._send(self._codec.encode(event))

    def ended(self, outcome: Outcome) -> None:
        """Send what became of the request."""
        self.running = None
        if self.since:
            self._endpoint.running.pop(self._endpoint.control_id(self.event.id), None)
        if self.is_aborted:
            self._endpoint.confirm_abort(self.event.id, self._codec)
            return
        if outcome.error is not None:
            self._send_error(outcome.error)
            return
        try:
            message = self._write_end(outcome)
        except BaseException as error:  # noqa: BLE001  # a result that cannot be encoded is the caller's error
            told = translate(error, self.event.to)
            self._send_error(told if isinstance(told, CallError) else aborted(self.event.to, "cancelled"))
            return
        self._send(message)

    def refuse(self, error: CallError) -> None:
        """Tell the caller why its request does not run; a copy of another request gets no answer."""
        if not isinstance(error, ReplayError):
            self._send_error(error)

    def abort(self, reason: str) -> None:
        """Cancel the call: nobody waits for an answer."""
        self.is_aborted = True
        if self.running is not None:
            self.running.stop(aborted(self.event.to, reason))

    def credit(self, items: int, size: int) -> None:
        """Do nothing: a call has one answer and needs no credit."""

    def _write_end(self, outcome: Outcome) -> bytes:
        assert outcome.envelope is not None
        return self._write(outcome.envelope, None)

    def _write(self, envelope: ResponseEnvelope[object], sequence: int | None) -> bytes:
        event = self.event
        worker = self._worker_id if sequence == 0 else None
        payload = Responded(event.payload.request_id, NULL, sequence, worker)
        answer = CallResponded(VERSION, event.id, "", payload)
        message = self._codec.write_response(answer, envelope)
        limit = self._endpoint.transport.capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(event.to, "answer", len(message), limit, "yes")
        return message

    def _send_error(self, error: CallError) -> None:
        self._send(self._endpoint.write_error(self.event.id, error, self._codec, self.event.payload.request_id))

    def _send(self, message: bytes) -> None:
        self._endpoint.transport.send(inbox_of(self.event.id), message)


class StoredReply(Reply):
    """The way back of a stored call: its request is settled after its answer was sent."""

    __slots__ = ("_stored",)

    def __init__(
        self, endpoint: Endpoint, worker_id: str, event: CallRequested, codec: Codec, stored: StoredRequest
    ) -> None:
        super().__init__(endpoint, worker_id, event, codec)
        self._stored = stored

    def abort(self, reason: str) -> None:
        """Do nothing: a caller that leaves does not undo what was stored."""

    def refuse(self, error: CallError) -> None:
        """Answer and settle a request that does not run."""
        if self._stored.is_held:
            super().refuse(error)
            self._stored.done()

    def ended(self, outcome: Outcome) -> None:
        """Send the answer, then settle the request; one that was given to another worker is answered by that one."""
        self.is_aborted = not self._stored.is_held
        super().ended(outcome)
        self._stored.done()

    def _send(self, message: bytes) -> None:
        self._stored.sent(message)
        super()._send(message)


class StreamReply(Reply):
    """The way back of a stream: numbered items as far as the caller's credit goes, then an end."""

    __slots__ = ("_gate", "_heard", "_sequence")

    def __init__(self, endpoint: Endpoint, worker_id: str, event: CallRequested, codec: Codec) -> None:
        super().__init__(endpoint, worker_id, event, codec)
        self._gate = CreditGate()
        self._heard = True
        self._sequence = 0

    def track(self, running: Running) -> None:
        """Also expect signs of life from the caller, where the transport does not report its loss."""
        super().track(running)
        if not self._endpoint.transport.capabilities.tracks_peers:
            self._endpoint.wheel.add(self, LEASE_SECONDS)

    def emit(self, envelope: ResponseEnvelope[object]) -> Awaitable[None] | None:
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
        if self.running is None:
            return
        if self._heard:
            self._heard = False
            self._endpoint.wheel.add(self, LEASE_SECONDS)
        else:
            self.running.stop(unavailable(self.event.to, "the caller sent the worker no sign of life", "unknown"))

    async def _send_later(self, message: bytes) -> None:
        await self._gate.wait()
        self._send_item(message)

    def _send_item(self, message: bytes) -> None:
        if not self.is_aborted:
            self._send(message)
            self._gate.spend(len(message))

    def _write_end(self, outcome: Outcome) -> bytes:
        completed = Completed(self.event.payload.request_id, self._sequence)
        return self._codec.encode(CallCompleted(VERSION, self.event.id, "", completed))


class Acceptor:
    """Tells the callers of calls that run for a while which worker has them."""

    def __init__(self) -> None:
        self._waiting: dict[Reply, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reply: Reply) -> None:
        """Tell this reply's caller, unless the call ends soon."""
        self._waiting[reply] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_ACCEPT_SECONDS, self._sweep)

    def close(self) -> None:
        """Tell nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _ACCEPT_SECONDS * 0.9
        for reply in list(self._waiting):
            if reply.since > oldest:
                break
            del self._waiting[reply]
            if reply.running is not None:
                reply.accept()
        self._timer = loop.call_later(_ACCEPT_SECONDS, self._sweep) if self._waiting else None
