"""What is said on stderr beside the result: lines for people, or with `--json` one JSON object on each line.

Every object has a `level` (`error`, `warning`, `info`, `debug`, `output`) and a `message`; what else it has depends on
what it tells. `output` is what somebody else printed: a function that was called, a library.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from operations.cli.terminal import paint, printable
from operations.errors import CallError
from operations.wire import encode_json

_MOST_SKIPPED = 3
_MOST_NESTED = 50
_hiding: list[Callable[[str], str]] = []
_json: list[_JSONLines] = []
_drawn: list[Callable[[], object]] = []


def make_room(take_away: Callable[[], object] | None) -> None:
    """Have `take_away` called before a line is told: something is drawn where it would be; None when it is not."""
    _drawn[:] = [] if take_away is None else [take_away]


def hide_with(hide: Callable[[str], str]) -> None:
    """Have what others said pass through `hide` before it is told: from here on there are secrets to repeat."""
    _hiding[:] = [hide]


def redacted(text: str) -> str:
    """A text that others may have had a part in, without what is secret."""
    for hide in _hiding:
        text = hide(text)
    return text


@contextmanager
def speaking(*, as_json: bool) -> Iterator[None]:
    """Say everything in JSON while this lasts, where that is wanted; what others print to stderr as well."""
    before = sys.stderr
    if as_json and before is not None:
        lines = _JSONLines(before)
        _json[:] = [lines]
        sys.stderr = lines
    try:
        yield
    finally:
        for lines in _json:
            lines.end()
        _json.clear()
        sys.stderr = before


def is_json() -> bool:
    """Whether what is said is JSON."""
    return bool(_json)


def tell(line: str) -> None:
    """Print a line for people on stderr, where there is one."""
    if sys.stderr is not None:
        for take_away in list(_drawn):
            take_away()
        with suppress(OSError):  # whoever looked has gone
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def tell_json(level: str, message: str, more: Mapping[str, Any]) -> None:
    """Print an object on stderr, without what is secret."""
    record = {"level": level, "message": message, **more}
    for lines in _json:
        lines.print(_plain(record))


def note(message: str, **more: Any) -> None:
    """Print a line about what was done, which stands back; `more` is for programs."""
    if is_json():
        tell_json("info", message, more)
    else:
        tell(paint("dim", printable(redacted(message)), sys.stderr))


def warn(message: str, **more: Any) -> None:
    """Print a line about something that did not stop the command; `more` is for programs."""
    if is_json():
        tell_json("warning", message, more)
    else:
        tell(f"{paint('yellow', 'note:', sys.stderr)} {printable(redacted(message))}")


def tell_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Say which files or operations of a source are not there, and why; for people only the first of many."""
    shown = skipped if is_json() else skipped[:_MOST_SKIPPED]
    for path, reason in shown:
        warn(f"{path} was skipped: {reason}", skipped=path, reason=reason)
    if len(skipped) > len(shown):
        warn(f"{len(skipped) - _MOST_SKIPPED} more were skipped: ops doctor lists them")


class _JSONLines(io.TextIOBase):
    """Stands in for stderr: what is written to it becomes objects, so that nothing else is ever between them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._begun = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._stream.encoding)

    @property
    def buffer(self) -> Any:
        """The bytes beneath: what is written there goes out as it is."""
        return self._stream.buffer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self.print(_plain({"level": "output", "message": line}))
        return len(text)

    def end(self) -> None:
        """Print a line that was only begun."""
        if self._begun:
            self.write("\n")

    def print(self, record: Mapping[str, Any]) -> None:
        """Print one object."""
        with self._lock, suppress(OSError):  # whoever looked has gone
            self._stream.write(_encoded(record) + "\n")
            self._stream.flush()


def _encoded(record: Mapping[str, Any]) -> str:
    try:
        return encode_json(record).decode()
    except CallError:  # details of somebody's own that are no JSON
        kept = {name: value if isinstance(value, (str, int)) else _text(value) for name, value in record.items()}
        return encode_json(kept).decode()


def _plain(value: Any, depth: int = 0) -> Any:
    """A value without secrets, and of what JSON has."""
    if isinstance(value, str):
        return _text(value)
    if depth > _MOST_NESTED:
        return "…"
    if isinstance(value, Mapping):
        return {_text(name): _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value if isinstance(value, (bool, int, float, bytes)) or value is None else _text(value)


def _text(value: Any) -> str:
    return redacted(str(value)).encode("utf-8", "backslashreplace").decode()
