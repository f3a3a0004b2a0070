"""Faults over Redis: the server, its connections and its workers fail; every call ends exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import CallError, ErrorCode, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.redis import RedisTransport
from operations.testing import error_of
from tests.calls.history import SCALE, History
from tests.calls.proxy import Proxy
from tests.calls.scenes import WORKER, drain_one_of_two, is_held_back, run_out_of_descriptors
from tests.redis_servers import Server
from tests.waiting import until

QUICK: dict[str, Any] = {"heartbeat": 0.2, "shortest_delay": 0.01, "longest_delay": 0.05}


class Stage:
    """A server, workers and callers, optionally behind proxies."""

    def __init__(self, server: Server, stack: contextlib.AsyncExitStack) -> None:
        self.server = server
        self.history = History()
        self.stack = stack
        self.handlers: list[CallHandler] = []
        self.processes: list[asyncio.subprocess.Process] = []

    async def proxy(self) -> Proxy:
        return await self.stack.enter_async_context(Proxy(self.server.port))

    async def end(self, proxy: Proxy | None = None, **options: Any) -> RedisTransport:
        port = proxy.port if proxy is not None else self.server.port
        transport = RedisTransport(f"redis://127.0.0.1:{port}", **QUICK | options)
        return await self.stack.enter_async_context(transport)

    async def worker(self, proxy: Proxy | None = None, **options: Any) -> CallHandler:
        known = self.workers
        handler = CallHandler(OperationRegistry(self.history.operations()), await self.end(proxy), **options)
        self.handlers.append(handler)
        await until(lambda: self.workers > known)
        return handler

    async def process(self, name: str, heartbeat: float = QUICK["heartbeat"]) -> asyncio.subprocess.Process:
        known = self.workers
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, self.server.url, name, str(heartbeat)
        )
        self.processes.append(process)
        await until(lambda: self.workers > known)
        return process

    @property
    def workers(self) -> int:
        """Return the number of workers that count as alive at the server."""
        now = int(time.time() * 1000)
        count: int | None = self.server.command("ZCOUNT", "operations:{work}:workers", now, "+inf")
        return count or 0


@pytest.fixture(params=["redis", "valkey"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    server = Server(request.param)
    await asyncio.to_thread(server.start)
    try:
        async with contextlib.AsyncExitStack() as stack:
            stage = Stage(server, stack)
            yield stage
            for handler in stage.handlers:
                await handler.close()
                assert handler.counters.in_flight == 0
            for process in stage.processes:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                await process.wait()
        stage.history.check(timing=os.environ.get("OPERATIONS_FAULT_SCALE") is not None)
    finally:
        server.remove()


def load(stage: Stage, caller: RedisTransport, count: int, *, seconds: float = 0.3, **options: Any) -> list[Any]:
    """Start as many queries, which may be retried, as mutations, which may not."""
    pending = PendingRequestMap(caller)
    return [
        asyncio.create_task(
            stage.history.call(
                pending,
                "work.query" if number % 2 else "work.mutate",
                seconds=seconds,
                timeout=10 * SCALE,
                **({"retry": True} if number % 2 else {}),
                **options,
            )
        )
        for number in range(count)
    ]


def split(stage: Stage) -> tuple[list[Any], list[Any]]:
    queries = [ends[0] for key, ends in stage.history.outcomes.items() if "query" in key]
    mutations = [ends[0] for key, ends in stage.history.outcomes.items() if "mutate" in key]
    return queries, mutations


async def test_a_live_worker_with_a_long_queue_loses_no_call(stage: Stage) -> None:
    """A queue with work for many heartbeats: the last calls have no worker for that time, and none fails."""
    heartbeat = 4 * QUICK["heartbeat"]  # the worker shares two cores with other tests
    await stage.process("slow", heartbeat)
    pending = PendingRequestMap(await stage.end(heartbeat=heartbeat))
    count = int(8 * heartbeat / 0.004)
    answers = await asyncio.gather(*(pending.call("work.spin", {"seconds": 0.004}) for _ in range(count)))
    assert [answer.data for answer in answers] == ["slow"] * count


@pytest.mark.fault(1, 2, on="redis")
async def test_the_server_dies_under_200_calls_and_returns(stage: Stage) -> None:
    """1 and 2: mutations fail, queries are retried, streams end with an error, and all peers reconnect."""
    await stage.worker()
    caller = await stage.end()
    following = asyncio.create_task(stage.history.follow(PendingRequestMap(caller), "work.count", 10**6))
    stage.history.may_finish.clear()
    tasks = load(stage, caller, 200, seconds=0.05)
    await until(lambda: len(stage.history.runs) == 200)
    stage.server.kill()
    await following
    await until(lambda: not caller.is_up)
    stage.history.may_finish.set()
    await asyncio.to_thread(stage.server.start)
    await asyncio.gather(*tasks)
    queries, mutations = split(stage)
    assert not any(isinstance(end, CallError) for end in queries)
    assert {(end.code, end.details["executed"]) for end in mutations} == {(ErrorCode.UNAVAILABLE, "unknown")}
    assert all(isinstance(end, CallError) for end in stage.history.stream_ends.values())


@pytest.mark.fault(3, on="redis")
async def test_a_frozen_server_is_detected_and_no_call_runs_twice(stage: Stage) -> None:
    """3."""
    await stage.worker()
    caller = await stage.end()
    assert not isinstance(await stage.history.call(PendingRequestMap(caller), "work.query"), CallError)
    stage.server.signal(signal.SIGSTOP)
    tasks = load(stage, caller, 20, seconds=0)
    await until(lambda: not caller.is_up)
    stage.server.signal(signal.SIGCONT)
    await asyncio.gather(*tasks)
    queries, mutations = split(stage)
    assert not any(isinstance(end, CallError) for end in queries)
    assert {end.details["executed"] for end in mutations if isinstance(end, CallError)} == {"unknown"}


@pytest.mark.fault(6, on="redis")
async def test_calls_while_the_server_is_down_are_not_sent(stage: Stage) -> None:
    """6: calls fail immediately and never run later."""
    await stage.worker()
    caller = await stage.end()
    stage.server.kill()
    await until(lambda: not caller.is_up)
    error = await stage.history.call(PendingRequestMap(caller), "work.mutate")
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    waiting = asyncio.create_task(
        stage.history.call(PendingRequestMap(caller), "work.mutate", timeout=10 * SCALE, wait=True)
    )
    await asyncio.to_thread(stage.server.start)
    assert not isinstance(await waiting, CallError)
    assert len(stage.history.runs) == 1


@pytest.mark.fault(7, 8, on="redis")
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_dies_or_freezes_and_queries_go_to_the_other(stage: Stage, fault: signal.Signals) -> None:
    """7 and 8: detected within three heartbeats; late responses of a frozen worker are counted."""
    first = await stage.process("first")
    await stage.process("second")
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    calls = []
    for number in range(40):
        calls.append(asyncio.create_task(pending.call("work.sleep", {"seconds": 4.0}, retry=number // 2 % 2 == 0)))
        await asyncio.sleep(0.005)  # one after the other, so that both workers take some

    def accepted() -> bool:
        waiting = pending._endpoint.pending.values()
        return len(waiting) == 40 and all(call.worker is not None for call in waiting)

    await until(accepted)
    first.send_signal(fault)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    repeatable = [outcome for number, outcome in enumerate(outcomes) if number // 2 % 2 == 0]
    assert [outcome for outcome in repeatable if isinstance(outcome, BaseException)] == []
    lost = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert lost
    assert {(error.code, error.details["executed"]) for error in lost} == {(ErrorCode.UNAVAILABLE, "unknown")}  # type: ignore[attr-defined]
    await until(lambda: stage.workers == 1)
    if fault is signal.SIGSTOP:
        first.send_signal(signal.SIGCONT)
        await until(lambda: pending.counters.late > 0)
        await until(lambda: stage.workers == 2)


@pytest.mark.fault(9, 10, on="redis")
async def test_a_call_waits_until_a_worker_connects(stage: Stage) -> None:
    """9 and 10."""
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    error = await stage.history.call(pending, "work.query")
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    waiting = asyncio.create_task(stage.history.call(pending, "work.query", timeout=10 * SCALE, wait=True))
    await until(lambda: is_held_back(caller))
    await stage.worker()
    assert not isinstance(await waiting, CallError)


@pytest.mark.fault(9, on="redis")
async def test_a_killed_worker_is_removed_after_three_heartbeats(stage: Stage) -> None:
    process = await stage.process("only")
    caller = await stage.end()
    process.kill()
    await until(lambda: stage.workers == 0)
    error = await error_of(PendingRequestMap(caller).call("work.sleep", {"seconds": 0}))
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")


@pytest.mark.fault(17, 40, on="redis")
@pytest.mark.parametrize("size", [1 << 20, 4 << 20])
async def test_sizes_up_to_the_limit_are_sent_and_larger_ones_are_typed_errors(stage: Stage, size: int) -> None:
    """17 and 40: a request or a response exceeds the largest payload; the connection stays open."""

    @operation(id="big.make")
    async def make(size: int, text: str = "") -> str:
        return "x" * size

    transport = await stage.end(max_payload=2 << 20)
    handler = CallHandler(OperationRegistry([make]), transport)
    stage.handlers.append(handler)
    caller = await stage.end(max_payload=2 << 20)
    pending = PendingRequestMap(caller)
    if size < 2 << 20:
        assert len((await pending.call("big.make", {"size": size}, wait=True)).data) == size
        assert (await pending.call("big.make", {"size": 0, "text": "x" * size})).data == ""
    else:
        error = await error_of(pending.call("big.make", {"size": size}, wait=True))
        assert (error.details["reason"], error.details["executed"]) == ("PAYLOAD_TOO_LARGE", "yes")
        error = await error_of(pending.call("big.make", {"size": 0, "text": "x" * size}))
        assert (error.details["reason"], error.details["executed"]) == ("PAYLOAD_TOO_LARGE", "no")
    assert (await pending.call("big.make", {"size": 1})).data == "x"
    assert (caller.reconnects, transport.reconnects) == (0, 0)


@pytest.mark.fault(20, on="redis")
async def test_a_caller_disconnected_for_reading_too_slowly_gets_errors(stage: Stage) -> None:
    """20: the server's output-buffer limit."""
    stage.server.command("CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 1mb 1")
    made: list[int] = []

    @operation(id="big.make", type="query")
    async def make(size: int) -> str:
        made.append(size)
        return "x" * size

    stage.handlers.append(CallHandler(OperationRegistry([make]), await stage.end()))
    proxy = await stage.proxy()
    caller = await stage.end(proxy, heartbeat=5.0)
    pending = PendingRequestMap(caller)
    assert (await pending.call("big.make", {"size": 1}, wait=True)).data == "x"
    other = PendingRequestMap(await stage.end())
    proxy.arriving.clear()
    calls = [asyncio.create_task(error_of(pending.call("big.make", {"size": 100_000}))) for _ in range(1_000)]
    # More than the buffers of the sockets hold: up to 37 MB.
    await until(lambda: made.count(100_000) == 1_000)
    # Responses are sent in order: once this one arrives, the server has received all of them.
    assert (await other.call("big.make", {"size": 2}, wait=True)).data == "xx"
    proxy.arriving.set()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    lost = [error for error in errors if isinstance(error, CallError)]
    assert lost
    assert {(error.code, error.details["executed"]) for error in lost} == {(ErrorCode.UNAVAILABLE, "unknown")}
    await until(lambda: caller.reconnects >= 1)
    assert (await pending.call("big.make", {"size": 1}, retry=True)).data == "x"


