"""Running a command: its event loop, the signals that end it, and logging."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from operations.cli import stderr
from operations.cli.failures import OK, Terminated
from operations.cli.terminal import indented, printable

T = TypeVar("T")
ENTRY = "_operations_entry"
"""Name of the module of the installed command; a SIGINT handler from this module is recognised by the name."""
SUPERVISOR = "OPERATIONS_SUPERVISOR"
"""Environment variable with the id of the process that supervises this one."""
REPLACES = "OPERATIONS_REPLACES"
"""Environment variable of a new process during a reload: the old process runs until the new one is ready."""
_SIGNAL_WINDOW = 1.0
"""Seconds within which several signals count as one.

A supervisor may send a signal to the process and again to its process group.
"""


class _Printing(logging.Handler):
    """Base of the log handlers: removes exception information that cannot be printed."""

    def filter(self, record: logging.LogRecord) -> Any:
        """Remove `exc_info` if it does not contain an exception instance.

        If a TLS handshake ends early, asyncio logs an exception class in place of the instance.
        """
        if record.exc_info and not isinstance(record.exc_info[1], BaseException):
            record.exc_info = None
        return super().filter(record)


class _Warnings(_Printing):
    """Prints the library's warnings, and its errors with tracebacks, such as those of failed handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if record.levelno < logging.ERROR or not record.exc_info:
            stderr.warn(record.getMessage(), logger=record.name)
            return
        trace = logging.Formatter().formatException(record.exc_info)
        if stderr.is_json():
            stderr.write_record("error", record.getMessage(), {"logger": record.name, "traceback": trace})
            return
        stderr.warn(record.getMessage())
        for line in stderr.redacted(trace).splitlines():
            stderr.write_line(printable(line))


class _IndentingFormatter(logging.Formatter):
    """Formats records as text; further lines of a message are indented, so that they cannot look like records."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # overrides a method of logging
        """Return the text of a record without its traceback."""
        return indented(super().formatMessage(record))


class _Everything(_Printing):
    """Prints every log record, with tracebacks and the time since the start."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        if not stderr.is_json():
            stderr.write_line(printable(stderr.redacted(self.format(record))))
            return
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        more = {"logger": record.name, **({"traceback": trace} if trace else {})}
        stderr.write_record(record.levelname.lower(), record.getMessage(), more)


def _show_exception(failed: threading.ExceptHookArgs) -> None:
    """Log the exception that ended a thread."""
    trace = (failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    name = None if failed.thread is None else failed.thread.name
    logging.getLogger("operations").warning("the thread %s failed: %s", name, trace[1], exc_info=trace)


class _Lines(logging.Handler):
    """Prints log records line by line, without secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        for line in stderr.redacted(self.format(record)).splitlines():
            stderr.write_line(printable(line))


class _Records(logging.Handler):
    """Prints log records as JSON, without secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        stderr.write_log_record(self.format(record))


def _show_lines(level: str, *, as_json: bool) -> None:
    """Print the records with level `level` or higher of all loggers, as text or JSON."""
    shown: logging.Handler
    if as_json:
        from operations.telemetry import JSONFormatter

        stderr.write_log_records()
        shown = _Records()
        shown.setFormatter(JSONFormatter())
    else:
        shown = _Lines()
        formatter = _IndentingFormatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        shown.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(shown)
    root.setLevel(level.upper())


def show_log(*, quiet: bool, debug: bool, as_json: bool = False, level: str | None = None) -> None:
    """Print the library's warnings; with `quiet`, none of them; with `debug`, every record.

    With `as_json` or `level`, print the records with level `level` or higher of all loggers, as JSON or text. By
    default, `level` is `warning`, or with `debug` the lowest level.
    """
    if as_json or level is not None:
        threading.excepthook = _show_exception
        _show_lines(level or ("debug" if debug else "warning"), as_json=as_json)
        return
    logger = logging.getLogger("operations")
    # Without a handler, logging prints other libraries' records unformatted.
    logging.lastResort = _Warnings(logging.CRITICAL if quiet else logging.WARNING)
    threading.excepthook = _show_exception
    if debug:
        shown = _Everything()
        shown.setFormatter(_IndentingFormatter("%(relativeCreated)6d ms %(name)s: %(message)s"))
        logging.getLogger().addHandler(shown)
        logger.setLevel(logging.DEBUG)
        return
    logger.addHandler(logging.NullHandler() if quiet else _Warnings(logging.WARNING))
    logger.propagate = False


def _loop_factory(fast: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory if it is requested and installed."""
    if not fast:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(outcome: Awaitable[T], *, fast_loop: bool = False) -> T:
    """Run `outcome` to completion and return its result.

    Raise KeyboardInterrupt after Ctrl-C, and `Terminated` after SIGTERM or SIGHUP.
    """
    main = _until_done(outcome)
    try:
        with asyncio.Runner(loop_factory=_loop_factory(fast_loop)) as runner:
            runner.get_loop()  # an interrupt while the loop is created would leave the loop incomplete
            with _interrupts_cancel():
                return runner.run(main)
    finally:
        # Close coroutines that an interrupt kept from starting: Python would warn that they were never awaited.
        main.close()
        if isinstance(outcome, Coroutine):
            outcome.close()


@contextlib.contextmanager
def _interrupts_cancel() -> Iterator[None]:
    """Let Ctrl-C cancel the coroutine that runs in the block.

    Outside the block, the SIGINT handler of the installed command exits immediately. Other handlers are not replaced.
    """
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
        for number in _not_ignored(signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if ended_by:
            raise Terminated(ended_by[0]) from None
        raise


def _not_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return the signals that the parent process (`nohup`, a script) does not ignore."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.asynccontextmanager
async def stopping() -> AsyncIterator[asyncio.Event]:
    """Yield an event that Ctrl-C, SIGTERM and SIGHUP set, so that a long-running command can finish its calls.

    A second signal, at least a second later, ends the command immediately. The exit code is 0 in both cases.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals = _StopSignals(task)
    numbers = _not_ignored(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, signals.stop)
    try:
        yield signals.received
    except asyncio.CancelledError:
        if not signals.is_second:
            raise
        task.uncancel()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            if signals.received.is_set():
                signal.signal(number, signals.end)  # a signal while connections close
                atexit.register(signal.signal, number, signal.SIG_IGN)  # the interpreter removes handlers at exit


def notify_ready() -> None:
    """Notify a supervisor, or systemd (`Type=notify`), that this process accepts calls."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification:
            notification.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            notification.send(b"READY=1")


def is_replacement() -> bool:
    """Return whether this process replaces another one that still runs."""
    return REPLACES in os.environ


def is_orphaned() -> bool:
    """Return whether the supervisor that started this process is gone."""
    supervisor = os.environ.get(SUPERVISOR)
    return supervisor is not None and supervisor != str(os.getppid())


class _StopSignals:
    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task
        self._first = 0.0
        self.received = asyncio.Event()
        self.is_second = False

    def stop(self) -> None:
        """Handle a signal while the command runs."""
        if not self.received.is_set():
            self._first = time.monotonic()
            self.received.set()
        elif self._is_another():
            self.is_second = True
            self._task.cancel()

    def end(self, *_: object) -> None:
        """Handle a signal while the command closes."""
        if self._is_another():
            os._exit(OK)

    def _is_another(self) -> bool:
        return time.monotonic() - self._first > _SIGNAL_WINDOW
