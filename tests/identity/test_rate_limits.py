"""Limits for each identity, with a simulated clock; the cache of tokens."""

from __future__ import annotations

import asyncio
import time

import pytest

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity import Principal
from operations.identity.rate_limits import ConcurrencyLimits, FailureLimits, RateLimits
from operations.identity.token_cache import TokenCache


def test_a_burst_then_the_rate() -> None:
    now = [0.0]
    limits = RateLimits(2, burst=3, clock=lambda: now[0])
    for _ in range(3):
        limits.acquire("a")
    with pytest.raises(CallError) as refused:
        limits.acquire("a")
    assert refused.value.details == {"reason": "RATE_LIMITED", "retryAfter": 1, "executed": "no"}
    limits.acquire("b")
    now[0] = 0.5
    limits.acquire("a")
    with pytest.raises(CallError):
        limits.acquire("a")
    now[0] = 100.0
    for _ in range(3):
        limits.acquire("a")
    with pytest.raises(CallError):
        limits.acquire("a")


def test_a_rate_must_be_a_rate() -> None:
    with pytest.raises(ValueError, match="per_second"):
        RateLimits(0)


def test_at_once() -> None:
    limits = ConcurrencyLimits(2)
    limits.acquire("a")
    limits.acquire("a")
    limits.acquire("b")
    with pytest.raises(CallError):
        limits.acquire("a")
    limits.release("a")
    limits.acquire("a")


def test_failures_are_forgotten_after_a_while_and_bounded_in_number() -> None:
    now = [0.0]
    failures = FailureLimits(2, 10.0, clock=lambda: now[0])
    for _ in range(2):
        failures.check("a")
        failures.count("a")
    with pytest.raises(CallError):
        failures.check("a")
    failures.check("b")
    now[0] = 11.0
    failures.check("a")
    for number in range(20_000):
        failures.count(str(number))
    assert len(failures._counts) <= 10_000


class Counting:
    """An authenticator that counts its calls."""

    def __init__(self, expires_at: float | None = None) -> None:
        self.asked = 0
        self.expires_at = expires_at

    def authenticate(self, token: str | None) -> Principal:
        self.asked += 1
        if token == "bad":
            raise CallError(ErrorCode.ACCESS_DENIED, "no")
        return Principal(Identity(str(token)), expires_at=self.expires_at)


async def test_a_token_is_verified_once() -> None:
    cache, authenticator = TokenCache(), Counting()
    assert cache.get("a") is None
    assert (await cache.verify("a", authenticator)).identity.id == "a"
    found = cache.get("a")
    assert found is not None
    assert found.identity.id == "a"
    assert cache.get("b") is None
    for _ in range(3):
        with pytest.raises(CallError):
            await cache.verify("bad", authenticator)
    assert authenticator.asked == 2
    cache.clear()
    assert cache.get("a") is None


async def test_a_token_is_kept_no_longer_than_it_is_valid() -> None:
    cache = TokenCache()
    await cache.verify("a", Counting(expires_at=time.time() - 1))
    assert cache.get("a") is None
    short = TokenCache(seconds=-1)
    await short.verify("a", Counting())
    assert short.get("a") is None


async def test_the_cache_is_bounded() -> None:
    cache, authenticator = TokenCache(max_entries=10), Counting()
    for number in range(100):
        await cache.verify(str(number), authenticator)
    assert sum(cache.get(str(number)) is not None for number in range(100)) == 10
    assert cache.get("99") is not None


async def test_a_verdict_that_arrives_after_a_revocation_is_not_kept() -> None:
    go_on = asyncio.Event()

    class Slow:
        async def authenticate(self, token: str | None) -> Principal:
            await go_on.wait()
            return Principal(Identity("late"))

    cache = TokenCache()
    verifying = asyncio.create_task(cache.verify("a", Slow()))
    await asyncio.sleep(0)
    cache.clear()
    go_on.set()
    assert (await verifying).identity.id == "late"
    assert cache.get("a") is None
