"""One request that a worker runs: it ends with one answer, at its deadline, or when its caller leaves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from operations.calls import tracing
from operations.calls.codec import Codec
from operations.calls.deadlines import now_ms, remaining_seconds
from operations.calls.endpoint import inbox_of
from operations.calls.events import (
    VERSION,
    Accepted,
    CallAccepted,
    CallCompleted,
    CallRequested,
    CallResponded,
    Completed,
    Responded,
)
from operations.calls.failures import timed_out, too_large, unavailable
from operations.calls.streams import LEASE_SECONDS, CreditGate
from operations.calls.workplace import Workplace
from operations.context import Identity, OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.spec import Operation


class RunningCall:
    """A call: one task, one answer."""

    __slots__ = (
        "_began",
        "_codec",
        "_endpoint",
        "_event",
        "_handler",
        "_identity",
        "_operation",
        "_tick",
        "ended",
        "operation_id",
        "since",
        "task",
    )

    def __init__(
        self,
        handler: Workplace,
        event: CallRequested,
        codec: Codec,
        operation: Operation[Any],
        identity: Identity | None,
    ) -> None:
        self.operation_id = event.to
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self._handler = handler
        self._endpoint = handler.endpoint
        self._event = event
        self._codec = codec
        self._operation = operation
        self._identity = identity
        self._tick: int | None = None
        self._began = False
        self.ended = False

    def is_too_late(self) -> bool:
        """Whether the deadline has passed already; the caller is told."""
        payload = self._event.payload
        if payload.deadline is None or remaining_seconds(payload.deadline, payload.sent_at) > 0:
            return False
        self._endpoint.counters.expired += 1
        clocks = {"deadline": payload.deadline, "sentAt": payload.sent_at, "workerTime": now_ms()}
        error = timed_out(self.operation_id, "no", "before the call began", **clocks)
        self._endpoint.send_error(self._event.id, error, self._codec)
        return True

    def arm(self) -> None:
        """Set the clock of a request that takes its time."""
        self.since = asyncio.get_running_loop().time()
        payload = self._event.payload
        if payload.deadline is not None:
            self._tick = self._endpoint.deadlines.add(self, remaining_seconds(payload.deadline, payload.sent_at))

    def begin(self) -> None:
        """There is a place: run, unless it ended while it waited."""
        if self.ended:
            self._handler.leave()
            return
        self._began = True
        self.task = self._handler.starter.start(self._run())

    def expire(self) -> None:
        """The deadline passed: in the queue it never runs, else its task is cancelled."""
        if not self._began:
            self._endpoint.counters.expired += 1
            self.end(timed_out(self.operation_id, "no", "before the call began"))
        else:
            self.end(timed_out(self.operation_id, "unknown"))

    def abort(self, reason: str) -> None:
        """The caller gave up; nobody waits for an answer."""
        self._close()
        if self.task is not None:
            self.task.cancel()

    def credit(self, items: int, size: int) -> None:
        """A call has one answer and needs no credit."""

    def accept(self, worker_id: str) -> None:
        """Tell the caller who has its call."""
        event = CallAccepted(VERSION, self._event.id, "", Accepted(self._event.id, worker_id))
        self._endpoint.transport.send(inbox_of(self._event.id), self._codec.encode(event))

    def end(self, error: CallError) -> None:
        """End it with an error, whatever the handler does."""
        self._fail(error)
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            work = self._work(self._codec.read(self._event.payload.input), self._make_context())
            if tracing.is_active():
                with tracing.server_span(self.operation_id, self._event.payload.metadata, self._event.id):
                    await work
            else:
                await work
        except CallError as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(CallError(ErrorCode.ABORTED, f"{self.operation_id}: cancelled", {"executed": "unknown"}))
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises, its caller gets an answer
            message = f"{self.operation_id}: {type(error).__name__}"
            self._fail(CallError(ErrorCode.EXECUTION_ERROR, message, {"type": type(error).__name__}))
        finally:
            self._handler.leave()

    async def _work(self, input: Any, context: OperationContext | None) -> None:
        envelope = await self._handler.registry.execute(self.operation_id, input, context)
        if not self.ended:
            message = self._write(envelope, None)
            self._close()
            self._endpoint.transport.send(inbox_of(self._event.id), message)

    def _make_context(self) -> OperationContext | None:
        """The context, where anybody looks at it."""
        if not self._handler.needs_context(self._operation):
            return None
        payload = self._event.payload
        return self._handler.context(
            self._operation,
            self._event.id,
            payload.parent_request_id,
            self._identity,
            payload.deadline,
            payload.metadata,
        )

    def _write(self, envelope: ResponseEnvelope[Any], sequence: int | None) -> bytes:
        """An answer as bytes; one that cannot travel is a typed error instead."""
        request_id = self._event.id
        worker = self._handler.worker_id if sequence == 0 else None
        payload = Responded(request_id, self._codec.write_envelope(envelope), sequence, worker)
        message = self._codec.encode(CallResponded(VERSION, request_id, "", payload))
        limit = self._endpoint.transport.capabilities.max_payload
        if limit is not None and len(message) > limit:
            raise too_large(self.operation_id, "answer", len(message), limit, "yes")
        return message

    def _fail(self, error: CallError) -> None:
        if not self.ended:
            self._close()
            self._endpoint.send_error(self._event.id, error, self._codec)

    def _close(self) -> None:
        if not self.ended:
            self.ended = True
            if self._tick is not None:
                self._endpoint.deadlines.discard(self._tick, self)
            self._handler.finished(self._event.id)


class RunningStream(RunningCall):
    """A stream: one task, numbered answers as far as the caller's credit goes, an end."""

    __slots__ = ("_gate", "_heard", "_lease")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gate = CreditGate()
        self._heard = True
        self._lease: _Lease | None = None

    def arm(self) -> None:
        """Set the clocks: the deadline where there is one, and the caller's lease where nobody else watches it."""
        super().arm()
        if not self._endpoint.transport.capabilities.tracks_peers:
            self._lease = _Lease(self)
            self._endpoint.deadlines.add(self._lease, LEASE_SECONDS)

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
            self._endpoint.deadlines.add(self._lease, LEASE_SECONDS)
        else:
            # Should the caller live after all, it is told.
            self.end(unavailable(self.operation_id, "the caller gave the worker no sign of life", "unknown"))

    async def _work(self, input: Any, context: OperationContext | None) -> None:
        send, inbox, gate = self._endpoint.transport.send, inbox_of(self._event.id), self._gate
        sequence = 0
        stream = self._handler.registry.subscribe(self.operation_id, input, context)
        async with contextlib.aclosing(stream):
            async for envelope in stream:
                message = self._write(envelope, sequence)
                if not gate.is_open:
                    await gate.wait()
                if self.ended:
                    return
                send(inbox, message)
                gate.spend(len(message))
                sequence += 1
                if sequence % 64 == 0:
                    # A generator that never waits must not keep the loop from everybody else.
                    await asyncio.sleep(0)
        if not self.ended:
            self._close()
            event = CallCompleted(VERSION, self._event.id, "", Completed(self._event.id, sequence))
            send(inbox, self._codec.encode(event))


class _Lease:
    """How long a stream goes on for a caller nobody hears of."""

    __slots__ = ("_stream",)

    def __init__(self, stream: RunningStream) -> None:
        self._stream = stream

    def expire(self) -> None:
        self._stream.renew()