@pytest.mark.fault(27, on="redis")
async def test_sigterm_under_load_fails_no_call(stage: Stage) -> None:
    """27."""
    first = await stage.process("first")
    await stage.process("second")
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    await drain_one_of_two(first, pending)


@pytest.mark.parametrize("who", ["caller", "worker"])
@pytest.mark.parametrize("fault", ["cut", "reset", "swallow"])
async def test_one_peer_is_disconnected_and_reconnects(stage: Stage, fault: str, who: str) -> None:
    """A worker's responses in flight are sent again; a caller's calls in flight fail."""
    proxy = await stage.proxy()
    handler = await stage.worker(proxy if who == "worker" else None)
    caller = await stage.end(proxy if who == "caller" else None)
    stage.history.may_finish.clear()
    tasks = load(stage, caller, 100, seconds=0.05)
    await until(lambda: len(stage.history.runs) == 100)
    getattr(proxy, fault)()
    peer: Any = caller if who == "caller" else handler.transport
    await until(lambda: peer.reconnects > 0 or not peer.is_up)
    stage.history.may_finish.set()
    proxy.passing.set()
    await asyncio.gather(*tasks)
    queries, mutations = split(stage)
    assert not any(isinstance(end, CallError) for end in queries)
    if who == "caller":
        assert all(isinstance(end, CallError) for end in mutations)
    elif fault != "swallow":
        assert not any(isinstance(end, CallError) for end in mutations)


