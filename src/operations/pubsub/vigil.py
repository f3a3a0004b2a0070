"""Vigil: a loop that expects an answer at once stays awake for it.

Where calls are made one after the other over a fast connection, both ends wait most of the time: each for the few
microseconds that the other one works. To fall asleep and be woken takes the system several times as long as that. So a
loop that has sent something looks for what comes back a few times more before it sleeps, as long as that comes nearly
always within the moment: where it does not, because the peer is far, or slow, or wants the processor that is used up
here, it soon no longer does, and asks for more proof each time before it tries again.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from time import perf_counter

AWAKE_SECONDS = 0.0001
"""How long a loop stays awake for an answer."""
_SOON = 0.0005
"""How fast an answer comes to a loop that slept, if one that is awake might have it within the moment."""
_SURE = 16
_DOUBT = 4
_LEAST = -16
_MOST_DOUBT = -4096

give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Vigil:
    """Of one loop: what was sent and what came of late, over any of its connections."""

    __slots__ = ("__weakref__", "_awake", "_call_soon", "_floor", "_since", "_sure")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._since = 0.0
        """When something was sent, while nothing has come after it."""
        self._awake = False
        self._sure = 0
        """How sure it is that an answer comes at once: above 0, the loop stays awake for it."""
        self._floor = _LEAST

    @property
    def is_awake(self) -> bool:
        """Whether the loop is kept from sleeping."""
        return self._awake

    def sent(self) -> None:
        """Something was written, and what answers it may come."""
        if not self._since:
            self._since = perf_counter()
            if self._sure > 0 and not self._awake:
                self._awake = True
                self._call_soon(self._look)

    def came(self) -> None:
        """Something was read."""
        if self._since:
            if perf_counter() - self._since < _SOON:
                if self._sure < _SURE:
                    self._sure += 1
                    if self._sure == _SURE:
                        self._floor = _LEAST
            else:
                self._doubt()
            self._since = 0.0

    def _look(self) -> None:
        """Between two looks of the loop at its connections: end the vigil when it is over, one way or the other."""
        if not self._since:
            self._awake = False
        elif perf_counter() - self._since < AWAKE_SECONDS:
            give_way()
            self._call_soon(self._look)
        else:
            self._awake = False
            self._since = 0.0
            self._doubt()

    def _doubt(self) -> None:
        if self._sure > 0:
            self._sure -= _DOUBT
            if self._sure <= 0:
                self._sure = self._floor
                self._floor = max(_MOST_DOUBT, self._floor * 2)
        elif self._sure > self._floor:
            self._sure -= 1


class Sleep(Vigil):
    """The vigil of a connection that lets its loop sleep whenever there is nothing to do."""

    __slots__ = ()

    def sent(self) -> None:
        """Nothing is waited for awake."""

    def came(self) -> None:
        """Nothing is learnt of it."""


_vigils: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Vigil]] = weakref.WeakKeyDictionary()
"""Kept alive by the connections that use them, as they keep their loops."""


def vigil_of(loop: asyncio.AbstractEventLoop, *, stay_awake: bool = True) -> Vigil:
    """The vigil of a loop, which all its connections share that may stay awake."""
    if not stay_awake:
        return Sleep(loop)
    known = _vigils.get(loop)
    vigil = known() if known is not None else None
    if vigil is None:
        vigil = Vigil(loop)
        _vigils[loop] = weakref.ref(vigil)
    return vigil
