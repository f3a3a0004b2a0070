"""Import of a module in a daemon thread, so that an exit, hang or output of the import affects only that thread."""

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

_MAX_MESSAGE = 300
_importing = threading.Lock()
_inside = threading.local()


def import_isolated(name: str, path: str, read: Callable[[ModuleType], T], *, timeout: float) -> T | str:
    """Return the result of `read` for the module, or one line with the reason why the import failed.

    The import runs in a separate thread, and so does `read`, which may run the module's code. An exit or endless loop
    affects only that thread. Output goes to stderr, stdin is empty, and the current directory is restored.
    """
    if getattr(_inside, "importing", False):
        # A nested scan would deadlock on the import lock.
        message = "cannot scan during a scan: call scan_operations in a function, not at import"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    outcome: list[T | str] = []

    def work() -> None:
        _inside.importing = True
        try:
            outcome.append(read(importlib.import_module(name)))
        except BaseException as error:  # noqa: BLE001  # a module that raises anything is skipped
            outcome.append(_explain(error, name, path))

    thread = threading.Thread(target=work, name=f"import {name}", daemon=True)
    with _importing, _streams_redirected(thread), _directory_restored():
        thread.start()
        thread.join(timeout)
    if not outcome:
        return f"import did not finish within {timeout:g} seconds: move long-running code into functions"
    return outcome[0]


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a function that runs in a daemon thread; if the caller is cancelled, the thread runs on.

    Unlike a thread of `asyncio.to_thread`, a daemon thread does not delay the program's exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def deliver(settler: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            settler(outcome)

    def work() -> None:
        settler: Callable[[Any], None] = done.set_result
        try:
            outcome: Any = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # the caller gets the exception
            settler, outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(deliver, settler, outcome)

    threading.Thread(target=work, name="operations scan", daemon=True).start()
    return await done


class _ThreadStream:
    """Replacement for a standard stream: `other` in one thread, `usual` in all other threads.

    An imported module may keep a reference to this object, and use it later in another thread.
    """

    def __init__(self, usual: Any, other: Any, thread: threading.Thread) -> None:
        self._usual = usual
        self._other = other
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other if threading.current_thread() is self._thread else self._usual, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._other if threading.current_thread() is self._thread else self._usual)


@contextlib.contextmanager
def _streams_redirected(thread: threading.Thread) -> Iterator[None]:
    stdin, stdout = sys.stdin, sys.stdout
    with open("/dev/null" if sys.platform != "win32" else "nul", encoding="utf-8") as nothing:
        sys.stdin = _ThreadStream(stdin, nothing, thread)
        sys.stdout = _ThreadStream(stdout, sys.stderr, thread)
        try:
            yield
        finally:
            sys.stdin, sys.stdout = stdin, stdout


@contextlib.contextmanager
def _directory_restored() -> Iterator[None]:
    """Restore the current directory at the end of the block: an import may change it for the whole process."""
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
    """Return one line for an error of an import; the generated package `scanned_…` is removed from module names."""
    if isinstance(error, SyntaxError):
        where = "" if error.filename in (None, path) else f" of {error.filename}"
        reason = f"syntax error in line {error.lineno or 1}{where}: {error.msg}"
    elif isinstance(error, SystemExit):
        reason = f"sys.exit({error.code!r}) during import; move it to `if __name__ == '__main__'`"
    elif isinstance(error, EOFError):
        reason = "reads stdin during import"
    elif isinstance(error, ModuleNotFoundError):
        beside = Path(path).with_name(f"{error.name}.py").is_file() or Path(path).with_name(f"{error.name}").is_dir()
        advice = f"; write `from . import {error.name}`" if beside else ""
        reason = f"cannot find module {error.name!r}{_line(error, path)}{advice}"
    elif isinstance(error, ImportError) and "partially initialized module" in str(error):
        reason = f"circular import: {error}"
    else:
        reason = f"{type(error).__name__}: {_text(error)}{_line(error, path)}"
    own_root = f"{name.partition('.')[0]}."
    if own_root.startswith("scanned_"):
        reason = reason.replace(own_root, "")
    reason = " ".join(reason.split())
    return reason if len(reason) <= _MAX_MESSAGE else f"{reason[:_MAX_MESSAGE]}…"


def _text(error: BaseException) -> str:
    """Return the message of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  # __str__ is code of the module, too
        return "(its message cannot be read)"


def _line(error: BaseException, path: str) -> str:
    """Return the traceback's last line number in the module's file, such as ` (line 3)`; empty if unknown."""
    try:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    except Exception:  # noqa: BLE001  # a traceback may contain anything
        return ""
    return f" (line {lines[-1]})" if lines and lines[-1] else ""
