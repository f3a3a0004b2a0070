"""How the long-running commands are told to stop: by a signal, after which what runs may finish."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from operations.cli.failures import OK
from operations.cli.running import heeded

_ONE_SIGNAL_WITHIN = 1.0
"""A supervisor may signal a process and its group: signals that come so close together are one."""


@asynccontextmanager
async def stopping() -> AsyncIterator[asyncio.Event]:
    """An event that Ctrl-C, SIGTERM and SIGHUP set, so that what runs may finish.

    A second one, a moment later, ends it at once, and is no failure either.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals = _Signals(task)
    numbers = heeded(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, signals.stop)
    try:
        yield signals.told
    except asyncio.CancelledError:
        if not signals.hurried:
            raise
        task.uncancel()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            if signals.told.is_set():
                signal.signal(number, signals.end)  # for what is yet to be closed
                atexit.register(signal.signal, number, signal.SIG_IGN)  # the interpreter's end takes handlers away


class _Signals:
    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._first = 0.0
        self.told = asyncio.Event()
        self.hurried = False

    def stop(self) -> None:
        """A signal came while the command runs."""
        if not self.told.is_set():
            self._first = time.monotonic()
            self.told.set()
        elif self._is_another():
            self.hurried = True
            self._task.cancel()

    def end(self, *_: object) -> None:
        """A signal came while it is being closed."""
        if self._is_another():
            os._exit(OK)

    def _is_another(self) -> bool:
        return time.monotonic() - self._first > _ONE_SIGNAL_WITHIN
