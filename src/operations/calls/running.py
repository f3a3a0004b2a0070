"""One request that a worker runs: it ends with one answer, at its deadline, or when its caller leaves."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable
from typing import Any

import msgspec

from operations.calls import tracing
from operations.calls.addresses import inbox_of
from operations.calls.answering import execute, translate, write_answer
from operations.calls.codec import Codec
from operations.calls.deadlines import Bucket, remaining_seconds
from operations.calls.eager import Paused
from operations.calls.events import (
    VERSION,
    Accepted,
    CallAccepted,
    CallCompleted,
    CallRequested,
    Completed,
)
from operations.calls.failures import timed_out, unavailable
from operations.calls.streams import LEASE_SECONDS, CreditGate
from operations.calls.workplace import Workplace
from operations.context import Identity
from operations.envelope import ResponseEnvelope
from operations.errors import CallError
from operations.guard import GRACE_SECONDS
from operations.spec import Operation


class RunningCall(msgspec.Struct, eq=False):
    """A call: one task, one answer."""

    _handler: Workplace
    _event: CallRequested
    _codec: Codec
    _operation: Operation[Any]
    _identity: Identity | None
    _began: bool = False
    _bucket: Bucket | None = None
    _left: bool = False
    ended: bool = False
    task: asyncio.Task[None] | None = None
    _until: float = math.inf
    since: float = 0.0
    """When the handler wrote it down, by the loop's clock; 0 while it has not."""

    @property
    def operation_id(self) -> str:
        """What is called."""
        return self._event.to

    def arm(self) -> None:
        """Set the clock of a request that takes its time."""
        self.since = asyncio.get_running_loop().time()
        payload = self._event.payload
        if payload.deadline is not None:
            seconds = remaining_seconds(payload.deadline, payload.sent_at)
            self._until = self.since + seconds
            self._bucket = self._handler.endpoint.deadlines.add(self, seconds)

    def begin(self) -> None:
        """There is a place: run, unless the time is over, for which a busy loop may not have looked yet."""
        if self._until < math.inf and asyncio.get_running_loop().time() >= self._until:
            self.expire()
            self._handler.leave()
            return
        self._began = True
        self.task = self._handler.starter.start(self._run())

    def resume(self, paused: Paused) -> None:
        """Go on with what was begun and waits."""
        self._began = True
        self.task = paused.go_on_in(self._finish(paused))

    def expire(self) -> None:
        """The deadline passed: in the queue it never runs, else its task is cancelled."""
        if not self._began:
            self._handler.counters.expired += 1
            self.end(timed_out(self.operation_id, "no", "before the call began"))
        else:
            self.end(timed_out(self.operation_id, "unknown"))

    def abort(self, reason: str) -> None:
        """The caller gave up; nobody waits for an answer."""
        self._close()
        self._stop()

    def credit(self, items: int, size: int) -> None:
        """A call has one answer and needs no credit."""

    def accept(self, worker_id: str) -> None:
        """Tell the caller who has its call."""
        event = CallAccepted(VERSION, self._event.id, "", Accepted(self._event.id, worker_id))
        self._handler.endpoint.transport.send(inbox_of(self._event.id), self._codec.encode(event))

    def close(self) -> None:
        """The worker leaves: what runs is cancelled, what waits never runs."""
        self.end(unavailable(self.operation_id, "the worker is shutting down", "unknown" if self._began else "no"))

    def end(self, error: CallError) -> None:
        """End it with an error, whatever the handler does."""
        self._fail(error)
        self._stop()

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._leave_behind)

    def _leave_behind(self) -> None:
        """A handler that ignores its cancellation is counted, and its place is somebody else's."""
        if self.task is not None and not self.task.done():
            self._handler.counters.strays += 1
            self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._handler.leave()

    async def _run(self) -> None:
        await self._finish(self._work())

    async def _work(self) -> ResponseEnvelope[Any]:
        """Execute from the beginning, within a span where spans are made."""
        handler, event = self._handler, self._event
        with tracing.server_span(event.to, event.payload.metadata, event.id):
            return await execute(handler, event, self._codec, self._operation, self._identity)

    async def _finish(self, work: Awaitable[ResponseEnvelope[Any]]) -> None:
        """See to it that whatever comes of the work the caller gets an answer and the place is free again."""
        try:
            envelope = await work
            if not self.ended:
                message = self._write(envelope, None)
                self._close()
                self._handler.endpoint.answer(self._event.id, message, True)
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises, its caller gets an answer
            self._fail(translate(error, self.operation_id))
        finally:
            self._leave()

    def _write(self, envelope: ResponseEnvelope[Any], sequence: int | None) -> bytes:
        return write_answer(self._handler, self._event, self._codec, envelope, sequence)

    def _fail(self, error: CallError) -> None:
        if not self.ended:
            self._close()
            self._handler.endpoint.transport.send(inbox_of(self._event.id), self._write_error(error))

    def _write_error(self, error: CallError) -> bytes:
        return self._handler.endpoint.write_error(self._event.id, error, self._codec)

    def _close(self) -> None:
        if not self.ended:
            self.ended = True
            if not self._began:
                self._handler.withdraw(self)
            if self._bucket is not None:
                self._bucket.discard(self)
            if self.since:
                self._handler.finished(self._event.id)


