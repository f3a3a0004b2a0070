"""Lanes: clients that few requests share, so that a cancelled request's connection can be closed with its lane.

Knows nothing of HTTP: a lane holds whatever `build` makes of a mark, see `operations.http.severing`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from operations.http import severing

T = TypeVar("T")

_MOST_PLACES = 64


class Lane(Generic[T]):
    """A client with connections to one place, and how many requests it carries just now."""

    __slots__ = ("client", "mark", "patience", "place", "share", "users")

    def __init__(self, client: T, place: str, mark: int, share: int) -> None:
        self.client = client
        self.place = place
        self.mark = mark
        self.share = share
        self.users = 0
        self.patience: float | None = None
        """How long a request given up in it may take to open a connection; None while none was given up."""


class Lanes(Generic[T]):
    """The lanes of one kind of request, usable from several event loops."""

    def __init__(
        self,
        build: Callable[[str, int], T],
        share: Callable[[str], int],
        *,
        most: int | None = None,
        most_idle: int | None = None,
    ) -> None:
        self._build = build
        self._share = share
        self._left = sys.maxsize if most is None else most
        self._most_idle = most_idle
        self._all: set[Lane[T]] = set()
        self._roomy: dict[str, list[Lane[T]]] = {}
        """Those with room for one more request, by place, the one used last at the end."""
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._lock = Lock()

    def take(self, place: str) -> Lane[T] | None:
        """A lane to a place; None when there are too many requests already."""
        with self._lock:
            if self._left <= 0:
                return None
            self._left -= 1
            roomy = self._roomy.get(place)
            if roomy and roomy[-1].share == 1:  # the usual case of `_pick`, in fewer steps
                lane = roomy.pop()
                lane.users = 1
                return lane
            return self._pick(place)

    async def wait(self, place: str) -> Lane[T]:
        """A lane to a place, when it is this request's turn."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._left > 0:
                self._left -= 1
                return self._pick(place)
            self._waiting.append((loop, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given its turn and cannot take it
                self._pass_on()
            raise
        with self._lock:
            return self._pick(place)

    def release(self, lane: Lane[T], *, patience: float | None = None) -> None:
        """Let a request go; with `patience` it was given up, and its connection is closed with the rest of its lane."""
        with self._lock:
            lane.users -= 1
            if patience is not None and severing.CAN_SEVER:
                self._retire(lane, patience)
            elif lane.patience is None and lane.users == lane.share - 1:
                self._put_back(lane)
            over = None if lane.users else lane.patience
            if over is not None:
                self._all.discard(lane)
            handed_on = bool(self._waiting)
            if not handed_on:
                self._left += 1
        if handed_on:
            self._pass_on()
        if over is not None:
            severing.sever(lane.mark, patience=over)

    def clear(self) -> list[Lane[T]]:
        """Forget every lane, for its owner to close it."""
        with self._lock:
            lanes = list(self._all)
            self._all.clear()
            self._roomy.clear()
        return lanes

    def _pick(self, place: str) -> Lane[T]:
        roomy = self._roomy.get(place)
        if roomy:
            lane = roomy[-1]
        else:
            mark = severing.new_mark()
            share = self._share(place) if severing.CAN_SEVER else sys.maxsize
            lane = Lane(self._build(place, mark), place, mark, share)
            self._all.add(lane)
            roomy = self._roomy.setdefault(place, [])
            roomy.append(lane)
        lane.users += 1
        if lane.users >= lane.share:
            roomy.pop()
        return lane

    def _put_back(self, lane: Lane[T]) -> None:
        if lane not in self._all:
            return
        roomy = self._roomy.setdefault(lane.place, [])
        roomy.append(lane)
        if self._most_idle is not None and len(roomy) > max(1, self._most_idle // lane.share):
            self._drop_idle(roomy)
        if len(self._roomy) > _MOST_PLACES:
            oldest = next(iter(self._roomy))
            self._drop_idle(self._roomy[oldest])
            if not self._roomy[oldest]:
                del self._roomy[oldest]

    def _drop_idle(self, roomy: list[Lane[T]]) -> None:
        """Drop the idle lane that was not used for longest, and with it its connections."""
        idle = next((lane for lane in roomy if not lane.users), None)
        if idle is not None:
            roomy.remove(idle)
            self._all.discard(idle)

    def _retire(self, lane: Lane[T], patience: float) -> None:
        lane.patience = patience if lane.patience is None else max(lane.patience, patience)
        roomy = self._roomy.get(lane.place, [])
        if lane in roomy:
            roomy.remove(lane)

    def _pass_on(self) -> None:
        """Give the turn to the next that waits, or keep it for one to come."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._left += 1
                    return
                loop, turn = self._waiting.popleft()
            with suppress(RuntimeError):  # its event loop is closed
                loop.call_soon_threadsafe(self._grant, turn)
                return

    def _grant(self, turn: asyncio.Future[None]) -> None:
        if turn.done():  # cancelled meanwhile
            self._pass_on()
        else:
            turn.set_result(None)
