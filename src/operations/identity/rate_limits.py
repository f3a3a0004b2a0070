"""Limits for each identity: requests in a time, things at once, and failed attempts of an address."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from operations.errors import CallError, ErrorCode

_MOST = 10_000
"""Number of identities that are remembered; the ones that were quiet the longest are forgotten."""

Clock = Callable[[], float]


class RateLimits:
    """At most `per_second` requests of each key in the long run, and `burst` of them at once."""

    def __init__(self, per_second: float, burst: int | None = None, *, clock: Clock = time.monotonic) -> None:
        if per_second <= 0:
            raise ValueError(f"per_second is {per_second!r}: give a number above 0")
        self._interval = 1.0 / per_second
        self._window = self._interval * (max(1, round(per_second)) if burst is None else burst)
        self._clock = clock
        self._full: OrderedDict[str, float] = OrderedDict()
        """When the allowance of each key is whole again."""

    def take(self, key: str) -> None:
        """Count a request; raises a `RATE_LIMITED` error with the seconds to wait where there are too many."""
        now = self._clock()
        full = max(self._full.get(key, now), now) + self._interval
        wait = full - now - self._window
        if wait > 1e-9:
            raise rate_limited("too many requests", wait)
        self._full[key] = full
        self._full.move_to_end(key)
        if len(self._full) > _MOST:
            self._full.popitem(last=False)


class ConcurrencyLimits:
    """At most `most` things of each key at once, such as open streams."""

    def __init__(self, most: int, what: str = "requests at once") -> None:
        self._most = most
        self._what = what
        self._running: dict[str, int] = {}

    def take(self, key: str) -> None:
        """Count one until `give`; raises a `RATE_LIMITED` error where there are too many."""
        self.check(key)
        self.add(key)

    def check(self, key: str) -> None:
        """Raise a `RATE_LIMITED` error where one more would be too many."""
        if self._running.get(key, 0) >= self._most:
            raise rate_limited(f"too many {self._what}: the limit is {self._most}", 1.0)

    def add(self, key: str) -> None:
        """Count one until `give`, whatever the limit."""
        self._running[key] = self._running.get(key, 0) + 1

    def give(self, key: str) -> None:
        """Count one less."""
        running = self._running[key]
        if running == 1:
            del self._running[key]
        else:
            self._running[key] = running - 1


class Failures:
    """Failed attempts of an address: after `most` within `seconds`, it has to wait."""

    def __init__(self, most: int = 30, seconds: float = 60.0, *, clock: Clock = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise a `RATE_LIMITED` error for an address with too many failures."""
        began, count = self._counts.get(address, (0.0, 0))
        left = began + self._seconds - self._clock()
        if count >= self._most and left > 0:
            raise rate_limited("too many invalid credentials", left)

    def count(self, address: str) -> None:
        """Count a failure."""
        now = self._clock()
        began, count = self._counts.get(address, (now, 0))
        if now - began >= self._seconds:
            began, count = now, 0
        self._counts[address] = began, count + 1
        self._counts.move_to_end(address)
        if len(self._counts) > _MOST:
            self._counts.popitem(last=False)


def rate_limited(message: str, wait: float) -> CallError:
    """Return the error of a caller that has to wait."""
    details = {"reason": "RATE_LIMITED", "retryAfter": max(1, round(wait + 0.5)), "executed": "no"}
    return CallError(ErrorCode.UNAVAILABLE, message, details)
