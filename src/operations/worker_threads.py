"""Handlers in worker threads, and the count of handlers that outlive their call."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

from operations.context import OperationContext, current_grant
from operations.errors import CallError, ErrorCode
from operations.keyed_slots import KeyedSlots
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
        self._shares = KeyedSlots[str](max(1, threads - threads // 4))
        """The threads of external calls by caller; a caller with slow handlers leaves threads for other callers."""
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
        """Run a plain function in a worker thread; if the caller is cancelled, a function that has begun continues."""
        depth = _depth.get()
        pool = self._pools.get(depth) or self._add_pool(depth)
        variables = contextvars.copy_context()
        grant = current_grant.get()
        if grant is None or depth:
            job = pool.submit(variables.run, _call, handler, input, context, depth)
        else:
            caller = "" if grant.identity is None else grant.identity.id
            waiter = self._shares.enter(caller)
            if waiter is not None:
                await self._shares.wait(caller, waiter)
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


def _call(handler: Handler, input: Any, context: OperationContext, depth: int) -> Any:
    _depth.set(depth + 1)  # in a copy of the caller's context variables
    try:
        return handler(input, context)
    except StopIteration as error:
        # A future cannot carry StopIteration: its waiter would never wake up.
        raise RuntimeError("the handler raised StopIteration") from error
