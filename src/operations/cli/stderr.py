"""Standard error: notes, warnings and the status line; with `--json`, one JSON object per line.

Every object has a `level` (`error`, `warning`, `info`, `debug`, `output`) and a `message`; other fields depend on the
event. `output` is text that other code printed: an operation's function or a library. With `--log-format json` the
objects are log records, which also have a `time` and a `logger`.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from operations.cli.terminal import (
    columns,
    indented,
    is_terminal,
    one_line,
    paint,
    printable,
    printable_json,
    styled_only,
)

_MAX_SKIPPED = 3
_MAX_DEPTH = 50
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_DELAY = 0.3
_INTERVAL = 0.1
_BAR = 20
_redactors: list[Callable[[str], str]] = []
_json: list[_JSONLines] = []
_drawn: list[StatusLine] = []
"""The status line on the terminal, if any. It is erased before another line is printed."""
_paused: list[bool] = []
"""Not empty while a question is on the terminal: no status line is drawn over it."""
_SECRET_NAMES = ("auth", "cookie", "token", "key", "secret", "password", "credential", "session", "signature")


def redact_with(redact: Callable[[str], str]) -> None:
    """Apply `redact` to every later message."""
    _redactors[:] = [redact]


def redacted(text: str) -> str:
    """Return text without secrets."""
    for redact in _redactors:
        text = redact(text)
    return text


@contextlib.contextmanager
def json_on_stderr(enabled: bool) -> Iterator[None]:
    """Within the block, if `enabled`, write everything on stderr as JSON lines, also the output of other code."""
    before = sys.stderr
    if enabled and before is not None:
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


def write_log_records() -> None:
    """Write JSON log records instead of other lines, until the enclosing `json_on_stderr` block ends."""
    if sys.stderr is None:
        return
    if not _json:
        lines = _JSONLines(sys.stderr)
        if sys.stdout is sys.stderr:  # stdout is reserved for results
            sys.stdout = lines
        _json[:] = [lines]
        sys.stderr = lines
    _json[0].is_log = True


def is_json() -> bool:
    """Whether stderr has JSON lines."""
    return bool(_json)


def write_line(line: str) -> None:
    """Print a line for people; control characters are escaped, except the styles of `paint`."""
    if sys.stderr is not None:
        for status in list(_drawn):
            status.clear()
        with contextlib.suppress(OSError):  # the reader is gone
            sys.stderr.write(styled_only(line) + "\n")
            sys.stderr.flush()


def write_record(level: str, message: str, more: Mapping[str, Any]) -> None:
    """Print a JSON object without secrets."""
    record = {"level": level, "message": message, **more}
    for lines in _json:
        lines.print(_plain(record))


def write_log_record(text: str) -> None:
    """Print a log record that is JSON already."""
    for lines in _json:
        lines.print_text(redacted(text))


def note(message: str, **more: Any) -> None:
    """Print a dimmed note; `more` has the further fields of the note in JSON."""
    if is_json():
        write_record("info", message, more)
    else:
        write_line(paint("dim", printable(redacted(message)), sys.stderr))


def warn(message: str, **more: Any) -> None:
    """Print a warning; `more` has the further fields of the warning in JSON."""
    if is_json():
        write_record("warning", message, more)
    else:
        write_line(f"{paint('yellow', 'note:', sys.stderr)} {printable(indented(redacted(message)))}")


def warn_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Warn of skipped files or operations; for people, only of the first few."""
    shown = skipped if is_json() else skipped[:_MAX_SKIPPED]
    for path, reason in shown:
        warn(f"{path} was skipped: {reason}", skipped=path, reason=reason)
    if len(skipped) > len(shown):
        warn(f"{len(skipped) - _MAX_SKIPPED} more were skipped: run 'ops doctor' to list them")


@contextlib.contextmanager
def status_paused() -> Iterator[None]:
    """Show no status line in the block, so that a question stays readable."""
    for status in list(_drawn):
        status.clear()
    _paused.append(True)
    try:
        yield
    finally:
        _paused.pop()


class StatusLine:
    """A line at the bottom of a terminal, redrawn in place; disabled if stderr is not a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self.is_on = is_terminal(sys.stderr) and not quiet
        self.text = ""
        self._is_drawn = False
        self._next = time.monotonic() + _DELAY
        self._frame = 0

    def update(self, text: str) -> None:
        """Show text, at most ten times a second."""
        self.text = text
        if self.is_on and time.monotonic() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Draw the line now."""
        if not self.is_on or _paused:
            return
        self._next = time.monotonic() + _INTERVAL
        self._frame = (self._frame + 1) % len(_FRAMES)
        line = one_line(self.text, columns(sys.stderr) - 3)
        _write(f"\r\x1b[K{paint('cyan', _FRAMES[self._frame], sys.stderr)} {paint('dim', line, sys.stderr)}")
        self._is_drawn = True
        _drawn[:] = [self]

    def clear(self) -> bool:
        """Erase the line; return whether it was drawn."""
        was_drawn, self._is_drawn = self._is_drawn, False
        if was_drawn:
            _drawn.clear()
            _write("\r\x1b[K")
        return was_drawn


