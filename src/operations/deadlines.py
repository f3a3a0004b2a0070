"""Deadlines: run work in the caller's task and cancel it when its time is over."""

from __future__ import annotations

import asyncio
import time
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

import msgspec

from operations.errors import CallError, ErrorCode
from operations.failures import timed_out

T = TypeVar("T")

GRACE_SECONDS = 0.1
"""Seconds that cancelled work has to clean up. After this time its caller stops waiting for the work."""
_MAX_SECONDS = 10.0**9
_EPOCH_SECONDS = (10**9, 10**11)
"""Range of deadlines that were probably given in seconds by mistake: in milliseconds, they are in 1970 to 1973."""
_RESOLUTION = 0.02


class Expiring(Protocol):
    """An entry of a timer wheel."""

    def expire(self) -> None:
        """Handle the end of the entry's time; the wheel calls this method."""


Bucket = set[Expiring]
_Buckets = dict[int, Bucket]


class TimerWheel:
    """Expires entries when their time is over, at most 20 ms late; entries of the same 20 ms share one timer.

    An entry that ends early is discarded from its bucket, which costs less than cancelling a timer. Each event loop has
    separate buckets, because one registry may be used from several threads.
    """

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Buckets] = weakref.WeakKeyDictionary()
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop] | None, _Buckets] = (None, {})

    def add(self, entry: Expiring, seconds: float) -> Bucket:
        """Expire `entry` in `seconds`; return its bucket. If the entry ends early, discard it from this bucket."""
        loop = asyncio.get_running_loop()
        return self.add_at(loop.time() + seconds, entry, loop)

    def add_at(self, when: float, entry: Expiring, loop: asyncio.AbstractEventLoop) -> Bucket:
        """Expire `entry` at `when`, a time of the running loop's clock; return its bucket."""
        last, buckets = self._last
        if last is None or last() is not loop:
            buckets = self._by_loop.setdefault(loop, {})
            self._last = weakref.ref(loop), buckets
        tick = int(when / _RESOLUTION) + 1
        bucket = buckets.get(tick)
        if bucket is None:
            bucket = buckets[tick] = set()
            loop.call_at(tick * _RESOLUTION, _fire, buckets, tick)
        bucket.add(entry)
        return bucket


def _fire(buckets: _Buckets, tick: int) -> None:
    bucket = buckets.pop(tick, set())
    while bucket:
        # Expiring one entry may discard others from the bucket.
        bucket.pop().expire()


