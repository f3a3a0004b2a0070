"""BlockingRegistry: a registry for programs without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Any, TypeVar, overload

from operations.batch import BatchCall
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.spec import Operation

__all__ = ["BlockingRegistry"]

R = TypeVar("R")
T = TypeVar("T")


_CLEANUP_SECONDS = 1.0
"""Time for cancelled calls to clean up when a BlockingRegistry closes, in seconds."""


class BlockingRegistry:
    """Calls a registry's operations from synchronous code, on an event loop in a separate thread.

    Use it with `with`: leaving the block stops the loop and everything on it. Handlers make nested calls through
    `context.env`. An `async def` handler runs on that loop: if it calls the BlockingRegistry, the call fails.
    """

    def __init__(self, registry: OperationRegistry) -> None:
        self.registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._streams: weakref.WeakSet[AsyncGenerator[Any, None]] = weakref.WeakSet()

    def __enter__(self) -> BlockingRegistry:
        if self._loop is not None:
            raise RuntimeError("this BlockingRegistry is already open")
        opened = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop, opened), name="operations-blocking", daemon=True
        )
        self._thread.start()
        opened.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    @overload
    def execute(
        self, operation: Operation[R], input: Any = None, context: OperationContext | None = None
    ) -> ResponseEnvelope[R]: ...
    @overload
    def execute(
        self, operation: str, input: Any = None, context: OperationContext | None = None
    ) -> ResponseEnvelope[Any]: ...
    def execute(
        self, operation: str | Operation[Any], input: Any = None, context: OperationContext | None = None
    ) -> ResponseEnvelope[Any]:
        """Call an operation and wait for its envelope."""
        return self._wait(self.registry.execute(operation, input, context))

    def execute_many(
        self, calls: Iterable[BatchCall], *, concurrency: int = 64, context: OperationContext | None = None
    ) -> list[ResponseEnvelope[Any] | CallError]:
        """Run a batch of calls; return the envelope or error of each call, in order."""
        return self._wait(self.registry.execute_many(calls, concurrency=concurrency, context=context))

    @overload
    def subscribe(
        self, operation: Operation[R], input: Any = None, context: OperationContext | None = None
    ) -> Iterator[ResponseEnvelope[R]]: ...
    @overload
    def subscribe(
        self, operation: str, input: Any = None, context: OperationContext | None = None
    ) -> Iterator[ResponseEnvelope[Any]]: ...
    def subscribe(
        self, operation: str | Operation[Any], input: Any = None, context: OperationContext | None = None
    ) -> Iterator[ResponseEnvelope[Any]]:
        """Iterate over an operation's stream; closing the iterator closes the handler's generator."""
        stream = self.registry.subscribe(operation, input, context)
        self._streams.add(stream)
        try:
            while (envelope := self._wait(_next(stream))) is not None:
                yield envelope
        finally:
            if self._loop is not None:
                self._wait(stream.aclose())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            work.close()
            closed, own = "is closed: use it in a `with` block", "cannot be used by its own handlers: use context.env"
            reason = closed if loop is None else own
            raise CallError(ErrorCode.EXECUTION_ERROR, f"this BlockingRegistry {reason}")
        outcome = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return outcome.result()
        except CancelledError:
            raise CallError(ErrorCode.ABORTED, "the BlockingRegistry was closed during the call") from None
        except KeyboardInterrupt:
            outcome.cancel()
            raise

    async def _end(self) -> None:
        """Cancel running calls, then close streams; wait at most `_CLEANUP_SECONDS` for each of these two steps."""
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CLEANUP_SECONDS)
        closing = {asyncio.ensure_future(_close(stream)) for stream in list(self._streams)}
        if closing:
            _, late = await asyncio.wait(closing, timeout=_CLEANUP_SECONDS)
            for task in late:
                task.cancel()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop, opened: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(opened.set)
        try:
            loop.run_forever()
        finally:
            loop.close()


async def _close(stream: AsyncGenerator[Any, None]) -> None:
    with contextlib.suppress(Exception):
        await stream.aclose()


async def _next(stream: AsyncGenerator[ResponseEnvelope[Any], None]) -> ResponseEnvelope[Any] | None:
    """Return the next envelope, or None at the end of the stream."""
    return await anext(stream, None)
