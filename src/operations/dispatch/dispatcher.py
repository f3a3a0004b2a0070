"""Dispatcher: the one path of a call from elsewhere. It knows no transport.

authorize → acquire a slot → set the deadline → run → report the outcome. Whoever uses it decodes a request,
authenticates its caller, and encodes what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

from operations.access import access_error, check_access
from operations.context import Client, Grant, OperationContext, Progress, current_grant, new_request_id
from operations.deadlines import Bucket, Deadline, StreamDeadline, now_ms
from operations.dispatch.nesting import NestedCalls, Registry, Remote
from operations.dispatch.queueing import FairQueue, Slots, Turn
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import Executed, aborted, mark_executed, timed_out, translate, unavailable
from operations.spec import OPEN, Operation
from operations.telemetry.counters import Counters
from operations.telemetry.metrics import Measure
from operations.telemetry.observer import Call, Watch
from operations.telemetry.tracing import SDK, active_observers, modules

_log = logging.getLogger("operations")
CONCURRENCY = 1_024
"""Default number of calls that run at the same time."""
QUEUE = 100_000
"""Default number of calls that wait for a slot."""
_FAIRNESS = 64
"""How many items or calls are handled before others get their turn."""
_ITERATION_SECONDS = 0.01
"""How long the calls that start in one iteration of the event loop may take."""
_QUICK_SECONDS = 0.0001
"""How long a handler may compute before its first wait without delaying others."""
_SLOW_STARTS = 4
"""How many calls in a row may take longer than that before the next ones queue; one may be the garbage collector."""
_FIRST_TASKS = 8
_CLEANED_UP_WITHIN = 1.0
_CLOSING = "the worker is shutting down"


class _Active(Protocol):
    """A call that runs or waits for a slot."""

    @property
    def operation_id(self) -> str:
        """The operation that is called."""

    def stop(self, error: CallError) -> None:
        """End it with an error."""


Ended = Callable[[ResponseEnvelope[Any] | None, CallError | None], None]
"""Called with how a call ended: an envelope, an error, or neither for a stream that completed."""
Emit = Callable[[ResponseEnvelope[Any]], Awaitable[None] | None]
"""Called with each item of a stream; what it returns is awaited before the next one."""


class Request(Deadline, kw_only=True):
    """One call from elsewhere, decoded and authenticated. While it runs it is its own deadline."""

    host: Dispatcher = None  # type: ignore[assignment]
    """Set by the dispatcher that it is given to."""
    input: Any = None
    id: str = ""
    parent_id: str | None = None
    grant: Grant
    """Whom the call is for; nested calls are made with it."""
    caller: str = ""
    """Whose calls it queues behind; calls of different callers take turns."""
    deadline: int | None = None
    """Epoch milliseconds."""
    sent_at: int | None = None
    """When the caller sent it, by the caller's clock."""
    idle_timeout: float | None = None
    """Seconds for which a stream may be silent."""
    metadata: Mapping[str, Any] | None = None
    progress: Progress | None = None
    """Called with the progress that the handler reports."""
    client: Client | None = None
    """The caller, where its handler can ask it."""
    operation: Operation[Any] | None = None
    """Set by the dispatcher, as all that follows: it is for calls that have a task of their own."""
    ended: Ended | None = None
    emit: Emit | None = None
    began: bool = False
    """Whether the handler was started."""
    is_over: bool = False
    """Whether it was reported how the call ended."""
    task: asyncio.Task[None] | None = None
    bucket: Bucket | None = None

    def begin(self) -> None:
        """Start a call that waited for a slot, unless its deadline passed in the queue while the loop was busy."""
        host = self.host
        if self.bucket is not None:
            self.bucket.discard(self)
            if self.has_passed:
                self.expire()
                host.slots.release()
                return
        host.active.add(self)
        host.tasks.start(self)

    def refuse(self) -> None:
        """End a call that waits for a slot: others need its place in the queue."""
        self.stop(self.host.refuse(self))

    def expire(self) -> None:
        """End a call whose deadline passed; one in the queue never runs."""
        if not self.began:
            self.host.counters.expired += 1
        self.stop(self.explain())

    def explain(self) -> CallError:
        """Return the error of a call whose deadline passed."""
        if self.began:
            return timed_out(self.operation_id, "unknown")
        return timed_out(self.operation_id, "no", "before the call began")

    def stop(self, error: CallError) -> None:
        """End the call: the handler is cancelled, and `error` is reported."""
        if self.began:
            Deadline.stop(self, error)
        elif not self.is_over:
            host = self.host
            host.slots.waiting.discard(self)
            has_slot = host.tasks.waiting.discard(self)
            if self.bucket is not None:
                self.bucket.discard(self)
            host.forget(self)
            host.tell_refusal(self, error)
            self._report(None, error)
            if has_slot:
                host.slots.release()

    async def serve(self) -> None:
        """Run the call and report how it ended: the task of this call."""
        current_grant.set(self.grant)
        try:
            envelope = await self.run(self.host.work(self) if self.emit is None else self._pump(self.emit))
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises, its caller gets an answer
            self._leave()
            self._report(None, self._final(error))
        else:
            self._leave()
            self._report(envelope, None)

    def _leave(self) -> None:
        """Forget a call that ran, and give its slot back."""
        self.task = None
        self.grant.ended = True
        host = self.host
        host.active.discard(self)
        if host.idle is not None:
            host.forget(self)
        if host.slots.waiting.size:
            host.slots.release()
        else:
            host.slots.free += 1

    def _report(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        self.is_over = True
        if self.ended is not None:
            self.ended(envelope, error)

    async def _pump(self, emit: Emit) -> None:
        """Hand over each item of the stream, as fast as it is taken."""
        host, operation = self.host, self.operation
        assert operation is not None
        stream = host.registry.run_stream(operation, self.input, host.context(self), "served")
        async with contextlib.aclosing(stream):
            count = 0
            async for envelope in stream:
                taken = emit(envelope)
                if taken is not None:
                    await taken
                count += 1
                if count % _FAIRNESS == 0:
                    # A generator that never suspends must not keep the loop from everything else.
                    await asyncio.sleep(0)

    def _final(self, error: BaseException) -> CallError:
        told = self.host.explain(error, self)
        if isinstance(told, CallError):
            return told
        if isinstance(told, asyncio.CancelledError):
            return aborted(self.operation_id, "cancelled")
        kind = type(told).__name__
        return CallError(ErrorCode.EXECUTION_ERROR, f"{self.operation_id}: {kind}", {"type": kind})


class Dispatcher:
    """Runs calls from elsewhere: at most `concurrency` at a time, `queue` more wait.

    `call` and `stream` run in their caller's task; `start` makes a task. Requests beyond the queue are refused.
    `remote` is asked for nested calls of operations that the registry does not have.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        concurrency: int = CONCURRENCY,
        queue: int = QUEUE,
        counters: Counters | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.registry = registry
        self.wheel = registry.wheel
        self.slots = Slots(concurrency, queue)
        self.tasks = _Tasks()
        self.counters = counters or Counters(lambda: self.in_flight)
        self.active: set[_Active] = set()
        """The calls and streams that run or wait for a slot."""
        self.idle: asyncio.Future[None] | None = None
        """Done once nothing is active; None while nobody waits for that."""
        self._nested = NestedCalls(registry, remote)

    @property
    def in_flight(self) -> int:
        """Number of calls and streams that run or wait for a slot."""
        return len(self.active)

    def measures(self) -> Iterator[Measure]:
        """Return the present values."""
        yield Measure("operations_dispatcher_in_flight", self.in_flight)
        yield Measure("operations_dispatcher_waiting", self.slots.waiting.size)

    async def call(self, request: Request) -> ResponseEnvelope[Any]:
        """Run a call in the current task; raises a CallError no later than its deadline.

        `request.suspended` is called with what the call can be stopped by, once it waits for something.
        """
        self.authorize(request)
        slots = self.slots
        if slots.free > 0:
            slots.free -= 1
        else:
            await self._wait_for_slot(request)
        request.began = True
        self.active.add(request)
        entered = current_grant.set(request.grant)
        try:
            return await request.run(self.work(request))
        except BaseException as error:  # noqa: BLE001  # the caller gets a typed error, whatever it was
            raise self.explain(error, request)  # noqa: B904  # it has its cause
        finally:
            try:  # noqa: SIM105  # cheaper than `suppress` on the path of every call
                current_grant.reset(entered)
            except ValueError:  # a task that is destroyed is left in another context
                pass
            request.grant.ended = True
            self.forget(request)
            slots.release()

    async def stream(self, request: Request) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run a stream, pulled by its consumer in the consumer's task."""
        operation_id = request.operation_id
        operation = self.authorize(request)
        if self.slots.free > 0:
            self.slots.free -= 1
        else:
            await self._wait_for_slot(request)
        active = StreamDeadline(self, operation_id, until=request.until, idle=request.idle_timeout)
        self.active.add(active)
        stream = self.registry.run_stream(operation, request.input, self.context(request), "served")
        try:
            while True:
                entered = current_grant.set(request.grant)
                try:
                    envelope = await active.next(stream)
                except StopAsyncIteration:
                    return
                except CallError as error:
                    raise self.explain(error, request) from error.__cause__
                finally:
                    current_grant.reset(entered)
                yield envelope
        finally:
            try:
                if not getattr(stream, "ag_running", False):  # one that still runs was abandoned
                    await active.close(stream.aclose)
            finally:
                request.grant.ended = True
                self.forget(active)
                self.slots.release()

    def start(self, request: Request, ended: Ended, emit: Emit | None = None) -> None:
        """Run a call in a task of its own and report how it ended; with `emit`, a stream.

        Raises a CallError where the request is refused: then nothing runs and nothing is reported.
        """
        self.authorize(request)
        request.ended, request.emit = ended, emit
        slots = self.slots
        if slots.free > 0:
            slots.free -= 1
            self.active.add(request)
            self.tasks.start(request)
        elif slots.enqueue(request):
            self.active.add(request)
            if request.until is not None:
                request.bucket = self.wheel.add(request, max(0.0, request.until - time.time()))
        else:
            raise self._tell(request, self.refuse(request))

    def authorize(self, request: Request) -> Operation[Any]:
        """Return the operation; raise where it is not here, the caller may not call it, or the deadline has passed."""
        request.host = self
        operation = request.operation = self.registry.operations.get(request.operation_id)
        if operation is None:
            raise self._tell(request, self.registry.not_found(request.operation_id))
        access = operation.spec.access_control
        if access is not OPEN and not (decision := check_access(access, request.grant.identity)).allowed:
            raise self._tell(request, access_error(operation.id, decision, request.grant.identity))
        if request.deadline is not None:
            until, now = request.deadline / 1000, time.time()
            if request.sent_at is not None:
                # However the clocks of the two machines differ, the caller meant no more time than this.
                until = min(until, now + (request.deadline - request.sent_at) / 1000)
            if until <= now:
                raise self._tell(request, self._too_late(request))
            request.until = until
        return operation

    async def drain(self, grace: float) -> None:
        """Wait until nothing runs, at most `grace` seconds."""
        if self.active:
            self.idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self.idle,), timeout=grace)

    async def close(self) -> None:
        """End everything that runs or waits, and give handlers a moment to clean up."""
        own = asyncio.current_task()  # a handler may close its own dispatcher
        tasks = [active.task for active in self.active if isinstance(active, Request) and active.task is not None]
        for active in list(self.active):
            active.stop(unavailable(active.operation_id, _CLOSING, _executed(active)))
        waiting = [task for task in tasks if task is not own]
        if waiting:
            await asyncio.wait(waiting, timeout=_CLEANED_UP_WITHIN)

    def _too_late(self, request: Request) -> CallError:
        self.counters.expired += 1
        clocks: dict[str, Any] = {}
        if request.sent_at is not None:
            clocks = {"deadline": request.deadline, "sentAt": request.sent_at, "workerTime": now_ms()}
        return timed_out(request.operation_id, "no", "before the call began", **clocks)

    async def _wait_for_slot(self, request: Request) -> None:
        operation_id = request.operation_id
        deadline = _QueueDeadline(
            host=self, operation_id=operation_id, until=request.until, suspended=request.suspended
        )
        self.active.add(deadline)
        try:
            if not await deadline.run(Turn(self.slots).come()):
                raise self.refuse(request)
        except CallError as error:
            raise self._tell(request, error) from error.__cause__
        finally:
            self.active.discard(deadline)

    def refuse(self, request: Request) -> CallError:
        """Count a request that there is no place for, and return its error."""
        self.counters.rejected += 1
        return unavailable(request.operation_id, "the worker has too many requests waiting", "no")

    def _tell(self, request: Request, error: CallError) -> CallError:
        self.tell_refusal(request, error)
        return error

    def tell_refusal(self, request: Request, error: CallError) -> None:
        """Tell observers of a request that never ran."""
        observers = active_observers(self.registry.observers)
        if observers:
            operation = request.operation
            call = Call(
                operation_id=request.operation_id,
                spec=None if operation is None else operation.spec,
                kind="served",
                streaming=False,
                request_id=request.id or new_request_id(),
                parent_request_id=request.parent_id,
                identity=request.grant.identity,
                deadline=request.deadline,
                metadata=request.metadata or {},
                input=request.input,
            )
            Watch(observers, call).end(error)

    def work(self, request: Request) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Return the coroutine that runs the operation."""
        operation, registry = request.operation, self.registry
        assert operation is not None
        # The context is made only where some code looks at it.
        wanted = operation.wants_context or registry.interceptors or registry.observers or SDK in modules
        context = self.context(request) if wanted else None
        return registry.run(operation, request.input, context, "served")

    def context(self, request: Request) -> OperationContext:
        """Return the context of a call."""
        if not request.id:
            request.id = new_request_id()
        return self._nested.context(
            request.grant,
            request.id,
            request.parent_id,
            request.deadline,
            request.metadata,
            request.progress,
            request.client,
        )

    def explain(self, error: BaseException, request: Request) -> BaseException:
        """Return what the caller sees for an exception, and log the traceback of an unexpected one."""
        operation_id = request.operation_id
        told = translate(error, operation_id)
        if not isinstance(told, CallError):
            return told
        cause = told.__cause__
        if told.code is ErrorCode.EXECUTION_ERROR and cause is not None and not isinstance(cause, CallError):
            request_id = request.id or new_request_id()
            fields = {"operation": operation_id, "request_id": request_id}
            _log.error("%s failed (request %r)", operation_id, request_id, exc_info=cause, extra=fields)
        return mark_executed(told, operation_id)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Count a handler that ignored its cancellation."""
        self.counters.abandoned += 1
        self.registry.abandon(task)

    def forget(self, active: _Active) -> None:
        """Count a call as ended."""
        self.active.discard(active)
        if self.idle is not None and not self.active and not self.idle.done():
            self.idle.set_result(None)


