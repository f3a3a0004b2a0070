"""Faults between a hub and its spokes: every call ends exactly once, and nothing is leaked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import CallError, ErrorCode, Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.calls.endpoint import endpoint_of
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.testing import error_of
from tests.calls.history import SCALE, History, Ledger, open_sockets
from tests.calls.proxy import Proxy
from tests.calls.scenes import run_out_of_descriptors
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "caller": Principal(Identity("ada")),
        **{f"caller {number}": Principal(Identity("ada")) for number in range(200)},
        "one": Principal(Identity("one"), ("*",)),
        "two": Principal(Identity("two"), ("*",)),
    }
)
QUICK: dict[str, Any] = {"shortest_delay": 0.02, "longest_delay": 0.2}


class Stage:
    """A hub, workers and a caller, each behind its own proxy."""

    def __init__(self, stack: contextlib.AsyncExitStack, hub: Hub) -> None:
        self.stack = stack
        self.hub = hub
        self.history = History()
        self.spokes: list[Spoke] = []

    async def proxy(self) -> Proxy:
        return await self.stack.enter_async_context(Proxy(self.hub.port))

    async def spoke(self, token: str, proxy: Proxy | None = None, **options: Any) -> Spoke:
        url = proxy.url if proxy is not None else self.hub.url
        spoke = await self.stack.enter_async_context(Spoke(url, token=token, **QUICK, **options))
        self.spokes.append(spoke)
        return spoke

    async def worker(self, token: str, proxy: Proxy | None = None, **options: Any) -> CallHandler:
        spoke = await self.spoke(token, proxy)
        handler = CallHandler(OperationRegistry(self.history.operations()), spoke, pool=True, **options)
        self.stack.push_async_callback(handler.close)
        await until(lambda: "work.query" in self.hub.operations)
        return handler


@pytest.fixture
async def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    tasks, sockets = len(asyncio.all_tasks()), open_sockets()
    ledger = Ledger(monkeypatch)
    async with Hub(TOKENS, heartbeat=0.2 * SCALE) as hub, contextlib.AsyncExitStack() as stack:
        stage = Stage(stack, hub)
        yield stage
        stage.history.check(timing=request.node.get_closest_marker("faults") is not None)
        await until(lambda: not any(endpoint_of(spoke).pending for spoke in stage.spokes))
        await until(lambda: hub.counters.in_flight == 0)
    await until(lambda: ledger.is_settled and len(asyncio.all_tasks()) <= tasks)
    await until(lambda: open_sockets() <= sockets)
    counters = [hub.counters, *(endpoint_of(spoke).counters for spoke in stage.spokes)]
    stage.history.check_account(ledger, sum(spoke.unsent for spoke in stage.spokes), counters)


async def drain(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


def load(
    stage: Stage, caller: Spoke, calls: int, *, seconds: float = 0.05, items: int = 2_000
) -> list[asyncio.Task[Any]]:
    pending = PendingRequestMap(caller)
    history = stage.history
    tasks = [
        asyncio.create_task(
            history.call(pending, "work.query", seconds=seconds, timeout=5 * SCALE, retry=True)
            if number % 2
            else history.call(pending, "work.mutate", seconds=seconds, timeout=5 * SCALE)
        )
        for number in range(calls)
    ]
    return [*tasks, asyncio.create_task(history.follow(pending, "work.count", items))]


@pytest.mark.parametrize("fault", ["cut", "reset"])
async def test_the_callers_connection_breaks_under_load(stage: Stage, fault: str) -> None:
    await stage.worker("one")
    proxy = await stage.proxy()
    caller = await stage.spoke("caller", proxy)
    stage.history.may_finish.clear()
    tasks = load(stage, caller, 100)
    await until(lambda: len(stage.history.runs) == 100)
    getattr(proxy, fault)()
    await until(lambda: stage.history.errors()["UNAVAILABLE"] == 50)
    stage.history.may_finish.set()
    await asyncio.gather(*tasks)
    mutations = [ends[0] for key, ends in stage.history.outcomes.items() if "mutate" in key]
    assert all(isinstance(end, CallError) and end.code is ErrorCode.UNAVAILABLE for end in mutations)
    assert {end.details["executed"] for end in mutations} == {"unknown"}
    queries = [ends[0] for key, ends in stage.history.outcomes.items() if "query" in key]
    assert not any(isinstance(end, CallError) for end in queries), "a query is sent again within its deadline"


@pytest.mark.parametrize("fault", ["cut", "reset"])
async def test_the_workers_connection_breaks_under_load(stage: Stage, fault: str) -> None:
    proxy = await stage.proxy()
    await stage.worker("one", proxy)
    caller = await stage.spoke("caller")
    stage.history.may_finish.clear()
    tasks = load(stage, caller, 100)
    await until(lambda: len(stage.history.runs) == 100)
    getattr(proxy, fault)()
    await until(lambda: stage.history.errors()["UNAVAILABLE"] >= 50)
    stage.history.may_finish.set()
    await asyncio.gather(*tasks)
    await until(lambda: "work.query" in stage.hub.operations)
    outcome = await stage.history.call(PendingRequestMap(caller), "work.query")
    assert not isinstance(outcome, CallError)


@pytest.mark.fault(7, on="websocket")
async def test_one_of_two_workers_dies_and_the_other_takes_the_queries(stage: Stage) -> None:
    proxy = await stage.proxy()
    await stage.worker("one", proxy)
    await stage.worker("two")
    await until(lambda: len(stage.hub.router.operations["work.query"].sessions) == 2)
    caller = await stage.spoke("caller")
    stage.history.may_finish.clear()
    tasks = load(stage, caller, 60)
    await until(lambda: len(stage.history.runs) == 60)
    proxy.cut()
    await until(lambda: len(stage.hub.router.operations["work.query"].sessions) == 1)
    stage.history.may_finish.set()
    await asyncio.gather(*tasks)
    queries = [ends[0] for key, ends in stage.history.outcomes.items() if "query" in key]
    assert not any(isinstance(end, CallError) for end in queries)


@pytest.mark.fault(8, on="websocket")
async def test_a_worker_that_disappears_without_closing_is_detected(stage: Stage) -> None:
    proxy = await stage.proxy()
    await stage.worker("one", proxy)
    caller = await stage.spoke("caller")
    pending = PendingRequestMap(caller)
    proxy.swallow()
    outcome = await stage.history.call(pending, "work.mutate", timeout=20 * SCALE)
    assert isinstance(outcome, CallError)
    assert (outcome.code, outcome.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
    assert stage.hub.operations == []
    proxy.passing.set()
    proxy.cut()
    await until(lambda: "work.query" in stage.hub.operations)


@pytest.mark.fault(42, on="websocket")
async def test_the_deadline_holds_over_a_slow_network(stage: Stage) -> None:
    proxy = await stage.proxy()
    await stage.worker("one", proxy)
    caller = await stage.spoke("caller")
    proxy.delay = 0.3
    outcome = await stage.history.call(PendingRequestMap(caller), "work.query", timeout=0.2)
    assert isinstance(outcome, CallError)
    assert outcome.code is ErrorCode.TIMEOUT
    proxy.delay = 0.0


@pytest.mark.fault(30, on="websocket")
async def test_calls_work_over_a_network_that_delivers_single_bytes(stage: Stage) -> None:
    proxy = await stage.proxy()
    await stage.worker("one")
    proxy.slices = 1
    caller = await stage.spoke("caller", proxy)
    await asyncio.gather(*load(stage, caller, 20, seconds=0, items=200))
    assert stage.history.errors() == {}
    assert [end for end in stage.history.stream_ends.values() if end is not None] == []


async def exchange(stage: Stage, way: int | None, offset: int) -> Proxy:
    """Connect, call twice, and leave; the first connection closes after a number of bytes in one direction."""
    async with Proxy(stage.hub.port) as proxy:
        proxy.limits = (offset if way == 0 else None, offset if way == 1 else None)
        async with Spoke(proxy.url, token="caller", **QUICK) as spoke, asyncio.timeout(20):
            stage.spokes.append(spoke)
            pending = PendingRequestMap(spoke)
            await stage.history.call(pending, "work.mutate", timeout=10.0)
            outcome = await stage.history.call(pending, "work.query", timeout=10.0, retry=True, wait=True)
            assert not isinstance(outcome, CallError), f"cut at byte {offset}: {outcome}"
            assert endpoint_of(spoke).counters.malformed == 0
    return proxy


@pytest.mark.fault(29, on="websocket")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", [0, 1], ids=["outward", "inward"])
async def test_a_loss_at_every_byte_leaves_no_partial_event(stage: Stage, way: int) -> None:
    await stage.worker("one")
    whole = (await exchange(stage, None, 0)).passed[way]
    assert whole > 500
    many = asyncio.Semaphore(32)

    async def cut_at(offset: int) -> None:
        async with many:
            await exchange(stage, way, offset)

    await asyncio.gather(*(cut_at(offset) for offset in range(whole + 1)))
    assert stage.hub.counters.malformed == 0
    assert len(stage.history.outcomes) == 2 * (whole + 2)


@pytest.mark.fault(6, 28, on="websocket")
async def test_all_spokes_reconnect_after_a_hub_restart(stage: Stage) -> None:
    await stage.worker("one")
    caller = await stage.spoke("caller")
    pending = PendingRequestMap(caller)
    await stage.hub.close()
    await until(lambda: not caller.is_up)
    error = await stage.history.call(pending, "work.mutate")
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    waiting = asyncio.create_task(stage.history.call(pending, "work.query", timeout=10 * SCALE, wait=True))
    await stage.hub.start()
    await until(lambda: "work.query" in stage.hub.operations and caller.is_up)
    assert not isinstance(await waiting, CallError)


@pytest.mark.fault(32, on="websocket")
async def test_a_spoke_that_returns_before_its_old_socket_is_noticed_keeps_its_registration(stage: Stage) -> None:
    proxy = await stage.proxy()
    handler = await stage.worker("one", proxy)
    old = stage.hub.router.operations["work.query"].sessions[0]
    # The old socket receives nothing more, and the hub is not notified.
    proxy.swallow()
    spoke: Any = handler.transport
    spoke.url = stage.hub.url
    spoke.drop_connection()
    await until(
        lambda: (
            "work.query" in stage.hub.operations and stage.hub.router.operations["work.query"].sessions[0] is not old
        )
    )
    proxy.passing.set()
    proxy.cut()
    caller = await stage.spoke("caller")
    assert not isinstance(await stage.history.call(PendingRequestMap(caller), "work.query"), CallError)


@pytest.mark.fault(27, on="websocket")
async def test_a_worker_drains_under_load_without_a_failed_call(stage: Stage) -> None:
    first = await stage.worker("one")
    await stage.worker("two")
    await until(lambda: len(stage.hub.router.operations["work.query"].sessions) == 2)
    caller = await stage.spoke("caller")
    pending = PendingRequestMap(caller)
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            await stage.history.call(pending, "work.mutate", seconds=0.002)

    workers = [asyncio.create_task(work()) for _ in range(20)]
    await until(lambda: len(stage.history.outcomes) > 100)
    await first.drain()
    await asyncio.sleep(0)
    done = len(stage.history.outcomes)
    await until(lambda: len(stage.history.outcomes) > done + 100)
    stop.set()
    await asyncio.gather(*workers)
    assert stage.history.errors() == {}


@pytest.mark.fault(23, on="websocket")
async def test_a_caller_that_vanishes_has_its_stream_closed(stage: Stage) -> None:
    closed = asyncio.Event()

    @operation(id="clock.ticks")
    async def ticks() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    worker = await stage.spoke("one")
    handler = CallHandler(OperationRegistry([ticks]), worker)
    caller = await stage.spoke("caller")
    async with from_call(caller) as remote, asyncio.timeout(30):
        await remote.ready("clock.ticks")
        stream: Any = PendingRequestMap(caller).subscribe("clock.ticks")
        await anext(stream)
        caller.drop_connection()
        await closed.wait()
        error = await error_of(drain(stream))
    assert error.code is ErrorCode.UNAVAILABLE
    await handler.close()


@pytest.mark.fault(19, on="websocket")
async def test_a_worker_whose_loop_is_blocked_is_not_declared_lost_too_early(stage: Stage) -> None:
    await stage.worker("one")
    caller = await stage.spoke("caller")
    outcome = asyncio.create_task(stage.history.call(PendingRequestMap(caller), "work.query", seconds=0.05))
    await until(lambda: len(stage.history.runs) == 1)
    time.sleep(0.3 * SCALE)  # noqa: ASYNC251  # the point of it
    assert not isinstance(await outcome, CallError)


@pytest.mark.fault(43, on="websocket")
async def test_a_process_without_file_descriptors_backs_off_and_recovers(stage: Stage) -> None:
    await stage.worker("one")
    caller = await stage.spoke("caller")
    pending = PendingRequestMap(caller)
    await run_out_of_descriptors(caller, pending, stage.history)


@pytest.mark.fault(31, on="websocket")
@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.faults)]
)
async def test_many_spokes_come_back_after_a_restart(stage: Stage, count: int) -> None:
    await stage.worker("one")
    # Each has its own token: a token may have 64 connections.
    spokes = await asyncio.gather(*(stage.spoke(f"caller {number}") for number in range(count)))
    await stage.hub.close()
    await until(lambda: not any(spoke.is_up for spoke in spokes))
    await stage.hub.start()
    started = time.monotonic()
    await until(lambda: all(spoke.is_up for spoke in spokes), seconds=10 * SCALE)
    print(f"{count} spokes were back after {time.monotonic() - started:.1f} s")  # noqa: T201
    assert not isinstance(
        await stage.history.call(PendingRequestMap(spokes[0]), "work.query", timeout=10.0, wait=True), CallError
    )


@pytest.mark.faults
@pytest.mark.timeout(0)
async def test_a_random_schedule_of_faults(stage: Stage) -> None:
    """Closed and reset connections, dropped bytes, delays and restarts, under continuous load.

    The schedule comes from a seed that is printed; `OPERATIONS_FAULT_SEED` repeats it. It takes a minute, or the
    seconds in `OPERATIONS_FAULT_SECONDS`.
    """
    seed = int(os.environ.get("OPERATIONS_FAULT_SEED", str(random.randrange(2**32))))
    print(f"OPERATIONS_FAULT_SEED={seed}", flush=True)  # noqa: T201
    chance = random.Random(seed)
    proxies = [await stage.proxy() for _ in range(3)]
    await stage.worker("one", proxies[0])
    await stage.worker("two", proxies[1])
    caller = await stage.spoke("caller", proxies[2])
    end = time.monotonic() + float(os.environ.get("OPERATIONS_FAULT_SECONDS", "60"))
    faults: Counter[str] = Counter()
    while time.monotonic() < end:
        tasks = load(stage, caller, 50, seconds=chance.random() / 10)
        await asyncio.sleep(chance.random() / 5)
        fault = chance.choice(["cut", "reset", "swallow", "restart", "slow", "nothing"])
        faults[fault] += 1
        proxy = chance.choice(proxies)
        if fault == "restart":
            await stage.hub.close()
            await stage.hub.start()
        elif fault == "slow":
            proxy.delay = chance.random() / 10
        elif fault != "nothing":
            getattr(proxy, fault)()
        await asyncio.gather(*tasks)
        for each in proxies:
            each.passing.set()
            each.delay = 0.0
    print(f"{dict(faults)}, {len(stage.history.outcomes)} calls, {dict(stage.history.errors())}")  # noqa: T201
    await until(lambda: caller.is_up and "work.query" in stage.hub.operations)
    assert not isinstance(await stage.history.call(PendingRequestMap(caller), "work.query", timeout=10.0), CallError)
