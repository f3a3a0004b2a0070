from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import CallError, OperationContext, OperationRegistry
from operations.interceptors import ConcurrencyLimit, Interceptor
from operations.testing import error_of
from tests.interceptors.calls import ANN, BOB, operation_of, registry_of


class Gate:
    """A handler that waits until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = self.most = 0

    async def __call__(self, input: Any, context: OperationContext) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
            return 1
        finally:
            self.running -= 1

    async def stream(self, input: Any, context: OperationContext) -> AsyncIterator[int]:
        while True:
            yield 1


async def begin(registry: OperationRegistry, count: int, context: OperationContext | None = None) -> list[Any]:
    tasks = [asyncio.ensure_future(registry.execute("a.b", None, context)) for _ in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_calls_beyond_the_limit_are_refused() -> None:
    gate, limit = Gate(), ConcurrencyLimit(3)
    registry = registry_of([limit], gate)
    tasks = await begin(registry, 5)
    assert (gate.running, limit.running, limit.refused) == (3, 3, 2)
    gate.open.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [result for result in results if isinstance(result, CallError)]
    assert [error.details["reason"] for error in refused] == ["CONCURRENCY_LIMIT"] * 2
    assert limit.running == 0
    await registry.execute("a.b")


async def test_queued_calls_run_in_order_when_a_slot_is_free() -> None:
    gate, limit = Gate(), ConcurrencyLimit(2, queue=10)
    tasks = await begin(registry_of([limit], gate), 12)
    assert gate.running == 2
    gate.open.set()
    await asyncio.gather(*tasks)
    assert (gate.most, limit.running, limit._slots._by_key) == (2, 0, {})


async def test_a_queued_call_fails_after_its_wait() -> None:
    gate, limit = Gate(), ConcurrencyLimit(1, queue=5, max_wait=0.01)
    registry = registry_of([limit], gate)
    tasks = await begin(registry, 1)
    error = await error_of(registry.execute("a.b"))
    assert error.details["reason"] == "CONCURRENCY_LIMIT"
    gate.open.set()
    await asyncio.gather(*tasks)
    assert limit._slots._by_key == {}


async def test_each_identity_has_its_own_slots() -> None:
    gate, limit = Gate(), ConcurrencyLimit(1, by=["identity"])
    registry = registry_of([limit], gate)
    tasks = [*await begin(registry, 2, ANN), *await begin(registry, 2, BOB)]
    assert gate.running == 2
    gate.open.set()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_slot_is_lost_however_calls_end() -> None:
    chance = random.Random(1)

    async def handler(input: Any, context: OperationContext) -> int:
        await asyncio.sleep(chance.random() / 1_000)
        if chance.random() < 0.3:
            raise ValueError("failed")
        return 1

    limit = ConcurrencyLimit(3, queue=50, max_wait=0.005)
    registry = registry_of([limit], handler)
    tasks = [asyncio.ensure_future(registry.execute("a.b")) for _ in range(300)]
    for task in tasks:
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() / 5_000)
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (limit.running, limit._slots._by_key) == (0, {})


async def test_a_stream_holds_its_slot_until_it_is_closed() -> None:
    limit = ConcurrencyLimit(1)
    registry = registry_of([limit], Gate(), "subscription")
    stream = registry.subscribe("a.b")
    await anext(stream)
    assert limit.running == 1
    error = await error_of(anext(registry.subscribe("a.b")))
    assert error.details["reason"] == "CONCURRENCY_LIMIT"
    await stream.aclose()
    assert limit.running == 0


async def test_a_stream_that_never_begins_holds_nothing() -> None:
    limit = ConcurrencyLimit(1)

    async def refuse(invocation: Any, proceed: Any) -> Any:
        await proceed(invocation)  # the stream is made, and never iterated
        raise ValueError("no")

    registry = registry_of([refuse, limit], Gate(), "subscription")
    await error_of(anext(registry.subscribe("a.b")))
    assert limit.running == 0


async def test_a_nested_call_does_not_wait_for_its_own_caller() -> None:
    async def outer(input: Any, context: OperationContext) -> Any:
        return (await context.env.a.inner()).data

    async def inner(input: Any, context: OperationContext) -> int:
        return 5

    interceptors: list[Interceptor] = [ConcurrencyLimit(1, queue=1)]
    operations = [operation_of(outer, operation_id="a.outer"), operation_of(inner, operation_id="a.inner")]
    registry = OperationRegistry(operations, interceptors=interceptors)
    async with asyncio.timeout(10):
        assert (await registry.execute("a.outer")).data == 5


async def test_a_task_that_outlives_its_call_needs_a_slot() -> None:
    limit, gate, go = ConcurrencyLimit(1), Gate(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def outer(input: Any, context: OperationContext) -> None:
        async def later() -> Any:
            await go.wait()
            return await registry.execute("a.b")

        left.append(asyncio.create_task(later()))

    operations = [operation_of(outer, operation_id="a.outer"), operation_of(gate)]
    registry = OperationRegistry(operations, interceptors=[limit])
    await registry.execute("a.outer")
    tasks = await begin(registry, 1)
    go.set()
    assert (await error_of(left[0])).details["reason"] == "CONCURRENCY_LIMIT"
    gate.open.set()
    await asyncio.gather(*tasks)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="limit"):
        ConcurrencyLimit(0)
