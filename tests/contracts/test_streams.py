"""Streams: one body, every transport."""

from __future__ import annotations

import asyncio
import contextlib
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import CallError, ErrorCode, OperationContext, operation
from operations.calls import PendingRequestMap
from operations.calls.streams import WINDOW_ITEMS
from operations.testing import stub_operation
from tests.contracts.buses import Bus
from tests.contracts.conftest import Serve
from tests.contracts.operations_under_test import Sleeper, Ticker, add, count
from tests.waiting import until


async def collect(stream: AsyncIterator[Any]) -> tuple[list[Any], CallError | None]:
    items = []
    try:
        async for envelope in stream:
            items.append(envelope.data)
    except CallError as error:
        return items, error
    return items, None


async def test_a_stream_gives_envelopes_in_order_and_ends(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(count)
    assert await collect(caller.subscribe("math.count", {"to": 1_000})) == (list(range(1_000)), None)
    assert await collect(caller.subscribe("math.count", {"to": 0})) == ([], None)


async def test_an_error_follows_the_items_sent_before_it(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(count)
    items, error = await collect(caller.subscribe("math.count", {"to": 9, "fail_at": 3}))
    assert items == [0, 1, 2]
    assert error is not None
    assert error.code is ErrorCode.EXECUTION_ERROR


async def test_a_call_is_not_a_stream_and_a_stream_is_not_a_call(serve: Serve, caller: PendingRequestMap) -> None:
    await serve(count, add)
    with pytest.raises(CallError, match="is a subscription"):
        await caller.call("math.count", {"to": 1})
    _, error = await collect(caller.subscribe("math.add", {"a": 1, "b": 1}))
    assert error is not None
    assert "does not stream" in error.message


async def test_a_stream_without_a_worker_fails_immediately(serve: Serve, caller: PendingRequestMap) -> None:
    async with asyncio.timeout(30):
        _, error = await collect(caller.subscribe("nobody.here"))
    assert error is not None
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")


@pytest.mark.fault(39)
async def test_breaking_out_closes_the_generator(serve: Serve, caller: PendingRequestMap) -> None:
    ticker = Ticker()
    await serve(ticker.operation)
    async for envelope in caller.subscribe("clock.ticks"):
        if envelope.data == 3:
            break
    del envelope
    async with asyncio.timeout(30):
        await ticker.closed.wait()
    await until(lambda: caller.in_flight == 0)


async def test_closing_and_cancelling_close_the_generator(serve: Serve, caller: PendingRequestMap) -> None:
    ticker = Ticker(pause=0.001)
    await serve(ticker.operation)
    stream: Any = caller.subscribe("clock.ticks")
    async with contextlib.aclosing(stream):
        await anext(stream)
    async with asyncio.timeout(30):
        await ticker.closed.wait()
    ticker.closed.clear()
    task = asyncio.create_task(collect(caller.subscribe("clock.ticks")))
    before = ticker.sent
    await until(lambda: ticker.sent > before + 2)
    task.cancel()
    async with asyncio.timeout(30):
        await ticker.closed.wait()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_idle_stream_ends_at_its_idle_timeout(serve: Serve, caller: PendingRequestMap) -> None:
    closed = asyncio.Event()

    @operation(id="clock.silent")
    async def silent() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    await serve(silent)
    items, error = await collect(caller.subscribe("clock.silent", idle_timeout=0.1))
    assert items == [1]
    assert error is not None
    assert error.code is ErrorCode.TIMEOUT
    async with asyncio.timeout(30):
        await closed.wait()


async def test_a_stream_ends_at_its_deadline(serve: Serve, caller: PendingRequestMap) -> None:
    ticker = Ticker(pause=0.005)
    await serve(ticker.operation)
    for milliseconds in (200, 1_000, 5_000):  # a busy machine may take long to start it
        items, error = await collect(caller.subscribe("clock.ticks", deadline=int(time.time() * 1000) + milliseconds))
        assert error is not None
        assert error.code is ErrorCode.TIMEOUT
        if items:
            break
    assert items == list(range(items[0], items[0] + len(items)))
    async with asyncio.timeout(30):
        await ticker.closed.wait()


@pytest.mark.fault(18)
async def test_a_slow_consumer_holds_the_producer_back(serve: Serve, caller: PendingRequestMap) -> None:
    ticker = Ticker()
    await serve(ticker.operation, add)
    stream: Any = caller.subscribe("clock.ticks")
    async with contextlib.aclosing(stream):
        assert (await anext(stream)).data == 0
        for _ in range(20):
            await caller.call("math.add", {"a": 1, "b": 1})
        assert ticker.sent <= 2 * WINDOW_ITEMS
        for expected in range(1, 2_000):
            assert (await anext(stream)).data == expected
        assert ticker.sent <= 2_000 + 2 * WINDOW_ITEMS


async def test_large_items_are_bounded_by_bytes(serve: Serve, caller: PendingRequestMap) -> None:
    sent = 0

    @operation(id="files.chunks")
    async def chunks() -> AsyncIterator[str]:
        nonlocal sent
        for _ in range(40):
            sent += 1
            yield "x" * (300 << 10)

    await serve(chunks, add)
    stream: Any = caller.subscribe("files.chunks")
    async with contextlib.aclosing(stream):
        await anext(stream)
        for _ in range(20):
            await caller.call("math.add", {"a": 1, "b": 1})
        assert sent <= 8
        items, error = await collect(stream)
    assert (len(items), error) == (39, None)


async def test_a_nested_stream_goes_through_the_bus(bus: Bus, serve: Serve, caller: PendingRequestMap) -> None:
    @operation(id="outer.doubled")
    async def doubled(to: int, context: OperationContext) -> AsyncIterator[int]:
        async for envelope in context.env["math"]["count"].subscribe(to=to):
            yield envelope.data * 2

    await serve(count)
    await serve(doubled)
    assert await collect(caller.subscribe("outer.doubled", {"to": 5})) == ([0, 2, 4, 6, 8], None)


async def test_many_concurrent_streams_and_calls(serve: Serve, caller: PendingRequestMap) -> None:
    sleeper = Sleeper()
    sleeper.let_go.set()
    await serve(count, sleeper.operation, stub_operation("x.y", returns=1))
    streams = [collect(caller.subscribe("math.count", {"to": 300})) for _ in range(30)]
    calls = [caller.call("x.y") for _ in range(300)]
    outcomes = await asyncio.gather(*streams, *calls)
    assert all(outcome == (list(range(300)), None) for outcome in outcomes[:30])


@pytest.mark.fault(18)
@pytest.mark.slow
@pytest.mark.timeout(600)  # tracing every allocation takes long on a busy machine
async def test_a_hundred_thousand_events_with_a_slow_consumer_in_bounded_memory(
    serve: Serve, caller: PendingRequestMap
) -> None:
    @operation(id="clock.many")
    async def many() -> AsyncIterator[dict[str, Any]]:
        for number in range(100_000):
            yield {"number": number, "text": "x" * 100}

    await serve(many)
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        expected = 0
        async for envelope in caller.subscribe("clock.many"):
            assert envelope.data["number"] == expected
            expected += 1
            if expected % 1_000 == 0:
                await asyncio.sleep(0.001)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert expected == 100_000
    assert peak - start < 20_000_000


class Stubborn:
    """A stream and a call that ignore their cancellation until they are released."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.ended = 0

        @operation(id="stubborn.stream")
        async def stream() -> AsyncIterator[int]:
            yield 1
            await self._hold_on()
            yield 2

        @operation(id="stubborn.call")
        async def call() -> int:
            await self._hold_on()
            return 1

        self.operations = (stream, call)

    async def _hold_on(self) -> None:
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()
        self.ended += 1


async def test_handlers_that_ignore_cancellation_end_and_release_their_slot(
    serve: Serve, caller: PendingRequestMap
) -> None:
    stubborn = Stubborn()
    handler = await serve(*stubborn.operations, stub_operation("other.work", returns=1), concurrency=1)

    def soon() -> int:
        return int(time.time() * 1000) + 400

    async with asyncio.timeout(30):
        items, error = await collect(caller.subscribe("stubborn.stream", deadline=soon()))
        assert items == [1]
        assert error is not None
        assert error.code is ErrorCode.TIMEOUT
        assert (await caller.call("other.work")).data == 1
        with pytest.raises(CallError) as caught:
            await caller.call("stubborn.call", deadline=soon())
        assert caught.value.code is ErrorCode.TIMEOUT
        assert (await caller.call("other.work")).data == 1
    assert handler.counters.abandoned == handler.registry.abandoned == 2
    stubborn.let_go.set()
    await until(lambda: stubborn.ended == 2)
    await until(lambda: handler.registry.abandoned == 0)
