"""One line at the foot of the terminal that tells how far long work has come; nothing where nobody looks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from operations.cli.telling import make_room
from operations.cli.terminal import columns, is_terminal, one_line, paint

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PATIENCE = 0.3
_INTERVAL = 0.1


class StatusLine:
    """A line on stderr that is drawn over itself; on a terminal only."""

    def __init__(self, *, quiet: bool) -> None:
        self.is_on = is_terminal(sys.stderr) and not quiet
        self.text = ""
        self._drawn = False
        self._next = time.monotonic() + _PATIENCE
        self._frame = 0

    def update(self, text: str) -> None:
        """Show a text, at most ten times a second."""
        self.text = text
        if self.is_on and time.monotonic() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Draw the line now."""
        if not self.is_on:
            return
        self._next = time.monotonic() + _INTERVAL
        self._frame = (self._frame + 1) % len(_FRAMES)
        line = one_line(self.text, columns(sys.stderr) - 3)
        _write(f"\r\x1b[K{paint('cyan', _FRAMES[self._frame], sys.stderr)} {paint('dim', line, sys.stderr)}")
        self._drawn = True
        make_room(self.clear)

    def clear(self) -> bool:
        """Take the line away, so that something else can be written in its place; whether there was one."""
        was_drawn, self._drawn = self._drawn, False
        if was_drawn:
            make_room(None)
            _write("\r\x1b[K")
        return was_drawn


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed
        sys.stderr.write(text)
        sys.stderr.flush()


@contextlib.asynccontextmanager
async def spinning(text: str, *, quiet: bool, patience: float = _PATIENCE) -> AsyncIterator[StatusLine]:
    """Show that something is under way, once it takes longer than a moment."""
    line = StatusLine(quiet=quiet)
    line.text = text
    turning = asyncio.create_task(_turn(line, patience)) if line.is_on else None
    try:
        yield line
    finally:
        if turning is not None:
            turning.cancel()
            await asyncio.wait([turning])
        line.clear()


async def _turn(line: StatusLine, patience: float) -> None:
    await asyncio.sleep(patience)
    while True:
        line.draw()
        await asyncio.sleep(_INTERVAL)


def bar(done: float, total: float, *, width: int = 20) -> str:
    """How much of something is done, drawn."""
    filled = round(width * min(1.0, done / total)) if total else 0
    return "█" * filled + "░" * (width - filled)
