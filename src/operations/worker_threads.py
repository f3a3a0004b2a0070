"""Handlers in worker threads, and the count of handlers that outlive their call."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from operations.context import OperationContext, current_grant
from operations.errors import CallError, ErrorCode
from operations.spec import Handler

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor  # imported lazily: only plain functions need it

_MOST_DEPTH = 16
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("thread_depth", default=0)
"""Number of handlers in worker threads that wait for the current call."""


class WorkerThreads:
    """The worker threads of one registry, and its abandoned handlers.

    A handler is abandoned when its caller stops waiting: a thread cannot be stopped, and a coroutine may ignore its
    cancellation.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._shares = ThreadShares(max(1, threads - threads // 4))
        self._pools: dict[int, ThreadPoolExecutor] = {}
        """Thread pools by nesting depth. A nested call runs in another pool than the handler that waits for it, so that
        the handler never holds a thread that the nested call needs.
        """
        self._abandoned_threads: set[Future[Any]] = set()
        self._abandoned_tasks: set[asyncio.Task[Any]] = set()

    @property
    def abandoned(self) -> int:
        """Number of handlers still running after their call ended."""
        return len(self._abandoned_threads) + len(self._abandoned_tasks)

    def close(self) -> None:
        """Let the worker threads end once they are idle."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        self._pools.clear()

    async def in_thread(self, handler: Handler, input: Any, context: OperationContext) -> Any:
        """Run a plain function in a worker thread; if the caller is cancelled, the thread continues."""
        depth = _depth.get()
        pool = self._pools.get(depth) or self._add_pool(depth)
        variables = contextvars.copy_context()
        grant = current_grant.get()
        if grant is None or depth:
            job = pool.submit(variables.run, _call, handler, input, context, depth)
        else:
            caller = "" if grant.identity is None else grant.identity.id
            await self._shares.acquire(caller)
            try:
                job = pool.submit(variables.run, _call, handler, input, context, depth)
            except BaseException:
                self._shares.release(caller)
                raise
            job.add_done_callback(lambda _: self._shares.release(caller))
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancel() and not job.done():
                self._abandoned_threads.add(job)
                job.add_done_callback(self._abandoned_threads.discard)
            raise
        finally:
            del job  # avoids a reference cycle with a traceback

    def _add_pool(self, depth: int) -> ThreadPoolExecutor:
        if depth >= _MOST_DEPTH:
            message = f"plain functions call each other more than {_MOST_DEPTH} levels deep: use `async def`"
            raise CallError(ErrorCode.EXECUTION_ERROR, message)
        from concurrent.futures import ThreadPoolExecutor

        pool = self._pools[depth] = ThreadPoolExecutor(self._threads, thread_name_prefix="operations")
        return pool

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Track a task that continues a handler which ignored its cancellation."""
        self._abandoned_tasks.add(task)
        task.add_done_callback(self._abandoned_tasks.discard)


_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class ThreadShares:
    """Limits how many threads the external calls of one caller occupy; further calls of that caller wait, in order.

    If `most` is lower than the number of threads, a caller whose handlers run long leaves threads for other callers.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}
        """Number of threads that each caller occupies."""
        self._waiting: dict[str, deque[_Waiter]] = {}

    async def acquire(self, caller: str) -> None:
        """Wait until the caller may use another thread."""
        with self._lock:
            used = self._used.get(caller, 0)
            if used < self._most:
                self._used[caller] = used + 1
                return
            loop = asyncio.get_running_loop()
            waiter = loop, loop.create_future()
            self._waiting.setdefault(caller, deque()).append(waiter)
        try:
            await waiter[1]
        except BaseException:
            with self._lock:
                waiting = self._waiting.get(caller, ())
                is_granted = waiter not in waiting
                if not is_granted:
                    self._remove(caller, waiter)
            if is_granted:
                self.release(caller)
            raise

    def release(self, caller: str) -> None:
        """Give the thread of a call that has ended to the caller's next call, or free it.

        Any thread may call this method.
        """
        with self._lock:
            while (waiting := self._waiting.get(caller)) is not None:
                loop, granted = waiter = waiting[0]
                self._remove(caller, waiter)
                with suppress(RuntimeError):  # the loop of that call is closed
                    loop.call_soon_threadsafe(_grant, granted)
                    return
            self._used[caller] -= 1
            if not self._used[caller]:
                del self._used[caller]

    def _remove(self, caller: str, waiter: _Waiter) -> None:
        self._waiting[caller].remove(waiter)
        if not self._waiting[caller]:
            del self._waiting[caller]


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


def _call(handler: Handler, input: Any, context: OperationContext, depth: int) -> Any:
    _depth.set(depth + 1)  # in a copy of the caller's context variables
    try:
        return handler(input, context)
    except StopIteration as error:
        # A future cannot carry StopIteration: its waiter would never wake up.
        raise RuntimeError("the handler raised StopIteration") from error
