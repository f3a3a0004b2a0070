"""Severing: closing connections that a library holds and gives no handle for, found by a mark on their sockets.

The mark is `TCP_USER_TIMEOUT`, an option that a client sets on every socket it opens and that anyone in the process can
read: each group of connections has a number of milliseconds of its own, long enough to be harmless. Linux only;
elsewhere nothing is marked and nothing is found.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from weakref import WeakKeyDictionary

CAN_SEVER = sys.platform == "linux"
"""Whether it can be done here."""

_SHORTEST, _LONGEST = 120_000, 2_000_000
_FIRST_DELAY, _LONGEST_DELAY = 0.005, 1.0

_numbers: Iterator[int] = itertools.cycle(range(_SHORTEST, _LONGEST))


def new_mark() -> int:
    """A mark that no other group of connections of this process has: milliseconds for `TCP_USER_TIMEOUT`."""
    return next(_numbers)


def sever(mark: int, *, patience: float) -> None:
    """Close the connections that carry the mark; where none does yet, look again for `patience` seconds."""
    if not CAN_SEVER:
        return
    loop = asyncio.get_running_loop()
    severer = _severers.get(loop)
    if severer is None:
        severer = _severers[loop] = _Severer()
    severer.want(mark, time.monotonic() + patience, loop)


class _Severer:
    """What one event loop wants closed: a thousand calls cancelled in one of its turns are one search."""

    def __init__(self) -> None:
        self._wanted: dict[int, float] = {}
        self._delay = _FIRST_DELAY
        self._next: asyncio.Handle | None = None

    def want(self, mark: int, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Search for it in the loop's next turn."""
        self._wanted[mark] = until
        self._delay = _FIRST_DELAY
        if self._next is not None:
            self._next.cancel()
        self._next = loop.call_soon(self._search, loop)

    def _search(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = None
        found = _shut_down(self._wanted)
        now = time.monotonic()
        # A name may still be being looked up, and its connection is opened after that whatever became of the call; and
        # a connection that was closed may be replaced. So what was found is looked for once more.
        self._wanted = {
            mark: now if mark in found else until
            for mark, until in self._wanted.items()
            if mark in found or until > now
        }
        if self._wanted:
            self._next = loop.call_later(self._delay, self._search, loop)
            self._delay = min(2 * self._delay, _LONGEST_DELAY)


_severers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Severer] = WeakKeyDictionary()


def _shut_down(marks: Container[int]) -> set[int]:
    """Shut down every socket of this process that carries one of the marks; the marks that were found."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or no TCP socket
            if _mark_of(int(name)) not in marks:
                continue
            # Another thread may close the descriptor and its number be given away; a duplicate stays what it is.
            with _socket(os.dup(int(name))) as held:
                mark = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                if mark in marks:
                    found.add(mark)
                    held.shutdown(socket.SHUT_RDWR)
    return found


def _mark_of(descriptor: int) -> int:
    looked_at = _socket(descriptor)
    try:
        return looked_at.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    finally:
        looked_at.detach()


def _socket(descriptor: int) -> socket.socket:
    # With its kind told, it is not looked up: options of TCP are the same in every family.
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
