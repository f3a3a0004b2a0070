"""Dispatcher: runs external calls, independent of their transport.

Its steps: authorise → acquire a slot → set the deadline → run → report the outcome. The server or transport that
received the request decodes it and authenticates its caller before these steps, and encodes the outcome afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any, Protocol

from operations.access import access_error, check_access
from operations.context import Client, Grant, OperationContext, Progress, current_grant, new_request_id
from operations.deadlines import Bucket, Deadline, StreamDeadline, now_ms
from operations.dispatch.nested_calls import DispatchRegistry, NestedCalls, RemoteCalls
from operations.dispatch.queueing import Backpressure, Slots, SlotWaiter, Tasks
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import Executed, aborted, mark_executed, timed_out, translate, unavailable
from operations.spec import OPEN, Operation
from operations.telemetry.call_records import caller_name
from operations.telemetry.counters import Counters
from operations.telemetry.metrics import Measure
from operations.telemetry.observer import Call, CallQueued, ObservedCall, notify
from operations.telemetry.tracing import SDK, active_observers, modules

_log = logging.getLogger("operations")
CONCURRENCY = 1_024
"""Default for the number of calls that run at the same time."""
QUEUE = 100_000
"""Default for the number of calls that wait for a slot."""
_FAIRNESS = 64
"""A stream lets other work of the event loop run after each group of this many items."""
_CLEANED_UP_WITHIN = 1.0
"""Seconds for which `close` waits for cancelled handlers."""
_CLOSING = "the worker is shutting down"


class _ActiveCall(Protocol):
    """A call that runs or waits for a slot."""

    @property
    def operation_id(self) -> str:
        """The id of the called operation."""

    @property
    def id(self) -> str:
        """The request id; empty if there is none."""

    @property
    def grant(self) -> Grant | None:
        """The grant of the request."""

    def stop(self, error: CallError) -> None:
        """End the call with an error."""


Ended = Callable[[ResponseEnvelope[Any] | None, CallError | None], None]
"""Callback for the end of a call: an envelope, an error, or neither for a stream that completed."""
Emit = Callable[[ResponseEnvelope[Any]], Awaitable[None] | None]
"""Callback for each item of a stream; an awaitable that it returns is awaited before the next item."""


class Request(Deadline, kw_only=True):
    """One external call, decoded and authenticated. It is also the `Deadline` that ends the call in time."""

    host: Dispatcher = None  # type: ignore[assignment]
    """The dispatcher that runs the call; `Dispatcher.authorize` sets this field."""
    input: Any = None
    id: str = ""
    parent_id: str | None = None
    grant: Grant
    """The grant of the call: it has the identity that the call runs as. Nested calls present the grant."""
    caller: str = ""
    """The key of the caller's queue. Each caller has a separate queue; slots go to the queues in turn."""
    deadline: int | None = None
    """Time at which the call fails with `TIMEOUT`, in epoch milliseconds."""
    sent_at: int | None = None
    """Time at which the caller sent the request, by the caller's clock; epoch milliseconds."""
    idle_timeout: float | None = None
    """Seconds without an item after which a stream fails."""
    metadata: Mapping[str, Any] | None = None
    progress: Progress | None = None
    """Callback for the progress that the handler reports."""
    client: Client | None = None
    """The interface through which the handler asks its caller questions; None if that is not possible."""
    operation: Operation[Any] | None = None
    """The called operation. The dispatcher sets this field and all fields below."""
    ended: Ended | None = None
    emit: Emit | None = None
    began: bool = False
    """Whether the handler has started."""
    is_stopped: bool = False
    """Whether the call was ended from outside: by its deadline, an abort or a shutdown."""
    is_over: bool = False
    """Whether the end of the call was reported."""
    task: asyncio.Task[None] | None = None
    bucket: Bucket | None = None

    def begin(self) -> None:
        """Start a call that waited for a slot, unless its deadline passed while it was queued."""
        host = self.host
        if self.bucket is not None:
            self.bucket.discard(self)
            if self.ends_expired():
                return
        host.active.add(self)
        host.tasks.start(self)

    def ends_expired(self) -> bool:
        """End the call if its deadline passed before its task started; return whether the call was ended."""
        if not self.has_passed:
            return False
        self.expire()
        self.host.slots.release(self.caller)
        return True

    def refuse(self) -> None:
        """End a call that waits for a slot, to make room in the queue."""
        self.stop(self.host.refuse(self))

    def expire(self) -> None:
        """End a call whose deadline has passed; a call that was still queued never runs."""
        if not self.began:
            self.host.counters.expired += 1
        self.stop(self.explain())

    def explain(self) -> CallError:
        """Return the error of a call whose deadline has passed."""
        if self.began:
            return timed_out(self.operation_id, "unknown")
        return timed_out(self.operation_id, "no", "before the call began")

    def stop(self, error: CallError) -> None:
        """Cancel the handler, or the wait for a slot, and report `error`."""
        self.is_stopped = True
        if self.began or self.ended is None:  # without `ended` the call runs in its caller's task, which gets the error
            Deadline.stop(self, error)
        elif not self.is_over:
            host = self.host
            host.slots.waiting.discard(self)
            has_slot = host.tasks.waiting.discard(self)
            if self.bucket is not None:
                self.bucket.discard(self)
            host.forget(self)
            host.report_refusal(self, error)
            self.is_over = True
            self.ended(None, error)
            if has_slot:
                host.slots.release(self.caller)

    async def serve(self) -> None:
        """Run the call and report its end; the task of the call runs this coroutine."""
        current_grant.set(self.grant)
        try:
            envelope = await self.run(self.host.work(self) if self.emit is None else self._pump(self.emit))
            if self.host.backpressure.is_on and self.emit is None:
                await self.run(self.host.backpressure.wait(self.caller))
        except BaseException as error:  # noqa: BLE001  # the caller gets a response for every exception
            if self.host.backpressure.is_on and not self.is_stopped and isinstance(error, Exception):
                error = await self._delay(error)
            self._end(None, error)
        else:
            self._end(envelope, None)

    async def _delay(self, error: Exception) -> BaseException:
        """Wait until the transport can send the response with `error`, which may be large.

        Return `error`, or the exception that ended the wait.
        """
        try:
            await self.run(self.host.backpressure.wait(self.caller))
        except BaseException as stopped:  # noqa: BLE001  # the caller gets a response for every exception
            return stopped
        return error

    def leave(self) -> None:
        """Remove this call from the active calls after it has run, and release its slot."""
        if self.task is not None:
            self.task = None
        self.grant.ended = True
        host = self.host
        host.active.discard(self)
        if host.idle is not None:
            host.forget(self)
        slots = host.slots  # `Slots.release`, inlined for speed: every call ends here
        slots.free += 1
        slots.used[self.caller] -= 1
        if slots.waiting.size:
            slots.start_waiting()

    def _end(self, envelope: ResponseEnvelope[Any] | None, raised: BaseException | None) -> None:
        self.leave()
        self.is_over = True
        if self.ended is not None:
            self.ended(envelope, None if raised is None else self._final(raised))

    async def _pump(self, emit: Emit) -> None:
        """Emit each item of the stream, no faster than the receiver accepts them."""
        host, operation = self.host, self.operation
        assert operation is not None
        stream = host.registry.run_stream(operation, self.input, host.context(self), "served")
        async with contextlib.aclosing(stream):
            count = 0
            async for envelope in stream:
                if host.backpressure.is_on:
                    await host.backpressure.wait(self.caller)
                taken = emit(envelope)
                if taken is not None:
                    await taken
                count += 1
                if count % _FAIRNESS == 0:
                    # A generator that never suspends must not block the event loop.
                    await asyncio.sleep(0)

    def _final(self, error: BaseException) -> CallError:
        translated = self.host.explain(error, self)
        if isinstance(translated, CallError):
            return translated
        if isinstance(translated, asyncio.CancelledError):
            return aborted(self.operation_id, "cancelled")
        kind = type(translated).__name__
        return CallError(ErrorCode.EXECUTION_ERROR, f"{self.operation_id}: {kind}", {"type": kind})


