"""The progress of a call reaches its caller over every bus, in order, and the last of it before the result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from operations import OperationContext, operation
from operations.calls import PendingRequestMap, from_call
from tests.contracts.buses import Bus
from tests.contracts.conftest import Serve

Told = tuple[float, float | None, str | None]


@operation(id="work.count", type="query")
async def count(context: OperationContext, steps: int) -> int:
    for step in range(steps):
        await context.report_progress(step + 1, steps, f"step {step + 1}")
        await asyncio.sleep(0)
    return steps


@operation(id="work.count_in_thread", type="query")
def count_in_thread(context: OperationContext, steps: int) -> int:
    for step in range(steps):
        if context.progress is not None:
            told: Any = context.progress(step + 1, steps, None)
            assert told is None or not hasattr(told, "__await__")
    return steps


@operation(id="work.relay", type="query")
async def relay(context: OperationContext, steps: int) -> int:
    child = context.env.work.count(steps=steps)
    return int((await child).data)


def ends_in_order(told: list[Told], steps: int) -> bool:
    done = [each[0] for each in told]
    return done == sorted(set(done)) and done[-1] == steps and told[-1][1] == steps


@pytest.mark.parametrize("made", [count, count_in_thread], ids=["async", "thread"])
async def test_progress_arrives_in_order_and_before_the_result(
    bus: Bus, serve: Serve, caller: PendingRequestMap, made: Any
) -> None:
    await serve(made)
    told: list[Told] = []
    envelope = await caller.call(made.id, {"steps": 500}, progress=lambda *event: told.append(event))
    assert envelope.data == 500
    assert ends_in_order(told, 500)


async def test_progress_reaches_the_context_of_an_imported_operation(bus: Bus, serve: Serve) -> None:
    await serve(count)
    told: list[Told] = []
    arrived = asyncio.Event()

    async def note(*event: Any) -> None:
        told.append(event)
        if event[0] == 3:
            arrived.set()

    async with from_call(await bus.end()) as remote:
        await remote.ready("work.count", timeout=30)
        context = OperationContext(progress=note)
        assert (await remote.registry.execute("work.count", {"steps": 3}, context)).data == 3
        async with asyncio.timeout(10):
            await arrived.wait()
    assert ends_in_order(told, 3)
    assert told[-1][2] == "step 3"


async def test_a_caller_that_does_not_ask_gets_none_and_a_nested_call_has_its_own(
    bus: Bus, serve: Serve, caller: PendingRequestMap
) -> None:
    await serve(count, relay)
    told: list[Told] = []
    assert (await caller.call("work.count", {"steps": 3})).data == 3
    assert (await caller.call("work.relay", {"steps": 3}, progress=lambda *event: told.append(event))).data == 3
    assert told == []
    assert caller.counters.dropped == 0


async def test_a_callback_that_fails_does_not_fail_the_call(
    bus: Bus, serve: Serve, caller: PendingRequestMap, caplog: pytest.LogCaptureFixture
) -> None:
    await serve(count)

    async def fail(*event: Any) -> None:
        raise ValueError("no")

    assert (await caller.call("work.count", {"steps": 2}, progress=fail)).data == 2
    assert "the progress callback failed" in caplog.text
