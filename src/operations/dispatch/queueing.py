"""Queues of calls, tasks and responses: callers are served in turn, and the calls of one caller keep their order."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from operations.errors import CallError, ErrorCode

_MOST_COMPARED = 1_024
"""Largest number of callers whose queues `FairQueue.pop_excess` compares."""
_ITERATION_SECONDS = 0.01
"""Time limit for starting calls in one iteration of the event loop; further calls start in the next iteration."""
_QUICK_SECONDS = 0.0001
"""A call is slow if its handler computes for at least this time before it first suspends or ends."""
_SLOW_STARTS = 4
"""Number of consecutive slow calls after which further calls are queued; a single call may be slow by chance."""
_FEWEST_SHARED = 64
"""A worker with at least this number of slots reserves some of them (see `_RESERVED`)."""
_RESERVED = 16
"""Number of slots that are reserved for callers that use few slots (see `_FEW`)."""
_FEW = 4
"""A caller that uses fewer slots than this number may take reserved slots."""
_FIRST_TASKS, _MOST_TASKS = 8, 64
"""Initial and maximum number of tasks that start in one iteration of the event loop."""


class QueuedCall(Protocol):
    """A call that waits for a slot."""

    @property
    def caller(self) -> str:
        """The key of the caller's queue."""

    def begin(self) -> None:
        """Start the call in a slot that is already reserved for it; `Slots.release` frees the slot."""

    def refuse(self) -> None:
        """End the call without running it, to make room in the queue."""


class _Queueable(Protocol):
    @property
    def caller(self) -> str:
        """The key of the caller's queue."""


Q = TypeVar("Q", bound=_Queueable)


class FairQueue(Generic[Q]):
    """A queue per caller, served round-robin: many items of one caller do not delay the few items of another."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, OrderedDict[Q, None]] = OrderedDict()
        """The items of each caller; the caller whose turn is next comes first."""
        self.size = 0
        """Number of items."""

    def add(self, item: Q) -> None:
        """Queue an item behind those of the same caller."""
        self._callers.setdefault(item.caller, OrderedDict())[item] = None
        self.size += 1

    def pop(self) -> Q:
        """Remove and return the first item of the next caller."""
        return self._pop_of(next(iter(self._callers)))

    def pop_allowed(self, allowed: Callable[[str], bool]) -> Q | None:
        """Remove and return the first item of the next caller for which `allowed` is true; None if there is none."""
        caller = next((caller for caller in self._callers if allowed(caller)), None)
        return None if caller is None else self._pop_of(caller)

    def _pop_of(self, caller: str) -> Q:
        items = self._callers[caller]
        item, _ = items.popitem(last=False)
        self.size -= 1
        if items:
            self._callers.move_to_end(caller)
        else:
            del self._callers[caller]
        return item

    def discard(self, item: Q) -> bool:
        """Remove an item; return whether it was queued."""
        items = self._callers.get(item.caller)
        if items is None or item not in items:
            return False
        del items[item]
        self.size -= 1
        if not items:
            del self._callers[item.caller]
        return True

    def pop_excess(self, caller: str) -> Q | None:
        """Remove and return the last item of the caller with the most items.

        Return None unless that caller has at least two items more than `caller`. Nothing is removed if more than
        `_MOST_COMPARED` callers have items: one peer may use the names of many callers to make the comparison slow.
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
    """A bounded number of running calls, and a bounded queue from which callers are served in turn.

    The last 16 slots are reserved for callers that use few slots, so that slow calls of one caller cannot occupy all.
    With fewer than 64 slots none is reserved.
    """

    def __init__(self, concurrency: int, queue: int) -> None:
        self.free = concurrency
        """Number of free slots."""
        self.waiting: FairQueue[QueuedCall] = FairQueue()
        self._most_waiting = queue
        self._starting = False
        self._reserved = _RESERVED if concurrency >= _FEWEST_SHARED else 0
        self.used: defaultdict[str, int] = defaultdict(int)
        """Number of slots of each caller."""
        self._most_counted = 2 * concurrency

    def take(self, caller: str) -> bool:
        """Take a slot for a caller; return False if no slot is free for this caller."""
        if self.free <= self._reserved and (self.free <= 0 or not self._uses_few(caller)):
            return False
        self.free -= 1
        self.used[caller] += 1
        if len(self.used) > self._most_counted:
            self.used = defaultdict(int, {each: number for each, number in self.used.items() if number})
        return True

    def enqueue(self, call: QueuedCall) -> bool:
        """Queue a call. If the queue is full, make room: refuse the last call of the caller with the most queued calls.

        Return False, without queueing the call, if `FairQueue.pop_excess` finds no such call.
        """
        if self.waiting.size >= self._most_waiting:
            excess = self.waiting.pop_excess(call.caller)
            if excess is None:
                return False
            excess.refuse()
        self.waiting.add(call)
        return True

    def release(self, caller: str = "") -> None:
        """Free the slot of a caller; the next call in the queue starts."""
        self.free += 1
        self.used[caller] -= 1
        if self.waiting.size:
            self.start_waiting()

    def _uses_few(self, caller: str) -> bool:
        """Whether a caller may take reserved slots; calls without a caller always may."""
        return not caller or self.used.get(caller, 0) < _FEW

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncGenerator[None, None]:
        """Free the slot of a running call while the call waits for a person's answer; then acquire a slot again."""
        self.release()
        try:
            yield
            if not self.take("") and not await SlotWaiter(self).acquire():
                raise CallError(ErrorCode.UNAVAILABLE, "the worker has too many requests waiting")
        except BaseException:
            self.free -= 1  # the call has no slot, but releases one when it ends
            raise

    def start_waiting(self) -> None:
        """Start the calls in the queue for which a slot is free."""
        if self._starting:  # called by `begin`, for a call that ended immediately: the loop below continues
            return
        self._starting = True
        try:
            while self.free > 0 and self.waiting.size:
                only_reserved = self.free <= self._reserved
                call = self.waiting.pop_allowed(self._uses_few) if only_reserved else self.waiting.pop()
                if call is None:
                    break
                self.take(call.caller)
                call.begin()
        finally:
            self._starting = False


