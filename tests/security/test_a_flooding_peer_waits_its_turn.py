"""A peer that floods an operation which it may call waits in its own queue: others' calls are not behind it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from operations import CallError, ErrorCode, Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import JSON
from operations.calls.events import VERSION, CallRequested, Requested
from operations.calls.hub import Hub, router
from operations.calls.hub.spoke import Spoke
from operations.dispatch.queueing import FairQueue
from operations.identity import Principal, StaticTokens
from operations.pubsub.memory import MemoryTransport
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "flood": Principal(Identity("flood")),
        "honest": Principal(Identity("honest")),
        "worker": Principal(Identity("worker"), ("*",)),
    }
)


class Scene:
    """A hub, a worker, a peer that floods and an honest one."""

    def __init__(self, hub: Hub, worker: Spoke, flood: Spoke, honest: Spoke) -> None:
        self.hub, self.worker = hub, worker
        self.flood, self.honest = PendingRequestMap(flood, timeout=60), PendingRequestMap(honest, timeout=60)
        self.flooding: list[asyncio.Task[object]] = []

    def start_flood(self, operation_id: str, count: int) -> None:
        self.flooding = [asyncio.create_task(self.flood.call(operation_id)) for _ in range(count)]

    async def stop_flood(self) -> None:
        for call in self.flooding:
            call.cancel()
        await asyncio.gather(*self.flooding, return_exceptions=True)


@contextlib.asynccontextmanager
async def scene(calls_per_session: int = 4_096) -> AsyncIterator[Scene]:
    async with (
        Hub(TOKENS, calls_per_session=calls_per_session) as hub,
        Spoke(hub.url, token="worker") as worker,
        Spoke(hub.url, token="flood") as flood,
        Spoke(hub.url, token="honest") as honest,
        asyncio.timeout(60),
    ):
        yield Scene(hub, worker, flood, honest)


async def test_callers_take_turns_for_the_slots_of_a_worker() -> None:
    gate, order = asyncio.Semaphore(0), list[str]()

    @operation(id="shop.slow")
    async def slow(who: str = "flood") -> None:
        order.append(who)
        await gate.acquire()

    async with scene() as at:
        handler = CallHandler(OperationRegistry([slow]), at.worker, concurrency=2)
        await handler.registered()
        at.start_flood("shop.slow", 1_000)
        await until(lambda: handler.in_flight == 1_000)
        honest = asyncio.create_task(at.honest.call("shop.slow", {"who": "honest"}))
        await until(lambda: handler.in_flight == 1_001)
        assert order == ["flood"] * 2
        for number in range(3, 5):
            gate.release()
            await until(lambda number=number: len(order) == number)  # type: ignore[misc]
        assert "honest" in order
        for _ in range(2):
            gate.release()
        await honest
        await at.stop_flood()
        await handler.close()


async def test_callers_take_turns_for_a_worker_that_computes() -> None:
    order: list[str] = []

    @operation(id="shop.compute")
    async def compute() -> None:
        order.append("flood")
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass

    @operation(id="shop.look")
    async def look() -> None:
        order.append("honest")

    async with scene() as at:
        handler = CallHandler(OperationRegistry([compute, look]), at.worker)
        await handler.registered()
        at.start_flood("shop.compute", 2_000)
        await until(lambda: len(order) >= 10)
        await at.honest.call("shop.look")
        # In order of arrival it would be behind nearly all of them.
        assert order.index("honest") < 500
        await at.stop_flood()
        await handler.close()


async def test_a_full_queue_has_room_for_callers_with_few_calls() -> None:
    gate = asyncio.Event()

    @operation(id="shop.slow")
    async def slow() -> None:
        await gate.wait()

    async with scene() as at:
        handler = CallHandler(OperationRegistry([slow]), at.worker, concurrency=1, queue=100)
        await handler.registered()
        at.start_flood("shop.slow", 101)
        await until(lambda: handler.in_flight == 101)
        honest = [asyncio.create_task(at.honest.call("shop.slow")) for _ in range(10)]
        await until(lambda: handler.counters.rejected == 10)
        gate.set()
        await asyncio.gather(*honest)
        told = await asyncio.gather(*at.flooding, return_exceptions=True)
        refused = [each for each in told if isinstance(each, CallError)]
        assert Counter((each.code, each.details["executed"]) for each in refused) == {(ErrorCode.UNAVAILABLE, "no"): 10}
        await handler.close()


async def test_the_hub_holds_back_what_one_session_has_too_much_of(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, began = asyncio.Event(), 0

    @operation(id="shop.slow")
    async def slow() -> int:
        nonlocal began
        began += 1
        await gate.wait()
        return began

    monkeypatch.setattr(router, "_MOST_HELD", 100_000)
    async with scene(calls_per_session=20) as at:
        handler = CallHandler(OperationRegistry([slow]), at.worker)
        await handler.registered()
        at.start_flood("shop.slow", 5_000)
        [session] = [each for each in at.hub.router.sessions.values() if each.principal.identity.id == "flood"]
        # Those that do not fit in what the hub keeps for one session are refused.
        await until(lambda: at.hub.counters.rejected + len(session.held) + began == 5_000)
        assert (began, at.hub.counters.rejected > 0) == (20, True)
        assert session.held_bytes <= 100_000
        held = len(session.held)
        assert held > 20
        # Cancelled ones are forgotten, and others' calls do not wait behind them.
        at.flooding[20].cancel()
        await until(lambda: len(session.held) == held - 1)
        honest = asyncio.create_task(at.honest.call("shop.slow"))
        await until(lambda: began == 21)
        gate.set()
        await honest
        told = await asyncio.gather(*at.flooding, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in told) == 20 + held - 1
        assert (len(session.held), session.held_bytes) == (0, 0)
        await handler.close()


class Item:
    def __init__(self, caller: str) -> None:
        self.caller = caller


def test_a_fair_queue_takes_the_first_of_each_caller_in_turn() -> None:
    queue: FairQueue[Item] = FairQueue()
    first, second, third, other = Item("a"), Item("a"), Item("a"), Item("b")
    for item in (first, second, third, other):
        queue.add(item)
    assert queue.pop_excess("a") is None
    assert queue.pop_excess("c") is third
    assert [queue.pop() for _ in range(3)] == [first, other, second]
    queue.add(first)
    queue.discard(first)
    queue.discard(first)
    assert queue.size == 0


async def test_a_call_whose_deadline_passes_in_its_queue_never_runs() -> None:
    ran: list[int] = []

    @operation(id="shop.compute")
    async def compute(number: int) -> None:
        ran.append(number)
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass

    bus = MemoryTransport(direct=False)
    handler = CallHandler(OperationRegistry([compute]), bus)
    deadline = int(time.time() * 1000) + 100
    for number in range(200):  # nobody waits for the answers, so that nobody aborts the calls either
        payload = Requested(f"ada-{number}", "shop.compute", {"number": number}, deadline=deadline)  # type: ignore[arg-type]
        bus.send("work.shop", JSON.encode(CallRequested(VERSION, f"ada-{number}", "shop.compute", payload)))
    await until(lambda: len(ran) > 0 and handler.in_flight == 0)
    assert len(ran) + handler.counters.expired == 200
    assert handler.counters.expired > 0
    await handler.close()