class RunningStream(RunningCall):
    """A stream: one task, numbered answers as far as the caller's credit goes, an end."""

    _gate: CreditGate = msgspec.field(default_factory=CreditGate)
    _heard: bool = True
    _lease: _Lease | None = None

    def arm(self) -> None:
        """Set the clocks: the deadline where there is one, and the caller's lease where nobody else watches it."""
        super().arm()
        if not self._handler.endpoint.transport.capabilities.tracks_peers:
            self._lease = _Lease(self)
            self._handler.endpoint.deadlines.add(self._lease, LEASE_SECONDS)

    def credit(self, items: int, size: int) -> None:
        """The caller has room for more, and lives."""
        self._heard = True
        self._gate.grant(items, size)

    def renew(self) -> None:
        """The lease ran out: go on if the caller was heard of, else close the generator."""
        if self.ended or self._lease is None:
            return
        if self._heard:
            self._heard = False
            self._handler.endpoint.deadlines.add(self._lease, LEASE_SECONDS)
        else:
            # Should the caller live after all, it is told.
            self.end(unavailable(self.operation_id, "the caller gave the worker no sign of life", "unknown"))

    async def _run(self) -> None:
        try:
            with tracing.server_span(self.operation_id, self._event.payload.metadata, self._event.id):
                await self._pump()
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises, its caller gets an answer
            self._fail(translate(error, self.operation_id))
        finally:
            self._leave()

    async def _pump(self) -> None:
        """Send what the generator yields, as far as the credit goes, and then that it ended."""
        request_id, endpoint, gate = self._event.id, self._handler.endpoint, self._gate
        sequence = 0
        input = self._codec.read(self._event.payload.input)
        stream = self._handler.registry.subscribe(
            self.operation_id, input, self._handler.context(self._operation, self._event.payload, self._identity)
        )
        async with contextlib.aclosing(stream):
            async for envelope in stream:
                message = self._write(envelope, sequence)
                if not gate.is_open:
                    await gate.wait()
                if self.ended:
                    return
                endpoint.answer(request_id, message, False)
                gate.spend(len(message))
                sequence += 1
                if sequence % 64 == 0:
                    # A generator that never waits must not keep the loop from everybody else.
                    await asyncio.sleep(0)
        if not self.ended:
            self._close()
            event = CallCompleted(VERSION, request_id, "", Completed(request_id, sequence))
            endpoint.answer(request_id, self._codec.encode(event), True)


class _Lease:
    """How long a stream goes on for a caller nobody hears of."""

    __slots__ = ("_stream",)

    def __init__(self, stream: RunningStream) -> None:
        self._stream = stream

    def expire(self) -> None:
        self._stream.renew()