class SlotWaiter:
    """Lets a coroutine wait for a slot: `await waiter.acquire()`."""

    def __init__(self, slots: Slots, caller: str = "") -> None:
        self.caller = caller
        self._slots = slots
        self._is_refused = False
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Resume the coroutine, which now has a slot."""
        if self._decided.cancelled():
            self._slots.release(self.caller)
        else:
            self._decided.set_result(None)

    def refuse(self) -> None:
        """Resume the coroutine without a slot."""
        self._is_refused = True
        if not self._decided.cancelled():
            self._decided.set_result(None)

    async def acquire(self) -> bool:
        """Wait for a slot; return False if the queue is full, or if this waiter is removed from it to make room."""
        if not self._slots.enqueue(self):
            return False
        try:
            await self._decided
        except asyncio.CancelledError:
            if self._decided.cancelled():
                self._slots.waiting.discard(self)
            elif not self._is_refused:
                self._slots.release(self.caller)
            raise
        return not self._is_refused


class Backpressure:
    """Delays responses while the transport has too much unsent data; afterwards, callers get their responses in turn.

    A call that waits here keeps its slot, so that the number of waiting responses is bounded.
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether new responses must wait, because the transport has too much unsent data or other responses wait."""
        self._is_congested = False
        self._waiting: FairQueue[_Response] = FairQueue()

    def change(self, is_congested: bool) -> None:
        """Store whether the transport has too much unsent data; if not, let the next response be sent."""
        self._is_congested = is_congested
        if is_congested:
            self.is_on = True
        else:
            self._resume_next()

    async def wait(self, caller: str) -> None:
        """Wait until a response to `caller` may be sent.

        The code that awaits this must then send the response before it awaits anything else.
        """
        response = _Response(caller)
        self._waiting.add(response)
        try:
            await response.may_be_sent
        finally:
            self._waiting.discard(response)
            # The next response is sent after this one, unless this one causes congestion again.
            asyncio.get_running_loop().call_soon(self._resume_next)

    def _resume_next(self) -> None:
        while not self._is_congested:
            if not self._waiting.size:
                self.is_on = False
                return
            response = self._waiting.pop()
            if not response.may_be_sent.done():
                response.may_be_sent.set_result(None)
                return


class _Response:
    """A response that waits until it may be sent."""

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.may_be_sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class StartableCall(Protocol):
    """A call that has a slot and runs in its own task."""

    operation_id: str
    """The id of the called operation, which becomes the name of the task."""
    began: bool
    """Whether the handler has started."""
    is_over: bool
    """Whether the end of the call was reported."""
    task: asyncio.Task[None] | None

    @property
    def caller(self) -> str:
        """The key of the caller's queue."""

    def serve(self) -> Coroutine[Any, Any, None]:
        """Run the call and report its end; the task of the call runs this coroutine."""

    def ends_expired(self) -> bool:
        """End the call and free its slot if its deadline has passed; return whether it was ended."""


