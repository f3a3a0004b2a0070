"""A server is replaced by another one under load: every request is answered."""

from __future__ import annotations

import pytest

from tests.serving.load import run


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
