"""A caller that floods an operation waits in its own queue, however many connections it has; others do not wait."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations import (
    CallError,
    ErrorCode,
    Identity,
    OperationContext,
    OperationRegistry,
    OperationSpec,
    OperationType,
    operation,
)
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import JSON
from operations.calls.events import VERSION, CallRequested, RequestPayload
from operations.calls.hub import Hub, router
from operations.calls.hub import session as hub_session
from operations.calls.hub.spoke import Spoke
from operations.context import Grant
from operations.dispatch import Dispatcher, Request
from operations.dispatch.queueing import FairQueue, Slots
from operations.identity import Principal, StaticTokens
from operations.pubsub import link
from operations.pubsub.link import Link
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.websocket_server import serve
from tests.calls.test_routing import Desk
from tests.contracts.operations_under_test import Sleeper
from tests.security.raw_websocket import BINARY, TEXT, RawPeer
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
async def scene(calls_per_caller: int = 4_096) -> AsyncIterator[Scene]:
    async with (
        Hub(TOKENS, calls_per_caller=calls_per_caller) as hub,
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


async def test_slow_calls_of_one_caller_do_not_occupy_all_slots_of_a_worker() -> None:
    sleeper = Sleeper("shop.slow")

    @operation(id="shop.look", type="query")
    async def look() -> str:
        return "seen"

    async with scene() as at:
        handler = CallHandler(OperationRegistry([sleeper.operation, look]), at.worker, concurrency=64)
        await handler.registered()
        at.start_flood("shop.slow", 200)
        await until(lambda: handler.in_flight == 200)
        assert sleeper.runs == 48
        for _ in range(20):
            assert (await at.honest.call("shop.look")).data == "seen"
        assert sleeper.runs == 48
        sleeper.let_go.set()
        await asyncio.gather(*at.flooding)
        assert sleeper.runs == 200
        assert handler.dispatcher.slots.free == 64
        await handler.close()


@settings(max_examples=200, deadline=None)
@given(
    concurrency=st.sampled_from([1, 3, 64, 100]),
    steps=st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(1, 40)), max_size=60),
)
def test_slots_are_shared_under_any_sequence_of_calls(concurrency: int, steps: list[tuple[str, bool, int]]) -> None:
    slots, running, waiting = Slots(concurrency, 10_000), list[Item](), list[Item]()
    reserved = 16 if concurrency >= 64 else 0

    def step(caller: str, starts: bool) -> None:
        item = SlotItem(caller, running, waiting)
        if not starts:
            ended = next((item for item in running if item.caller == caller), None)
            if ended is not None:
                running.remove(ended)
                slots.release(caller)
        elif slots.take(caller):
            running.append(item)
        else:
            waiting.append(item)
            assert slots.enqueue(item)

    for caller, starts, times in steps:
        for _ in range(times):
            step(caller, starts)
        assert slots.free == concurrency - len(running) >= 0
        assert slots.waiting.size == len(waiting)
        used = Counter(item.caller for item in running)
        for caller in {item.caller for item in waiting}:
            # A call waits only if no slot is free, or only reserved ones and its caller uses many.
            assert slots.free == 0 or (slots.free <= reserved and used[caller] >= 4)
    while running:
        slots.release(running.pop().caller)
    assert (slots.free, waiting) == (concurrency, [])


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


async def test_the_hub_applies_backpressure_to_a_flooding_session(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, began = asyncio.Event(), 0

    @operation(id="shop.slow")
    async def slow() -> int:
        nonlocal began
        began += 1
        await gate.wait()
        return began

    monkeypatch.setattr(router, "_MOST_QUEUED_BYTES", 100_000)
    async with scene(calls_per_caller=20) as at:
        handler = CallHandler(OperationRegistry([slow]), at.worker)
        await handler.registered()
        at.start_flood("shop.slow", 5_000)
        [session] = [each for each in at.hub.router.sessions.values() if each.principal.identity.id == "flood"]
        # Requests beyond the hub's limit for one session are refused.
        await until(lambda: at.hub.counters.rejected + len(session.queued) + began == 5_000)
        assert (began, at.hub.counters.rejected > 0) == (20, True)
        assert session.queue.bytes <= 100_000
        held = len(session.queued)
        assert held > 20
        # Cancelled requests are removed, and calls of others do not wait behind them.
        at.flooding[20].cancel()
        await until(lambda: len(session.queued) == held - 1)
        honest = asyncio.create_task(at.honest.call("shop.slow"))
        await until(lambda: began == 21)
        gate.set()
        await honest
        told = await asyncio.gather(*at.flooding, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in told) == 20 + held - 1
        assert (len(session.queued), session.queue.bytes) == (0, 0)
        await handler.close()


async def test_callers_whose_calls_run_in_their_own_tasks_take_turns_too() -> None:
    gate, order = asyncio.Semaphore(0), list[str]()

    @operation(id="shop.slow")
    async def slow(who: str) -> None:
        order.append(who)
        await gate.acquire()

    dispatcher = Dispatcher(OperationRegistry([slow]), concurrency=1)

    def call(caller: str) -> asyncio.Task[object]:
        request = Request(operation_id="shop.slow", input={"who": caller}, caller=caller, grant=Grant())
        return asyncio.create_task(dispatcher.call(request))

    calls = [call("flood") for _ in range(10)]
    await until(lambda: dispatcher.in_flight == 10)
    calls.append(call("honest"))
    await until(lambda: dispatcher.in_flight == 11)
    for _ in calls:
        gate.release()
    await asyncio.gather(*calls)
    assert order.index("honest") == 2, "behind the running call and one of those that waited"


@contextlib.asynccontextmanager
async def connections(hub: Hub, token: str, count: int) -> AsyncIterator[list[PendingRequestMap]]:
    async with contextlib.AsyncExitStack() as stack:
        spokes = [await stack.enter_async_context(Spoke(hub.url, token=token)) for _ in range(count)]
        yield [PendingRequestMap(spoke, timeout=60) for spoke in spokes]


async def test_many_connections_of_one_identity_have_one_turn_at_a_worker() -> None:
    gate, order = asyncio.Semaphore(0), list[str]()

    @operation(id="shop.slow")
    async def slow(who: str = "flood") -> None:
        order.append(who)
        await gate.acquire()

    async with scene() as at, connections(at.hub, "flood", 20) as flood:
        handler = CallHandler(OperationRegistry([slow]), at.worker, concurrency=1)
        await handler.registered()
        at.flooding = [asyncio.create_task(each.call("shop.slow")) for each in flood for _ in range(5)]
        await until(lambda: handler.in_flight == 100)
        honest = [asyncio.create_task(at.honest.call("shop.slow", {"who": "honest"})) for _ in range(3)]
        await until(lambda: handler.in_flight == 103)
        for number in range(2, 8):
            gate.release()
            await until(lambda number=number: len(order) == number)  # type: ignore[misc]
        # A turn for each connection would put two of the three behind twenty calls each.
        assert order.count("honest") == 3
        gate.release()
        await asyncio.gather(*honest)
        await at.stop_flood()
        await handler.close()


async def test_connections_of_one_identity_share_the_limits_of_the_hub() -> None:
    sleeper = Sleeper("shop.sleep")
    async with scene(calls_per_caller=4) as at, connections(at.hub, "flood", 3) as flood:
        handler = CallHandler(OperationRegistry([sleeper.operation]), at.worker)
        await handler.registered()
        at.flooding = [asyncio.create_task(each.call("shop.sleep")) for each in flood for _ in range(3)]
        sessions = [each for each in at.hub.router.sessions.values() if each.principal.identity.id == "flood"]
        await until(lambda: sum(len(each.queued) for each in sessions) == 5 and sleeper.runs == 4)
        [queue] = {each.queue for each in sessions}
        assert (queue.calls, len(queue.requests), sleeper.runs) == (4, 5, 4)
        # Another identity has its own.
        assert all(each.queue is not queue for each in at.hub.router.sessions.values() if each not in sessions)
        honest = asyncio.create_task(at.honest.call("shop.sleep"))
        await until(lambda: sleeper.runs == 5)
        # A connection that is lost takes its queued requests with it.
        lost = flood[2]._transport
        assert isinstance(lost, Spoke)
        await lost.close()
        await until(lambda: len(queue.requests) == sum(len(each.queued) for each in sessions) == 2)
        sleeper.let_go.set()
        ended = await asyncio.gather(honest, *at.flooding, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in ended) == 7
        assert (queue.calls, queue.requests, queue.bytes) == (0, {}, 0)
        await handler.close()


async def test_large_requests_of_a_caller_without_rights_wait_at_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker keeps the input of every call that runs or waits there."""
    for module in (hub_session, router):
        monkeypatch.setattr(module, "MOST_SENT", 150_000)
    let_go, runs = asyncio.Event(), Counter[str]()

    @operation(id="shop.keep")
    async def keep(text: str, context: OperationContext) -> int:
        runs[context.identity.id if context.identity is not None else ""] += 1
        await let_go.wait()
        return len(text)

    async with scene() as at:
        handler = CallHandler(OperationRegistry([keep]), at.worker)
        await handler.registered()
        own = PendingRequestMap(at.worker)
        large = {"text": "x" * 60_000}
        flood = [asyncio.create_task(at.flood.call("shop.keep", large)) for _ in range(10)]
        others = [asyncio.create_task(at.honest.call("shop.keep", large))]
        others += [asyncio.create_task(own.call("shop.keep", large, as_worker=True)) for _ in range(10)]
        await until(lambda: runs == {"flood": 3, "honest": 1, "worker": 10})
        [queue] = {each.queue for each in at.hub.router.sessions.values() if each.principal.identity.id == "flood"}
        assert len(queue.requests) == 7
        let_go.set()
        assert {each.data for each in await asyncio.gather(*flood, *others)} == {60_000}
        assert (queue.calls, queue.sent_bytes) == (0, 0)
        await handler.close()