class EagerTasks:
    """Starts tasks eagerly, which Python supports since version 3.12.

    A handler that computes before it first suspends delays the calls that arrived later. After `_SLOW_STARTS` slow
    handlers in a row, further calls are queued and their callers are served in turn.
    """

    def __init__(self) -> None:
        self.waiting: FairQueue[StartableCall] = FairQueue()
        """Calls that have a slot and wait for their task."""
        self._slow_in_a_row = 0
        self._is_paced = False
        """Whether calls are queued; if so, `_next_turn` is scheduled and starts them."""

    def start(self, request: StartableCall) -> None:
        """Start the task of a call, now or in one of the next iterations."""
        if self._is_paced:
            self.waiting.add(request)
            return
        request.began = True
        loop, began = asyncio.get_running_loop(), perf_counter()
        task = asyncio.Task(request.serve(), loop=loop, name=request.operation_id, eager_start=True)  # type: ignore[call-arg]
        if not request.is_over:
            request.task = task
        if perf_counter() - began < _QUICK_SECONDS:
            self._slow_in_a_row = 0
        else:
            self._slow_in_a_row += 1
            if self._slow_in_a_row >= _SLOW_STARTS and not self._is_paced:
                self._is_paced = True
                loop.call_soon(self._next_turn, loop)

    def _next_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        end = perf_counter() + _ITERATION_SECONDS
        while self.waiting.size and perf_counter() < end:
            request = self.waiting.pop()
            if request.ends_expired():
                continue
            request.began = True
            task = asyncio.Task(request.serve(), loop=loop, name=request.operation_id, eager_start=True)  # type: ignore[call-arg]
            if not request.is_over:
                request.task = task
        self._is_paced = self.waiting.size > 0
        if self._is_paced:
            loop.call_soon(self._next_turn, loop)


class PacedTasks:
    """Starts tasks that first run in the next iteration of the event loop, for Python 3.11.

    asyncio runs all tasks that are ready before any timer. An iteration therefore starts only as many tasks as are
    expected to fit in 10 ms, so that heartbeats and deadlines are not late. Further calls are queued, and their callers
    are served in turn.
    """

    def __init__(self) -> None:
        self.waiting: FairQueue[StartableCall] = FairQueue()
        """Calls that have a slot and wait for their task."""
        self._most = self._left = _FIRST_TASKS
        self._began = 0.0
        self._is_scheduled = False

    def start(self, request: StartableCall) -> None:
        """Start the task of a call, now or in one of the next iterations."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled, self._began = True, loop.time()
            loop.call_soon(self._next_iteration, loop)
        if self._left <= 0:
            self.waiting.add(request)
        else:
            self._left -= 1
            request.began = True
            request.task = asyncio.Task(request.serve(), loop=loop, name=request.operation_id)

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        was_idle = self._left == self._most and not self.waiting.size
        began, self._began = self._began, loop.time()
        fitting = int(self._most * _ITERATION_SECONDS / max(self._began - began, 1e-6))
        self._most = max(1, min(fitting, self._most * 2, _MOST_TASKS))
        self._left = self._most
        while self.waiting.size and self._left > 0:
            request = self.waiting.pop()
            if request.ends_expired():
                continue
            self._left -= 1
            request.began = True
            request.task = asyncio.Task(request.serve(), loop=loop, name=request.operation_id)
        self._is_scheduled = not was_idle
        if self._is_scheduled:
            loop.call_soon(self._next_iteration, loop)


Tasks = EagerTasks if sys.version_info >= (3, 12) else PacedTasks
