"""Calls whose deadline passes while their handler runs, however long a busy machine takes to start it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from operations import ErrorCode
from operations.testing import error_of


async def until_timed_out(call: Callable[[int], Awaitable[Any]], is_started: Callable[[], bool]) -> None:
    """Call with a deadline, and again with a later one if the handler had not started."""
    for milliseconds in (150, 1_000, 5_000):
        error = await error_of(call(int(time.time() * 1000) + milliseconds))
        assert error.code is ErrorCode.TIMEOUT
        if is_started():
            return
    raise AssertionError("the handler was never started")
