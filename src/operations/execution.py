"""Handlers in worker threads, and the count of handlers that outlive their call."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from operations.context import OperationContext
from operations.spec import Handler


class Execution:
    """The worker threads of one registry, and its abandoned handlers.

    A handler is abandoned when its caller stops waiting for it: a thread cannot be stopped, and a coroutine may ignore
    its cancellation.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._abandoned_threads: set[Future[Any]] = set()
        self._abandoned_tasks: set[asyncio.Task[Any]] = set()

    @property
    def abandoned(self) -> int:
        """Number of handlers still running after their call ended."""
        return len(self._abandoned_threads) + len(self._abandoned_tasks)

    def close(self) -> None:
        """Let the worker threads end once they are idle."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    async def in_thread(self, handler: Handler, input: Any, context: OperationContext) -> Any:
        """Run a plain function in a worker thread; a cancelled caller leaves the thread running."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="operations")
        variables = contextvars.copy_context()
        job = self._pool.submit(variables.run, _call, handler, input, context)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancel() and not job.done():
                self._abandoned_threads.add(job)
                job.add_done_callback(self._abandoned_threads.discard)
            raise
        finally:
            del job  # it holds the error whose traceback holds this frame

    def abandon(self, task: asyncio.Task[Any]) -> None:
        """Keep and count a task that continues a handler which ignored its cancellation."""
        self._abandoned_tasks.add(task)
        task.add_done_callback(self._abandoned_tasks.discard)


def _call(handler: Handler, input: Any, context: OperationContext) -> Any:
    try:
        return handler(input, context)
    except StopIteration as error:
        # A future cannot carry StopIteration: its waiter would never wake.
        raise RuntimeError("the handler raised StopIteration") from error
