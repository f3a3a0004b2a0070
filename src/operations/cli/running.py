"""Running a command's coroutine: Ctrl-C and SIGTERM cancel it, so that streams close and remote sides are told."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable

_TERMINATED = 128 + signal.SIGTERM


def run(outcome: Awaitable[int]) -> int:
    """Run to the end; the exit code. Raises KeyboardInterrupt when Ctrl-C ended it."""
    return asyncio.run(_until_done(outcome))


async def _until_done(outcome: Awaitable[int]) -> int:
    task = asyncio.ensure_future(outcome)
    terminated = False

    def stop() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError, RuntimeError):
        loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated:
            return _TERMINATED
        raise
