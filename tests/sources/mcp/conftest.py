"""No test here leaves tasks or processes running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.sources.mcp.peers import children
from tests.waiting import until


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    processes = children()
    yield
    await until(lambda: children() <= processes)
    assert asyncio.all_tasks() == {asyncio.current_task()}
