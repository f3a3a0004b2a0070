"""Running a command's coroutine: a signal that ends it cancels it, so that streams close and remote sides are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Iterator
from typing import TypeVar

from operations.cli import failures, telling

T = TypeVar("T")
ENTRY = "_operations_entry"
"""The module that the installed command starts in; what it does with Ctrl-C is told by where its handler is from."""


class _Notes(logging.Handler):
    """Shows what the library logs as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        telling.warn(record.getMessage(), logger=record.name)


class _Everything(logging.Handler):
    """Shows all of what is logged, with the time since the start and any traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        if not telling.is_json():
            telling.tell(telling.redacted(self.format(record)))
            return
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        more = {"logger": record.name, **({"traceback": trace} if trace else {})}
        telling.tell_json(record.levelname.lower(), record.getMessage(), more)


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
    """Run to the end; what comes of it. Raises KeyboardInterrupt when Ctrl-C ended it, Terminated for others."""
    with asyncio.Runner() as runner:
        runner.get_loop()  # an interrupt would leave one half made
        with _interrupts_cancel():
            return runner.run(_until_done(outcome))


@contextlib.contextmanager
def _interrupts_cancel() -> Iterator[None]:
    """Have Ctrl-C cancel what runs, while something does; before and after, the installed command ends at once."""
    before = signal.getsignal(signal.SIGINT)
    ends_at_once = getattr(before, "__module__", None) == ENTRY
    if ends_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends_at_once:
            signal.signal(signal.SIGINT, before)


async def _until_done(outcome: Awaitable[T]) -> T:
    task = asyncio.ensure_future(outcome)
    ended_by: list[int] = []

    def stop(number: int) -> None:
        ended_by.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError):
        for number in heeded(signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if ended_by:
            raise failures.Terminated(ended_by[0]) from None
        raise


def heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """The signals among these that are not ignored: whoever started the program (`nohup`, a script) has that say."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