class _QueueDeadline(Deadline):
    """The deadline of a call that waits for a slot."""

    def explain(self) -> CallError:
        """Return the error of a call that never began."""
        return timed_out(self.operation_id, "no", "before the call began")


def _executed(active: _Active) -> Executed:
    if isinstance(active, _QueueDeadline) or (isinstance(active, Request) and not active.began):
        return "no"
    return "unknown"


class EagerTasks:
    """Starts tasks whose first step is taken immediately: from Python 3.12 on.

    Handlers that compute before their first wait hold up what arrived behind them. Once some did, the next calls queue,
    and start in turns of their callers.
    """

    def __init__(self) -> None:
        self.waiting: FairQueue[Request] = FairQueue()
        """Calls that have a slot and wait for their task."""
        self._slow = 0
        """How many calls in a row did not start quickly."""
        self._is_paced = False
        """Whether calls queue: `_next_turn` is scheduled."""

    def start(self, request: Request) -> None:
        """Start the task of a call, now or in one of the next iterations."""
        if self._is_paced:
            self.waiting.add(request)
            return
        request.began = True
        loop, began = asyncio.get_running_loop(), perf_counter()
        task = asyncio.Task(request.serve(), loop=loop, eager_start=True)  # type: ignore[call-arg]
        if not request.is_over:
            request.task = task
        if perf_counter() - began < _QUICK_SECONDS:
            self._slow = 0
        else:
            self._slow += 1
            if self._slow >= _SLOW_STARTS and not self._is_paced:
                self._is_paced = True
                loop.call_soon(self._next_turn, loop)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        end = perf_counter() + _ITERATION_SECONDS
        while self.waiting.size and perf_counter() < end:
            request = self.waiting.pop()
            if _has_expired(request):
                continue
            request.began = True
            task = asyncio.Task(request.serve(), loop=loop, eager_start=True)  # type: ignore[call-arg]
            if not request.is_over:
                request.task = task
        self._is_paced = self.waiting.size > 0
        if self._is_paced:
            loop.call_soon(self._next_turn, loop)


