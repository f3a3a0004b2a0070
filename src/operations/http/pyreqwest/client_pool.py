"""Client pool: few requests share a client, so that aborting a cancelled request disturbs few others.

The pool is independent of HTTP: a client is any object that `build(origin, mark)` returns. `socket_abort` finds the
connections of a client by its mark.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from operations.http.pyreqwest import socket_abort
from operations.http.pyreqwest.socket_abort import SocketAborter

T = TypeVar("T")

_MAX_ORIGINS = 64


class PooledClient(Generic[T]):
    """A client with connections to one origin, and the number of requests that use the client now."""

    __slots__ = ("abort_seconds", "capacity", "client", "mark", "origin", "requests")

    def __init__(self, client: T, origin: str, mark: int, capacity: int) -> None:
        self.client = client
        self.origin = origin
        self.mark = mark
        self.capacity = capacity
        self.requests = 0
        self.abort_seconds: float | None = None
        """Seconds for which to search for the connection of a cancelled request, which may open late.

        None if no request of this client was cancelled.
        """


class ClientPool(Generic[T]):
    """The clients for one kind of request (calls or streams); usable from several event loops."""

    def __init__(
        self,
        build: Callable[[str, int], T],
        capacity: Callable[[str], int],
        aborter: SocketAborter,
        *,
        max_requests: int | None = None,
        max_idle: int | None = None,
    ) -> None:
        self._build = build
        self._capacity = capacity
        self._aborter = aborter
        self._left = sys.maxsize if max_requests is None else max_requests
        self._max_idle = max_idle
        self._all: set[PooledClient[T]] = set()
        self._free: dict[str, list[PooledClient[T]]] = {}
        """Clients with free capacity, by origin, the most recently used last."""
        self._queue: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._lock = Lock()

    def take(self, origin: str) -> PooledClient[T] | None:
        """Return a client for an origin; None if `max_requests` requests are already running."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            return self._pick(origin)

    async def wait(self, origin: str) -> PooledClient[T]:
        """Return a client for an origin; while `max_requests` requests are running, wait in the queue."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._left > 0:
                self._left -= 1
                return self._pick(origin)
            self._queue.append((loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # a client was assigned
                self._wake_next()
            raise
        with self._lock:
            return self._pick(origin)

    def release(self, used: PooledClient[T], *, abort_seconds: float | None = None) -> None:
        """Give a client back after a request; with `abort_seconds`, the request was cancelled: abort its connection.

        The connection is aborted when no other request uses the client. A connection that is not open yet is aborted if
        it opens within `abort_seconds` seconds.
        """
        with self._lock:
            used.requests -= 1
            if abort_seconds is not None and socket_abort.CAN_ABORT:
                self._retire(used, abort_seconds)
            elif used.abort_seconds is None and used.requests == used.capacity - 1:
                self._return_client(used)
            aborted = None if used.requests else used.abort_seconds
            if aborted is not None:
                self._all.discard(used)
            handed_on = bool(self._queue)
            if not handed_on:
                self._left += 1
        if handed_on:
            self._wake_next()
        if aborted is not None:
            self._aborter.abort(used.mark, abort_seconds=aborted)

    def clear(self) -> list[PooledClient[T]]:
        """Remove and return every client, for the caller to close."""
        with self._lock:
            clients = list(self._all)
            self._all.clear()
            self._free.clear()
        return clients

    def _pick(self, origin: str) -> PooledClient[T]:
        free = self._free.get(origin)
        if free:
            picked = free[-1]
        else:
            mark = socket_abort.new_mark()
            capacity = self._capacity(origin) if socket_abort.CAN_ABORT else sys.maxsize
            picked = PooledClient(self._build(origin, mark), origin, mark, capacity)
            self._all.add(picked)
            free = self._free.setdefault(origin, [])
            free.append(picked)
        picked.requests += 1
        if picked.requests >= picked.capacity:
            free.pop()
        return picked

    def _return_client(self, used: PooledClient[T]) -> None:
        if used not in self._all:
            return
        free = self._free.setdefault(used.origin, [])
        free.append(used)
        if self._max_idle is not None and len(free) > max(1, self._max_idle // used.capacity):
            self._drop_idle(free)
        if len(self._free) > _MAX_ORIGINS:
            oldest = next(iter(self._free))
            self._drop_idle(self._free[oldest])
            if not self._free[oldest]:
                del self._free[oldest]

    def _drop_idle(self, free: list[PooledClient[T]]) -> None:
        """Drop the least recently used idle client and its connections."""
        idle = next((each for each in free if not each.requests), None)
        if idle is not None:
            free.remove(idle)
            self._all.discard(idle)

    def _retire(self, used: PooledClient[T], abort_seconds: float) -> None:
        used.abort_seconds = abort_seconds if used.abort_seconds is None else max(used.abort_seconds, abort_seconds)
        free = self._free.get(used.origin, [])
        if used in free:
            free.remove(used)

    def _wake_next(self) -> None:
        """Wake the next request in the queue; if the queue is empty, free the slot."""
        while True:
            with self._lock:
                if not self._queue:
                    self._left += 1
                    return
                loop, waiter = self._queue.popleft()
            with suppress(RuntimeError):  # its event loop is closed
                loop.call_soon_threadsafe(self._grant, waiter)
                return

    def _grant(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done():  # cancelled meanwhile
            self._wake_next()
        else:
            waiter.set_result(None)
