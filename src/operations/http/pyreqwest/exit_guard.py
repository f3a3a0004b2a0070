"""Exit guard: holds pyreqwest's thread before the interpreter ends.

That thread outlives the interpreter. Anything pending in it (an upload that needs its next piece, a response that just
arrived, a connection that broke) calls into Python, and a call after the end aborts the process. The thread cannot be
stopped, but it can be kept busy: when a request ends, the thread reports it to the event loop that waits for it, and
the guard's event loop never returns from that report.
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
"""The process whose thread is to be held: pyreqwest starts one for each process; a forked child has none."""

held = Event()
"""Set when the thread is held: a request after that would never end."""


def guard_exit() -> None:
    """Have the thread held when this process ends."""
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        atexit.register(_hold)


def _hold() -> None:
    if _process != os.getpid() or held.is_set():
        return
    # The request fails immediately and opens no connection, but does so on the thread in question.
    client = ClientBuilder().https_only(True).no_proxy().danger_accept_invalid_certs(True).build()
    trap = _Trap()
    for _ in range(_TRIES):
        if _waits(client, trap):
            held.wait(_PATIENCE)
            return


def _waits(client: Client, trap: _Trap) -> bool:
    """Start a request that reports its end to the trap; whether it did not end before the trap waited for it."""
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
    """As much of an event loop as a request needs; a thread that reports to it never returns."""

    def __init__(self) -> None:
        self.waiting: Any = None

    def get_debug(self) -> bool:
        """What a future reads."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """What the request waits for."""
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def call_soon_threadsafe(self, *_: object, **__: object) -> NoReturn:
        """Keep the thread that calls it."""
        held.set()
        never = Lock()
        never.acquire()
        while True:
            never.acquire()
