"""Calls within one process: the same rules as over a bus, by reference, in the caller's own task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from operations.calls import tracing
from operations.calls.deadlines import now_ms, remaining_seconds
from operations.calls.events import Requested
from operations.calls.failures import of_handler, timed_out, unavailable
from operations.calls.workplace import Workplace
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.guard import Guard, drive
from operations.spec import Operation


class DirectTarget:
    """A CallHandler as callers of the same process reach it."""

    def __init__(self, handler: Workplace) -> None:
        self._handler = handler
        self._guards: set[Guard] = set()
        self._streams: set[_StreamEnd] = set()
        self._strays: set[asyncio.Task[Any]] = set()
        handler.endpoint.direct.append(self)

    @property
    def in_flight(self) -> int:
        """How many calls run here."""
        return len(self._guards) + len(self._streams)

    def stop(self) -> None:
        """End whatever still runs, and count no more."""
        if self in self._handler.endpoint.direct:
            self._handler.endpoint.direct.remove(self)
        reason = "the worker is shutting down"
        for guard in list(self._guards):
            guard.stop(reason)
        for stream in list(self._streams):
            stream.stop(reason)

    async def execute(self, request: Requested, timeout: float) -> ResponseEnvelope[Any]:
        """One call, awaited in place and ended at its deadline."""
        handler = self._handler
        endpoint, operation_id, deadline = handler.endpoint, request.operation_id, request.deadline
        operation = handler.admit(operation_id, request.identity)
        seconds = timeout if deadline is None else remaining_seconds(deadline)
        if seconds <= 0:
            endpoint.counters.expired += 1
            raise timed_out(operation_id, "no", "before the call began")
        guard = Guard(asyncio.current_task(), self._keep_stray)  # type: ignore[arg-type]
        bucket = endpoint.deadlines.add(guard, seconds)
        self._guards.add(guard)
        placed = False
        try:
            placed = handler.take_place() or await self._wait_for_place(operation_id)
            registry = handler.registry
            if not operation.wants_context and not registry.has_interceptors and not tracing.is_active():
                envelope: ResponseEnvelope[Any] = await drive(registry.execute_found(operation, request.input), guard)
                return envelope
            if deadline is None:
                request.deadline = now_ms() + int(timeout * 1000)
            return await self._execute(operation, request, guard)
        except BaseException as error:  # noqa: BLE001  # the caller gets a typed error, whatever it was
            if guard.expired or not isinstance(error, CallError):
                raise self._translate(error, guard, operation_id, ran=placed)  # noqa: B904  # it has its cause
            raise of_handler(error, operation_id)  # noqa: B904  # it has its cause
        finally:
            if guard.expired:
                guard.settle()
            del guard.task  # it may end in the error whose traceback has this frame
            bucket.discard(guard)
            self._guards.discard(guard)
            if placed:
                handler.leave()

    def _keep_stray(self, task: asyncio.Task[Any]) -> None:
        self._handler.counters.strays += 1
        self._strays.add(task)
        task.add_done_callback(self._strays.discard)

    async def _execute(self, operation: Operation[Any], request: Requested, guard: Guard) -> ResponseEnvelope[Any]:
        """The call of an operation that looks at its context."""
        handler = self._handler
        request.request_id = handler.endpoint.new_id()
        context = handler.context(operation, request, request.identity)
        with tracing.server_span(operation.id, request.metadata, request.request_id):
            return await drive(handler.registry.execute_found(operation, request.input, context), guard)  # type: ignore[no-any-return]

    async def stream(self, request: Requested) -> AsyncIterator[ResponseEnvelope[Any]]:
        """One stream, pulled by its consumer: there is nothing in between that could fill up."""
        operation_id = request.operation_id
        idle_timeout = None if request.idle_timeout is None else request.idle_timeout / 1000
        handler = self._handler
        operation = handler.admit(operation_id, request.identity)
        end = _StreamEnd(self._keep_stray)
        self._streams.add(end)
        placed = False
        try:
            placed = handler.take_place() or await self._wait_for_place(operation_id)
            request.request_id = handler.endpoint.new_id()
            context = handler.context(operation, request, request.identity, kept=False)
            stream = handler.registry.subscribe(operation_id, request.input, context)
            try:
                while True:
                    try:
                        envelope = await end.next(stream, idle_timeout, operation_id)
                    except StopAsyncIteration:
                        return
                    except CallError as error:
                        raise of_handler(error, operation_id) from error.__cause__
                    yield envelope
            finally:
                if not getattr(stream, "ag_running", False):  # one that still runs was left behind
                    await stream.aclose()
        finally:
            self._streams.discard(end)
            if placed:
                handler.leave()

    async def _wait_for_place(self, operation_id: str) -> bool:
        if self._handler.is_full:
            raise self._handler.refuse(operation_id)
        entrant = _Entrant(self._handler)
        self._handler.enter(entrant)
        try:
            await entrant.granted
        except asyncio.CancelledError:
            if entrant.granted.done() and not entrant.granted.cancelled():
                self._handler.leave()
            else:
                self._handler.withdraw(entrant)
            raise
        return True

    def _translate(self, error: BaseException, guard: Guard, operation_id: str, *, ran: bool) -> BaseException:
        """What the caller gets for what left the handler, or for how this call was ended from outside."""
        if guard.ended_by(error):
            if guard.reason:
                told = unavailable(operation_id, guard.reason, "unknown" if ran else "no")
            else:
                when = "during the call" if ran else "before the call began"
                told = timed_out(operation_id, "unknown" if ran else "no", when)
        elif isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)):
            return error
        else:
            told = CallError(ErrorCode.EXECUTION_ERROR, f"{operation_id}: {type(error).__name__}")
        told.__cause__ = error
        return told


class _Entrant:
    """A caller that waits for a place."""

    def __init__(self, handler: Workplace) -> None:
        self._handler = handler
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        if self.granted.cancelled():
            # It was cancelled in this turn of the loop, and has not had its own yet.
            self._handler.leave()
        else:
            self.granted.set_result(None)


class _StreamEnd:
    """Ends a stream from outside, whether its consumer is waiting or busy elsewhere."""

    def __init__(self, keep_stray: Callable[[asyncio.Task[Any]], None]) -> None:
        self._reason = ""
        self._guard: Guard | None = None
        self._keep_stray = keep_stray

    def stop(self, reason: str) -> None:
        self._reason = reason
        if self._guard is not None:
            self._guard.stop(reason)

    async def next(
        self, stream: AsyncIterator[ResponseEnvelope[Any]], idle_timeout: float | None, operation_id: str
    ) -> ResponseEnvelope[Any]:
        """The next answer, or the error that ends the stream here."""
        if self._reason:
            raise unavailable(operation_id, self._reason, "unknown")
        guard = self._guard = Guard(asyncio.current_task(), self._keep_stray)  # type: ignore[arg-type]
        timer = None
        if idle_timeout is not None:
            timer = asyncio.get_running_loop().call_later(idle_timeout, guard.expire)
        try:
            envelope: ResponseEnvelope[Any] = await drive(anext(stream), guard)  # type: ignore[arg-type]
        except BaseException as error:
            if guard.ended_by(error):
                raise self._explain(idle_timeout, operation_id) from None
            raise
        finally:
            self._guard = None
            guard.settle()
            del guard.task  # it may end in the error whose traceback has this frame
            if timer is not None:
                timer.cancel()
        if guard.expired:
            raise self._explain(idle_timeout, operation_id)
        return envelope

    def _explain(self, idle_timeout: float | None, operation_id: str) -> CallError:
        if self._reason or idle_timeout is None:
            return unavailable(operation_id, self._reason, "unknown")
        message = f"{operation_id}: the stream was silent for {idle_timeout:g} s"
        return CallError(ErrorCode.TIMEOUT, message, {"idleTimeout": idle_timeout, "executed": "unknown"})
