"""RateLimit: limits the rate of calls, for each caller."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from operations.interceptors.base import Envelopes, Invocation, KeyPart, Proceed, check_by, key_of, open_stream, refusal

_ROUNDING = 1e-9


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
        self._full_at: OrderedDict[tuple[str | None, ...], float] = OrderedDict()
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
