"""Limits per identity on request rates and concurrency, and per address on failed attempts."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from operations.errors import CallError, ErrorCode

_MAX_ENTRIES = 10_000
"""Maximum number of tracked keys; the least recently used are dropped."""

Clock = Callable[[], float]


class RateLimits:
    """At most `per_second` requests per key on average, and `burst` at the same moment."""

    def __init__(self, per_second: float, burst: int | None = None, *, clock: Clock = time.monotonic) -> None:
        if per_second <= 0:
            raise ValueError(f"invalid per_second {per_second!r}: expected a number above 0")
        self._interval = 1.0 / per_second
        self._window = self._interval * (max(1, round(per_second)) if burst is None else burst)
        self._clock = clock
        self._full: OrderedDict[str, float] = OrderedDict()
        """By key: the time at which the whole burst is available again."""

    def acquire(self, key: str) -> None:
        """Count a request; raise a `RATE_LIMITED` error with the seconds to wait if the limit is exceeded."""
        now = self._clock()
        full = max(self._full.get(key, now), now) + self._interval
        wait = full - now - self._window
        if wait > 1e-9:
            raise rate_limited("too many requests", wait)
        self._full[key] = full
        self._full.move_to_end(key)
        if len(self._full) > _MAX_ENTRIES:
            self._full.popitem(last=False)


class ConcurrencyLimits:
    """At most `limit` concurrent uses of each key, such as open streams."""

    def __init__(self, limit: int, what: str = "requests at once") -> None:
        self._limit = limit
        self._what = what
        self._running: dict[str, int] = {}

    def acquire(self, key: str, uses: int = 1) -> None:
        """Count uses until `release`; raise a `RATE_LIMITED` error if they would exceed the limit."""
        self.check(key, uses)
        self.add(key, uses)

    def check(self, key: str, uses: int = 1) -> None:
        """Raise a `RATE_LIMITED` error if `uses` further uses would exceed the limit."""
        if self._running.get(key, 0) + uses > self._limit:
            raise rate_limited(f"too many {self._what}: the limit is {self._limit:,}", 1.0)

    def add(self, key: str, uses: int = 1) -> None:
        """Count uses until `release`, without a check of the limit."""
        self._running[key] = self._running.get(key, 0) + uses

    def release(self, key: str, uses: int = 1) -> None:
        """Stop counting uses."""
        running = self._running[key] - uses
        if running:
            self._running[key] = running
        else:
            del self._running[key]


class FailureLimits:
    """A limit on failed attempts: after `limit` failures within `seconds`, an address has to wait."""

    def __init__(self, limit: int = 30, seconds: float = 60.0, *, clock: Clock = time.monotonic) -> None:
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise a `RATE_LIMITED` error for an address with too many failures."""
        began, count = self._counts.get(address, (0.0, 0))
        left = began + self._seconds - self._clock()
        if count >= self._limit and left > 0:
            raise rate_limited("too many invalid credentials", left)

    def count(self, address: str) -> None:
        """Count a failure."""
        now = self._clock()
        began, count = self._counts.get(address, (now, 0))
        if now - began >= self._seconds:
            began, count = now, 0
        self._counts[address] = began, count + 1
        self._counts.move_to_end(address)
        if len(self._counts) > _MAX_ENTRIES:
            self._counts.popitem(last=False)


def rate_limited(message: str, wait: float) -> CallError:
    """Return the error for a caller that has to wait."""
    details = {"reason": "RATE_LIMITED", "retryAfter": max(1, round(wait + 0.5)), "executed": "no"}
    return CallError(ErrorCode.UNAVAILABLE, message, details)
