"""Streams and their flow control: the caller buffers items and grants credit, the worker spends the credit."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from operations.calls.addresses import control_address, worker_address
from operations.calls.codec import Codec
from operations.calls.control_messages import write_credit
from operations.calls.endpoint import Endpoint
from operations.calls.events import CallCompleted, CallResponded
from operations.deadlines import remaining_seconds
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.failures import timed_out, unavailable

WINDOW_ITEMS = 256
WINDOW_BYTES = 1 << 20
"""Credit of a worker at the start of a stream, in items (`WINDOW_ITEMS`) and in bytes; its credit is never larger."""
_MOST_ITEMS = 4 * WINDOW_ITEMS
_MOST_BYTES = 4 * WINDOW_BYTES
"""Unread items and bytes beyond which the caller ends a stream: its worker sends more than its credit allows."""
LEASE_SECONDS = 30.0
"""A worker ends a stream after a period of this many seconds without a message from the stream's caller."""


class CallStream:
    """The items of one subscription, in order; closing or dropping the object closes the worker's generator."""

    __slots__ = ("_reader",)

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    @property
    def request_id(self) -> str:
        """The id of the request that started this stream."""
        return self._reader.request_id

    def __aiter__(self) -> CallStream:
        return self

    def __anext__(self) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
        return self._reader.next()

    async def aclose(self) -> None:
        """Stop the stream; the worker's generator is closed."""
        self._reader.abandon("the consumer closed the stream")

    async def __aenter__(self) -> CallStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Only the consumer references this object: it is deleted when the consumer breaks out of its loop.
        with contextlib.suppress(RuntimeError):
            self._reader.abandon("the consumer closed the stream")


