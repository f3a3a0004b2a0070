from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import CallError, ErrorCode, Operation, OperationContext, OperationRegistry
from operations.interceptors import CircuitBreaker, ConcurrencyLimit, RateLimit
from operations.spec import OperationSpec, OperationType
from operations.testing import error_of
from tests.interceptors.calls import Clock, Upstream, operation_of, outcomes, registry_of, unavailable


def breaker(clock: Clock, **options: Any) -> CircuitBreaker:
    return CircuitBreaker(**{"minimum": 4, "window": 10, "open_seconds": 5, **options}, clock=clock)


async def test_it_opens_probes_and_closes() -> None:
    clock, upstream = Clock(), Upstream([unavailable()] * 5)
    circuit = breaker(clock)
    registry = registry_of([circuit], upstream)
    assert await outcomes(lambda: registry.execute("a.b"), 6) == ["UNAVAILABLE"] * 4 + ["CIRCUIT_OPEN"] * 2
    assert (circuit.states(), upstream.calls) == ({("a",): "open"}, 4)
    clock.now += 5
    assert circuit.states() == {("a",): "half-open"}
    assert await outcomes(lambda: registry.execute("a.b"), 2) == ["UNAVAILABLE", "CIRCUIT_OPEN"]
    clock.now += 5
    assert await outcomes(lambda: registry.execute("a.b"), 5) == ["ok"] * 5
    assert circuit.states() == {("a",): "closed"}


async def test_the_error_has_a_retry_delay() -> None:
    clock = Clock()
    registry = registry_of([breaker(clock, minimum=1)], Upstream([unavailable()]))
    await error_of(registry.execute("a.b"))
    clock.now += 2
    error = await error_of(registry.execute("a.b"))
    assert (error.details["retryAfter"], error.details["executed"]) == (3.0, "no")


async def test_failures_leave_the_window() -> None:
    clock, upstream = Clock(), Upstream([unavailable()] * 3)
    registry = registry_of([breaker(clock)], upstream)
    await outcomes(lambda: registry.execute("a.b"), 3)
    clock.now += 11
    upstream.errors = [unavailable()]
    assert await outcomes(lambda: registry.execute("a.b"), 2) == ["UNAVAILABLE", "ok"]


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (CallError(ErrorCode.TIMEOUT, ""), True),
        (ValueError("boom"), True),
        (CallError(ErrorCode.EXECUTION_ERROR, "", {"statusCode": 500}), True),
        (CallError(ErrorCode.EXECUTION_ERROR, "", {"statusCode": 404}), False),
        (CallError(ErrorCode.VALIDATION_ERROR, ""), False),
        (CallError(ErrorCode.ACCESS_DENIED, ""), False),
        (CallError("OUT_OF_STOCK", ""), False),
        (CallError(ErrorCode.ABORTED, ""), False),
    ],
)
async def test_only_failures_of_the_upstream_count(error: Exception, counts: bool) -> None:
    circuit = breaker(Clock())
    registry = registry_of([circuit], Upstream([error] * 10))
    for _ in range(5):
        with pytest.raises(CallError):
            await registry.execute("a.b")
    assert circuit.states() == {("a",): "open" if counts else "closed"}


@pytest.mark.parametrize(("seconds", "counts"), [(1.0, False), (30.0, True)])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_short_deadline_of_a_caller_does_not_open_it(seconds: float, counts: bool, streams: bool) -> None:
    """Sources report `TIMEOUT` at the deadline of a call, which its caller chooses."""
    clock = Clock()

    def time_out(input: Any, context: OperationContext) -> int:
        clock.now += seconds
        raise CallError(ErrorCode.TIMEOUT, "the deadline passed")

    async def stream(input: Any, context: OperationContext) -> AsyncIterator[int]:
        yield time_out(input, context)

    circuit = breaker(clock, window=1_000)
    spec = OperationSpec(name="b", namespace="a", type=OperationType.SUBSCRIPTION if streams else OperationType.QUERY)
    called: Operation[Any] = Operation(spec=spec, stream=stream) if streams else Operation(spec=spec, handler=time_out)
    registry = OperationRegistry([called], interceptors=[circuit])

    async def call() -> None:
        context = OperationContext(deadline=int(time.time() * 1000) + 90)
        if streams:
            assert [each async for each in registry.subscribe("a.b", context=context)] == []
        else:
            await registry.execute("a.b", context=context)

    for _ in range(5):
        with pytest.raises(CallError):
            await call()
    assert circuit.states() == {("a",): "open" if counts else "closed"}


