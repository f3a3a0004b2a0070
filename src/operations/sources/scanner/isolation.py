"""Importing somebody's module so that nothing it does while it is imported reaches the program."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from operations.errors import CallError, ErrorCode

T = TypeVar("T")

_MOST_TEXT = 300
_importing = threading.Lock()
_inside = threading.local()


def import_isolated(name: str, path: str, read: Callable[[ModuleType], T], *, timeout: float) -> T | str:
    """What `read` makes of the module, or why there is none, in one line.

    It is imported and read in a thread of its own: an exit, an interrupt or an endless loop in it ends or holds up that
    thread only; to look at what it has may run its code as well. What it prints goes to stderr, and there is nobody to
    answer what it asks. Where it changes the current folder, that is changed back.
    """
    if getattr(_inside, "importing", False):
        # It would wait for itself, and import the module again that asked for it.
        message = "a module that is being scanned cannot scan: call scan_operations in a function"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    outcome: list[T | str] = []

    def work() -> None:
        _inside.importing = True
        try:
            outcome.append(read(importlib.import_module(name)))
        except BaseException as error:  # noqa: BLE001  # whatever a module does, it is only left out
            outcome.append(_explain(error, name, path))

    thread = threading.Thread(target=work, name=f"import {name}", daemon=True)
    with _importing, _streams_kept_from(thread), _folder_kept():
        thread.start()
        thread.join(timeout)
    if not outcome:
        return f"it was not imported within {timeout:g} seconds; does it run something that never ends?"
    return outcome[0]


class _Diverted:
    """A standard stream for everybody but one thread, which gets another one; it may be kept and used for ever."""

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
    """The current folder is the whole program's: relative paths of others mean what they meant."""
    try:
        before = os.getcwd()
    except OSError:  # somebody removed it
        before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                os.chdir(before)


def _explain(error: BaseException, name: str, path: str) -> str:
    """What went wrong in one line, with names as the author knows them."""
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
    """What an error says, where it can."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  # its author's code, as all of the module is
        return "(it cannot say what)"


def _line(error: BaseException, path: str) -> str:
    """The last line of the module itself on the way to the error."""
    try:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    except Exception:  # noqa: BLE001  # the text of an error may come from anywhere
        return ""
    return f" (line {lines[-1]})" if lines and lines[-1] else ""
