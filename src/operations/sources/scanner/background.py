"""Scanning beside an event loop, in threads that nobody has to wait for at the end of the program."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a daemon thread; a caller who gives up leaves the thread to itself.

    `asyncio.to_thread` would make the program wait at its end for a module that is still being imported.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(settler: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            settler(outcome)

    def work() -> None:
        settler: Callable[[Any], None] = done.set_result
        try:
            outcome: Any = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  # the caller gets it
            settler, outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, settler, outcome)

    threading.Thread(target=work, name="operations scan", daemon=True).start()
    return await done
