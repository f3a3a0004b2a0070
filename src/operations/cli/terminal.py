"""The terminal: colours, width, and escaping of control characters in external text."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

_UNSAFE = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
"""Control characters (C0 except tab and line feed, DEL, C1), bidirectional controls, line separators, surrogates, and
characters without width, which hide text. Joiners are not included, because some scripts and emoji need them."""
_CONTROLS_BUT_STYLES = rf"(\x1b\[[0-9;]*m)|{_UNSAFE}"
_JSON_PART = r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)'
_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_settings = {"colours": True}
_results: list[Any] = []


def forbid_colours() -> None:
    """Disable colours."""
    _settings["colours"] = False


def results() -> Any:
    """Return the stream for results: the original stdout; None if the process has no stdout."""
    return _results[0] if _results else sys.stdout


@contextlib.contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve stdout for results in the block: print() writes to stderr."""
    _results[:] = [sys.stdout]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.clear()


def claim_stdout() -> None:
    """Redirect descriptor 1 to stderr, for native code and child processes; results go to a copy of the original."""
    if sys.stdout is None:
        return
    try:
        own = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):
        return
    try:
        os.dup2(2, 1)
    except OSError:  # no stderr
        os.close(own)
        return
    sys.stdout = open(own, "w", encoding=sys.stdout.encoding, errors="replace")  # noqa: SIM115  # closed at exit


def is_terminal(stream: Any) -> bool:
    """Whether a stream is an open terminal."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:
        return False


def is_coloured(stream: Any) -> bool:
    """Whether a stream shows colours."""
    enabled = _settings["colours"] and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return enabled and is_terminal(stream)


def paint(style: str, text: str, stream: Any = None) -> str:
    """Return styled text if the stream (by default stdout) shows colours."""
    if not text or not is_coloured(results() if stream is None else stream):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def columns(stream: Any = None) -> int:
    """Return the width of the terminal; 100 if there is none, or if it reports no width."""
    stream = results() if stream is None else stream
    try:
        width = int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError, AttributeError):
        width = 0
    return width if width > 0 else 100


def write_text(text: str) -> None:
    """Write text to stdout, if it is open; on a terminal, escape control characters."""
    stream = results()
    if stream is not None:
        if is_terminal(stream):
            text = styled_only(text)
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            discard_results()
            raise


def discard_results() -> None:
    """Discard all further output, including buffered output."""
    if results() is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), results().fileno())


def printable(text: str) -> str:
    """Escape control characters in external text."""
    return re.sub(_UNSAFE, _escaped, text)


def printable_line(text: str) -> str:
    """Escape control characters and line breaks in external text, so that it cannot look like further lines."""
    return printable(text).replace("\n", "\\n")


def indented(text: str) -> str:
    """Return text whose further lines are indented, so that they do not look like lines of this program."""
    return text.replace("\n", "\n  ")


def printable_json(text: str) -> str:
    """Escape control characters in JSON text as JSON escapes; its meaning is unchanged."""
    return re.sub(_UNSAFE, _json_escaped, text)


def styled_only(text: str) -> str:
    """Escape control characters for a terminal, except the styles of `paint`."""
    return re.sub(_CONTROLS_BUT_STYLES, lambda found: found[1] or _escaped(found), text)


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65_536 else f"\\U{number:08x}"


def _json_escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def one_line(text: str, width: int | None = None) -> str:
    """Return the first line of external text, truncated to a width."""
    line = printable(text.strip().partition("\n")[0].rstrip())
    if width is not None and len(line) > width:
        return line[: max(0, width - 1)].rstrip() + "…" if width > 0 else ""
    return line


def paint_json(text: str, stream: Any = None) -> str:
    """Colour JSON text if the stream shows colours."""
    if not is_coloured(results() if stream is None else stream):
        return text

    def coloured(part: re.Match[str]) -> str:
        if part[1]:
            return paint("cyan" if part[2] else "green", part[1], stream) + (part[2] or "")
        return paint("magenta" if part[3] else "yellow", part[0], stream)

    return re.sub(_JSON_PART, coloured, text)
