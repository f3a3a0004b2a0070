from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import Identity, OperationContext
from operations.interceptors import RateLimit
from operations.testing import error_of
from tests.interceptors.calls import ANN, BOB, Clock, Upstream, outcomes, registry_of


async def admitted(limit: RateLimit, clock: Clock, *, seconds: float, every: float) -> int:
    """How many of evenly spaced calls are let through in so many seconds."""
    registry = registry_of([limit])
    began = clock.now
    count = 0
    while clock.now - began < seconds:
        count += await outcomes(lambda: registry.execute("a.b", None, ANN), 1) == ["ok"]
        clock.now += every
    return count


@pytest.mark.parametrize("rate", [1, 7, 50, 333.3])
@pytest.mark.parametrize("burst", [2, 20])
async def test_the_rate_is_exact_over_ten_seconds(rate: float, burst: int) -> None:
    clock = Clock()
    limit = RateLimit(rate, burst=burst, clock=clock)
    seconds = 100 / rate if rate < 10 else 10  # at least a hundred calls
    count = await admitted(limit, clock, seconds=seconds, every=1 / rate / 4.7)
    assert count == pytest.approx(rate * seconds + burst, rel=0.02)


@given(st.lists(st.floats(0, 0.2), max_size=200), st.integers(1, 50), st.integers(1, 10))
async def test_no_window_has_more_than_its_burst_and_its_rate(gaps: list[float], rate: int, burst: int) -> None:
    clock, times = Clock(), []
    registry = registry_of([RateLimit(rate, burst=burst, clock=clock)])
    for gap in gaps:
        clock.now += gap
        if await outcomes(lambda: registry.execute("a.b"), 1) == ["ok"]:
            times.append(clock.now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + rate * (times[last] - times[first]) + 1e-6


async def test_each_identity_has_its_own_bucket() -> None:
    registry = registry_of([RateLimit(1, clock=Clock())])
    assert await outcomes(lambda: registry.execute("a.b", None, ANN), 2) == ["ok", "RATE_LIMITED"]
    assert await outcomes(lambda: registry.execute("a.b", None, BOB), 2) == ["ok", "RATE_LIMITED"]
    assert await outcomes(lambda: registry.execute("a.b"), 2) == ["ok", "RATE_LIMITED"]


async def test_one_bucket_for_all_callers() -> None:
    registry = registry_of([RateLimit(1, by=[], clock=Clock())])
    assert await outcomes(lambda: registry.execute("a.b", None, ANN), 1) == ["ok"]
    assert await outcomes(lambda: registry.execute("a.b", None, BOB), 1) == ["RATE_LIMITED"]


async def test_the_error_has_a_retry_delay() -> None:
    clock = Clock()
    registry = registry_of([RateLimit(4, burst=1, clock=clock)])
    await registry.execute("a.b")
    error = await error_of(registry.execute("a.b"))
    assert (error.details["retryAfter"], error.details["executed"]) == (0.25, "no")
    clock.now += 0.25
    await registry.execute("a.b")


async def test_a_call_may_wait_for_its_token() -> None:
    clock = Clock()
    registry = registry_of([RateLimit(10, burst=1, max_wait=0.25, clock=clock, sleep=clock.sleep)])
    began = clock.now
    assert await outcomes(lambda: registry.execute("a.b"), 11) == ["ok"] * 11
    assert clock.now - began == pytest.approx(1.0)


async def test_the_token_of_a_cancelled_wait_goes_back() -> None:
    clock = Clock()
    limit = RateLimit(1, burst=1, max_wait=10, clock=clock)
    registry = registry_of([limit])
    await registry.execute("a.b")
    waiting = asyncio.create_task(registry.execute("a.b"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    clock.now += 1
    limit._max_wait = 0
    assert await outcomes(lambda: registry.execute("a.b"), 2) == ["ok", "RATE_LIMITED"]


async def test_a_stream_takes_one_token() -> None:
    registry = registry_of([RateLimit(1, clock=Clock())], Upstream(), "subscription")
    assert [envelope.data async for envelope in registry.subscribe("a.b")] == [0, 1, 2]
    error = await error_of(anext(registry.subscribe("a.b")))
    assert error.details["reason"] == "RATE_LIMITED"


async def test_memory_is_bounded() -> None:
    limit = RateLimit(1, max_keys=100, clock=Clock())
    registry = registry_of([limit])
    for number in range(1_000):
        await registry.execute("a.b", None, OperationContext(identity=Identity(f"caller{number}")))
    assert len(limit._full_at) == 100


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": 1, "burst": 0}, {"rate": 1, "by": "identity"}])
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid"):
        RateLimit(**options)  # type: ignore[arg-type]


@pytest.mark.faults
async def test_the_rate_holds_for_ten_real_seconds_with_fifty_callers() -> None:
    """Fifty tasks call as fast as they can; in real time. The burst outlasts a stall of 0.2 s of a busy machine."""
    registry = registry_of([RateLimit(500, burst=100)])
    began, counts = time.monotonic(), [0]

    async def call_on() -> None:
        while time.monotonic() - began < 10:
            counts[0] += await outcomes(lambda: registry.execute("a.b"), 1) == ["ok"]
            await asyncio.sleep(0.0005)

    await asyncio.gather(*(call_on() for _ in range(50)))
    rate = (counts[0] - 100) / (time.monotonic() - began)
    print(f"{rate:.1f} calls a second of 500")  # noqa: T201
    assert rate == pytest.approx(500, rel=0.02)