async def test_each_namespace_has_its_own() -> None:
    bad = operation_of(Upstream([unavailable()] * 10), operation_id="bad.x")
    circuit = breaker(Clock())
    registry = OperationRegistry([bad, operation_of(Upstream(), operation_id="good.x")], interceptors=[circuit])
    await outcomes(lambda: registry.execute("bad.x"), 5)
    assert await outcomes(lambda: registry.execute("good.x"), 3) == ["ok"] * 3


async def test_one_probe_runs_at_a_time_and_a_cancelled_one_does_not_count() -> None:
    clock, began = Clock(), asyncio.Event()
    fails = [True]

    async def handler(input: Any, context: OperationContext) -> int:
        if fails[0]:
            raise unavailable()
        began.set()
        await asyncio.Event().wait()
        return 1

    circuit = breaker(clock, minimum=1)
    registry = registry_of([circuit], handler)
    await error_of(registry.execute("a.b"))
    fails[0] = False
    clock.now += 5
    probe = asyncio.create_task(registry.execute("a.b"))
    await began.wait()
    assert await outcomes(lambda: registry.execute("a.b"), 1) == ["CIRCUIT_OPEN"]
    probe.cancel()
    await asyncio.wait([probe])
    assert circuit.states() == {("a",): "half-open"}
    began.clear()
    second = asyncio.create_task(registry.execute("a.b"))
    await began.wait()
    second.cancel()
    await asyncio.wait([second])


async def test_a_stream_counts_when_it_ends() -> None:
    circuit = breaker(Clock(), minimum=1)
    registry = registry_of([circuit], Upstream([None, unavailable()]), "subscription")
    with pytest.raises(CallError, match="gone"):
        async for _ in registry.subscribe("a.b"):
            pass
    assert circuit.states() == {("a",): "open"}
    circuit = breaker(Clock(), minimum=1)
    stream = registry_of([circuit], Upstream(), "subscription").subscribe("a.b")
    await anext(stream)
    await stream.aclose()
    assert circuit.states() == {("a",): "closed"}


async def test_a_flapping_upstream_is_called_only_while_it_is_up() -> None:
    """The upstream is up and down for 20 s in turn; a call every 10 ms of simulated time."""
    clock, chance = Clock(), random.Random(3)
    began, calls, states = clock.now, {True: 0, False: 0}, []

    def is_up() -> bool:
        return int((clock.now - began) // 20) % 2 == 0

    async def handler(input: Any, context: OperationContext) -> int:
        calls[is_up()] += 1
        if not is_up() or chance.random() < 0.02:
            raise unavailable()
        return 1

    circuit = CircuitBreaker(minimum=10, window=2, open_seconds=2, clock=clock)
    registry = registry_of([circuit], handler)
    while clock.now - began < 200:
        await outcomes(lambda: registry.execute("a.b"), 1)
        states.append((is_up(), circuit.states()["a",]))
        clock.now += 0.01
    # Down: the calls until the breaker opens (half of the 200 calls of a window fail), then one probe every two
    # seconds.
    assert calls[False] <= 5 * (100 + 10 + 2)
    # Up: all calls, except in the two seconds after each return.
    assert calls[True] >= 5 * 2_000 - 4 * 202 - 5
    changes = [state for index, (_, state) in enumerate(states) if not index or states[index - 1][1] != state]
    assert set(changes) == {"closed", "open", "half-open"} or set(changes) == {"closed", "open"}
    assert changes.count("closed") == 5


async def test_calls_that_a_limit_refused_are_no_failures() -> None:
    """One caller that exceeds its limit must not open the breaker for all callers."""
    circuit = breaker(Clock(), minimum=2)
    registry = registry_of([circuit, RateLimit(1, per=60)], Upstream())
    assert await outcomes(lambda: registry.execute("a.b"), 5) == ["ok"] + ["RATE_LIMITED"] * 4
    assert circuit.states() == {("a",): "closed"}

    async def wait(input: Any, context: OperationContext) -> None:
        await asyncio.sleep(0.01)

    registry = registry_of([circuit, ConcurrencyLimit(1)], wait)
    ended = await asyncio.gather(*(registry.execute("a.b") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(each, CallError) for each in ended) == 4
    assert circuit.states() == {("a",): "closed"}
