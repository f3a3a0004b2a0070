"""Waiting for conditions that have no event."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    """Return once `condition` holds; fail after `seconds`, enough for a very busy machine."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is watched is set by a thread or by the garbage collector
            await asyncio.sleep(0.001)


async def stays(condition: Callable[[], bool], *, seconds: float) -> None:
    """Fail as soon as `condition` does not hold; return after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition()
        await asyncio.sleep(0.001)
    assert condition()
