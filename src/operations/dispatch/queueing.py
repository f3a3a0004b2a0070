"""Fair queues: calls that wait, those of one caller behind each other and those of several callers in turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Generic, Protocol, TypeVar

from operations.errors import CallError, ErrorCode

_MOST_COMPARED = 1_024


class Waiter(Protocol):
    """A call that waits for a slot."""

    @property
    def caller(self) -> str:
        """Whose calls it waits behind."""

    def begin(self) -> None:
        """Start: the slot is taken, and is given back with `release`."""

    def refuse(self) -> None:
        """End: others need the place in the queue."""


class _Queued(Protocol):
    @property
    def caller(self) -> str:
        """Whose queue it is in."""


Q = TypeVar("Q", bound=_Queued)


class FairQueue(Generic[Q]):
    """Takes the first item of each caller in turn: many items of one caller do not delay the few of another."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, OrderedDict[Q, None]] = OrderedDict()
        """The items of each caller; the caller whose turn it is comes first."""
        self.size = 0
        """Number of items."""

    def add(self, item: Q) -> None:
        """Queue an item behind those of the same caller."""
        self._callers.setdefault(item.caller, OrderedDict())[item] = None
        self.size += 1

    def pop(self) -> Q:
        """Remove and return the first item of the caller whose turn it is."""
        caller, items = next(iter(self._callers.items()))
        item, _ = items.popitem(last=False)
        self.size -= 1
        if items:
            self._callers.move_to_end(caller)
        else:
            del self._callers[caller]
        return item

    def discard(self, item: Q) -> bool:
        """Remove an item; False where it is not here."""
        items = self._callers.get(item.caller)
        if items is None or item not in items:
            return False
        del items[item]
        self.size -= 1
        if not items:
            del self._callers[item.caller]
        return True

    def pop_excess(self, caller: str) -> Q | None:
        """Remove and return the last item of whoever has the most; None where `caller` has as many itself.

        Very many callers are not compared: where names are free, one peer may use any number of them.
        """
        if len(self._callers) > _MOST_COMPARED:
            return None
        longest = max(self._callers.values(), key=len, default=None)
        if longest is None or len(longest) <= len(self._callers.get(caller, ())) + 1:
            return None
        item = next(reversed(longest))
        self.discard(item)
        return item


class Slots:
    """A bounded number of running calls and a bounded queue, in which callers take turns."""

    def __init__(self, concurrency: int, queue: int) -> None:
        self.free = concurrency
        """Number of slots that nobody has; who takes one counts it down."""
        self.waiting: FairQueue[Waiter] = FairQueue()
        self._most_waiting = queue
        self._starting = False

    def enqueue(self, waiter: Waiter) -> bool:
        """Start `waiter` when a slot is free; False where the queue is full of calls of callers with no more."""
        if self.waiting.size >= self._most_waiting:
            excess = self.waiting.pop_excess(waiter.caller)
            if excess is None:
                return False
            excess.refuse()
        self.waiting.add(waiter)
        return True

    def release(self) -> None:
        """Give a slot back; the next call in the queue starts."""
        self.free += 1
        if self.waiting.size and not self._starting:
            self._start_waiting()

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncGenerator[None, None]:
        """Give a running call's slot to others while it waits for a person; the call takes one again afterwards."""
        self.release()
        try:
            yield
            if self.free > 0:
                self.free -= 1
            elif not await Turn(self).come():
                raise CallError(ErrorCode.UNAVAILABLE, "the worker has too many requests waiting")
        except BaseException:
            self.free -= 1  # a call that ends gives back a slot
            raise

    def _start_waiting(self) -> None:
        # A loop, not recursion: calls that end immediately release their slot within it, however many they are.
        self._starting = True
        try:
            while self.free > 0 and self.waiting.size:
                self.free -= 1
                self.waiting.pop().begin()
        finally:
            self._starting = False


class Turn:
    """A coroutine's turn: `await turn.come()` returns once a slot is taken."""

    caller = ""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._is_refused = False
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Let the coroutine go on."""
        if self._decided.cancelled():
            self._slots.free += 1
        else:
            self._decided.set_result(None)

    def refuse(self) -> None:
        """Tell the coroutine that others need its place."""
        self._is_refused = True
        if not self._decided.cancelled():
            self._decided.set_result(None)

    async def come(self) -> bool:
        """Wait for a slot; False where the queue is full."""
        if not self._slots.enqueue(self):
            return False
        try:
            await self._decided
        except asyncio.CancelledError:
            if self._decided.cancelled():
                self._slots.waiting.discard(self)
            elif not self._is_refused:
                self._slots.release()
            raise
        return not self._is_refused
