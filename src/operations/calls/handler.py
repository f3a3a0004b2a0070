"""CallHandler: answers requests from a transport out of a registry. It alone publishes; handlers only return."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from operations.access import require_access
from operations.calls import tracing
from operations.calls.addresses import namespaces_of
from operations.calls.answering import execute, refuse_late, translate, write_answer
from operations.calls.codec import Codec
from operations.calls.counters import Counters
from operations.calls.direct import DirectTarget
from operations.calls.durable import Intake, RunningDurable
from operations.calls.eager import Paused, Starter
from operations.calls.endpoint import Endpoint, endpoint_of
from operations.calls.events import CallRequested, Requested
from operations.calls.failures import unavailable
from operations.calls.pending import PendingRequestMap
from operations.calls.presence import Announcer
from operations.calls.running import RunningCall, RunningStream
from operations.calls.seen import KEPT, Seen, mark_of
from operations.calls.workplace import Entrant
from operations.context import NO_ENV, Env, Identity, OperationContext
from operations.env import build_env
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.pubsub import Delivery, DurableTransport, Stop, Transport
from operations.pubsub.limits import check_counts
from operations.registry import OperationRegistry
from operations.spec import OPEN, Operation, OperationType

Identify = Callable[[CallRequested], Identity | None]
"""Who makes a request, for a transport whose word is not enough: a signature that was verified, say."""

_REMEMBERED = 32_768
_ACCEPT_SECONDS = 0.1
_FLUSHED_WITHIN = 5.0
_CLEANED_UP_WITHIN = 1.0
CONCURRENCY = 1_024
QUEUE = 100_000


class CallHandler:
    """The worker's side of the call protocol: look up, check access, validate, run, publish.

    At most `concurrency` calls run at a time; `queue` more may wait, and beyond that requests are refused as not run.
    The caller's identity is what the transport vouches for, or what `identify` finds: never what a payload claims.
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
        self.endpoint: Endpoint = endpoint_of(pubsub)
        self.transport = pubsub
        self.pending = PendingRequestMap(pubsub)
        self.worker_id = f"{self.endpoint.peer}.{self.endpoint.new_worker()}"
        self.starter = Starter()
        self._identify = identify
        self._is_vouched_for = pubsub.capabilities.identity == "hub"
        self._concurrency = concurrency
        self._free = concurrency
        self._most_waiting = queue
        self._entrants: OrderedDict[Entrant, None] = OrderedDict()
        self._letting_in = False
        self._running: dict[str, RunningCall] = {}
        self._unaccepted: dict[str, RunningCall] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._seen = Seen(_REMEMBERED)
        self._idle: asyncio.Future[None] | None = None
        self._stops: dict[str, list[Stop]] = {}
        self._intake = Intake(self.endpoint, self._taken)
        self._queues: dict[str, Stop] = {}
        self._stop_control = self.endpoint.hear(f"peer.{self.endpoint.peer}")
        self._direct = DirectTarget(self)
        self._announcer = Announcer(self, pool=pool)
        self.refresh()

    @property
    def counters(self) -> Counters:
        """What became of the messages of this end of the transport."""
        return self.endpoint.counters

    @property
    def in_flight(self) -> int:
        """How many calls and streams run here or wait for a place."""
        return len(self._running) + self._direct.in_flight

    @property
    def rejected(self) -> Mapping[str, str]:
        """The operations that the hub refused, each with the reason."""
        return self._announcer.rejected

    def refresh(self) -> None:
        """Serve what the registry holds now: call it when operations were added or removed."""
        wanted = namespaces_of(spec.id for spec in self.registry.list())
        for namespace in wanted - self._stops.keys():
            self._stops[namespace] = self._open(namespace)
        for namespace in self._stops.keys() - wanted:
            self._shut(namespace)
        if self.transport.capabilities.durable:
            self._refresh_queues()
        self._announcer.announce()

    def _refresh_queues(self) -> None:
        """Take stored requests for the namespaces that have durable operations."""
        transport: DurableTransport = self.transport  # type: ignore[assignment]
        wanted = namespaces_of(spec.id for spec in self.registry.list() if spec.durable)
        for namespace in wanted - self._queues.keys():
            self._queues[namespace] = transport.take(f"queue.{namespace}", self._intake.take, limit=self._concurrency)
        for namespace in self._queues.keys() - wanted:
            self._queues.pop(namespace)()

    def _open(self, namespace: str) -> list[Stop]:
        endpoint = self.endpoint
        endpoint.namespaces.setdefault(namespace, []).append(self._requested)
        stops = [
            endpoint.hear(f"work.{namespace}", f"workers.{namespace}"),
            endpoint.hear(f"control.{namespace}"),
        ]
        offer = getattr(self.transport, "offer", None)
        if offer is not None:
            stops.append(offer(f"work.{namespace}", self._direct))
        return stops

    def _shut(self, namespace: str) -> None:
        for stop in self._stops.pop(namespace):
            stop()
        self.endpoint.namespaces[namespace].remove(self._requested)

    def _stop_queues(self) -> None:
        for stop in self._queues.values():
            stop()
        self._queues.clear()

    async def drain(self, *, grace: float = 30.0) -> None:
        """Leave gracefully: no new requests, wait for what runs, and after `grace` seconds end it."""
        await self._announcer.leave()
        for namespace in list(self._stops):
            for stop in self._stops[namespace]:
                stop()
        self._stop_queues()
        flush = getattr(self.transport, "flush", None)
        if flush is not None:
            # What the bus sent before it knew that this worker leaves is still to be answered.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(flush(), _FLUSHED_WITHIN)
        if self.in_flight:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=grace)
        await self.close()

    async def close(self) -> None:
        """Leave at once: what still runs is cancelled, and its callers are told."""
        self._announcer.close()
        for namespace in list(self._stops):
            self._shut(namespace)
        self._stop_queues()
        own = asyncio.current_task()  # a handler may close its own worker
        tasks = [running.task for running in self._running.values() if running.task not in (None, own)]
        for running in list(self._running.values()):
            running.close()
        self._direct.stop()
        self.starter.close()
        self._stop_control()
        self._intake.answers.close()
        if self._sweep is not None:
            self._sweep.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLEANED_UP_WITHIN)

    def admit(self, operation_id: str, identity: Identity | None) -> Operation[Any]:
        """The operation, if it is here and this caller may call it."""
        operation = self.registry.get_operation(operation_id)
        if operation is None:
            raise self.registry.not_found(operation_id)
        if operation.spec.access_control != OPEN:
            require_access(operation.spec, identity)
        return operation

    def context(
        self, operation: Operation[Any], request: Requested, identity: Identity | None, *, kept: bool = True
    ) -> OperationContext:
        """The context of a call from elsewhere: untrusted, its deadline kept here, its nested calls on the bus."""
        bare = OperationContext(
            request_id=request.request_id,
            parent_request_id=request.parent_request_id,
            identity=identity,
            deadline=request.deadline,
            deadline_kept=kept,
            metadata=request.metadata or {},
            trusted=False,
        )
        return msgspec.structs.replace(bare, env=self._env(bare)) if operation.wants_context else bare

    def _env(self, context: OperationContext) -> Env:
        return build_env(self.registry, context, invoke=self._invoke, stream=self._follow)

    def _invoke(self, operation_id: str, input: Any, context: OperationContext) -> Awaitable[ResponseEnvelope[Any]]:
        """A nested call: what this worker has it runs itself (a place more would be a deadlock); the rest is called."""
        if operation_id in self.registry:
            return self.registry.execute_nested(operation_id, input, self._complete(operation_id, context))
        return self.pending.call_for(context, operation_id, input)

    def _follow(self, operation_id: str, input: Any, context: OperationContext) -> AsyncIterator[ResponseEnvelope[Any]]:
        if operation_id in self.registry:
            return self.registry.subscribe_nested(operation_id, input, self._complete(operation_id, context))
        return self.pending.subscribe_for(context, operation_id, input)

    def _complete(self, operation_id: str, context: OperationContext) -> OperationContext:
        """The context with an env that reaches the bus, where the operation looks at it."""
        operation = self.registry.get_operation(operation_id)
        if context.env is not NO_ENV or operation is None or not operation.wants_context:
            return context
        return msgspec.structs.replace(context, env=self._env(context))

    def _requested(self, event: CallRequested, codec: Codec) -> None:
        request_id, payload = event.id, event.payload
        block, number = self._seen.place(request_id)
        if (block[number] or request_id in self.endpoint.running) and self._is_duplicate(event, block[number]):
            self.counters.duplicate += 1
            return
        try:
            if payload.identity is None and self._identify is None:
                identity = event.identity if self._is_vouched_for else None
            else:
                identity = self._authenticate(event)
            operation = self.registry.get_operation(event.to)
            if operation is None or operation.spec.access_control != OPEN:
                operation = self.admit(event.to, identity)
        except CallError as error:
            self.endpoint.send_error(request_id, error, codec)
            return
        if self._free <= 0 and self.is_full:
            self.endpoint.send_error(request_id, self.refuse(event.to), codec)
            return
        deadline = payload.deadline
        if deadline is not None and (deadline <= time.time() * 1000 or deadline <= (payload.sent_at or 0)):
            refuse_late(self, event, codec)
            return
        if block[KEPT] and not payload.attempt:
            block[number] = 1  # as nearly always
        else:
            self._seen.mark(request_id, block, number, payload.attempt)
        if event.stream or self._free <= 0 or tracing.is_active():
            kind = RunningStream if event.stream else RunningCall
            self._place(kind(self, event, codec, operation, identity), request_id)
        else:
            self._answer(event, codec, operation, identity)

    def _answer(self, event: CallRequested, codec: Codec, operation: Operation[Any], identity: Identity | None) -> None:
        """Run a call and answer it: most handlers never wait, and nothing is written down about those."""
        self._free -= 1
        waits = False
        try:
            envelope = self.starter.step(execute(self, event, codec, operation, identity))
            if type(envelope) is Paused:
                waits = True
                running = RunningCall(self, event, codec, operation, identity)
                running.resume(envelope)
                self._track(running, event.id)
            else:
                self.endpoint.answer(event.id, write_answer(self, event, codec, envelope, None), True)
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises, its caller gets an answer
            self.endpoint.send_error(event.id, translate(error, event.to), codec)
        finally:
            if not waits:
                self.leave()

    def _taken(self, event: CallRequested, codec: Codec, delivery: Delivery) -> None:
        """Run a stored request; one that may not be run is answered and forgotten like any other."""
        try:
            identity = self._authenticate(event)
            operation = self.admit(event.to, identity)
        except CallError as error:
            self.endpoint.send_error(event.id, error, codec)
            delivery.done()
            return
        running = RunningDurable(self, event, codec, operation, identity, delivery=delivery, intake=self._intake)
        self._intake.hold(event.id, running)
        self._place(running, event.id)

    def _place(self, running: RunningCall, request_id: str) -> None:
        """Run a request now, or when there is a place."""
        if self._free > 0:
            self._free -= 1
            running.begin()
            if not running.ended:
                self._track(running, request_id)
        else:
            self._track(running, request_id)
            self._entrants[running] = None

    def _track(self, running: RunningCall, request_id: str) -> None:
        """Write down a request that takes its time: for its deadline, for control, and to tell who has it."""
        self._running[request_id] = self.endpoint.running[request_id] = running
        self._unaccepted[request_id] = running
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_ACCEPT_SECONDS, self._accept)
        running.arm()

    def _is_duplicate(self, event: CallRequested, seen: int) -> bool:
        """Whether a request that was here before is running, or answered and not one that may run again."""
        if event.id in self.endpoint.running or mark_of(event.payload.attempt) <= seen:
            return True
        spec = self.registry.get_spec(event.to)
        return spec is None or spec.type is not OperationType.QUERY

    def _authenticate(self, event: CallRequested) -> Identity | None:
        """Who the caller is: as the transport vouches, else as `identify` finds, else nobody."""
        claimed = event.payload.identity
        if self.transport.capabilities.identity == "caller":
            return claimed
        identity = event.identity if self._is_vouched_for else None
        if self._identify is not None:
            identity = self._identify(event)
        if claimed is not None and claimed != identity:
            self.counters.forged += 1
        return identity

    def _accept(self) -> None:
        """Tell the callers of what has run for a while which worker has it."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _ACCEPT_SECONDS * 0.9
        for request_id, running in list(self._unaccepted.items()):
            if running.since > oldest:
                break
            del self._unaccepted[request_id]
            running.accept(self.worker_id)
        self._sweep = loop.call_later(_ACCEPT_SECONDS, self._accept) if self._unaccepted else None

    @property
    def is_full(self) -> bool:
        """Whether every place is taken and as many wait as may."""
        return self._free <= 0 and len(self._entrants) >= self._most_waiting

    def refuse(self, operation_id: str) -> CallError:
        """Count a request that there is no room for; the error says that it was not run."""
        self.counters.rejected += 1
        return unavailable(operation_id, "the worker has too many requests waiting", "no")

    def enter(self, entrant: Entrant) -> None:
        """Run at once where there is a place, else when one becomes free."""
        if self._free > 0:
            self._free -= 1
            entrant.begin()
        else:
            self._entrants[entrant] = None

    def withdraw(self, entrant: Entrant) -> None:
        """Stop waiting for a place."""
        self._entrants.pop(entrant, None)

    def take_place(self) -> bool:
        """Take a place without waiting, if there is one."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    def leave(self) -> None:
        """Give a place back: the next one that waits begins."""
        self._free += 1
        if self._entrants and not self._letting_in:
            self._let_in()
        if self._idle is not None:
            self._check_idle()

    def _let_in(self) -> None:
        """Give free places to those that wait; whoever ends at once leaves within this loop, however many they are."""
        self._letting_in = True
        try:
            while self._free > 0 and self._entrants:
                self._free -= 1
                self._entrants.popitem(last=False)[0].begin()
        finally:
            self._letting_in = False

    def finished(self, request_id: str) -> None:
        """A call or stream is over."""
        if self._running.pop(request_id, None) is not None:
            self.endpoint.running.pop(request_id, None)
            self._unaccepted.pop(request_id, None)

    def _check_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self.in_flight:
            self._idle.set_result(None)
