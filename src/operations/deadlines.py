"""Deadlines: work that runs in its caller's task and ends on time, whatever it does."""

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
"""How long cancelled work may take to clean up before its caller stops waiting for it."""
_LONGEST_SECONDS = 10.0**9
_RESOLUTION = 0.02


class Expiring(Protocol):
    """Something that ends at a given time."""

    def expire(self) -> None:
        """End it: its time has come."""


Bucket = set[Expiring]
_Buckets = dict[int, Bucket]


class TimerWheel:
    """Expires entries on time, at most 20 ms late; entries of one tick share one timer of the event loop.

    An entry that ends early is discarded from its bucket, which costs less than cancelling a timer. Each loop has its
    own buckets, as one registry may be used from several threads.
    """

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Buckets] = weakref.WeakKeyDictionary()
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop] | None, _Buckets] = (None, {})

    def add(self, entry: Expiring, seconds: float) -> Bucket:
        """Expire `entry` in so many seconds; returns the bucket to discard it from when it ends early."""
        loop = asyncio.get_running_loop()
        return self.add_at(loop.time() + seconds, entry, loop)

    def add_at(self, when: float, entry: Expiring, loop: asyncio.AbstractEventLoop) -> Bucket:
        """Expire `entry` at a time of the running loop's clock."""
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
        # One that expires may end others.
        bucket.pop().expire()


Abandoned = Callable[[asyncio.Task[Any]], None]
"""Called with the task that continues work that ignored its cancellation."""


class Deadline(msgspec.Struct, eq=False, kw_only=True):
    """Runs one piece of work in the current task and ends it at a time, or when `stop` is called.

    Ending means: cancel, wait `GRACE_SECONDS`, then leave the work running in a task of its own and go on without it.
    Work that never suspends costs no timer: the wheel is entered at the first suspension.
    """

    wheel: TimerWheel
    operation_id: str
    until: float | None
    """Epoch seconds; None for work that only `stop` ends."""
    abandoned: Abandoned
    error: CallError | None = None
    """Why the work was ended; None while it was not."""
    _is_abandoned: bool = False
    _task: asyncio.Task[Any] | None = None
    _before: int = 0
    _grace: asyncio.TimerHandle | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the time is over."""
        return self.until is not None and self.until <= time.time()

    def expire(self) -> None:
        """End the work because its time has come."""
        self.stop(self.explain())

    def explain(self) -> CallError:
        """Return the error of work whose time is over."""
        return timed_out(self.operation_id, "unknown")

    def stop(self, error: CallError) -> None:
        """End the work; whoever runs it gets `error`."""
        if self.error is None:
            self.error = error
            if self._task is not None:
                self._cancel()

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `work`; raises the deadline's error where that ended it."""
        if self.error is not None:  # stopped before the first step
            work.close()
            raise self.error
        try:
            waiting = work.send(None)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        rest = self._drive(work, waiting)
        del waiting  # it may end in the error whose traceback holds this frame
        return (yield from rest)  # type: ignore[no-any-return]

    def _drive(self, work: Coroutine[Any, Any, Any], waiting: Any) -> Generator[Any, Any, Any]:
        """Run suspended work to its end, or to the deadline's."""
        bucket = self._enter()
        rest = _steps(work, waiting, self._keep_running)
        del waiting
        try:
            result = yield from rest
            if self.error is None:
                return result
            self._settle()
        except BaseException as raised:
            if self.error is None or (not self._settle() and isinstance(raised, asyncio.CancelledError)):
                raise
        finally:
            if bucket is not None:
                bucket.discard(self)
            if self._grace is not None:
                self._grace.cancel()
            self._task = None
        try:
            raise self.error
        finally:
            self.error = None  # its traceback holds this frame

    def _enter(self) -> Bucket | None:
        """Become cancellable, now that the work waits for something."""
        self._task = task = asyncio.current_task()
        assert task is not None
        self._before = task.cancelling()
        if self.error is not None:  # stopped during the first step
            self._cancel()
        if self.until is None:
            return None
        loop = asyncio.get_running_loop()
        return self.wheel.add_at(loop.time() + min(self.until - time.time(), _LONGEST_SECONDS), self, loop)

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()

    def _settle(self) -> bool:
        """Take back this deadline's cancellation; True where nothing else had cancelled the task."""
        assert self._task is not None
        return self._task.uncancel() <= self._before

    def _keep_running(self, work: Coroutine[Any, Any, Any], thrown: BaseException) -> bool:
        """Let work that ignores its cancellation continue in a task of its own; False while it has time left."""
        if not self._is_abandoned:
            return False
        assert self._task is not None
        self._task.uncancel()
        self.abandoned(asyncio.get_running_loop().create_task(_finish_alone(work, thrown)))
        return True


