"""Importing a module in a daemon thread, so that an exit, a hang or output during the import stays there."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from operations.errors import CallError, ErrorCode

P = ParamSpec("P")
T = TypeVar("T")

_MOST_TEXT = 300
_importing = threading.Lock()
_inside = threading.local()


def import_isolated(name: str, path: str, read: Callable[[ModuleType], T], *, timeout: float) -> T | str:
    """Return what `read` makes of the module, or one line that says why the import failed.

    Import and `read`, which may run the module's code as well, have a thread of their own: an exit or an endless loop
    affects that thread only. Output goes to stderr, stdin is empty, and the current directory is restored.
    """
    if getattr(_inside, "importing", False):
        # A nested scan would deadlock on the import lock.
        message = "a module that is being scanned cannot scan: call scan_operations in a function"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    outcome: list[T | str] = []

    def work() -> None:
        _inside.importing = True
        try:
            outcome.append(read(importlib.import_module(name)))
        except BaseException as error:  # noqa: BLE001  # whatever a module raises, it is skipped
            outcome.append(_explain(error, name, path))

    thread = threading.Thread(target=work, name=f"import {name}", daemon=True)
    with _importing, _streams_kept_from(thread), _folder_kept():
        thread.start()
        thread.join(timeout)
    if not outcome:
        return f"it was not imported within {timeout:g} seconds; does it run something that never ends?"
    return outcome[0]


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a daemon thread; cancelling the caller abandons the thread.

    A thread of `asyncio.to_thread` would delay the program's exit until its module is imported.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(settler: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            settler(outcome)

    def work() -> None:
        settler: Callable[[Any], None] = done.set_result
        try:
            outcome: Any = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            settler, outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, settler, outcome)

    threading.Thread(target=work, name="operations scan", daemon=True).start()
    return await done


class _Diverted:
    """A standard stream that is another one in one thread; a module may keep a reference to it."""

    def __init__(self, usual: Any, other: Any, thread: threading.Thread) -> None:
        self._usual = usual
        self._other = other
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other if threading.current_thread() is self._thread else self._usual, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._other if threading.current_thread() is self._thread else self._usual)


@contextlib.contextmanager
def _streams_kept_from(thread: threading.Thread) -> Iterator[None]:
    stdin, stdout = sys.stdin, sys.stdout
    with open("/dev/null" if sys.platform != "win32" else "nul", encoding="utf-8") as nothing:
        sys.stdin = _Diverted(stdin, nothing, thread)
        sys.stdout = _Diverted(stdout, sys.stderr, thread)
        try:
            yield
        finally:
            sys.stdin, sys.stdout = stdin, stdout


@contextlib.contextmanager
def _folder_kept() -> Iterator[None]:
    """Restore the current directory, which the whole process shares."""
    try:
        before = os.getcwd()
    except OSError:  # it was removed
        before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                os.chdir(before)


def _explain(error: BaseException, name: str, path: str) -> str:
    """Return one line about an error, with module names as in the source."""
    if isinstance(error, SyntaxError):
        place = "" if error.filename in (None, path) else f" of {error.filename}"
        reason = f"syntax error in line {error.lineno or 1}{place}: {error.msg}"
    elif isinstance(error, SystemExit):
        reason = f"it exits when it is imported (sys.exit({error.code!r})); keep that for `if __name__ == '__main__'`"
    elif isinstance(error, EOFError):
        reason = "it asks for input when it is imported"
    elif isinstance(error, ModuleNotFoundError):
        beside = Path(path).with_name(f"{error.name}.py").is_file() or Path(path).with_name(f"{error.name}").is_dir()
        advice = f"; it is beside it: `from . import {error.name}`" if beside else ""
        reason = f"it imports {error.name!r}, which is not there{_line(error, path)}{advice}"
    elif isinstance(error, ImportError) and "partially initialized module" in str(error):
        reason = f"circular import: {error}"
    else:
        reason = f"{type(error).__name__}: {_text(error)}{_line(error, path)}"
    own_root = f"{name.partition('.')[0]}."
    if own_root.startswith("scanned_"):
        reason = reason.replace(own_root, "")
    reason = " ".join(reason.split())
    return reason if len(reason) <= _MOST_TEXT else f"{reason[:_MOST_TEXT]}…"


def _text(error: BaseException) -> str:
    """Return the text of an error."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  # __str__ is code of the module, too
        return "(its text cannot be read)"


def _line(error: BaseException, path: str) -> str:
    """Return the last line of the module in the traceback."""
    try:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    except Exception:  # noqa: BLE001  # a traceback may hold anything
        return ""
    return f" (line {lines[-1]})" if lines and lines[-1] else ""