class SilentWorker:
    """A worker by hand: it notes the callers and ids of its requests, and responds only when it is told to."""

    def __init__(self, peer: RawPeer) -> None:
        self.peer = peer
        self.requests: list[tuple[str, str]] = []
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def join(cls, hub: Hub) -> SilentWorker:
        peer = await RawPeer.join(hub.port, "worker", "w" * 32)
        spec = OperationSpec(name="echo", namespace="shop", type=OperationType.MUTATION)
        announced = {"workerId": f"{'w' * 32}.1", "generation": 1, "operations": [spec.to_dict()]}
        peer.send_event("worker.announced", announced, namespaces=["shop"])
        return cls(peer)

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError):
            while True:
                opcode, message = await self.peer.read()
                event: dict[str, Any] = msgspec.json.decode(message) if opcode == TEXT else {}
                if event.get("type") == "call.requested":
                    self.requests.append((event["identity"]["id"], event["id"]))

    def count(self, caller: str) -> int:
        return sum(identity == caller for identity, _ in self.requests)

    def accept(self, number: int) -> None:
        """Confirm a request that still runs."""
        _, id = self.requests[number]
        self.peer.send_event("call.accepted", {"requestId": id, "workerId": "w"}, id=id)

    def fail(self, number: int) -> None:
        _, id = self.requests[number]
        self.peer.send_event("call.error", {"requestId": id, "code": "EXECUTION_ERROR"}, id=id)


