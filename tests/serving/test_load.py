"""A server is replaced by another one under load: every request is answered. Idle listeners take little memory."""

from __future__ import annotations

import pytest

from tests.serving.load import hold, run


async def test_a_restart_under_load() -> None:
    tally = await run(32, 3)
    assert tally.unexpected == []
    assert tally.answered > 100
    assert (tally.refused, tally.lost) == (0, 0)


@pytest.mark.faults
async def test_a_restart_under_a_long_load() -> None:
    tally = await run(256, 30)
    assert tally.unexpected == []
    assert (tally.refused, tally.lost) == (0, 0)


async def test_idle_listeners_take_little_memory() -> None:
    assert await hold(300) < 64 << 10


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_ten_thousand_idle_listeners() -> None:
    assert await hold(10_000) < 64 << 10