class Dispatcher:
    """Runs external calls: at most `concurrency` at a time; up to `queue` more wait.

    `call` and `stream` run in the current task; `start` creates a task. When the queue is full, a new request is
    refused, or takes the place of a request of the caller with the most queued ones. `remote` makes nested calls of
    operations that the registry does not have.
    """

    def __init__(
        self,
        registry: DispatchRegistry,
        *,
        concurrency: int = CONCURRENCY,
        queue: int = QUEUE,
        counters: Counters | None = None,
        remote: RemoteCalls | None = None,
    ) -> None:
        self.registry = registry
        self.wheel = registry.wheel
        self.slots = Slots(concurrency, queue)
        self.tasks = Tasks()
        self.backpressure = Backpressure()
        """Delays the responses of calls that `start` runs."""
        self.counters = counters or Counters(lambda: self.in_flight)
        self.active: set[_ActiveCall] = set()
        """The calls and streams that run or wait for a slot."""
        self.idle: asyncio.Future[None] | None = None
        """Future that is done when no call is active; `drain` creates it."""
        self._nested = NestedCalls(registry, remote)

    @property
    def in_flight(self) -> int:
        """Number of calls and streams that run or wait for a slot."""
        return len(self.active)

    def measures(self) -> Iterator[Measure]:
        """Return the metrics of this dispatcher."""
        yield Measure("operations_dispatcher_in_flight", self.in_flight)
        yield Measure("operations_dispatcher_waiting", self.slots.waiting.size)

    async def call(self, request: Request) -> ResponseEnvelope[Any]:
        """Run a call in the current task; raise `TIMEOUT` when its deadline passes.

        A handler that ignores its cancellation may delay the error by `GRACE_SECONDS`.

        When the call first suspends, `request.suspended` is called with an object whose `stop` method ends the call.
        """
        self.authorize(request)
        if not self.slots.take(request.caller):
            await self._wait_for_slot(request)
        request.began = True
        self.active.add(request)
        entered = current_grant.set(request.grant)
        try:
            return await request.run(self.work(request))
        except BaseException as error:  # noqa: BLE001  # the caller gets a typed error for every exception
            raise self.explain(error, request)  # noqa: B904  # `explain` sets the cause
        finally:
            try:  # noqa: SIM105  # cheaper than `suppress` on the path of every call
                current_grant.reset(entered)
            except ValueError:  # the coroutine of a destroyed task is closed in another context
                pass
            request.leave()

    async def stream(self, request: Request) -> AsyncGenerator[ResponseEnvelope[Any], None]:
        """Run a stream in the consumer's task: the next item is produced when the consumer requests it."""
        operation_id = request.operation_id
        operation = self.authorize(request)
        if not self.slots.take(request.caller):
            await self._wait_for_slot(request)
        active = StreamDeadline(self, operation_id, until=request.until, idle=request.idle_timeout)
        self.active.add(active)
        stream = self.registry.run_stream(operation, request.input, self.context(request), "served")
        active.id, active.grant = request.id, request.grant
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
                if not getattr(stream, "ag_running", False):  # a generator that still runs was abandoned
                    await active.close(stream.aclose)
            finally:
                request.grant.ended = True
                self.forget(active)
                self.slots.release(request.caller)

    def start(self, request: Request, ended: Ended, emit: Emit | None = None) -> None:
        """Run a call, or with `emit` a stream, in a separate task, and report its end.

        Raise a CallError if the request is refused; then nothing runs, and neither `ended` nor `emit` is called.
        """
        self.authorize(request)
        request.ended = ended
        if emit is not None:
            request.emit = emit
        if self.slots.take(request.caller):
            self.active.add(request)
            self.tasks.start(request)
        elif self.slots.enqueue(request):
            self.active.add(request)
            if request.until is not None:
                request.bucket = self.wheel.add(request, max(0.0, request.until - time.time()))
            self._report_queued(request)
        else:
            raise self._refused(request, self.refuse(request))

    def authorize(self, request: Request) -> Operation[Any]:
        """Return the operation; raise a CallError if it is unknown or forbidden, or if the deadline has passed."""
        request.host = self
        operation = request.operation = self.registry.operations.get(request.operation_id)
        if operation is None:
            raise self._refused(request, self.registry.not_found(request.operation_id))
        access = operation.spec.access_control
        if access is not OPEN and not (decision := check_access(access, request.grant.identity)).allowed:
            raise self._refused(request, access_error(operation.id, decision, request.grant.identity))
        if request.deadline is not None:
            until, now = request.deadline / 1000, time.time()
            if request.sent_at is not None:
                # The caller's clock may differ from this machine's clock. The interval between sending and deadline is
                # still right: both of its ends are times of the caller's clock.
                allowed = now + (request.deadline - request.sent_at) / 1000
                until = allowed if allowed < until else until  # `min` would be a call
            if until <= now:
                raise self._refused(request, self._too_late(request))
            request.until = until
        return operation

    def cancel(self, request_id: str, caller: str | None, reason: str) -> bool:
        """End a running or queued call that the identity `caller` made; its caller gets `ABORTED`.

        Return whether such a call was found. The request id alone does not identify a call, because peers choose their
        request ids.
        """
        for active in self.active:
            if active.id == request_id and active.grant is not None and caller_name(active.grant.identity) == caller:
                active.stop(aborted(active.operation_id, reason, _executed(active)))
                return True
        return False

    async def drain(self, grace: float) -> None:
        """Wait until no call runs or is queued, at most `grace` seconds."""
        if self.active:
            self.idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self.idle,), timeout=grace)

    async def close(self) -> None:
        """End all calls that run or are queued, and give their handlers time to clean up."""
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
        self._report_queued(request)
        self.active.add(request)
        try:
            if not await request.run(SlotWaiter(self.slots, request.caller).acquire()):
                raise self.refuse(request)
        except CallError as error:
            raise self._refused(request, error) from error.__cause__
        except asyncio.CancelledError:
            self.report_refusal(request, aborted(request.operation_id, "cancelled"))
            raise
        finally:
            self.active.discard(request)

    def refuse(self, request: Request) -> CallError:
        """Count a request that is refused because the queue is full, and return its error."""
        self.counters.rejected += 1
        return unavailable(request.operation_id, "the worker has too many requests waiting", "no")

    def _refused(self, request: Request, error: CallError) -> CallError:
        self.report_refusal(request, error)
        return error

    def report_refusal(self, request: Request, error: CallError) -> None:
        """Report to the observers a request that never ran."""
        observers = active_observers(self.registry.observers)
        if observers:
            ObservedCall(observers, _describe(request)).end(error)

    def _report_queued(self, request: Request) -> None:
        """Report to the observers a request that waits for a slot."""
        if self.registry.observers:
            request.id = request.id or new_request_id()
            notify(self.registry.observers, CallQueued(_describe(request)))

    def work(self, request: Request) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        """Return the coroutine that runs the operation."""
        operation, registry = request.operation, self.registry
        assert operation is not None
        # Creating a context takes time: skip it if nothing uses the context.
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
        """Return the error that the caller gets for an exception; log the traceback of an unexpected exception."""
        operation_id = request.operation_id
        translated = translate(error, operation_id)
        if not isinstance(translated, CallError):
            return translated
        cause = translated.__cause__
        if translated.code is ErrorCode.EXECUTION_ERROR and cause is not None and not isinstance(cause, CallError):
            request_id = request.id or new_request_id()
            fields = {"operation": operation_id, "request_id": request_id}
            _log.error("%s failed (request %r)", operation_id, request_id, exc_info=cause, extra=fields)
        return mark_executed(translated, operation_id)

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Count a handler that ignores its cancellation."""
        self.counters.abandoned += 1
        self.registry.abandon(task)

    def forget(self, active: _ActiveCall) -> None:
        """Remove a call that has ended from the active calls; wake `drain` if it was the last one."""
        self.active.discard(active)
        if self.idle is not None and not self.active and not self.idle.done():
            self.idle.set_result(None)


def _describe(request: Request) -> Call:
    """Return the description of a request that has not begun, for observers."""
    operation = request.operation
    return Call(
        operation_id=request.operation_id,
        spec=None if operation is None else operation.spec,
        kind="served",
        streaming=False,
        request_id=request.id or new_request_id(),
        parent_request_id=request.parent_id,
        identity=request.grant.identity,
        protocol=request.grant.protocol,
        deadline=request.deadline,
        metadata=request.metadata or {},
        input=request.input,
    )


def _executed(active: _ActiveCall) -> Executed:
    return "no" if isinstance(active, Request) and not active.began else "unknown"
