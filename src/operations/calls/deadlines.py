"""Deadlines in coarse buckets: thousands of calls share one timer, and a call that ends in time costs none."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

DEFAULT_TIMEOUT = 30.0
"""Seconds a call may take when it is given no deadline."""
_RESOLUTION = 0.02


class Expiring(Protocol):
    """Something that ends when its time has come."""

    def expire(self) -> None:
        """The time has come."""


Bucket = set[Expiring]


class Deadlines:
    """Calls `expire` on what is still here when its time has come, at most a fiftieth of a second late."""

    def __init__(self) -> None:
        self._buckets: dict[int, Bucket] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, entry: Expiring, seconds: float) -> Bucket:
        """Expire `entry` in so many seconds; returns the bucket to discard it from when it ends in time."""
        loop = asyncio.get_running_loop()
        return self.add_at(loop.time() + seconds, entry, loop)

    def add_at(self, when: float, entry: Expiring, loop: asyncio.AbstractEventLoop) -> Bucket:
        """The same at a time of the running loop's clock."""
        if loop is not self._loop:
            # The timers of a loop that has ended never come.
            self._timers.clear()
            self._buckets.clear()
            self._loop = loop
        tick = int(when / _RESOLUTION) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = set()
            self._timers[tick] = loop.call_at(tick * _RESOLUTION, self._fire, tick)
        bucket.add(entry)
        return bucket

    def close(self) -> None:
        """Expire nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._buckets.clear()

    def _fire(self, tick: int) -> None:
        self._timers.pop(tick, None)
        bucket = self._buckets.pop(tick, set())
        while bucket:
            # One that expires may end others.
            bucket.pop().expire()


def now_ms() -> int:
    """The present time in epoch milliseconds."""
    return int(time.time() * 1000)


def remaining_seconds(deadline: int, sent_at: int | None = None) -> float:
    """How long until a deadline (epoch ms), and no longer than its sender gave it, whatever the clocks say."""
    left = deadline / 1000 - time.time()
    if sent_at is not None:
        left = min(left, (deadline - sent_at) / 1000)
    return max(0.0, left)
