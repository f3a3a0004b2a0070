"""Running a handler to a defined end: worker threads, deadlines, and every exception as a CallError."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from operations.context import OperationContext
from operations.errors import CallError, ErrorCode
from operations.guard import GRACE_SECONDS, Guard, drive
from operations.spec import Handler

T = TypeVar("T")

_LONGEST_SECONDS = 10.0**9


class Execution:
    """Runs handlers for one registry; what outlives its caller is kept and counted.

    That is a thread, which cannot be stopped, or a handler that ignores its cancellation.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._stray_threads: set[Future[Any]] = set()
        self._stray_tasks: set[asyncio.Task[Any]] = set()

    @property
    def strays(self) -> int:
        """How many handlers still run that nobody waits for."""
        return len(self._stray_threads) + len(self._stray_tasks)

    def close(self) -> None:
        """Let the worker threads end once they are idle."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    async def in_thread(self, handler: Handler, input: Any, context: OperationContext) -> Any:
        """Run a plain function in a worker thread; a caller who is cancelled leaves the thread to finish."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="operations")
        variables = contextvars.copy_context()
        job = self._pool.submit(variables.run, _call, handler, input, context)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancel() and not job.done():
                self._stray_threads.add(job)
                job.add_done_callback(self._stray_threads.discard)
            raise
        finally:
            del job  # it has the error whose traceback has this frame

    async def until(self, deadline: int, operation_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` until `deadline` (epoch ms): `TIMEOUT` if it has passed, or passes before the work is done."""
        try:
            remaining = remaining_seconds(deadline)
        except CallError:
            work.close()
            raise
        if remaining <= 0:
            work.close()
            raise CallError(ErrorCode.TIMEOUT, f"{operation_id}: the deadline had passed before the call began")
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,), timeout=remaining)
        except asyncio.CancelledError:
            await self._stop(task)
            raise
        if not task.done():
            await self._stop(task)
            raise CallError(ErrorCode.TIMEOUT, f"{operation_id}: the deadline passed during the call")
        if task.cancelled():
            raise CallError(ErrorCode.ABORTED, f"{operation_id}: the handler's task was cancelled")
        try:
            return task.result()
        finally:
            del task  # it has the error whose traceback has this frame

    async def _stop(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE_SECONDS)
        if task.done():
            _forget_outcome(task)
        else:
            self._keep_stray(task)

    def _keep_stray(self, task: asyncio.Task[Any]) -> None:
        self._stray_tasks.add(task)
        task.add_done_callback(self._stray_tasks.discard)
        task.add_done_callback(_forget_outcome)

    async def next_item(self, iterator: AsyncIterator[T], deadline: int | None, operation_id: str) -> T:
        """The next item of a stream, or `TIMEOUT` where the deadline (epoch ms) comes first."""
        if deadline is None:
            return await anext(iterator)
        remaining = remaining_seconds(deadline)
        if remaining <= 0:
            # Also where the generator never waits, and so could not be cancelled.
            raise _stream_timeout(operation_id)
        # In the caller's task, not in one of its own: a generator may hold what belongs to its task from item to item.
        return await self._guarded(_step(iterator), remaining, operation_id)  # type: ignore[no-any-return]

    async def close_stream(self, close: Callable[[], Awaitable[Any]], deadline: int | None, operation_id: str) -> None:
        """Close a stream's generator; past its deadline it has a grace to clean up, and then is left behind."""
        if deadline is None or remaining_seconds(deadline) > 0:
            await close()
        else:
            await self._guarded(_await(close), GRACE_SECONDS, operation_id)

    async def _guarded(self, work: Coroutine[Any, Any, Any], seconds: float, operation_id: str) -> Any:
        guard = Guard(asyncio.current_task(), self._keep_stray)  # type: ignore[arg-type]
        timer = asyncio.get_running_loop().call_later(seconds, guard.expire)
        try:
            result = await drive(work, guard)
        except BaseException as error:
            if guard.ended_by(error):
                raise _stream_timeout(operation_id) from None
            raise
        finally:
            timer.cancel()
            guard.settle()
            del guard.task  # it may end in the error whose traceback has this frame
        if guard.expired:
            raise _stream_timeout(operation_id)
        return result


def remaining_seconds(deadline: int) -> float:
    """How long it is until a deadline (epoch ms); a far one is a very long time, never an error."""
    try:
        return min(deadline / 1000 - time.time(), _LONGEST_SECONDS)
    except OverflowError:
        return _LONGEST_SECONDS if deadline > 0 else -1.0
    except TypeError:
        message = f"a deadline is epoch milliseconds, not {deadline!r}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def _stream_timeout(operation_id: str) -> CallError:
    return CallError(ErrorCode.TIMEOUT, f"{operation_id}: the deadline passed during the stream")


async def _step(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)


async def _await(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def translate(error: BaseException, operation_id: str) -> BaseException:
    """What the caller of an operation gets to see for an exception that left its handler; it has its cause.

    It is for the caller to raise: a frame that has an error in a variable and raises it lives as long as the error's
    traceback, and the error as long as the frame, until the garbage is collected.
    """
    if isinstance(error, CallError):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return error
        return _caused(CallError(ErrorCode.ABORTED, f"{operation_id}: the handler cancelled itself"), error)
    if isinstance(error, SystemExit):
        message = f"{operation_id}: the handler asked the process to exit ({error.code})"
        return _caused(CallError(ErrorCode.EXECUTION_ERROR, message, {"type": "SystemExit"}), error)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return error  # somebody wants the program, or this coroutine, to end
    kind = type(error).__name__
    text = _describe(error)
    message = f"{operation_id}: {kind}: {text}" if text else f"{operation_id}: {kind}"
    return _caused(CallError(ErrorCode.EXECUTION_ERROR, message, {"type": kind}), error)


def _caused(error: CallError, cause: BaseException) -> CallError:
    error.__cause__ = cause
    return error


def _describe(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a broken __str__ must not hide the error it belongs to
        return ""


def _call(handler: Handler, input: Any, context: OperationContext) -> Any:
    try:
        return handler(input, context)
    except StopIteration as error:
        # A future cannot carry StopIteration: its waiter would never wake.
        raise RuntimeError("the handler raised StopIteration") from error


def _forget_outcome(task: asyncio.Task[Any]) -> None:
    """Read a task's exception, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()
