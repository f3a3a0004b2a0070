"""Starting a handler at once: one that never waits has answered before the message that asked was put away.

A coroutine must run as some task: code in it may ask which. So there is always a spare task, parked. The first step of
a coroutine is taken as that task, at once; a coroutine that ends there leaves the spare as it was, for the next one.
One that waits takes the spare over and goes on as it, and a new spare is parked when it is needed. So does one that
keeps hold of its task: whoever cancels that later means this coroutine, not the next one.

From Python 3.12 on, asyncio starts tasks eagerly by itself, and none of this is used.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import types
from collections.abc import Coroutine, Generator
from sys import getrefcount
from threading import get_ident
from typing import Any
from weakref import getweakrefcount

from operations.calls.here import Here

_current: dict[asyncio.AbstractEventLoop, asyncio.Task[Any]] = getattr(asyncio.tasks, "_current_tasks", {})
"""Which task runs in which loop, as asyncio itself knows it."""
_EAGER = sys.version_info >= (3, 12)


def _start_eagerly(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop, eager_start=True)  # type: ignore[call-arg]


class _Exit:
    """What a coroutine raised to end the program: left to its task, it would end the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _contained(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        return _Exit(error)


def _opened(result: Any) -> Any:
    if type(result) is _Exit:
        raise result.error
    return result


_NOTHING = object()


class _Driver:
    """Runs coroutines one after the other, from within: what one returns comes back with no exception to carry it.

    The first that waits keeps the driver, which ends with it; one that raises ends it as well.
    """

    __slots__ = ("is_kept", "outcome", "run")

    def __init__(self) -> None:
        self.is_kept = False
        self.outcome: Any = _NOTHING
        """What the last coroutine returned, until it is taken from here."""
        self.run: Generator[Any, Any, Any] = _drive(self)
        next(self.run)


@types.coroutine
def _drive(driver: _Driver) -> Generator[Any, Any, Any]:
    while True:
        driver.outcome = yield from (yield)
        if driver.is_kept:
            outcome, driver.outcome = driver.outcome, _NOTHING
            return outcome


class _Shell(Coroutine[Any, Any, None]):
    """What a spare task runs: nothing until it is given a coroutine whose first step was taken."""

    __slots__ = ("_over", "_parked", "_rest", "_waiting", "driver")

    def __init__(self, parked: asyncio.Future[None]) -> None:
        self.driver: _Driver | None = None
        """None until it is needed, and again once a coroutine has ended it with what it raised."""
        self._parked: asyncio.Future[None] | None = parked
        self._rest: Coroutine[Any, Any, None] | Generator[Any, Any, None] | None = None
        self._waiting: Any = None
        self._over = False

    def end(self) -> None:
        """There is nothing to go on with: the coroutine ended in its first step."""
        if self.driver is not None:
            self.driver.run.close()
        self._over = True
        self._wake()

    def fill(self, rest: Coroutine[Any, Any, None] | Generator[Any, Any, None], waiting: Any) -> None:
        """Go on with `rest`, which waits for `waiting`."""
        self._rest, self._waiting = rest, waiting
        self._wake()

    def _wake(self) -> None:
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def send(self, value: Any) -> Any:
        if self._over:
            raise StopIteration
        if self._rest is None:
            parked = self._parked
            assert parked is not None
            parked._asyncio_future_blocking = True
            return parked
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        return self._rest.send(value)

    def throw(self, *error: Any) -> Any:
        if self._rest is None:
            raise error[0]
        waiting, self._waiting = self._waiting, None
        if waiting is not None and isinstance(error[0], asyncio.CancelledError) and waiting.cancel():
            # The task was cancelled before it knew what it waits for: that is cancelled first, as it would have been.
            return waiting
        return self._rest.throw(*error)

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()

    def __await__(self) -> Any:
        raise TypeError("a shell is run by its task only")


class Paused:
    """A coroutine that waits after its first step; awaiting this goes on with it."""

    __slots__ = ("_rest", "_shell", "_task", "_waiting")

    def __init__(
        self, task: asyncio.Task[Any], shell: _Shell | None = None, rest: Any = None, waiting: Any = None
    ) -> None:
        self._task = task
        self._shell = shell
        self._rest: Generator[Any, Any, Any] = rest
        self._waiting = waiting

    def go_on(self) -> asyncio.Task[Any]:
        """Let the coroutine go on by itself."""
        if self._shell is not None:
            self._shell.fill(self._rest, self._waiting)
        return self._task

    def go_on_in(self, outer: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        """Let it go on within `outer`, which awaits this before it awaits anything else."""
        # It is begun at once: a coroutine that was not would never notice that it was cancelled.
        if self._shell is None:
            return _start_eagerly(outer, asyncio.get_running_loop())
        self._shell.fill(outer, outer.send(None))
        return self._task

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._shell is None:
            return _opened((yield from self._task))
        rest = self._rest
        # What it waits for may end in an error whose traceback has this frame: neither may hold the other.
        waiting, self._waiting = self._waiting, None
        while True:
            try:
                yield waiting
                break
            except GeneratorExit:
                rest.close()
                raise
            except BaseException as error:  # noqa: BLE001  # it is for the coroutine, which may go on
                waiting = None
                try:
                    waiting = rest.throw(error)
                except StopIteration as end:
                    return end.value
        del waiting
        return (yield from rest)


class Starter(Here):
    """Starts coroutines at once, as tasks of the running loop."""

    def __init__(self) -> None:
        self._spare: asyncio.Task[None] | None = None
        self._shell: _Shell | None = None
        self._context = contextvars.Context()
        self._clean = self._context
        self._noted = 0
        """How many hold the spare task without keeping it: asyncio itself does."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Take the first step of `work`; the task that goes on with it, or None where it ended there.

        `work` must not raise: whoever starts it like this sees no exception.
        """
        paused = self.step(work)
        return paused.go_on() if type(paused) is Paused else None

    def step(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Take the first step of `work`: what it returns or raises, or a `Paused` where it waits."""
        loop = self.loop
        if loop is None or self.thread != get_ident() or not loop.is_running():
            # A spare task of a loop that has ended never goes on.
            loop, self._spare = self.find_loop(), None
        if _EAGER:
            started = _start_eagerly(_contained(work), loop)
            return _opened(started.result()) if started.done() else Paused(started)
        task = self._spare
        if task is None or task.done():
            task = self._park(loop)
        shell, context = self._shell, self._context
        assert shell is not None
        driver = shell.driver
        if driver is None:
            driver = shell.driver = _Driver()
        # What the first step starts in turn must not find this spare.
        self._spare = None
        held = getrefcount(task)
        current = _current.get(loop)
        _current[loop] = task
        waits = False
        try:
            waiting = context.run(driver.run.send, work)
            outcome, driver.outcome = driver.outcome, _NOTHING
            waits = driver.is_kept = outcome is _NOTHING
        except BaseException:
            shell.driver = None
            raise
        finally:
            if current is None:
                _current.pop(loop, None)
            else:
                _current[loop] = current
            if not waits:
                kept = held != getrefcount(task) or self._noted != getweakrefcount(task) or task._callbacks
                if kept or task.cancelling() or context is not self._context or context != self._clean:
                    # The coroutine left its mark on the context or the task, holds on to it, or started another one.
                    shell.end()
                else:
                    self._spare = task
        return Paused(task, shell, driver.run, waiting) if waits else outcome

    def close(self) -> None:
        """End the spare task."""
        if self._spare is not None:
            self._spare.cancel()
            self._spare = None
            if self._shell is not None:
                self._shell.end()

    def _park(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        self._context = contextvars.copy_context()
        self._clean = self._context.copy()
        self._shell = _Shell(loop.create_future())
        task = loop.create_task(self._shell, context=self._context)
        self._noted = getweakrefcount(task)
        return task
