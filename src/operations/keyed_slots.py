"""KeyedSlots: a bounded number of slots for each key; waiters of a key get its slots in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class _Slots:
    """The slots of one key."""

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: deque[Waiter] = deque()


class KeyedSlots(Generic[K]):
    """At most `limit` slots of each key at a time, for any number of threads and event loops.

    `queue` is the largest number of waiters of one key; None means no limit.
    """

    def __init__(self, limit: int, *, queue: int | None = None) -> None:
        self._limit = limit
        self._queue = queue
        self._lock = threading.Lock()
        self._by_key: dict[K, _Slots] = {}

    @property
    def taken(self) -> int:
        """Number of slots in use."""
        return sum(slots.taken for slots in list(self._by_key.values()))

    def enter(self, key: K) -> Waiter | None:
        """Take a slot and return None, or return a waiter for `wait`; raise QueueFull if the queue is full."""
        with self._lock:
            slots = self._by_key.setdefault(key, _Slots())
            if slots.taken < self._limit:
                slots.taken += 1
                return None
            if self._queue is not None and len(slots.waiting) >= self._queue:
                raise asyncio.QueueFull
            loop = asyncio.get_running_loop()
            waiter = loop, loop.create_future()
            slots.waiting.append(waiter)
            return waiter

    async def wait(self, key: K, waiter: Waiter) -> None:
        """Wait until `waiter` has a slot; if the task is cancelled, the slot goes to the next waiter."""
        try:
            await waiter[1]
        except BaseException:
            with self._lock:
                waiting = self._by_key[key].waiting
                is_queued = waiter in waiting
                if is_queued:
                    waiting.remove(waiter)
            if not is_queued:  # the slot was granted in the meantime
                self.release(key)
            raise

    def release(self, key: K) -> None:
        """Pass a slot to the first waiter, or free it. Any thread may call this method."""
        with self._lock:
            slots = self._by_key[key]
            while slots.waiting:
                loop, granted = slots.waiting.popleft()
                with suppress(RuntimeError):  # the loop of that waiter is closed
                    loop.call_soon_threadsafe(_grant, granted)
                    return
            slots.taken -= 1
            if not slots.taken:
                del self._by_key[key]


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)
