"""ConcurrencyLimit: limits the number of concurrent calls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from operations.interceptors.base import Envelopes, Invocation, KeyPart, Proceed, check_by, key_of, open_stream, refusal

_Key = tuple[str | None, ...]
_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


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
        self._limit = limit
        self._queue = queue
        self._max_wait = max_wait
        self._by = check_by(by)
        self._lock = threading.Lock()
        self._slots: dict[_Key, _Slots] = {}
        self._current: ContextVar[_Held | None] = ContextVar("held", default=None)
        self.refused = 0
        """Number of refused calls."""

    @property
    def running(self) -> int:
        """Number of calls and streams that hold a slot."""
        return sum(slots.taken for slots in self._slots.values())

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
            self._leave(key)

    async def _stream(self, invocation: Invocation, proceed: Proceed) -> Envelopes:
        key = None if self._is_nested() else await self._take(invocation)
        try:
            async with open_stream(invocation, proceed) as stream:
                async for envelope in stream:
                    yield envelope
        finally:
            if key is not None:
                self._leave(key)

    def _is_nested(self) -> bool:
        held = self._current.get()
        return held is not None and held.is_held

    async def _take(self, invocation: Invocation) -> _Key:
        """Acquire a slot, waiting for it if the queue has room; return the key to release it with."""
        key = key_of(invocation, self._by)
        waiter = self._enter(key, invocation)
        if waiter is not None:
            await self._wait(key, waiter, invocation)
        return key

    def _enter(self, key: _Key, invocation: Invocation) -> _Waiter | None:
        """Acquire a slot, or return a waiter in the queue."""
        with self._lock:
            slots = self._slots.setdefault(key, _Slots())
            if slots.taken < self._limit:
                slots.taken += 1
                return None
            if len(slots.waiting) < self._queue:
                loop = asyncio.get_running_loop()
                waiter = loop, loop.create_future()
                slots.waiting.append(waiter)
                return waiter
            self.refused += 1
        raise refusal(invocation.spec.id, "too many calls at the same time", "CONCURRENCY_LIMIT")

    async def _wait(self, key: _Key, waiter: _Waiter, invocation: Invocation) -> None:
        granted = waiter[1]
        try:
            async with asyncio.timeout(self._max_wait):
                await granted
        except BaseException as error:
            with self._lock:
                slots = self._slots[key]
                queued = waiter in slots.waiting
                if queued:
                    slots.waiting.remove(waiter)
            if not queued:  # the slot was granted in the meantime
                self._leave(key)
            if isinstance(error, TimeoutError):
                self.refused += 1
                text = "too many calls at the same time"
                raise refusal(invocation.spec.id, text, "CONCURRENCY_LIMIT") from None
            raise

    def _leave(self, key: _Key) -> None:
        """Pass a slot to the first in the queue, or free it."""
        with self._lock:
            slots = self._slots[key]
            while slots.waiting:
                loop, granted = slots.waiting.popleft()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_grant, granted)
                    return
            slots.taken -= 1
            if not slots.taken:
                del self._slots[key]


class _Slots:
    """The slots of one key."""

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: deque[_Waiter] = deque()


class _Held:
    """A slot that a call holds, shared with its nested calls."""

    def __init__(self) -> None:
        self.is_held = True


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)