@pytest.mark.fault(30, on="redis")
async def test_calls_work_over_a_network_that_delivers_single_bytes(stage: Stage) -> None:
    """30."""
    proxy = await stage.proxy()
    proxy.slices = 1
    await stage.worker()
    caller = await stage.end(proxy, heartbeat=5.0)
    await asyncio.gather(*load(stage, caller, 10, seconds=0))
    assert stage.history.errors() == {}


@pytest.mark.fault(29, on="redis")
@pytest.mark.parametrize("offset", [0, 20, 60, 150, 300, 450, 700, 1_000, 1_500])
async def test_a_loss_at_any_byte_leaves_no_partial_event(stage: Stage, offset: int) -> None:
    """29."""
    handler = await stage.worker()
    proxy = await stage.proxy()
    proxy.limits = (offset, None)
    caller = RedisTransport(f"redis://127.0.0.1:{proxy.port}", **QUICK)
    opening = asyncio.create_task(caller.__aenter__())
    await asyncio.wait((opening,), timeout=0.3)
    if opening.done():
        pending = PendingRequestMap(caller)
        await asyncio.gather(*(stage.history.call(pending, "work.mutate", timeout=1.0) for _ in range(4)))
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await caller.close()
    assert handler.counters.malformed == 0


@pytest.mark.fault(24, 42, on="redis")
async def test_the_deadline_holds_over_a_slow_network(stage: Stage) -> None:
    """42 and 24: calls that expire in the queue never run."""
    proxy = await stage.proxy()
    handler = await stage.worker()
    caller = await stage.end(proxy, heartbeat=5.0)
    pending = PendingRequestMap(caller)
    assert not isinstance(await stage.history.call(pending, "work.query"), CallError)
    proxy.delay = 0.3
    outcome = await stage.history.call(pending, "work.query", timeout=0.2)
    assert outcome.code is ErrorCode.TIMEOUT
    await until(lambda: handler.counters.expired == 1)
    assert len(stage.history.runs) == 1
    proxy.delay = 0.0


