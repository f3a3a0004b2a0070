"""Waiting for something that has no event of its own to wait for."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, seconds: float = 10) -> None:
    """Return once `condition` holds; fail after so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is watched is set by a thread or by the garbage collector
            await asyncio.sleep(0.001)
