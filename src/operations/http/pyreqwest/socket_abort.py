"""Aborts the connections of a library that gives no handle for them, found by a mark on their sockets.

The mark is `TCP_USER_TIMEOUT`, an option that a client sets on every socket it opens and that any code in the process
can read. Each group of connections has its own number of milliseconds, long enough to be harmless. Linux only:
elsewhere nothing is marked and nothing is aborted.
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

CAN_ABORT = sys.platform == "linux"
"""Whether sockets can be marked on this platform."""

_SHORTEST, _LONGEST = 120_000, 2_000_000
_FIRST_DELAY, _LONGEST_DELAY = 0.005, 1.0

_marks: Iterator[int] = itertools.cycle(range(_SHORTEST, _LONGEST))


def new_mark() -> int:
    """Return a mark that no other group of connections of this process has: milliseconds for `TCP_USER_TIMEOUT`."""
    return next(_marks)


class SocketAborter:
    """Aborts marked connections, from any event loop."""

    def __init__(self) -> None:
        # A client may be used by several event loops. Each searches by itself, as another one may end at any time.
        self._searches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Search] = WeakKeyDictionary()

    def abort(self, mark: int, *, patience: float) -> None:
        """Abort the connections with the mark; where there is none yet, search again for `patience` seconds."""
        if not CAN_ABORT:
            return
        loop = asyncio.get_running_loop()
        search = self._searches.get(loop)
        if search is None:
            search = self._searches[loop] = _Search()
        search.add(mark, time.monotonic() + patience, loop)


class _Search:
    """The marks that one event loop searches for: a thousand calls cancelled in one iteration are one search."""

    def __init__(self) -> None:
        self._wanted: dict[int, float] = {}
        self._delay = _FIRST_DELAY
        self._next: asyncio.Handle | None = None

    def add(self, mark: int, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Search for a mark in the loop's next iteration."""
        self._wanted[mark] = until
        self._delay = _FIRST_DELAY
        if self._next is not None:
            self._next.cancel()
        self._next = loop.call_soon(self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = None
        found = _shut_down(self._wanted)
        now = time.monotonic()
        # A host name may still be resolving, and its connection opens after that although the call has ended. A
        # connection that was aborted may be replaced. So what was found is searched for once more.
        self._wanted = {
            mark: now if mark in found else until
            for mark, until in self._wanted.items()
            if mark in found or until > now
        }
        if self._wanted:
            self._next = loop.call_later(self._delay, self._run, loop)
            self._delay = min(2 * self._delay, _LONGEST_DELAY)


def _shut_down(marks: Container[int]) -> set[int]:
    """Shut down every socket of this process that carries one of the marks; return the marks that were found."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or not a TCP socket
            if _mark_of(int(name)) not in marks:
                continue
            # Another thread may close the descriptor and its number may be reused; a duplicate stays the same socket.
            with _socket(os.dup(int(name))) as held:
                mark = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                if mark in marks:
                    found.add(mark)
                    held.shutdown(socket.SHUT_RDWR)
    return found


def _mark_of(descriptor: int) -> int:
    borrowed = _socket(descriptor)
    try:
        return borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    finally:
        borrowed.detach()


def _socket(descriptor: int) -> socket.socket:
    # Naming family and kind saves looking them up: options of TCP are the same in every family.
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