class PacedTasks:
    """Starts tasks whose first step is taken in the next iteration of the loop: on Python 3.11.

    All tasks that are ready run before any timer does. So that handlers which compute cannot hold up heartbeats and
    deadlines, an iteration starts only as many as fit in 10 ms, by what the one before took. The others queue, and
    start in turns of their callers.
    """

    def __init__(self) -> None:
        self.waiting: FairQueue[Request] = FairQueue()
        """Calls that have a slot and wait for their task."""
        self._most = self._left = _FIRST_TASKS
        self._began = 0.0
        self._is_scheduled = False

    def start(self, request: Request) -> None:
        """Start the task of a call, now or in one of the next iterations."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled, self._began = True, loop.time()
            loop.call_soon(self._next_iteration, loop)
        if self._left <= 0:
            self.waiting.add(request)
        else:
            self._left -= 1
            request.began = True
            request.task = asyncio.Task(request.serve(), loop=loop)

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        was_idle = self._left == self._most and not self.waiting.size
        began, self._began = self._began, loop.time()
        fitting = int(self._most * _ITERATION_SECONDS / max(self._began - began, 1e-6))
        self._most = max(1, min(fitting, self._most * 2, _FAIRNESS))
        self._left = self._most
        while self.waiting.size and self._left > 0:
            request = self.waiting.pop()
            if _has_expired(request):
                continue
            self._left -= 1
            request.began = True
            request.task = asyncio.Task(request.serve(), loop=loop)
        self._is_scheduled = not was_idle
        if self._is_scheduled:
            loop.call_soon(self._next_iteration, loop)


def _has_expired(request: Request) -> bool:
    """End a call whose deadline passed while it waited for its task."""
    if not request.has_passed:
        return False
    request.expire()
    request.host.slots.release()
    return True


_Tasks = EagerTasks if sys.version_info >= (3, 12) else PacedTasks
