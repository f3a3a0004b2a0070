"""Calls within one process: the same rules as over a bus, by reference, in the caller's own task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from operations.calls import tracing
from operations.calls.deadlines import now_ms, remaining_seconds
from operations.calls.failures import timed_out, unavailable
from operations.calls.guard import Guard, drive
from operations.calls.workplace import Workplace
from operations.context import Identity
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import Operation


class DirectTarget:
    """A CallHandler as callers of the same process reach it."""

    def __init__(self, handler: Workplace) -> None:
        self._handler = handler
        self._guards: set[Guard] = set()
        self._streams: set[_StreamEnd] = set()
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

    async def execute(
        self,
        operation_id: str,
        input: Any,
        deadline: int | None,
        identity: Identity | None,
        parent: str | None,
        metadata: Mapping[str, Any] | None,
        timeout: float,
    ) -> ResponseEnvelope[Any]:
        """One call, awaited in place and ended at its deadline."""
        handler = self._handler
        endpoint = handler.endpoint
        operation = handler.admit(operation_id, identity)
        seconds = timeout if deadline is None else remaining_seconds(deadline)
        if seconds <= 0:
            endpoint.counters.expired += 1
            raise timed_out(operation_id, "no", "before the call began")
        guard = Guard(asyncio.current_task(), endpoint.counters)  # type: ignore[arg-type]
        bucket = endpoint.deadlines.add(guard, seconds)
        self._guards.add(guard)
        placed = False
        try:
            placed = handler.take_place() or await self._wait_for_place(operation_id)
            if not handler.needs_context(operation) and not tracing.is_active():
                envelope: ResponseEnvelope[Any] = await drive(handler.registry.execute(operation_id, input), guard)
                return envelope
            return await self._execute(
                operation, input, deadline or now_ms() + int(timeout * 1000), identity, parent, metadata, guard
            )
        except BaseException as error:
            if guard.expired or not isinstance(error, CallError):
                raise self._translate(error, guard, operation_id, ran=placed) from error
            raise
        finally:
            if guard.expired:
                guard.settle()
            bucket.discard(guard)
            self._guards.discard(guard)
            if placed:
                handler.leave()

    async def _execute(
        self,
        operation: Operation[Any],
        input: Any,
        deadline: int,
        identity: Identity | None,
        parent: str | None,
        metadata: Mapping[str, Any] | None,
        guard: Guard,
    ) -> ResponseEnvelope[Any]:
        """The call of an operation that looks at its context."""
        handler = self._handler
        request_id = handler.endpoint.new_id()
        context = handler.context(operation, request_id, parent, identity, deadline, metadata)
        with tracing.server_span(operation.id, metadata, request_id):
            return await drive(handler.registry.execute(operation.id, input, context), guard)  # type: ignore[no-any-return]

    async def stream(
        self,
        operation_id: str,
        input: Any,
        deadline: int | None,
        idle_timeout: float | None,
        identity: Identity | None,
        parent: str | None,
        metadata: Mapping[str, Any] | None,
    ) -> AsyncIterator[ResponseEnvelope[Any]]:
        """One stream, pulled by its consumer: there is nothing in between that could fill up."""
        handler = self._handler
        operation = handler.admit(operation_id, identity)
        end = _StreamEnd()
        self._streams.add(end)
        placed = False
        try:
            placed = handler.take_place() or await self._wait_for_place(operation_id)
            request_id = handler.endpoint.new_id()
            context = handler.context(operation, request_id, parent, identity, deadline, metadata, kept=False)
            stream = handler.registry.subscribe(operation_id, input, context)
            async with contextlib.aclosing(stream):
                while True:
                    try:
                        envelope = await end.next(stream, idle_timeout, operation_id)
                    except StopAsyncIteration:
                        return
                    yield envelope
        finally:
            self._streams.discard(end)
            if placed:
                handler.leave()

    async def _wait_for_place(self, operation_id: str) -> bool:
        if self._handler.is_full:
            raise self._handler.refuse(operation_id)
        entrant = _Entrant()
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
        if guard.expired and not (isinstance(error, asyncio.CancelledError) and not guard.settle()):
            if guard.reason:
                return unavailable(operation_id, guard.reason, "unknown" if ran else "no")
            when = "during the call" if ran else "before the call began"
            return timed_out(operation_id, "unknown" if ran else "no", when)
        if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)):
            return error
        return CallError(ErrorCode.EXECUTION_ERROR, f"{operation_id}: {type(error).__name__}")


class _Entrant:
    """A caller that waits for a place."""

    def __init__(self) -> None:
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        if not self.granted.done():
            self.granted.set_result(None)


class _StreamEnd:
    """Ends a stream from outside, whether its consumer is waiting or busy elsewhere."""

    def __init__(self) -> None:
        self._reason = ""
        self._task: asyncio.Task[Any] | None = None

    def stop(self, reason: str) -> None:
        self._reason = reason
        if self._task is not None:
            self._task.cancel()

    async def next(
        self, stream: AsyncIterator[ResponseEnvelope[Any]], idle_timeout: float | None, operation_id: str
    ) -> ResponseEnvelope[Any]:
        """The next answer, or the error that ends the stream here."""
        if self._reason:
            raise unavailable(operation_id, self._reason, "unknown")
        self._task = asyncio.current_task()
        limit = asyncio.timeout(idle_timeout)
        try:
            async with limit:
                return await anext(stream)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"{operation_id}: the stream was silent for {idle_timeout:g} s"
            details = {"idleTimeout": idle_timeout, "executed": "unknown"}
            raise CallError(ErrorCode.TIMEOUT, message, details) from None
        except asyncio.CancelledError:
            if self._reason and self._task is not None and self._task.uncancel() == 0:
                raise unavailable(operation_id, self._reason, "unknown") from None
            raise
        finally:
            self._task = None
