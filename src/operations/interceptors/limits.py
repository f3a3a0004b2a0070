"""Limits of calls: `RateLimit`, `ConcurrencyLimit`, and `ResponseLimit` for the size of results."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from operations.envelope import ResponseEnvelope
from operations.failures import too_large
from operations.interceptors.base import Envelopes, Invocation, KeyPart, Proceed, check_by, key_of, open_stream, refusal
from operations.keyed_slots import KeyedSlots

_ROUNDING = 1e-9
_Key = tuple[str | None, ...]


class RateLimit:
    """A token bucket of `burst` tokens for each key, refilled at `rate` tokens in `per` seconds; a call uses one token.

    In t seconds, at most `burst + rate * t / per` calls of a key run. The default of `burst` is `rate`, rounded down,
    and at least 1. A call that finds no token waits if a token becomes available within `max_wait` seconds. Otherwise
    it is refused immediately with `UNAVAILABLE`, `reason` `RATE_LIMITED` and `retryAfter`. A stream uses one token when
    it begins.

    The parts in `by` form the key; callers without an identity share one key. The `max_keys` most recent keys are kept:
    a key that was evicted starts with a full bucket.
    """

    def __init__(
        self,
        rate: float,
        *,
        per: float = 1.0,
        burst: int | None = None,
        max_wait: float = 0.0,
        by: Iterable[KeyPart] = ("identity",),
        max_keys: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        if not (rate > 0 and per > 0 and max_wait >= 0 and max_keys >= 1) or (burst is not None and burst < 1):
            raise ValueError("invalid rate limit: expected positive rate, per, burst and max_keys, and max_wait >= 0")
        self._interval = per / rate
        self._tolerance = self._interval * ((max(1, int(rate)) if burst is None else burst) - 1)
        self._max_wait = max_wait
        self._by = check_by(by)
        self._max_keys = max_keys
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        # The whole state of a token bucket is the time at which the bucket is full again.
        self._full_at: OrderedDict[_Key, float] = OrderedDict()
        self.refused = 0
        """Number of refused calls."""

    def counts(self) -> dict[str, int]:
        """Return the number of refused calls."""
        return {"refused": self.refused}

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Take a token, then run the call."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        wait = self._take(invocation)
        if wait > 0:
            await self._wait(invocation, wait)
        return await proceed(invocation)

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        wait = self._take(invocation)
        if wait > 0:
            await self._wait(invocation, wait)
        async with open_stream(invocation, proceed) as stream:
            async for envelope in stream:
                yield envelope

    def _take(self, invocation: Invocation) -> float:
        """Take a token and return the seconds until it is available; refuse a call that would wait too long."""
        key, now = key_of(invocation, self._by), self._clock()
        with self._lock:
            full_at = max(now, self._full_at.get(key, now))
            wait = full_at - now - self._tolerance
            if wait <= self._max_wait + _ROUNDING:
                self._full_at[key] = full_at + self._interval
                self._full_at.move_to_end(key)
                if len(self._full_at) > self._max_keys:
                    self._full_at.popitem(last=False)
                return wait if wait > _ROUNDING else 0.0
            self.refused += 1
        raise refusal(invocation.spec.id, "too many calls", "RATE_LIMITED", wait)

    async def _wait(self, invocation: Invocation, seconds: float) -> None:
        try:
            await self._sleep(seconds)
        except BaseException:
            # The call did not run: return its token.
            key = key_of(invocation, self._by)
            with self._lock:
                if key in self._full_at:
                    self._full_at[key] -= self._interval
            raise


class ConcurrencyLimit:
    """Runs at most `limit` calls of each key at a time; up to `queue` more wait, in order, at most `max_wait` seconds.

    Calls that find the queue full or wait too long are refused with `UNAVAILABLE` and `reason` `CONCURRENCY_LIMIT`. A
    stream holds its slot until it ends. A call that is nested in a call with a slot needs no second slot, so that it
    cannot wait for its own caller. The parts in `by` form the key; by default all calls share one key.
    """

    def __init__(
        self, limit: int, *, queue: int = 0, max_wait: float | None = None, by: Iterable[KeyPart] = ()
    ) -> None:
        if limit < 1 or queue < 0 or (max_wait is not None and max_wait < 0):
            raise ValueError("invalid concurrency limit: expected limit >= 1, queue >= 0 and max_wait >= 0")
        self._max_wait = max_wait
        self._by = check_by(by)
        self._slots = KeyedSlots[_Key](limit, queue=queue)
        self._current: ContextVar[_Held | None] = ContextVar("held", default=None)
        self.refused = 0
        """Number of refused calls."""

    @property
    def running(self) -> int:
        """Number of calls and streams that hold a slot."""
        return self._slots.taken

    def counts(self) -> dict[str, int]:
        """Return the number of refused calls."""
        return {"refused": self.refused}

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Acquire a slot, run the call, release the slot."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        if self._is_nested():
            return await proceed(invocation)
        key = await self._take(invocation)
        held = _Held()
        entered = self._current.set(held)
        try:
            return await proceed(invocation)
        finally:
            with suppress(ValueError):  # a task that is destroyed ends in another context
                self._current.reset(entered)
            held.is_held = False
            self._slots.release(key)

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        key = None if self._is_nested() else await self._take(invocation)
        try:
            async with open_stream(invocation, proceed) as stream:
                async for envelope in stream:
                    yield envelope
        finally:
            if key is not None:
                self._slots.release(key)

    def _is_nested(self) -> bool:
        held = self._current.get()
        return held is not None and held.is_held

    async def _take(self, invocation: Invocation) -> _Key:
        """Acquire a slot, waiting for it if the queue has room; return the key to release it with."""
        key = key_of(invocation, self._by)
        try:
            waiter = self._slots.enter(key)
            if waiter is not None:
                async with asyncio.timeout(self._max_wait):
                    await self._slots.wait(key, waiter)
        except (asyncio.QueueFull, TimeoutError):
            self.refused += 1
            text = "too many calls at the same time"
            raise refusal(invocation.spec.id, text, "CONCURRENCY_LIMIT") from None
        return key


class _Held:
    """A slot that a call holds, shared with its nested calls."""

    def __init__(self) -> None:
        self.is_held = True


class ResponseLimit:
    """Refuses results that have more than `max_bytes` bytes as JSON, including their meta.

    The error is `EXECUTION_ERROR` with `reason` `PAYLOAD_TOO_LARGE`: the operation was executed. Each item of
    a stream has the same limit; `stream_bytes` limits all items together.
    """

    def __init__(self, max_bytes: int, *, stream_bytes: int | None = None) -> None:
        if max_bytes < 1 or (stream_bytes is not None and stream_bytes < 1):
            raise ValueError("invalid response limit: expected positive max_bytes and stream_bytes")
        self._max_bytes = max_bytes
        self._stream_bytes = stream_bytes

    async def __call__(self, invocation: Invocation, proceed: Proceed) -> Any:
        """Run the call; raise an error if its result is too large."""
        if invocation.streaming:
            return self._stream(invocation, proceed)
        envelope = await proceed(invocation)
        self._measure(invocation, envelope)
        return envelope

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        total = 0
        async with open_stream(invocation, proceed) as stream:
            async for envelope in stream:
                total += self._measure(invocation, envelope)
                if self._stream_bytes is not None and total > self._stream_bytes:
                    raise too_large(invocation.spec.id, "stream", total, self._stream_bytes, "yes")
                yield envelope

    def _measure(self, invocation: Invocation, envelope: ResponseEnvelope[Any]) -> int:
        size = len(envelope.to_json())
        if size > self._max_bytes:
            raise too_large(invocation.spec.id, "result", size, self._max_bytes, "yes")
        return size
