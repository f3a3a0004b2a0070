"""What the program knows of the terminal: colours, width, whether anybody looks; and text made safe to show there."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_JSON_PART = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
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
    """Have no colours, whatever the terminal can do."""
    _settings["colours"] = False


def results() -> Any:
    """Where results go: the stdout there was when the program began; None where it was closed."""
    return _results[0] if _results else sys.stdout


@contextlib.contextmanager
def results_apart() -> Iterator[None]:
    """Have only results reach stdout while this lasts: what functions and modules print is none, and goes to stderr."""
    _results[:] = [sys.stdout]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _results.clear()


def claim_stdout() -> None:
    """Take stdout away from whatever writes to its descriptor and not through Python; that goes to stderr too."""
    if sys.stdout is None:
        return
    try:
        own = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):
        return
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr
        os.close(own)
        return
    sys.stdout = open(own, "w", encoding=sys.stdout.encoding, errors="replace")  # noqa: SIM115  # closed by the end


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; one that was closed is none."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:
        return False


def is_coloured(stream: Any) -> bool:
    """Whether what is written to a stream is coloured."""
    wanted = _settings["colours"] and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and is_terminal(stream)


def paint(style: str, text: str, stream: Any = None) -> str:
    """Text in a style, where the stream shows one (stdout unless another is named)."""
    if not text or not is_coloured(results() if stream is None else stream):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def columns(stream: Any = None) -> int:
    """How many characters fit on a line of the terminal; 100 where there is none."""
    stream = results() if stream is None else stream
    try:
        return (
            int(os.environ["COLUMNS"]) if os.environ.get("COLUMNS") else os.get_terminal_size(stream.fileno()).columns
        )
    except (OSError, ValueError, AttributeError):
        return 100


def write_text(text: str) -> None:
    """Write a text to stdout, where there is one."""
    stream = results()
    if stream is not None:
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            abandon_results()
            raise


def abandon_results() -> None:
    """Write nothing more to stdout, what is buffered and the flush at the interpreter's end included."""
    if results() is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), results().fileno())


def printable(text: str) -> str:
    """Text from elsewhere without what would steer the terminal."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def one_line(text: str, width: int | None = None) -> str:
    """The first line of a text from elsewhere, cut to a width where one is given."""
    line = printable(text.strip().partition("\n")[0].rstrip())
    if width is not None and len(line) > width:
        return line[: max(0, width - 1)].rstrip() + "…" if width > 0 else ""
    return line


def paint_json(text: str, stream: Any = None) -> str:
    """JSON with its keys, texts and numbers in colours, where the stream shows any."""
    if not is_coloured(results() if stream is None else stream):
        return text

    def coloured(part: re.Match[str]) -> str:
        if part[1]:
            return paint("cyan" if part[2] else "green", part[1], stream) + (part[2] or "")
        return paint("magenta" if part[3] else "yellow", part[0], stream)

    return _JSON_PART.sub(coloured, text)
