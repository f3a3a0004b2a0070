"""Guard: work awaited in its caller's own task, and still left at its deadline even if it will not be ended."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

GRACE_SECONDS = 0.1
"""How long cancelled work may take to clean up before its caller stops waiting for it."""


class Guard:
    """Cancels the task that drives some work when the time has come, and leaves work behind that ignores it.

    `left_behind` is told of the task that goes on with such work, and keeps it: nobody waits for it.
    """

    __slots__ = ("_before", "_grace", "_left_behind", "_settled", "abandoned", "expired", "reason", "task")

    def __init__(self, task: asyncio.Task[Any], left_behind: Callable[[asyncio.Task[Any]], None]) -> None:
        self.task = task
        self.expired = False
        self.abandoned = False
        self.reason = ""
        self._before = task.cancelling()
        self._left_behind = left_behind
        self._grace: asyncio.TimerHandle | None = None
        self._settled: bool | None = None

    def expire(self) -> None:
        """The time has come: cancel the work, and after a grace its caller goes on without it."""
        self.stop("")

    def stop(self, reason: str) -> None:
        """End the work from outside."""
        if not self.expired:
            self.expired = True
            self.reason = reason
            self.task.cancel()
            self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._abandon)

    def settle(self) -> bool:
        """The work is over: True where nothing but this guard had cancelled the task."""
        if self._grace is not None:
            self._grace.cancel()
        if self._settled is None:
            self._settled = not self.expired or self.task.uncancel() <= self._before
        return self._settled

    def ended_by(self, error: BaseException) -> bool:
        """Whether `error` left the work because this guard ended it, and nobody else."""
        return self.expired and (self.settle() or not isinstance(error, asyncio.CancelledError))

    def _abandon(self) -> None:
        self.abandoned = True
        self.task.cancel()

    def leave_behind(self, work: Coroutine[Any, Any, Any], error: BaseException) -> None:
        """Let work that ignores its cancellation go on by itself."""
        self.task.uncancel()
        self._left_behind(asyncio.get_running_loop().create_task(_finish_alone(work, error)))


@types.coroutine
def drive(
    work: Coroutine[Any, Any, Any], guard: Guard | None, error: BaseException | None = None
) -> Generator[Any, Any, Any]:
    """Run `work` in the current task, step by step as an await would, until it ends or the guard gives it up.

    With `error`, that is thrown into it first.
    """
    try:
        waiting = work.send(None) if error is None else work.throw(error)
        while True:
            try:
                sent = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # passed on, as an await would
                if guard is not None and guard.abandoned:
                    guard.leave_behind(work, thrown)
                    raise
                waiting = work.throw(thrown)
            else:
                waiting = work.send(sent)
    except StopIteration as done:
        return done.value
    finally:
        waiting = None  # it may have the error whose traceback has this frame


async def _finish_alone(work: Coroutine[Any, Any, Any], error: BaseException) -> None:
    try:
        await drive(work, None, error)
    except BaseException:  # noqa: BLE001  # nobody waits for what it raises
        return