async def test_unread_requests_of_a_caller_without_rights_wait_at_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker handles its requests in order: those of others wait until it has decoded all earlier ones."""
    monkeypatch.setattr(hub_session, "CONFIRM_SECONDS", 3600.0)
    async with scene() as at:
        worker = await SilentWorker.join(at.hub)
        await until(lambda: "shop.echo" in at.hub.operations)
        large = {"values": [0] * 25_000}  # JSON of 50 KB, as this worker supports only JSON
        flood = [asyncio.create_task(at.flood.call("shop.echo", large)) for _ in range(20)]
        await until(lambda: worker.count("flood") == 6)
        others = [asyncio.create_task(at.honest.call("shop.echo", large))]
        others += [asyncio.create_task(at.flood.call("shop.echo")) for _ in range(10)]
        await until(lambda: worker.count("honest") == 1)
        assert worker.count("flood") == 6
        # Cancelled calls free nothing, because the worker still has to read their requests.
        flood[0].cancel()
        flood[1].cancel()
        await until(lambda: len(at.hub.router.sessions["s2"].calls) == 4)
        worker.accept(2)
        await until(lambda: worker.count("flood") == 7)
        worker.fail(3)
        await until(lambda: worker.count("flood") == 8)
        # A worker that never confirms its requests delays their caller by a second, not for ever.
        monkeypatch.setattr(hub_session, "CONFIRM_SECONDS", 0.0)
        at.hub.router._unblock(at.hub.router.sessions["s2"].queue)
        await until(lambda: worker.count("flood") == 30)
        for number in range(len(worker.requests)):
            worker.fail(number)
        await asyncio.gather(*flood, *others, return_exceptions=True)
        worker.peer.writer.close()
        await worker.reading


async def test_nested_calls_do_not_wait_for_the_calls_that_they_are_nested_in() -> None:
    sleeper = Sleeper("shop.sleep")

    @operation(id="front.sleep")
    async def front(context: OperationContext) -> str:
        return str((await context.env.shop.sleep()).data)

    async with scene(calls_per_caller=1) as at, connections(at.hub, "worker", 2) as (caller, second):
        handlers = [
            CallHandler(OperationRegistry([sleeper.operation]), at.worker),
            CallHandler(OperationRegistry([front]), second._transport),
        ]
        for handler in handlers:
            await handler.registered()
        # Callers and workers have one identity, whose own calls at workers are limited to one.
        call = asyncio.create_task(caller.call("front.sleep"))
        await until(lambda: sleeper.runs == 1)
        own = asyncio.create_task(second.call("shop.sleep", as_worker=True))
        sessions = [each for each in at.hub.router.sessions.values() if each.peer == second._transport.peer]
        await until(lambda: len(sessions[0].queue.requests) == 1)
        sleeper.let_go.set()
        assert ((await call).data, (await own).data) == ("awake", "awake")
        for handler in handlers:
            await handler.close()


def batch(count: int) -> bytes:
    return struct.pack(f">B{count + 1}I", 0, count, *([1] * count)) + b"x" * count


async def test_links_that_share_a_turn_are_handled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TURN_SECONDS", 60.0)
    turn, links, iteration = link.Turn(), list[Link](), 0
    handled: list[tuple[int, int]] = []

    class Receiver:
        def opened(self, link: Link) -> None:
            link.turn = turn
            links.append(link)

        def received(self, message: bytes, link: Link) -> None:
            handled.append((iteration, links.index(link)))

        def drained(self, link: Link) -> None:
            pass

        def receiving(self, link: Link) -> None:
            pass

        def backlogged(self, link: Link, size: int) -> None:
            """Nothing is sent."""

        def closed(self, link: Link, reason: str) -> None:
            """Nothing is kept."""

    listener = await serve(lambda token: Receiver())
    peers = [await RawPeer.connect(listener.port) for _ in range(8)]
    for peer in peers:
        peer.send(BINARY, batch(500))
    while len(handled) < 4_000:
        iteration += 1
        await asyncio.sleep(0)
    most = max(Counter(each for each, _ in handled).values())
    assert most <= link.TURN_MESSAGES + len(peers)
    assert Counter(place for _, place in handled) == dict.fromkeys(range(8), 500)
    for peer in peers:
        await peer.close()
    await listener.close()


class Item:
    def __init__(self, caller: str) -> None:
        self.caller = caller


class SlotItem(Item):
    def __init__(self, caller: str, running: list[Item], waiting: list[Item]) -> None:
        super().__init__(caller)
        self._running, self._waiting = running, waiting

    def begin(self) -> None:
        self._waiting.remove(self)
        self._running.append(self)

    def refuse(self) -> None:
        self._waiting.remove(self)


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
    for number in range(200):  # no caller waits for the responses, so the calls are not aborted
        payload = RequestPayload(f"ada-{number}", "shop.compute", {"number": number}, deadline=deadline)  # type: ignore[arg-type]
        bus.send("work.shop", JSON.encode(CallRequested(VERSION, f"ada-{number}", "shop.compute", payload)))
    await until(lambda: len(ran) > 0 and handler.in_flight == 0)
    assert len(ran) + handler.counters.expired == 200
    assert handler.counters.expired > 0
    await handler.close()


async def test_queued_requests_that_take_long_to_forward_are_forwarded_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request of a few kilobytes may take 20 ms to convert for a worker that supports only JSON."""
    monkeypatch.setattr(router, "TURN_SECONDS", 0.0, raising=False)
    desk = Desk()
    desk.hub.router._calls_per_caller = 1
    payload = {"requestId": "0", "operationId": "shop.echo", "input": {}}
    for number in range(21):
        sent = {"v": 1, "type": "call.requested", "id": f"{number}", "to": "shop.echo", "payload": payload}
        desk.hub.router.receive(msgspec.json.encode(sent), desk.caller)
    assert (len(desk.forwarded), len(desk.caller.queued)) == (1, 20)
    desk.hub.router._calls_per_caller = 100
    desk.hub.router.cancel(next(iter(desk.caller.calls.values())), "enough")
    forwarded = []
    while desk.caller.queued:
        await asyncio.sleep(0)
        forwarded.append(len(desk.forwarded))
    assert forwarded == list(range(forwarded[0], forwarded[0] + 20))
    await desk.handler.close()
