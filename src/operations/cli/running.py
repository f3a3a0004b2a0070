"""Running a command's coroutine: Ctrl-C and SIGTERM cancel it, so that streams close and remote sides are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable
from typing import TypeVar

from operations.cli import failures

T = TypeVar("T")


class _Notes(logging.Handler):
    """Shows what the library logs as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        failures.warn(record.getMessage())


class _Everything(logging.Handler):
    """Shows all of what is logged, with the time since the start and any traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        failures.tell(failures.redacted(self.format(record)))


def show_log(*, quiet: bool, debug: bool) -> None:
    """Have warnings of the library shown as notes, or with `debug` all it logs."""
    logger = logging.getLogger("operations")
    if debug:
        shown = _Everything()
        shown.setFormatter(logging.Formatter("%(relativeCreated)6d ms %(name)s: %(message)s"))
        logging.getLogger().addHandler(shown)
        logger.setLevel(logging.DEBUG)
        return
    logger.addHandler(logging.NullHandler() if quiet else _Notes(logging.WARNING))
    logger.propagate = False


def run(outcome: Awaitable[T]) -> T:
    """Run to the end; what comes of it. Raises KeyboardInterrupt when Ctrl-C ended it, Terminated for SIGTERM."""
    return asyncio.run(_until_done(outcome))


async def _until_done(outcome: Awaitable[T]) -> T:
    task = asyncio.ensure_future(outcome)
    terminated = False

    def stop() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError):
        loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated:
            raise failures.Terminated from None
        raise
