"""Waiting with an end: a wait of ours that expires is told apart from a `TimeoutError` that something else raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class ExpiredError(Exception):
    """A wait that took too long."""


async def within(timeout: float | None, waiting: Awaitable[T]) -> T:
    """Wait for it for at most `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout) as scope:
            return await waiting
    except TimeoutError:
        if scope.expired():
            raise ExpiredError from None
        raise
