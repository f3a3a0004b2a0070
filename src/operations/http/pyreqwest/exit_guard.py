"""Exit guard: blocks pyreqwest's thread before the interpreter ends.

That thread outlives the interpreter. Pending work in the thread (an upload that needs its next piece, a response that
just arrived, a lost connection) calls into Python. Such a call after the interpreter's end aborts the process. The
thread cannot be stopped, but it can be blocked: when a request ends, the thread reports this to the event loop that
waits for the request. The guard's event loop never returns from that report.
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
_TIMEOUT = 1.0

_process: int | None = None
"""Id of the process in which the guard blocks pyreqwest's thread. A forked child inherits this id, but no thread."""

blocked = Event()
"""An event that is set when the thread is blocked; a request after that would never end."""


def guard_exit() -> None:
    """Register an exit handler that blocks pyreqwest's thread when this process ends."""
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        atexit.register(_block_thread)


def _block_thread() -> None:
    if _process != os.getpid() or blocked.is_set():
        return
    # The request runs on pyreqwest's thread. It fails immediately without a connection, because its URL is not https.
    client = ClientBuilder().https_only(True).no_proxy().danger_accept_invalid_certs(True).build()
    trap = _Trap()
    for _ in range(_TRIES):
        if _is_waiting(client, trap):
            blocked.wait(_TIMEOUT)
            return


def _is_waiting(client: Client, trap: _Trap) -> bool:
    """Start a request that reports its end to the trap; return False if the request has already ended."""
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
    """The part of an event loop that a request needs; a thread that reports to it never returns."""

    def __init__(self) -> None:
        self.waiting: Any = None

    def get_debug(self) -> bool:
        """Return False; a future reads this flag from its event loop."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """Return the future that the request waits for."""
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def call_soon_threadsafe(self, *_: object, **__: object) -> NoReturn:
        """Block the calling thread indefinitely."""
        blocked.set()
        never = Lock()
        never.acquire()
        while True:
            never.acquire()