@contextlib.asynccontextmanager
async def spinner(text: str, *, quiet: bool) -> AsyncIterator[StatusLine]:
    """Show a status line while the block runs, unless it ends soon."""
    line = StatusLine(quiet=quiet)
    line.text = text
    if not line.is_on:
        yield line
        return
    import asyncio  # here, so that `ops --help` does not import it

    turning = asyncio.create_task(_animate(line))
    try:
        yield line
    finally:
        turning.cancel()
        await asyncio.wait([turning])
        line.clear()


async def _animate(line: StatusLine) -> None:
    import asyncio

    await asyncio.sleep(_DELAY)
    while True:
        line.draw()
        await asyncio.sleep(_INTERVAL)


def bar(done: float, total: float) -> str:
    """Return a progress bar."""
    filled = round(_BAR * min(1.0, done / total)) if total else 0
    return "█" * filled + "░" * (_BAR - filled)


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed
        sys.stderr.write(text)
        sys.stderr.flush()


class _JSONLines(io.TextIOBase):
    """Replacement for stderr that writes each line as a JSON object."""

    def __init__(self, stream: Any) -> None:
        self.is_log = False
        """Whether the objects are log records."""
        self._stream = stream
        self._partial = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._stream.encoding)

    @property
    def buffer(self) -> Any:
        """The underlying binary stream."""
        return self._stream.buffer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._partial = (self._partial + text).split("\n")
            for line in lines:
                self.print(_plain({"level": "output", "message": line}))
        return len(text)

    def end(self) -> None:
        """Print the last line if it has no line end."""
        if self._partial:
            self.write("\n")

    def print(self, record: Mapping[str, Any]) -> None:
        """Print one object."""
        self.print_text(_encoded(_log_record(record) if self.is_log else record))

    def print_text(self, text: str) -> None:
        """Print one object that is JSON already."""
        with self._lock, contextlib.suppress(OSError):  # the reader is gone
            self._stream.write((printable_json(text) if is_terminal(self._stream) else text) + "\n")
            self._stream.flush()


def _log_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the fields of log records; text that other code printed has the logger `output`."""
    from datetime import UTC, datetime  # here, so that `ops --help` does not import it

    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    level, logger = record["level"], record.get("logger", "operations")
    if level == "output":
        level, logger = "info", "output"
    head = {"time": time, "level": level.upper(), "logger": logger}
    return {**head, **record, **head}


def _encoded(record: Mapping[str, Any]) -> str:
    from operations.errors import CallError
    from operations.wire import encode_json

    try:
        return encode_json(record).decode()
    except CallError:  # details that JSON cannot represent
        safe = {name: value if isinstance(value, (str, int)) else _text(value) for name, value in record.items()}
        return encode_json(safe).decode()


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a JSON value without secrets."""
    if isinstance(value, str):
        return _text(value)
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {_text(name): _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value if isinstance(value, (bool, int, float, bytes)) or value is None else _text(value)


def _text(value: Any) -> str:
    return redacted(str(value)).encode("utf-8", "backslashreplace").decode()


def show_request(request: Any) -> None:
    """Show the method, URL and headers of a request."""
    _show(">", f"{request.method} {request.url}", request.headers)


def show_response(request: Any, status: int, headers: Sequence[tuple[str, str]]) -> None:
    """Show the status and headers of a response."""
    _show("<", str(status), headers)


def hide_secret(name: str, value: str) -> str:
    """Return the value of a header; `[redacted]` if its name suggests a secret."""
    return "[redacted]" if any(word in name.lower() for word in _SECRET_NAMES) else redacted(value)


def _show(sign: str, head: str, headers: Iterable[tuple[str, str]]) -> None:
    pairs = [(name, hide_secret(name, value)) for name, value in headers]
    if is_json():
        about = "request" if sign == ">" else "response"
        write_record("debug", head, {about: {"head": head, "headers": [list(pair) for pair in pairs]}})
        return
    write_line(printable(f"{sign} {redacted(head)}"))
    for name, value in pairs:
        write_line(printable(f"{sign} {name}: {value}"))
