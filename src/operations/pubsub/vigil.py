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
_AT_ONCE = 0.000005
"""What comes sooner after something was sent is not its answer: it was there already."""
_WORTH = 0.00006
"""What may be waited on average: about what it takes the system to put a loop to sleep and wake it."""
_SURE = 16
_DOUBT = 4
_LEAST = -16
_MOST_DOUBT = -4096

give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Vigil:
    """Of one loop: what was sent and what came of late, over any of its connections."""

    __slots__ = ("__weakref__", "_awake", "_call_soon", "_floor", "_since", "_sure", "_waited")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._since = 0.0
        """When something was sent, while nothing has come after it."""
        self._awake = False
        self._sure = 0
        """How sure it is that an answer comes at once: above 0, the loop stays awake for it."""
        self._floor = _LEAST
        self._waited = 0.0
        """What was waited of late, on average, since it is sure."""

    @property
    def is_awake(self) -> bool:
        """Whether the loop is kept from sleeping."""
        return self._awake

    def sent(self) -> None:
        """Something was written, and what answers it may come."""
        if self._awake and self._since:
            return
        now = perf_counter()
        if self._since and now - self._since < _SOON:
            return
        self._since = now  # nothing came of what was sent before, if anything was
        if self._sure > 0 and not self._awake:
            self._call_soon(self._look)
            self._awake = True

    def came(self) -> None:
        """Something was read."""
        if not self._since:
            return
        waited = perf_counter() - self._since
        self._since = 0.0
        if waited > _SOON:
            self._doubt()
        elif waited < _AT_ONCE:
            return
        elif self._sure <= 0:
            self._sure += 1
            self._waited = 0.0
        else:
            self._waited += (waited - self._waited) / 8
            if self._sure < _SURE:
                self._sure += 1
            elif self._waited < _WORTH:
                self._floor = _LEAST
            else:
                self._give_up()

    def _look(self) -> None:
        """Between two looks of the loop at its connections: end the vigil when it is over, one way or the other."""
        self._awake = False
        if not self._since:
            return
        if perf_counter() - self._since < AWAKE_SECONDS:
            give_way()
            self._call_soon(self._look)
            self._awake = True
        else:
            self._since = 0.0
            self._doubt()

    def _doubt(self) -> None:
        if self._sure > _DOUBT:
            self._sure -= _DOUBT
        elif self._sure > 0:
            self._give_up()
        elif self._sure > self._floor:
            self._sure -= 1

    def _give_up(self) -> None:
        """Sleep, and ask for more proof than the last time."""
        self._sure = self._floor
        self._floor = max(_MOST_DOUBT, self._floor * 2)


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
