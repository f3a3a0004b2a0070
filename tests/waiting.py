"""Waiting for something that has no event of its own to wait for."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; fail after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is watched is set by a thread or by the garbage collector
            await asyncio.sleep(0.001)
