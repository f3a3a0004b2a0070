"""Abort of connections to which a library gives no access, found by a mark on their sockets.

The mark is `TCP_USER_TIMEOUT`: an option in milliseconds that a client sets on all its sockets, and that any code in
the process can read. Each client has a different value, long enough to have no effect. Linux only: on other platforms
no connection is marked or aborted.
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

_MIN_MARK, _MAX_MARK = 120_000, 2_000_000
_FIRST_DELAY, _MAX_DELAY = 0.005, 1.0

_marks: Iterator[int] = itertools.cycle(range(_MIN_MARK, _MAX_MARK))


def new_mark() -> int:
    """Return a mark for a new client: milliseconds for `TCP_USER_TIMEOUT`. Marks repeat after 1,880,000 clients."""
    return next(_marks)


class SocketAborter:
    """Aborts marked connections, from any event loop."""

    def __init__(self) -> None:
        # A client may be used by several event loops. Each loop runs its own search, as another may end at any time.
        self._searches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Search] = WeakKeyDictionary()

    def abort(self, mark: int, *, abort_seconds: float) -> None:
        """Abort the connections with the mark; if there are none yet, repeat the search for `abort_seconds` seconds."""
        if not CAN_ABORT:
            return
        loop = asyncio.get_running_loop()
        search = self._searches.get(loop)
        if search is None:
            search = self._searches[loop] = _Search()
        search.add(mark, time.monotonic() + abort_seconds, loop)


class _Search:
    """The marks that one event loop searches for: a thousand calls cancelled in one iteration need one search."""

    def __init__(self) -> None:
        self._pending: dict[int, float] = {}
        self._delay = _FIRST_DELAY
        self._next: asyncio.Handle | None = None

    def add(self, mark: int, until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Search for a mark in the loop's next iteration."""
        self._pending[mark] = until
        self._delay = _FIRST_DELAY
        if self._next is not None:
            self._next.cancel()
        self._next = loop.call_soon(self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = None
        found = _shut_down(self._pending)
        now = time.monotonic()
        # The search for a mark that was not found continues: while a host name is resolved, its connection is not open
        # yet. A mark that was found is searched once more: the library may have replaced an aborted connection.
        self._pending = {
            mark: now if mark in found else until
            for mark, until in self._pending.items()
            if mark in found or until > now
        }
        if self._pending:
            self._next = loop.call_later(self._delay, self._run, loop)
            self._delay = min(2 * self._delay, _MAX_DELAY)


def _shut_down(marks: Container[int]) -> set[int]:
    """Shut down every socket of this process with one of the marks; return the marks that were found."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, or not a TCP socket
            if _mark_of(int(name)) not in marks:
                continue
            # Another thread may close the descriptor, and the system may reuse its number. The number of a duplicate
            # refers to the same socket until it is closed here.
            with _socket(os.dup(int(name))) as duplicate:
                mark = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                if mark in marks:
                    found.add(mark)
                    duplicate.shutdown(socket.SHUT_RDWR)
    return found


def _mark_of(descriptor: int) -> int:
    borrowed = _socket(descriptor)
    try:
        return borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    finally:
        borrowed.detach()


def _socket(descriptor: int) -> socket.socket:
    # Passing family and kind avoids looking them up: TCP options are the same in every family.
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