class StreamReader:
    """The items of one subscription that were received and have not been read yet."""

    def __init__(self, endpoint: Endpoint, request_id: str, operation_id: str, codec: Codec) -> None:
        self.request_id = request_id
        self._credits = 0
        """Number of credit messages that were sent."""
        self.since = 0.0
        self.patience = math.inf
        self._time = asyncio.get_running_loop().time
        self._endpoint = endpoint
        self.operation_id = operation_id
        self._codec = codec
        self._items: deque[tuple[CallResponded, Codec, int]] = deque()
        self._unread_bytes = 0
        self._expected = 0
        self._read_items = 0
        self._read_bytes = 0
        self.worker: str | None = None
        self._wake: asyncio.Future[None] | None = None
        self._end: CallError | None = None
        self._over = False
        self._closed = False
        self._idle: float | None = None
        self._seen = -1
        """Number of items that had arrived when the idle timeout was last checked."""
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def start(self, *, idle_timeout: float | None, deadline: int | None) -> None:
        """Start the timers: idle timeout, deadline and renewal of the worker's lease, if the stream has them."""
        self.since = self._time()
        self._endpoint.pending[self.request_id] = self
        if idle_timeout is not None:
            self._idle = idle_timeout
            self._start_timer(idle_timeout, self._check_idle)
        if deadline is not None:
            self._start_timer(remaining_seconds(deadline), self._reach_deadline)
        if not self._endpoint.transport.capabilities.tracks_peers:
            self._start_timer(LEASE_SECONDS / 3, self._renew_lease)

    async def next(self) -> ResponseEnvelope[Any]:
        """Return the next item; raise the error that ended the stream, or StopAsyncIteration if there was no error."""
        if self._closed:
            raise StopAsyncIteration
        while not self._items:
            if self._over:
                self._release(answered=True)
                try:
                    raise StopAsyncIteration if self._end is None else self._end
                finally:
                    self._end = None  # break the cycle from this frame through the error to its traceback
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            except asyncio.CancelledError:
                self.abandon("the consumer was cancelled")
                raise
            finally:
                self._wake = None
        event, codec, size = self._items.popleft()
        self._unread_bytes -= size
        self._grant(size)
        return codec.read_envelope(event.payload.output)

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """Buffer the next item or drop a duplicate; fail if items are missing, or if too many are unread."""
        sequence = event.payload.sequence
        if self._over or (sequence is not None and sequence < self._expected):
            self._endpoint.counters.duplicate += 1
            return
        if event.payload.worker_id is not None:
            self.worker = event.payload.worker_id
        if sequence != self._expected:
            self._break(sequence)
            return
        if len(self._items) >= _MOST_ITEMS or self._unread_bytes > _MOST_BYTES:
            self._abort_worker("the worker sends more than its credit allows")
            message = f"{self.operation_id}: the worker of the stream sends more than its credit allows"
            self._finish(CallError(ErrorCode.UNAVAILABLE, message, {"executed": "unknown"}))
            return
        self._expected += 1
        self.since = self._time()
        self._items.append((event, codec, size))
        self._unread_bytes += size
        self._wake_consumer()

    def completed(self, event: CallCompleted) -> None:
        """End the stream, or fail if its last items are missing."""
        if self._over:
            self._endpoint.counters.duplicate += 1
        elif event.payload.sequence is not None and event.payload.sequence != self._expected:
            self._break(event.payload.sequence)
        else:
            self._finish(None)

    def failed(self, error: CallError) -> None:
        """End the stream with an error, which is raised after the items that were received."""
        if self._over:
            self._endpoint.counters.duplicate += 1
        else:
            self._finish(error)

    def accepted(self, worker: str) -> None:
        """Store the worker that runs the stream: control messages go to that worker only."""
        self.worker = worker

    def lost(self, reason: str) -> None:
        """Fail, as items in flight are lost; the worker gets an abort when the connection is restored."""
        if not self._over:
            if not self._endpoint.transport.capabilities.tracks_peers:
                self._endpoint.abort_when_up(self.request_id, self._control(), self._codec, "the connection was lost")
            self._finish(unavailable(self.operation_id, f"the stream was lost: {reason}", "unknown"))

    def regained(self) -> None:
        """Do nothing: a stream is not resumed."""

    def abort(self, reason: str) -> None:
        """End the stream from the caller's side, with an error for its consumer."""
        if not self._over:
            self._abort_worker(reason)
            self._finish(CallError(ErrorCode.ABORTED, reason or "aborted by the caller", {"executed": "unknown"}))

    @property
    def buffered(self) -> int:
        """Number of items that wait to be read."""
        return len(self._items)

    def _break(self, sequence: int | None) -> None:
        message = f"stream items are missing: expected number {self._expected}, got {sequence}"
        details = {"expected": self._expected, "got": sequence, "executed": "unknown"}
        self._abort_worker("stream items were lost")
        self._finish(CallError(ErrorCode.UNAVAILABLE, f"{self.operation_id}: {message}", details))

    def _grant(self, size: int) -> None:
        """Grant credit when half a window has been read, so that the worker never waits for a fast consumer."""
        self._read_items += 1
        self._read_bytes += size
        if self._over or (self._read_items < WINDOW_ITEMS // 2 and self._read_bytes < WINDOW_BYTES // 2):
            return
        self._send_credit(self._read_items, self._read_bytes)
        self._read_items = self._read_bytes = 0

    def _send_credit(self, items: int, size: int) -> None:
        self._credits += 1
        number = self._credits if self._endpoint.shares_control else None
        message = write_credit(self.request_id, self._codec, items, size, number=number)
        self._endpoint.transport.send(self._control(), message)

    def _control(self) -> str:
        return worker_address(self.worker) if self.worker is not None else control_address(self.operation_id)

    def _abort_worker(self, reason: str) -> None:
        self._endpoint.abort_worker(self.request_id, self._control(), self._codec, reason)

    def _finish(self, error: CallError | None) -> None:
        if not self._over:
            self._over = True
            self._end = error
            self._wake_consumer()

    def abandon(self, reason: str) -> None:
        """Drop the items and abort the worker: the consumer has stopped reading."""
        if self._closed:
            return
        over = self._over
        self._items.clear()
        self._finish(None)
        self._release(answered=over)
        if not over:
            self._abort_worker(reason)

    def _release(self, *, answered: bool) -> None:
        self._closed = True
        self._endpoint.forget(self.request_id, answered=answered)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _wake_consumer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _start_timer(self, seconds: float, check: Callable[[], None]) -> None:
        self._timers[check] = asyncio.get_running_loop().call_later(seconds, check)

    def _check_idle(self) -> None:
        """Fail if the consumer waits and nothing has arrived; a stream with unread items is not idle."""
        if self._over or self._idle is None:
            return
        if self._seen != self._expected or self._items or self._wake is None:
            self._seen = self._expected
            self._start_timer(self._idle, self._check_idle)
            return
        self._abort_worker("idle for too long")
        message = f"{self.operation_id}: the stream was silent for {self._idle:g} s"
        self._finish(CallError(ErrorCode.TIMEOUT, message, {"idleTimeout": self._idle, "executed": "unknown"}))

    def _reach_deadline(self) -> None:
        if not self._over:
            self._abort_worker("the deadline passed")
            self._finish(timed_out(self.operation_id, "unknown", "during the stream"))

    def _renew_lease(self) -> None:
        if not self._over:
            self._send_credit(0, 0)
            self._start_timer(LEASE_SECONDS / 3, self._renew_lease)


class CreditGate:
    """The credit of one stream at its worker; the producer waits here for a slow consumer."""

    def __init__(self) -> None:
        self._items = WINDOW_ITEMS
        self._bytes = WINDOW_BYTES
        self._opened: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next item may be sent; any positive credit is enough, even for an item that is larger."""
        return self._items > 0 and self._bytes > 0

    async def wait(self) -> None:
        """Wait for credit."""
        while not self.is_open:
            self._opened = asyncio.get_running_loop().create_future()
            await self._opened

    def spend(self, size: int) -> None:
        """Subtract an item of `size` bytes that was sent."""
        self._items -= 1
        self._bytes -= size

    def grant(self, items: int, size: int) -> None:
        """Add credit, up to one window, even if the caller grants more."""
        self._items = min(WINDOW_ITEMS, self._items + max(0, items))
        self._bytes = min(WINDOW_BYTES, self._bytes + max(0, size))
        if self.is_open and self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
