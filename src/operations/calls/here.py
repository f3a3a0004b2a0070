"""Where something runs: its loop, remembered, as asyncio asks the system for the process whenever it is asked."""

from __future__ import annotations

import asyncio
import os
import weakref
from threading import get_ident


class Here:
    """Remembers the running loop, for as long as that runs and the thread is the same.

    Its users look at both themselves, where a function that did would cost more than it spares.
    """

    loop: asyncio.AbstractEventLoop | None = None
    """The loop that was found running last."""
    thread = 0
    """The thread in which it was; 0 for none."""

    def find_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs now."""
        self.loop = loop = asyncio.get_running_loop()
        self.thread = get_ident()
        _remembering.add(self)
        return loop


_remembering: weakref.WeakSet[Here] = weakref.WeakSet()


def _forget() -> None:
    """The loop that forked seems to run in the child as well, where it never will."""
    for each in _remembering:
        each.thread = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
