"""Guard: a handler awaited in its caller's own task, and still ended at its deadline even if it will not be."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

from operations.calls.counters import Counters
from operations.execution import GRACE_SECONDS

_strays: set[asyncio.Task[Any]] = set()


class Guard:
    """Cancels the task that drives a handler when the time has come, and leaves a handler behind that ignores it."""

    __slots__ = ("_before", "_counters", "_grace", "_settled", "abandoned", "expired", "reason", "task")

    def __init__(self, task: asyncio.Task[Any], counters: Counters) -> None:
        self.task = task
        self.expired = False
        self.abandoned = False
        self.reason = ""
        self._before = task.cancelling()
        self._counters = counters
        self._grace: asyncio.TimerHandle | None = None
        self._settled: bool | None = None

    def expire(self) -> None:
        """The deadline passed: cancel the handler, and after a grace its caller goes on without it."""
        self.stop("")

    def stop(self, reason: str) -> None:
        """End the call from outside."""
        if not self.expired:
            self.expired = True
            self.reason = reason
            self.task.cancel()
            self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._abandon)

    def settle(self) -> bool:
        """The call is over: True where nothing but this guard had cancelled the task."""
        if self._grace is not None:
            self._grace.cancel()
        if self._settled is None:
            self._settled = not self.expired or self.task.uncancel() <= self._before
        return self._settled

    def _abandon(self) -> None:
        self.abandoned = True
        self.task.cancel()

    def leave_behind(self, work: Coroutine[Any, Any, Any], error: BaseException) -> None:
        """Let a handler that ignores its cancellation go on by itself."""
        self.task.uncancel()
        self._counters.strays += 1
        task = asyncio.get_running_loop().create_task(_finish_alone(work, error))
        _strays.add(task)
        task.add_done_callback(_strays.discard)


@types.coroutine
def drive(work: Coroutine[Any, Any, Any], guard: Guard) -> Generator[Any, Any, Any]:
    """Run `work` in the current task, step by step as an await would, until it ends or the guard gives it up."""
    try:
        waiting = work.send(None)
        while True:
            try:
                sent = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # passed on, as an await would
                if guard.abandoned:
                    guard.leave_behind(work, error)
                    raise
                waiting = work.throw(error)
            else:
                waiting = work.send(sent)
    except StopIteration as done:
        return done.value


async def _finish_alone(work: Coroutine[Any, Any, Any], error: BaseException) -> None:
    try:
        await _resume(work, error)
    except BaseException:  # noqa: BLE001  # nobody waits for what it raises
        return


@types.coroutine
def _resume(work: Coroutine[Any, Any, Any], error: BaseException) -> Generator[Any, Any, Any]:
    try:
        waiting = work.throw(error)
        while True:
            try:
                sent = yield waiting
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:  # noqa: BLE001  # passed on, as an await would
                waiting = work.throw(thrown)
            else:
                waiting = work.send(sent)
    except StopIteration as done:
        return done.value
