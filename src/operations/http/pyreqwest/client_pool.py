"""Client pool: clients that few requests share, so that aborting a cancelled request disturbs few others.

Knows nothing of HTTP: a pooled client is any object that `build` makes for a mark (`socket_abort`).
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

_MOST_ORIGINS = 64


class PooledClient(Generic[T]):
    """A client with connections to one origin, and the number of requests that use it now."""

    __slots__ = ("capacity", "client", "mark", "origin", "patience", "requests")

    def __init__(self, client: T, origin: str, mark: int, capacity: int) -> None:
        self.client = client
        self.origin = origin
        self.mark = mark
        self.capacity = capacity
        self.requests = 0
        self.patience: float | None = None
        """How long a cancelled request may take to open its connection; None while none was cancelled."""


class ClientPool(Generic[T]):
    """The clients for one kind of request, usable from several event loops."""

    def __init__(
        self,
        build: Callable[[str, int], T],
        capacity: Callable[[str], int],
        aborter: SocketAborter,
        *,
        most: int | None = None,
        most_idle: int | None = None,
    ) -> None:
        self._build = build
        self._capacity = capacity
        self._aborter = aborter
        self._left = sys.maxsize if most is None else most
        self._most_idle = most_idle
        self._all: set[PooledClient[T]] = set()
        self._free: dict[str, list[PooledClient[T]]] = {}
        """Those with capacity for another request, by origin, the most recently used last."""
        self._queue: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._lock = Lock()

    def take(self, origin: str) -> PooledClient[T] | None:
        """Return a client for an origin; None where there are too many requests already."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            return self._pick(origin)

    async def wait(self, origin: str) -> PooledClient[T]:
        """Return a client for an origin once the queue is empty before this request."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._left > 0:
                self._left -= 1
                return self._pick(origin)
            self._queue.append((loop, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._pass_on()
            raise
        with self._lock:
            return self._pick(origin)

    def release(self, used: PooledClient[T], *, patience: float | None = None) -> None:
        """End a request; with `patience` it was cancelled, and its connection is aborted once its client is unused."""
        with self._lock:
            used.requests -= 1
            if patience is not None and socket_abort.CAN_ABORT:
                self._retire(used, patience)
            elif used.patience is None and used.requests == used.capacity - 1:
                self._put_back(used)
            aborted = None if used.requests else used.patience
            if aborted is not None:
                self._all.discard(used)
            handed_on = bool(self._queue)
            if not handed_on:
                self._left += 1
        if handed_on:
            self._pass_on()
        if aborted is not None:
            self._aborter.abort(used.mark, patience=aborted)

    def clear(self) -> list[PooledClient[T]]:
        """Remove every client, for the caller to close it."""
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

    def _put_back(self, used: PooledClient[T]) -> None:
        if used not in self._all:
            return
        free = self._free.setdefault(used.origin, [])
        free.append(used)
        if self._most_idle is not None and len(free) > max(1, self._most_idle // used.capacity):
            self._drop_idle(free)
        if len(self._free) > _MOST_ORIGINS:
            oldest = next(iter(self._free))
            self._drop_idle(self._free[oldest])
            if not self._free[oldest]:
                del self._free[oldest]

    def _drop_idle(self, free: list[PooledClient[T]]) -> None:
        """Drop the least recently used idle client, and with it its connections."""
        idle = next((each for each in free if not each.requests), None)
        if idle is not None:
            free.remove(idle)
            self._all.discard(idle)

    def _retire(self, used: PooledClient[T], patience: float) -> None:
        used.patience = patience if used.patience is None else max(used.patience, patience)
        free = self._free.get(used.origin, [])
        if used in free:
            free.remove(used)

    def _pass_on(self) -> None:
        """Give the turn to the next in the queue, or keep it for a later request."""
        while True:
            with self._lock:
                if not self._queue:
                    self._left += 1
                    return
                loop, turn = self._queue.popleft()
            with suppress(RuntimeError):  # its event loop is closed
                loop.call_soon_threadsafe(self._grant, turn)
                return

    def _grant(self, turn: asyncio.Future[None]) -> None:
        if turn.done():  # cancelled meanwhile
            self._pass_on()
        else:
            turn.set_result(None)