def _steps(
    work: Coroutine[Any, Any, Any],
    waiting: Any,
    keep_running: Callable[[Coroutine[Any, Any, Any], BaseException], bool] | None = None,
) -> Generator[Any, Any, Any]:
    """Continue suspended work step by step, as an await would; an exception that `keep_running` takes ends this."""
    try:
        while True:
            try:
                sent = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # passed on, as an await would
                if keep_running is not None and keep_running(work, thrown):
                    raise
                waiting = work.throw(thrown)
            else:
                waiting = work.send(sent)
    except StopIteration as done:
        return done.value
    finally:
        waiting = None  # it may hold the error whose traceback holds this frame


async def _finish_alone(work: Coroutine[Any, Any, Any], thrown: BaseException) -> None:
    try:
        await _resume(work, thrown)
    except BaseException:  # noqa: BLE001  # no caller is left to see it
        return


@types.coroutine
def _resume(work: Coroutine[Any, Any, Any], thrown: BaseException) -> Generator[Any, Any, Any]:
    """Throw into suspended work, then continue it."""
    try:
        waiting = work.throw(thrown)
    except StopIteration as done:
        return done.value
    return (yield from _steps(work, waiting))


class StreamDeadline:
    """Ends a stream at its deadline, when it is silent for too long, or when `stop` is called.

    Each item is awaited in the consumer's own task: a generator may hold what belongs to a task from item to item.
    """

    def __init__(
        self,
        wheel: TimerWheel,
        operation_id: str,
        abandoned: Abandoned,
        *,
        until: float | None = None,
        idle: float | None = None,
    ) -> None:
        self.operation_id = operation_id
        self.until = until
        self.idle = idle
        self._wheel = wheel
        self._abandoned = abandoned
        self._current: Deadline | None = None
        self._error: CallError | None = None

    def stop(self, error: CallError) -> None:
        """End the stream; its consumer gets `error`, now or at the next item."""
        self._error = error
        if self._current is not None:
            self._current.stop(error)

    def explain(self) -> CallError:
        """Return the error of a stream whose time is over, or that was silent for too long."""
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
            raise self.explain()  # also where the generator never suspends
        if self.idle is not None:
            silent = time.time() + self.idle
            until = silent if until is None else min(until, silent)
        deadline = self._current = self._deadline(until)
        try:
            return await deadline.run(_step(iterator))
        finally:
            self._current = None

    async def close(self, close: Callable[[], Awaitable[Any]]) -> None:
        """Close the stream's generator; past its deadline it has `GRACE_SECONDS` for that."""
        if self._error is None and (self.until is None or self.until > time.time()):
            await close()
        else:
            await self._deadline(time.time() + GRACE_SECONDS).run(_await(close))

    def _deadline(self, until: float | None) -> Deadline:
        return _ItemDeadline(
            wheel=self._wheel, operation_id=self.operation_id, until=until, abandoned=self._abandoned, stream=self
        )


class _ItemDeadline(Deadline, kw_only=True):
    """The deadline of one item of a stream."""

    stream: StreamDeadline

    def explain(self) -> CallError:
        """Return the error of a stream whose time is over."""
        return self.stream.explain()


async def _step(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)


async def _await(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def now_ms() -> int:
    """Return the present time in epoch milliseconds."""
    return int(time.time() * 1000)


def check_deadline(deadline: Any) -> float:
    """Return a deadline (epoch ms) in epoch seconds; raise `VALIDATION_ERROR` where it is not a number."""
    try:
        return float(min(deadline / 1000, time.time() + _LONGEST_SECONDS))
    except OverflowError:
        return time.time() + _LONGEST_SECONDS if deadline > 0 else 0.0
    except TypeError:
        message = f"invalid deadline {deadline!r}: expected epoch milliseconds"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def remaining_seconds(deadline: int, sent_at: int | None = None) -> float:
    """Return the time until a deadline (epoch ms), at most what its sender allowed, whatever the clocks say."""
    left = deadline / 1000 - time.time()
    if sent_at is not None:
        left = min(left, (deadline - sent_at) / 1000)
    return max(0.0, left)
