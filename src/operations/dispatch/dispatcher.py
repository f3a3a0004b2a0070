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
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from operations.access import require_access
from operations.context import Grant, OperationContext, current_grant
from operations.deadlines import Bucket, Deadline, StreamDeadline, now_ms
from operations.dispatch.nesting import NestedCalls, Remote
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import Executed, aborted, mark_executed, timed_out, translate, unavailable
from operations.registry import OperationRegistry
from operations.spec import OPEN, Operation
from operations.telemetry import tracing
from operations.telemetry.counters import Counters

_log = logging.getLogger("operations")
CONCURRENCY = 1_024
QUEUE = 100_000
_FAIRNESS = 64
"""How many items or calls are handled before others get their turn."""
_ITERATION_SECONDS = 0.01
_FIRST_TASKS = 8
_CLEANED_UP_WITHIN = 1.0
_CLOSING = "the worker is shutting down"


class Request(msgspec.Struct, kw_only=True):
    """One call from elsewhere, decoded and authenticated."""

    operation_id: str
    input: Any = None
    id: str = ""
    parent_id: str | None = None
    grant: Grant
    """Whom the call is for; nested calls are made with it."""
    deadline: int | None = None
    """Epoch milliseconds."""
    sent_at: int | None = None
    """When the caller sent it, by the caller's clock."""
    idle_timeout: float | None = None
    """Seconds for which a stream may be silent."""
    metadata: Mapping[str, Any] | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How a call ended: an envelope, an error, or neither for a stream that completed."""

    envelope: ResponseEnvelope[Any] | None = None
    error: CallError | None = None


class _Active(Protocol):
    """A call that runs or waits for a slot."""

    @property
    def operation_id(self) -> str:
        """The operation that is called."""

    def stop(self, error: CallError) -> None:
        """End it with an error."""


Ended = Callable[[Outcome], None]
Emit = Callable[[ResponseEnvelope[Any]], Awaitable[None] | None]
"""Called with each item of a stream; what it returns is awaited before the next one."""


class Dispatcher:
    """Runs calls from elsewhere: at most `concurrency` at a time, `queue` more wait.

    `call` and `stream` run in their caller's task; `start` makes a task. Requests beyond the queue are refused.
    `remote` is asked for nested calls of operations that the registry does not have.
    """

    def __init__(
        self,
        registry: OperationRegistry,
        *,
        concurrency: int = CONCURRENCY,
        queue: int = QUEUE,
        counters: Counters | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.registry = registry
        self.slots = Slots(concurrency, queue)
        self.tasks = _Tasks()
        self.counters = counters or Counters(lambda: self.in_flight)
        self._nested = NestedCalls(registry, remote)
        self._active: set[_Active] = set()
        self._idle: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> int:
        """Number of calls and streams that run or wait for a slot."""
        return len(self._active)

    async def call(self, request: Request) -> ResponseEnvelope[Any]:
        """Run a call in the current task; raises a CallError no later than its deadline."""
        operation = self.authorize(request)
        until = self._check_time(request)
        if not self.slots.take():
            await self._wait_for_slot(request.operation_id, until)
        deadline = Deadline(
            wheel=self.registry.wheel, operation_id=request.operation_id, until=until, abandoned=self._abandon
        )
        self._active.add(deadline)
        entered = current_grant.set(request.grant)
        try:
            return await deadline.run(self._work(operation, request))
        except BaseException as error:  # noqa: BLE001  # the caller gets a typed error, whatever it was
            raise self._explain(error, request.operation_id)  # noqa: B904  # it has its cause
        finally:
            with contextlib.suppress(ValueError):  # a task that is destroyed is left in another context
                current_grant.reset(entered)
            request.grant.ended = True
            self._leave(deadline)

    async def stream(self, request: Request) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run a stream, pulled by its consumer in the consumer's task."""
        operation_id = request.operation_id
        operation = self.authorize(request)
        until = self._check_time(request)
        if not self.slots.take():
            await self._wait_for_slot(operation_id, until)
        wheel = self.registry.wheel
        active = StreamDeadline(wheel, operation_id, self._abandon, until=until, idle=request.idle_timeout)
        self._active.add(active)
        stream = self.registry.run_stream(operation, request.input, self._context(operation, request))
        try:
            while True:
                entered = current_grant.set(request.grant)
                try:
                    envelope = await active.next(stream)
                except StopAsyncIteration:
                    return
                except CallError as error:
                    raise self._explain(error, operation_id) from error.__cause__
                finally:
                    current_grant.reset(entered)
                yield envelope
        finally:
            try:
                if not getattr(stream, "ag_running", False):  # one that still runs was abandoned
                    await active.close(stream.aclose)
            finally:
                request.grant.ended = True
                self._leave(active)

    def start(self, request: Request, ended: Ended, emit: Emit | None = None) -> Running:
        """Run a call in a task of its own and report how it ended; with `emit`, a stream.

        Raises a CallError where the request is refused: then nothing runs and nothing is reported.
        """
        operation = self.authorize(request)
        until = self._check_time(request)
        running = Running(
            wheel=self.registry.wheel,
            operation_id=request.operation_id,
            until=until,
            abandoned=self._abandon,
            dispatcher=self,
            operation=operation,
            request=request,
            ended=ended,
            emit=emit,
        )
        if self.slots.take():
            running.begin()
        elif self.slots.is_full:
            raise self._refuse(request.operation_id)
        else:
            running.enqueue()
        return running

    def authorize(self, request: Request) -> Operation[Any]:
        """Return the operation; raise where it is not here or the caller may not call it."""
        operation = self.registry.operations.get(request.operation_id)
        if operation is None:
            raise self.registry.not_found(request.operation_id)
        if operation.spec.access_control != OPEN:
            require_access(operation.spec, request.grant.identity)
        return operation

    async def drain(self, grace: float) -> None:
        """Wait until nothing runs, at most `grace` seconds."""
        if self._active:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=grace)

    async def close(self) -> None:
        """End everything that runs or waits, and give handlers a moment to clean up."""
        own = asyncio.current_task()  # a handler may close its own dispatcher
        tasks = [active.task for active in self._active if isinstance(active, Running) and active.task is not None]
        for active in list(self._active):
            active.stop(unavailable(active.operation_id, _CLOSING, _executed(active)))
        waiting = [task for task in tasks if task is not own]
        if waiting:
            await asyncio.wait(waiting, timeout=_CLEANED_UP_WITHIN)

    def _check_time(self, request: Request) -> float | None:
        """Return when the call ends, in epoch seconds; refuse a request whose deadline has passed."""
        if request.deadline is None:
            return None
        until, now = request.deadline / 1000, time.time()
        if request.sent_at is not None:
            # However the clocks of the two machines differ, the caller meant no more time than this.
            until = min(until, now + (request.deadline - request.sent_at) / 1000)
        if until <= now:
            self.counters.expired += 1
            clocks: dict[str, Any] = {}
            if request.sent_at is not None:
                clocks = {"deadline": request.deadline, "sentAt": request.sent_at, "workerTime": now_ms()}
            raise timed_out(request.operation_id, "no", "before the call began", **clocks)
        return until

    async def _wait_for_slot(self, operation_id: str, until: float | None) -> None:
        if self.slots.is_full:
            raise self._refuse(operation_id)
        deadline = _QueueDeadline(
            wheel=self.registry.wheel, operation_id=operation_id, until=until, abandoned=self._abandon
        )
        self._active.add(deadline)
        try:
            await deadline.run(self.slots.wait())
        finally:
            self._active.discard(deadline)

    def _refuse(self, operation_id: str) -> CallError:
        self.counters.rejected += 1
        return unavailable(operation_id, "the worker has too many requests waiting", "no")

    def _work(self, operation: Operation[Any], request: Request) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Return the coroutine that runs the operation, in a span where tracing is set up."""
        work = self.registry.run(operation, request.input, self._context(operation, request))
        if tracing.SDK in sys.modules and tracing.is_active():
            return tracing.traced(work, operation.id, request.metadata, request.id)
        return work

    def _context(self, operation: Operation[Any], request: Request) -> OperationContext | None:
        """Return the context of a call; None where no code looks at it."""
        if not operation.wants_context and not self.registry.interceptors:
            return None
        return self._nested.context(request.grant, request.id, request.parent_id, request.deadline, request.metadata)

    def _explain(self, error: BaseException, operation_id: str) -> BaseException:
        """Return what the caller sees for an exception, and log the traceback of an unexpected one."""
        told = translate(error, operation_id)
        if not isinstance(told, CallError):
            return told
        cause = told.__cause__
        if told.code is ErrorCode.EXECUTION_ERROR and cause is not None and not isinstance(cause, CallError):
            _log.error("%s failed", operation_id, exc_info=cause)
        return mark_executed(told, operation_id)

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        self.counters.abandoned += 1
        self.registry.abandon(task)

    def _leave(self, active: _Active) -> None:
        """Forget a call that ended and give its slot back."""
        self.forget(active)
        self.slots.release()

    def forget(self, active: _Active) -> None:
        """Count a call as ended."""
        self._active.discard(active)
        if self._idle is not None and not self._active and not self._idle.done():
            self._idle.set_result(None)


class Waiter(Protocol):
    """A call that waits for a slot."""

    def begin(self) -> None:
        """Start: the slot is taken, and is given back with `release`."""


class Slots:
    """A bounded number of running calls and a bounded queue, first come first served."""

    def __init__(self, concurrency: int, queue: int) -> None:
        self._free = concurrency
        self._most_waiting = queue
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        self._starting = False

    @property
    def is_full(self) -> bool:
        """Whether all slots are taken and the queue is full."""
        return self._free <= 0 and len(self._waiting) >= self._most_waiting

    def take(self) -> bool:
        """Take a slot if one is free."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    def enqueue(self, waiter: Waiter) -> None:
        """Start `waiter` when a slot is free."""
        self._waiting[waiter] = None

    def withdraw(self, waiter: Waiter) -> None:
        """Remove a call from the queue."""
        self._waiting.pop(waiter, None)

    def release(self) -> None:
        """Give a slot back; the first call in the queue starts."""
        self._free += 1
        if self._waiting and not self._starting:
            self._start_waiting()

    async def wait(self) -> None:
        """Queue up and return once a slot is taken."""
        waiter = _Future()
        self.enqueue(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():
                self.release()
            else:
                self.withdraw(waiter)
            raise

    def _start_waiting(self) -> None:
        # A loop, not recursion: calls that end immediately release their slot within it, however many they are.
        self._starting = True
        try:
            while self._free > 0 and self._waiting:
                self._free -= 1
                waiter, _ = self._waiting.popitem(last=False)
                if isinstance(waiter, _Future) and waiter.granted.cancelled():
                    self._free += 1
                else:
                    waiter.begin()
        finally:
            self._starting = False


class _Future:
    """A coroutine that waits for a slot."""

    def __init__(self) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        self.granted.set_result(None)


class Running(Deadline, kw_only=True):
    """A call that has a task of its own, or waits for a slot to start one: its own deadline."""

    dispatcher: Dispatcher
    operation: Operation[Any]
    request: Request
    ended: Ended
    emit: Emit | None
    began: bool = False
    """Whether the handler was started."""
    is_over: bool = False
    """Whether the outcome was reported."""
    task: asyncio.Task[None] | None = None
    bucket: Bucket | None = None

    def enqueue(self) -> None:
        """Wait for a slot, no longer than the deadline."""
        self.dispatcher._active.add(self)
        self.dispatcher.slots.enqueue(self)
        if self.until is not None:
            self.bucket = self.wheel.add(self, max(0.0, self.until - time.time()))

    def begin(self) -> None:
        """Start: the slot is taken. A deadline that passed in the queue while the loop was busy is checked here."""
        dispatcher = self.dispatcher
        if self.bucket is not None:
            self.bucket.discard(self)
            if self.has_passed:
                self.expire()
                dispatcher.slots.release()
                return
        self.began = True
        dispatcher._active.add(self)
        dispatcher.tasks.start(self)

    def expire(self) -> None:
        """End a call whose deadline passed; one in the queue never runs."""
        if not self.began:
            self.dispatcher.counters.expired += 1
        self.stop(self.explain())

    def explain(self) -> CallError:
        """Return the error of a call whose deadline passed."""
        if self.began:
            return timed_out(self.operation_id, "unknown")
        return timed_out(self.operation_id, "no", "before the call began")

    def stop(self, error: CallError) -> None:
        """End the call: the handler is cancelled, and `error` is the outcome."""
        if self.began:
            Deadline.stop(self, error)
        elif not self.is_over:
            self.dispatcher.slots.withdraw(self)
            if self.bucket is not None:
                self.bucket.discard(self)
            self.dispatcher.forget(self)
            self._report(Outcome(error=error))

    async def serve(self) -> None:
        """Run the call and report its outcome: the task of this call."""
        current_grant.set(self.request.grant)
        try:
            envelope = await self.run(self._run())
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises, its caller gets an answer
            self._leave()
            self._report(Outcome(error=self._final(error)))
        else:
            self._leave()
            self._report(Outcome(envelope))

    def _leave(self) -> None:
        self.task = None
        self.request.grant.ended = True
        self.dispatcher._leave(self)

    def _run(self) -> Coroutine[Any, Any, ResponseEnvelope[Any] | None]:
        return self.dispatcher._work(self.operation, self.request) if self.emit is None else self._pump(self.emit)

    async def _pump(self, emit: Emit) -> None:
        """Hand over each item of the stream, as fast as it is taken."""
        dispatcher, operation, request = self.dispatcher, self.operation, self.request
        with tracing.server_span(operation.id, request.metadata, request.id):
            stream = dispatcher.registry.run_stream(operation, request.input, dispatcher._context(operation, request))
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
        told = self.dispatcher._explain(error, self.operation_id)
        if isinstance(told, CallError):
            return told
        if isinstance(told, asyncio.CancelledError):
            return aborted(self.operation_id, "cancelled")
        kind = type(told).__name__
        return CallError(ErrorCode.EXECUTION_ERROR, f"{self.operation_id}: {kind}", {"type": kind})

    def _report(self, outcome: Outcome) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended(outcome)


class _QueueDeadline(Deadline):
    """The deadline of a call that waits for a slot."""

    def explain(self) -> CallError:
        """Return the error of a call that never began."""
        return timed_out(self.operation_id, "no", "before the call began")


def _executed(active: _Active) -> Executed:
    if isinstance(active, _QueueDeadline) or (isinstance(active, Running) and not active.began):
        return "no"
    return "unknown"


class EagerTasks:
    """Starts tasks whose first step is taken immediately: from Python 3.12 on."""

    def start(self, running: Running) -> None:
        """Start the task of a call."""
        loop = asyncio.get_running_loop()
        task = asyncio.Task(running.serve(), loop=loop, eager_start=True)  # type: ignore[call-arg]
        if not running.is_over:
            running.task = task


class PacedTasks:
    """Starts tasks whose first step is taken in the next iteration of the loop: on Python 3.11.

    All tasks that are ready run before any timer does. So that handlers which compute cannot hold up heartbeats and
    deadlines, an iteration starts only as many as fit in 10 ms, by what the one before took.
    """

    def __init__(self) -> None:
        self._waiting: deque[Running] = deque()
        self._most = self._left = _FIRST_TASKS
        self._began = 0.0
        self._is_scheduled = False

    def start(self, running: Running) -> None:
        """Start the task of a call, now or in one of the next iterations."""
        if not self._is_scheduled:
            loop = asyncio.get_running_loop()
            self._is_scheduled, self._began = True, loop.time()
            loop.call_soon(self._next_iteration, loop)
        if self._left <= 0:
            self._waiting.append(running)
        else:
            self._left -= 1
            running.task = asyncio.get_running_loop().create_task(running.serve())

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        was_idle = self._left == self._most and not self._waiting
        began, self._began = self._began, loop.time()
        fitting = int(self._most * _ITERATION_SECONDS / max(self._began - began, 1e-6))
        self._most = max(1, min(fitting, self._most * 2, _FAIRNESS))
        self._left = self._most
        while self._waiting and self._left > 0:
            self._left -= 1
            running = self._waiting.popleft()
            running.task = loop.create_task(running.serve())
        self._is_scheduled = not was_idle
        if self._is_scheduled:
            loop.call_soon(self._next_iteration, loop)


_Tasks = EagerTasks if sys.version_info >= (3, 12) else PacedTasks
