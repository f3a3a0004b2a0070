from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from operations import Operation, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap, from_call
from tests.contracts.buses import BUSES, Bus

Serve = Callable[..., Awaitable[CallHandler]]


@pytest.fixture(params=list(BUSES))
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    async with BUSES[request.param]() as bus:
        yield bus
    await assert_nothing_is_left()


async def assert_nothing_is_left() -> None:
    """Wait a few iterations of the event loop until every task of a test has ended."""
    for _ in range(1_000):
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            return
        gc.collect()
        await asyncio.sleep(0.01)
    raise AssertionError(f"tasks are left: {left}")


@pytest.fixture
async def serve(bus: Bus) -> AsyncIterator[Serve]:
    """Serve operations at a new peer, and wait until they can be called."""
    handlers: list[CallHandler] = []
    watcher = from_call(await bus.end())

    async def serve(*operations: Operation, **options: object) -> CallHandler:  # type: ignore[type-arg]
        handler = CallHandler(OperationRegistry(operations), await bus.end("worker"), **options)  # type: ignore[arg-type]
        handlers.append(handler)
        async with asyncio.timeout(30):
            await watcher.ready(*(operation.id for operation in operations))
        return handler

    yield serve
    for handler in handlers:
        await handler.drain(grace=5)
        assert handler.counters.in_flight == 0
    await watcher.close()


@pytest.fixture
async def caller(bus: Bus) -> AsyncIterator[PendingRequestMap]:
    pending = PendingRequestMap(await bus.end())
    yield pending
    assert pending.in_flight == 0