class DeadlineHost(Protocol):
    """The owner of work with deadlines: a registry or a dispatcher."""

    @property
    def wheel(self) -> TimerWheel:
        """The timer wheel that expires the deadlines of the owner's work."""

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Track the task of work that ignored its cancellation."""


class Deadline(msgspec.Struct, eq=False, kw_only=True):
    """Runs work in the current task, until a given time or until `stop` is called.

    At that moment, the work is cancelled. Work that is still running after `GRACE_SECONDS` continues in a separate
    task, and the caller gets the error. Work that never suspends costs no timer: the deadline is added to the wheel
    when the work first suspends.
    """

    host: DeadlineHost
    operation_id: str
    until: float | None = None
    """End time in epoch seconds; None if only `stop` ends the work."""
    suspended: Callable[[Any], None] | None = None
    """Called when the work first suspends: from then on, `stop` cancels the work."""
    error: CallError | None = None
    """The error with which the work was ended; None if the work was not ended."""
    _is_abandoned: bool = False
    _task: asyncio.Task[Any] | None = None
    _before: int = 0
    _grace: asyncio.TimerHandle | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return self.until is not None and self.until <= time.time()

    def expire(self) -> None:
        """End the work because its deadline passed."""
        self.stop(self.explain())

    def explain(self) -> CallError:
        """Return the error for a passed deadline."""
        return timed_out(self.operation_id, "unknown")

    def stop(self, error: CallError) -> None:
        """End the work; its caller gets `error`."""
        if self.error is None:
            self.error = error
            if self._task is not None:
                self._cancel()

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work`; raise the deadline's error if the deadline ended the work."""
        if self.error is not None:  # stopped before the first step
            work.close()
            raise self.error
        try:
            waiting = work.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        rest = self.resume(work, waiting)
        del waiting  # avoids a reference cycle with a traceback
        return (yield from rest)  # type: ignore[no-any-return]

    def resume(self, work: Coroutine[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
        """Run suspended work until it ends or the deadline passes."""
        bucket = self._enter()
        rest = _steps(work, waiting, self._keep_running)
        del waiting
        try:
            result = yield from rest
            if self.error is None:
                return result
            self._uncancel()
        except BaseException as raised:
            if self.error is None or (not self._uncancel() and isinstance(raised, asyncio.CancelledError)):
                raise
            self._explain_by(raised)
        finally:
            if bucket is not None:
                bucket.discard(self)
            if self._grace is not None:
                self._grace.cancel()
            self._task = None
        try:
            raise self.error
        finally:
            self.error = None  # avoids a reference cycle with its traceback

    def _explain_by(self, raised: BaseException) -> None:
        """Use the cause of the work's cancellation as the error, if the cause is a timeout of the same operation."""
        cause = raised.__cause__
        if isinstance(raised, asyncio.CancelledError) and isinstance(cause, CallError):
            assert self.error is not None
            is_same = isinstance(cause.details, dict) and cause.details.get("operationId") == self.operation_id
            if is_same and self.error.code is cause.code is ErrorCode.TIMEOUT:
                self.error = cause

    def _enter(self) -> Bucket | None:
        """Start the timer, now that the work is suspended; return its bucket, or None if there is no deadline."""
        self._task = task = asyncio.current_task()
        assert task is not None
        self._before = task.cancelling()
        if self.suspended is not None:
            self.suspended(self)
        if self.error is not None:  # stopped during the first step
            self._cancel()
        if self.until is None:
            return None
        loop = asyncio.get_running_loop()
        return self.host.wheel.add_at(loop.time() + min(self.until - time.time(), _MAX_SECONDS), self, loop)

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._abandon)

    def _abandon(self) -> None:
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()

    def _uncancel(self) -> bool:
        """Undo this deadline's cancellation; return False if the task was also cancelled for another reason."""
        assert self._task is not None
        return self._task.uncancel() <= self._before

    def _keep_running(self, work: Coroutine[Any, Any, Any], thrown: BaseException) -> bool:
        """Move work that ignored its cancellation to a separate task; during the grace period, return False instead."""
        if not self._is_abandoned:
            return False
        assert self._task is not None
        self._task.uncancel()
        self.host.abandon(asyncio.get_running_loop().create_task(_finish_alone(work, thrown)))
        return True


def _steps(
    work: Coroutine[Any, Any, Any],
    waiting: Any,
    keep_running: Callable[[Coroutine[Any, Any, Any], BaseException], bool] | None = None,
) -> Generator[Any, Any, Any]:
    """Continue suspended work step by step, as await does; stop if `keep_running` returns true for an exception."""
    try:
        while True:
            try:
                sent = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # passed on, as await does
                if keep_running is not None and keep_running(work, thrown):
                    raise
                waiting = work.throw(thrown)
            else:
                waiting = work.send(sent)
    except StopIteration as done:
        return done.value
    finally:
        waiting = None  # avoids a reference cycle with a traceback


@types.coroutine
def resume(work: Coroutine[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
    """Await a coroutine that has already suspended once; `waiting` is the value that its first step yielded."""
    return (yield from _steps(work, waiting))


async def _finish_alone(work: Coroutine[Any, Any, Any], thrown: BaseException) -> None:
    try:
        await _resume_with_error(work, thrown)
    except BaseException:  # noqa: BLE001  # no caller is left to see it
        return


@types.coroutine
def _resume_with_error(work: Coroutine[Any, Any, Any], thrown: BaseException) -> Generator[Any, Any, Any]:
    """Raise `thrown` inside suspended work, then continue the work."""
    try:
        waiting = work.throw(thrown)
    except StopIteration as done:
        return done.value
    return (yield from _steps(work, waiting))


class StreamDeadline:
    """Ends a stream at its deadline, at its idle timeout, or when `stop` is called.

    Each item is awaited in the consumer's task, because a generator may keep state that is bound to a task.
    """

    def __init__(
        self, host: DeadlineHost, operation_id: str, *, until: float | None = None, idle: float | None = None
    ) -> None:
        self.operation_id = operation_id
        self.until = until
        self.idle = idle
        self.id = ""
        self.grant: Any = None
        """Grant of the request, if the caller of the stream is external; `id` is then the request id."""
        self._host = host
        self._current: Deadline | None = None
        self._error: CallError | None = None

    def stop(self, error: CallError) -> None:
        """End the stream; its consumer gets `error`, now or at the next item."""
        self._error = error
        if self._current is not None:
            self._current.stop(error)

    def explain(self) -> CallError:
        """Return the error for a stream whose deadline or idle timeout passed."""
        if self.idle is None or (self.until is not None and self.until <= time.time()):
            return timed_out(self.operation_id, "unknown", "during the stream")
        message = f"{self.operation_id}: the stream was silent for {self.idle:g} s"
        details = {"operationId": self.operation_id, "idleTimeout": self.idle, "executed": "unknown"}
        return CallError(ErrorCode.TIMEOUT, message, details)

    async def next(self, iterator: AsyncIterator[T]) -> T:
        """Return the next item, or raise the error that ends the stream."""
        if self._error is not None:
            raise self._error
        until = self.until
        if until is not None and until <= time.time():
            raise self.explain()  # the timer cannot end a generator that never suspends
        if self.idle is not None:
            silent = time.time() + self.idle
            until = silent if until is None else min(until, silent)
        deadline = self._current = self._deadline(until)
        try:
            return await deadline.run(_step(iterator))
        finally:
            self._current = None

    async def close(self, close: Callable[[], Awaitable[Any]]) -> None:
        """Close the stream's generator with `close`.

        If the stream was stopped, or its deadline has passed, closing may take at most `GRACE_SECONDS`.
        """
        if self._error is None and (self.until is None or self.until > time.time()):
            await close()
        else:
            await self._deadline(time.time() + GRACE_SECONDS).run(_await(close))

    def _deadline(self, until: float | None) -> Deadline:
        return _ItemDeadline(host=self._host, operation_id=self.operation_id, until=until, stream=self)


class _ItemDeadline(Deadline, kw_only=True):
    """The deadline of one item of a stream."""

    stream: StreamDeadline

    def explain(self) -> CallError:
        """Return the error that ends the stream."""
        return self.stream.explain()


async def _step(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)


async def _await(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def now_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return int(time.time() * 1000)


def check_deadline(deadline: Any) -> float:
    """Return a deadline (epoch ms) in epoch seconds; raise `VALIDATION_ERROR` if it is invalid."""
    try:
        if _EPOCH_SECONDS[0] < deadline < _EPOCH_SECONDS[1]:
            message = f"deadline {deadline!r} is in seconds: pass epoch milliseconds, or timeout= in seconds"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return float(min(deadline / 1000, time.time() + _MAX_SECONDS))
    except OverflowError:
        return time.time() + _MAX_SECONDS if deadline > 0 else 0.0
    except TypeError:
        message = f"invalid deadline {deadline!r}: expected epoch milliseconds"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def remaining_seconds(deadline: int) -> float:
    """Return the seconds until a deadline (epoch ms); 0 if it has passed."""
    return max(0.0, deadline / 1000 - time.time())
