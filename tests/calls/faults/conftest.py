from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.calls.faults.stages import MIDDLES, Stage, open_stage
from tests.waiting import until


@pytest.fixture(params=list(MIDDLES))
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    """A separate bus on every transport; calls that are still pending at the end are errors."""
    before = len(asyncio.all_tasks())
    async with open_stage(request.param, tmp_path) as stage:
        yield stage
        await stage.assert_nothing_waits()
    stage.history.read()
    stage.history.check(timing=request.node.get_closest_marker("faults") is not None)
    await until(lambda: len(asyncio.all_tasks()) <= before)