@pytest.mark.fault(15, 16, on="redis")
async def test_malformed_messages_in_the_queue_and_the_inbox_are_counted(stage: Stage) -> None:
    """15 and 16."""
    handler = await stage.worker()
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    for nonsense in ("", "{", '{"a":1}', "[" * 10_000, "\0\0\0\0", '{"v":1,"type":"call.requested"}'):
        stage.server.command("RPUSH", "operations:{work}:queue", nonsense)
        stage.server.command("PUBLISH", f"operations:inbox.{caller.peer}", nonsense)
    assert not isinstance(await stage.history.call(pending, "work.query"), CallError)
    assert handler.counters.malformed + handler.counters.dropped >= 5
    assert pending.counters.malformed + pending.counters.dropped >= 4


@pytest.mark.fault(43, on="redis")
async def test_a_process_without_file_descriptors_backs_off_and_recovers(stage: Stage) -> None:
    """43."""
    await stage.worker()
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    await run_out_of_descriptors(caller, pending, stage.history)


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_random_faults_for_a_minute(stage: Stage) -> None:
    """A random schedule from a printed seed: kills, freezes, closed and reset connections, lost bytes, under load."""
    seed = int(os.environ.get("OPERATIONS_FAULT_SEED", str(random.randrange(2**32))))
    print(f"OPERATIONS_FAULT_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    proxies = [await stage.proxy() for _ in range(3)]
    await stage.worker(proxies[0])
    await stage.worker(proxies[1])
    caller = await stage.end(proxies[2])
    end = time.monotonic() + float(os.environ.get("OPERATIONS_FAULT_SECONDS", "60"))
    while time.monotonic() < end:
        tasks = load(stage, caller, 50, seconds=chance.random() / 10)
        await asyncio.sleep(chance.random() / 5)
        fault = chance.choice(["cut", "reset", "swallow", "kill", "freeze", "nothing"])
        if fault == "kill":
            stage.server.kill()
            await asyncio.sleep(chance.random())
            await asyncio.to_thread(stage.server.start)
        elif fault == "freeze":
            stage.server.signal(signal.SIGSTOP)
            await asyncio.sleep(chance.random() * 2)
            stage.server.signal(signal.SIGCONT)
        elif fault != "nothing":
            getattr(chance.choice(proxies), fault)()
            await asyncio.sleep(chance.random())
        for each in proxies:
            each.passing.set()
        await asyncio.gather(*tasks)
    await until(lambda: caller.is_up and stage.workers == 2)
    assert not isinstance(await stage.history.call(PendingRequestMap(caller), "work.query", timeout=10.0), CallError)
