"""Guarantee: a worker leaves stored requests at the server while those that it holds take much memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.signed_transport import SignedTransport
from operations.jobs import Jobs
from operations.pubsub.nats import durable_queues
from operations.pubsub.redis import durable_streams
from tests.security.untrusted_bus import SECRET, TOKENS, Bus, session, untrusted_bus
from tests.waiting import stays, until

LIMIT = 4 << 20
NUMBER = 24


@pytest.fixture(params=["redis", "nats"])
async def bus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bus]:
    monkeypatch.setattr(durable_streams, "MOST_HELD", LIMIT)
    monkeypatch.setattr(durable_queues, "MOST_HELD", LIMIT)
    monkeypatch.setattr(durable_streams, "_MOST_AT_ONCE", 1)  # one command may exceed the limit
    async with untrusted_bus(request.param) as bus:
        yield bus


class Gate:
    """An operation whose calls wait until the gate is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.running = 0
        self.most = 0
        self.ended = 0

        @operation(id="shop.order", durable=True)
        async def order(values: Any) -> int:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.opened.wait()
            finally:
                self.running -= 1
            self.ended += 1
            return len(values)

        self.registry = OperationRegistry([order])


INPUTS = {
    "large": ("x" * 700_000, 3),
    "small": ("x" * 1_000, NUMBER),
    "many values": ([[]] * 10_000, 5),
}
"""Inputs, each with the number of requests that reach the limit: a request takes its bytes and its decoded input."""


@pytest.mark.parametrize("kind", INPUTS)
async def test_durable_calls_wait_at_the_server_and_none_is_lost(bus: Bus, kind: str) -> None:
    input, most = INPUTS[kind]
    worker, caller, gate = await bus(), await bus(), Gate()
    pending = PendingRequestMap(caller, codec="msgpack")
    async with asyncio.timeout(60):
        handler = CallHandler(gate.registry, worker)
        for _ in range(2):  # the second time, the memory of the first calls is free again
            calls = [
                asyncio.ensure_future(pending.call("shop.order", {"values": input}, durable=True, timeout=60))
                for _ in range(NUMBER)
            ]
            await until(lambda: gate.running == most)
            await stays(lambda: gate.running == most, seconds=0.3)
            gate.opened.set()
            assert {call.data for call in await asyncio.gather(*calls)} == {len(input)}
            gate.opened.clear()
        assert gate.ended == 2 * NUMBER
        assert gate.most == most
        assert handler.counters.rejected == 0
        await handler.close()


async def test_jobs_wait_at_the_server_and_none_is_lost(bus: Bus) -> None:
    worker, caller, gate = await bus(), await bus(), Gate()
    async with asyncio.timeout(60), Jobs(caller) as jobs:
        submitted = [await jobs.submit("shop.order", {"values": "x" * 700_000}) for _ in range(12)]
        handler = CallHandler(gate.registry, worker)
        await until(lambda: gate.running == 3)
        await stays(lambda: gate.running == 3, seconds=0.3)
        gate.opened.set()
        for job in submitted:
            assert (await jobs.wait(job)).data == 700_000
        assert (gate.ended, gate.most) == (12, 3)
        await handler.close()


async def test_signed_requests_count_as_well(bus: Bus) -> None:
    worker, gate = SignedTransport(await bus(), secret=SECRET, tokens=TOKENS), Gate()
    pending = PendingRequestMap(SignedTransport(await bus(), session=session("ada", "read")))
    async with asyncio.timeout(60):
        handler = CallHandler(gate.registry, worker, identify=worker.identify)
        calls = [
            asyncio.ensure_future(pending.call("shop.order", {"values": "x" * 700_000}, durable=True, timeout=60))
            for _ in range(12)
        ]
        await until(lambda: gate.running == 3)
        await stays(lambda: gate.running == 3, seconds=0.3)
        gate.opened.set()
        assert {call.data for call in await asyncio.gather(*calls)} == {700_000}
        await handler.close()


async def test_a_request_larger_than_the_limit_runs_alone(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_streams, "MOST_HELD", 1)
    monkeypatch.setattr(durable_queues, "MOST_HELD", 1)
    worker, caller, gate = await bus(), await bus(), Gate()
    pending = PendingRequestMap(caller)
    async with asyncio.timeout(60):
        handler = CallHandler(gate.registry, worker)
        calls = [
            asyncio.ensure_future(pending.call("shop.order", {"values": "x" * 500_000}, durable=True, timeout=60))
            for _ in range(3)
        ]
        await until(lambda: gate.running == 1)
        await stays(lambda: gate.running == 1, seconds=0.3)
        gate.opened.set()
        assert {call.data for call in await asyncio.gather(*calls)} == {500_000}
        assert gate.ended == 3
        await handler.close()
