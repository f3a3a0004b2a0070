"""Parking: pyreqwest's thread stands still before the interpreter ends.

That thread outlives the interpreter: whatever is under way in it (an upload that wants its next piece, an answer that
just came, a connection that broke) calls into Python, and a call after the end aborts the process. There is no way to
stop the thread, but it can be kept busy: when a request ends it tells the event loop that waits for it, on its own
thread, and an event loop of ours never returns from being told.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from asyncio import events
from contextlib import suppress
from threading import Event, Lock
from typing import Any, NoReturn, cast

from pyreqwest.client import Client, ClientBuilder

_TRIES = 20
_PATIENCE = 1.0

_process: int | None = None
"""The process whose thread is to be parked; a child that was forked off has none."""

parked = Event()
"""Set when the thread stands still: a request after that would wait for ever."""


def park_at_exit() -> None:
    """From now on there is a thread to park when this process ends."""
    global _process  # there is one such thread for each process
    if _process != os.getpid():
        _process = os.getpid()
        atexit.register(_park)


def _park() -> None:
    if _process != os.getpid() or parked.is_set():
        return
    # Fails at once and opens no connection, but does so on the thread in question.
    client = ClientBuilder().https_only(True).no_proxy().danger_accept_invalid_certs(True).build()
    trap = _Trap()
    for _ in range(_TRIES):
        if _waits(client, trap):
            parked.wait(_PATIENCE)
            return


def _waits(client: Client, trap: _Trap) -> bool:
    """Start a request that the trap is told the end of; whether it did not end before anyone could wait for it."""
    before = events._get_running_loop()
    events._set_running_loop(cast(asyncio.AbstractEventLoop, trap))
    try:
        trap.waiting = client.get("http://127.0.0.1/").build().send()
        with suppress(Exception):
            trap.waiting.send(None)
            return True
        return False
    finally:
        events._set_running_loop(before)


class _Trap:
    """As much of an event loop as a request needs, which nobody who tells it anything gets out of."""

    def __init__(self) -> None:
        self.waiting: Any = None

    def get_debug(self) -> bool:
        """What a future asks."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """What the request waits for."""
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def call_soon_threadsafe(self, *_: object, **__: object) -> NoReturn:
        """Keep the thread that calls it."""
        parked.set()
        never = Lock()
        never.acquire()
        while True:
            never.acquire()
