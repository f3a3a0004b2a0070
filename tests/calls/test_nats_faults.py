"""Faults on a NATS bus: servers, workers and networks fail, freeze or send garbage; every call ends exactly once."""

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
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.calls.endpoint import endpoint_of
from operations.pubsub.nats import NatsTransport, connect
from operations.testing import error_of
from tests.calls.history import SCALE, History
from tests.calls.proxy import Proxy
from tests.calls.scenes import WORKER, drain_one_of_two, run_out_of_descriptors
from tests.nats_server import NatsServer, nats_cluster, nats_server
from tests.waiting import until

HEARTBEAT = 0.1 * SCALE
LEASE = 0.5 * SCALE
QUICK: dict[str, Any] = {
    "shortest_delay": 0.02,
    "longest_delay": 0.2,
    "heartbeat": HEARTBEAT,
    "timeout": 5 * HEARTBEAT,
    "trusted": True,
}


class Stage:
    """A server, workers and callers, optionally behind proxies."""

    def __init__(self, stack: contextlib.AsyncExitStack, server: NatsServer) -> None:
        self.stack = stack
        self.server = server
        self.history = History()
        self.ends: list[NatsTransport] = []

    async def proxy(self) -> Proxy:
        return await self.stack.enter_async_context(Proxy(self.server.port))

    async def end(self, name: str = "caller", proxy: Proxy | None = None, **options: Any) -> NatsTransport:
        url = f"nats://127.0.0.1:{proxy.port if proxy is not None else self.server.port}"
        end = await self.stack.enter_async_context(connect(url, name=name, **{**QUICK, **options}))
        self.ends.append(end)
        return end

    async def worker(self, name: str = "worker", proxy: Proxy | None = None, **options: Any) -> CallHandler:
        end = await self.end(name, proxy, **options)
        handler = CallHandler(OperationRegistry(self.history.operations()), end)
        self.stack.push_async_callback(handler.close)
        await end.flush()
        return handler

    async def process(self, name: str, heartbeat: float = HEARTBEAT) -> asyncio.subprocess.Process:
        """Start a worker in a separate process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, self.server.url, name, str(heartbeat)
        )

        async def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

        self.stack.push_async_callback(end)
        pending = PendingRequestMap(await self.end())
        async with asyncio.timeout(20):
            while (await pending.call("work.sleep", {"seconds": 0}, wait=True, retry=True)).data != name:
                pass
        return process

    def load(
        self, caller: NatsTransport, calls: int, *, seconds: float = 0.05, items: int = 2_000
    ) -> list[asyncio.Task[Any]]:
        pending, history = PendingRequestMap(caller), self.history
        tasks = [
            asyncio.create_task(
                history.call(pending, "work.query", seconds=seconds, retry=True, timeout=4 * SCALE)
                if number % 2
                else history.call(pending, "work.mutate", seconds=seconds, timeout=4 * SCALE)
            )
            for number in range(calls)
        ]
        return [*tasks, asyncio.create_task(history.follow(pending, "work.count", items))]

    def ends_of(self, kind: str) -> list[Any]:
        return [ends[0] for key, ends in self.history.outcomes.items() if kind in key]


async def drain(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


@pytest.fixture(autouse=True)
def short_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("streams", "request_handler"):
        monkeypatch.setattr(f"operations.calls.{module}.LEASE_SECONDS", LEASE)


@pytest.fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    baseline = len(asyncio.all_tasks())
    with nats_server() as server:
        async with contextlib.AsyncExitStack() as stack:
            stage = Stage(stack, server)
            yield stage
            stage.history.check(timing=request.node.get_closest_marker("faults") is not None)
            await until(lambda: not any(endpoint_of(end).pending for end in stage.ends))
            await until(lambda: not any(endpoint_of(end).running for end in stage.ends))
    await until(lambda: len(asyncio.all_tasks()) <= baseline)


@pytest.mark.fault(4, on="nats")
@pytest.mark.parametrize("calls", [200, pytest.param(1_000, marks=pytest.mark.faults)])
async def test_the_server_is_killed_with_calls_in_flight_and_comes_back(stage: Stage, calls: int) -> None:
    """Faults 2 and 4."""
    await stage.worker()
    caller = await stage.end()
    stage.history.may_finish.clear()
    tasks = stage.load(caller, calls, seconds=0.05)
    await until(lambda: len(stage.history.runs) == calls)
    stage.server.kill()
    await until(lambda: len(stage.ends_of("mutate")) == calls // 2)
    stage.history.may_finish.set()
    stage.server.start()
    await asyncio.gather(*tasks)
    mutations = stage.ends_of("mutate")
    assert {(end.code, end.details["executed"]) for end in mutations} == {(ErrorCode.UNAVAILABLE, "unknown")}
    assert not any(isinstance(end, CallError) for end in stage.ends_of("query"))
    await until(lambda: all(end.is_up for end in stage.ends))


@pytest.mark.fault(5, on="nats")
async def test_a_frozen_server_is_detected_and_no_call_runs_twice(stage: Stage) -> None:
    """Fault 5."""
    await stage.worker()
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    assert not isinstance(await stage.history.call(pending, "work.query"), CallError)
    stage.server.freeze()
    outcomes = await asyncio.gather(
        *(stage.history.call(pending, "work.mutate", timeout=30 * SCALE) for _ in range(50))
    )
    assert {(end.code, end.details["executed"]) for end in outcomes} == {(ErrorCode.UNAVAILABLE, "unknown")}
    stage.server.thaw()
    await until(lambda: all(end.is_up for end in stage.ends))
    assert not isinstance(await stage.history.call(pending, "work.query", wait=True), CallError)


@pytest.mark.fault(6, on="nats")
async def test_calls_while_the_server_is_down_fail_and_never_run(stage: Stage) -> None:
    """Fault 6."""
    await stage.worker()
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    stage.server.kill()
    await until(lambda: not caller.is_up)
    error = await stage.history.call(pending, "work.mutate")
    assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    waiting = asyncio.create_task(stage.history.call(pending, "work.query", wait=True, timeout=10 * SCALE))
    short = await stage.history.call(pending, "work.query", wait=True, timeout=0.2)
    assert short.code in (ErrorCode.TIMEOUT, ErrorCode.UNAVAILABLE)
    stage.server.start()
    assert not isinstance(await waiting, CallError)
    assert len(stage.history.runs) == 1


@pytest.mark.parametrize("fault", ["cut", "reset"])
@pytest.mark.parametrize("whose", ["caller", "worker"])
async def test_a_connection_breaks_under_load(stage: Stage, fault: str, whose: str) -> None:
    proxy = await stage.proxy()
    await stage.worker(proxy=proxy if whose == "worker" else None)
    caller = await stage.end(proxy=proxy if whose == "caller" else None)
    stage.history.may_finish.clear()
    tasks = stage.load(caller, 100, seconds=0.05)
    await until(lambda: len(stage.history.runs) == 100)
    getattr(proxy, fault)()
    await until(lambda: any(end.reconnects or not end.is_up for end in stage.ends))
    stage.history.may_finish.set()
    await asyncio.gather(*tasks)
    assert not any(isinstance(end, CallError) for end in stage.ends_of("query"))
    mutations = stage.ends_of("mutate")
    if whose == "caller":
        assert {(end.code, end.details["executed"]) for end in mutations} == {(ErrorCode.UNAVAILABLE, "unknown")}
    else:
        # The worker sent its responses after it reconnected, except those that were in flight when the connection
        # closed.
        lost = [end for end in mutations if isinstance(end, CallError)]
        assert {(end.code, end.details["executed"]) for end in lost} <= {(ErrorCode.UNAVAILABLE, "unknown")}
        assert len(lost) < len(mutations)


@pytest.mark.fault(7, on="nats")
async def test_a_worker_is_killed_and_its_queries_go_to_another(stage: Stage) -> None:
    """Fault 7."""
    first = await stage.process("first")
    await stage.process("second")
    pending = PendingRequestMap(await stage.end())
    calls = [
        asyncio.create_task(pending.call("work.sleep", {"seconds": 4.0}, retry=number % 2 == 0)) for number in range(40)
    ]

    def accepted() -> bool:
        waiting = pending._endpoint.pending.values()
        return len(waiting) == 40 and all(call.worker is not None for call in waiting)

    await until(accepted)
    first.kill()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert not any(isinstance(outcome, BaseException) for outcome in outcomes[::2])
    lost = [outcome for outcome in outcomes[1::2] if isinstance(outcome, CallError)]
    assert lost
    assert {(error.code, error.details["executed"]) for error in lost} == {(ErrorCode.UNAVAILABLE, "unknown")}


@pytest.mark.fault(8, on="nats")
async def test_a_frozen_worker_loses_its_calls_and_its_late_answers_are_counted(stage: Stage) -> None:
    """Fault 8."""
    first = await stage.process("first")
    end = await stage.end()
    pending = PendingRequestMap(end)
    call = asyncio.create_task(error_of(pending.call("work.sleep", {"seconds": 2.0})))
    await until(lambda: any(waiting.worker for waiting in endpoint_of(end).pending.values()))
    first.send_signal(signal.SIGSTOP)
    unsent = asyncio.create_task(error_of(pending.call("work.sleep", {"seconds": 0})))
    retried = asyncio.create_task(pending.call("work.sleep", {"seconds": 0}, retry=True))
    for error in (await call, await unsent):
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
    await stage.process("second")
    first.send_signal(signal.SIGCONT)
    assert (await retried).data in ("first", "second")
    # The server may have disconnected the frozen worker and dropped the messages in flight to it.
    await until(lambda: pending.counters.late >= 1, seconds=30)


@pytest.mark.fault(8, on="nats")
async def test_queries_of_a_frozen_worker_go_to_a_live_worker_within_their_deadline(stage: Stage) -> None:
    """The server continues to give the frozen worker its share of the requests."""
    frozen, _ = await stage.process("frozen"), await stage.process("living")
    pending = PendingRequestMap(await stage.end())
    frozen.send_signal(signal.SIGSTOP)
    deadline = int((time.time() + 20 * HEARTBEAT) * 1000)
    calls = (pending.call("work.sleep", {"seconds": 0}, retry=True, deadline=deadline) for _ in range(100))
    answers = await asyncio.gather(*calls)
    assert {answer.data for answer in answers} == {"living"}


@pytest.mark.fault(9, 10, on="nats")
async def test_a_call_without_a_worker_fails_immediately_and_a_waiting_one_is_served(stage: Stage) -> None:
    """Faults 9 and 10."""
    pending = PendingRequestMap(await stage.end())
    for _ in range(100):
        error = await stage.history.call(pending, "work.query")
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
        assert "no listener" in error.message, "the server said so: no deadline passed and no heartbeat was missed"
    waiting = asyncio.create_task(stage.history.call(pending, "work.query", wait=True))
    await until(lambda: pending.in_flight == 1)
    await stage.worker()
    assert not isinstance(await waiting, CallError)


@pytest.mark.fault(11, 12, 13, 14, 15, 16, on="nats")
async def test_forged_messages_on_the_bus_are_counted_and_not_accepted(stage: Stage) -> None:
    """Faults 14 to 16: without permissions, any peer may publish anything."""
    handler = await stage.worker()
    caller, liar = await stage.end(), await stage.end("liar")
    pending = PendingRequestMap(caller)
    await caller.flush()
    for rubbish in (b"", b"\xff\xfe", b'{"v":1,"type":"call.resp', b"[" * 10_000, b'{"some": "json"}', b'{"v":NaN}'):
        liar.send(f"inbox.{caller.peer}", rubbish)
        liar.send("work.work/query", rubbish)
    for address, event in (
        (
            f"inbox.{caller.peer}",
            {"type": "call.responded", "id": f"{caller.peer}-ff", "payload": {"requestId": f"{caller.peer}-ff"}},
        ),
        (
            f"inbox.{caller.peer}",
            {"type": "call.requested", "id": "x-1", "payload": {"requestId": "x-1", "operationId": "a.b"}},
        ),
        ("control.work", {"type": "worker.gone", "payload": {"workerId": handler.worker_id}}),
    ):
        import msgspec

        liar.send(address, msgspec.json.encode({"v": 1, "id": "", "to": "", **event}))
    await liar.flush()
    assert not isinstance(await stage.history.call(pending, "work.query"), CallError)
    assert pending.counters.malformed + pending.counters.dropped >= 5
    assert pending.counters.foreign == 2
    assert handler.counters.malformed + handler.counters.dropped >= 5


@pytest.mark.fault(17, 40, on="nats")
async def test_payloads_around_the_maximum_of_the_server(request: pytest.FixtureRequest) -> None:
    """Faults 17 and 40: they arrive, or their caller gets a typed error; the connection stays open."""

    @operation(id="any.echo", type="query")
    async def echo(text: str) -> str:
        return text

    @operation(id="any.make", type="query")
    async def make(size: int) -> str:
        return "x" * size

    @operation(id="any.fail", type="query")
    async def fail(size: int) -> str:
        raise CallError("TOO_BIG", "x" * size, {"x": "x" * size})

    with nats_server(max_payload=1 << 20) as server:
        async with connect(server.url) as worker, connect(server.url) as caller:
            handler = CallHandler(OperationRegistry([echo, make, fail]), worker)
            await worker.flush()
            pending = PendingRequestMap(caller)
            assert len((await pending.call("any.echo", {"text": "x" * ((1 << 20) - 1_000)})).data) == (1 << 20) - 1_000
            for size in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1, 8 << 20):
                error = await error_of(pending.call("any.echo", {"text": "x" * size}))
                assert (error.code, error.details["executed"]) == (ErrorCode.VALIDATION_ERROR, "no")
                error = await error_of(pending.call("any.make", {"size": size}))
                assert (error.details["reason"], error.details["executed"]) == ("PAYLOAD_TOO_LARGE", "yes")
                error = await error_of(pending.call("any.fail", {"size": size}))
                assert error.code == "TOO_BIG"
            assert (worker.reconnects, caller.reconnects) == (0, 0)
            await handler.close()


@pytest.mark.fault(21, on="nats")
async def test_a_slow_consumer_ends_its_calls_in_an_error() -> None:
    """Fault 21: the server disconnects a peer that does not read, with a reason."""

    @operation(id="any.make", type="query")
    async def make(size: int) -> str:
        return "x" * size

    with nats_server('max_pending: 2MB\nwrite_deadline: "200ms"', max_payload=1 << 20) as server:
        async with connect(server.url) as worker, connect(server.url, **QUICK) as caller:
            handler = CallHandler(OperationRegistry([make]), worker)
            await worker.flush()
            pending = PendingRequestMap(caller)
            calls = [asyncio.create_task(pending.call("any.make", {"size": 900_000})) for _ in range(60)]
            await asyncio.sleep(0)
            caller._connection._transport.pause_reading()  # type: ignore[union-attr]
            await until(lambda: "Slow Consumer" in server.log)
            caller._connection._transport.resume_reading()  # type: ignore[union-attr]
            async with asyncio.timeout(20):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
            errors = [outcome for outcome in outcomes if isinstance(outcome, CallError)]
            assert errors
            assert {(error.code, error.details["executed"]) for error in errors} == {(ErrorCode.UNAVAILABLE, "unknown")}
            await until(lambda: caller.is_up)
            assert len((await pending.call("any.make", {"size": 3}, wait=True, retry=True)).data) == 3
            await handler.close()


@pytest.mark.fault(27, on="nats")
async def test_sigterm_under_load_fails_no_call_while_another_worker_lives(stage: Stage) -> None:
    """Fault 27."""
    first = await stage.process("first")
    await stage.process("second")
    pending = PendingRequestMap(await stage.end())
    await drain_one_of_two(first, pending)


@pytest.mark.fault(23, on="nats")
async def test_a_caller_that_vanishes_ends_its_stream_at_the_worker(stage: Stage) -> None:
    """Fault 23."""
    closed = asyncio.Event()

    @operation(id="clock.ticks")
    async def ticks() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    end = await stage.end("worker")
    handler = CallHandler(OperationRegistry([ticks]), end)
    stage.stack.push_async_callback(handler.close)
    await end.flush()
    proxy = await stage.proxy()
    caller = await stage.end(proxy=proxy)
    stream = PendingRequestMap(caller).subscribe("clock.ticks")
    await anext(stream)
    proxy.swallow()
    async with asyncio.timeout(20):
        await closed.wait()
    proxy.passing.set()
    assert (await error_of(drain(stream))).code is ErrorCode.UNAVAILABLE


@pytest.mark.fault(30, on="nats")
async def test_calls_work_over_a_network_that_delivers_single_bytes(stage: Stage) -> None:
    """Fault 30."""
    proxy = await stage.proxy()
    await stage.worker()
    proxy.slices = 1
    caller = await stage.end(proxy=proxy, heartbeat=5.0, timeout=20.0)
    await asyncio.gather(*stage.load(caller, 10, seconds=0, items=200))
    assert stage.history.errors() == {}
    assert all(end is None for end in stage.history.stream_ends.values())


@pytest.mark.fault(29, on="nats")
@pytest.mark.parametrize("offset", [*range(0, 700, 111), *range(700, 2_000, 307)])
async def test_a_loss_at_any_byte_leaves_no_partial_event(stage: Stage, offset: int) -> None:
    """Fault 29."""
    handler = await stage.worker()
    proxy = await stage.proxy()
    proxy.limits = (offset, None)
    end = connect(f"nats://127.0.0.1:{proxy.port}", name="caller", **QUICK)
    opening = asyncio.create_task(end.__aenter__())
    await asyncio.wait((opening,), timeout=0.3)
    if opening.done():
        pending = PendingRequestMap(end)
        await asyncio.gather(*(stage.history.call(pending, "work.mutate", timeout=1.0) for _ in range(4)))
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await end.close()
    assert handler.counters.malformed == 0


@pytest.mark.fault(43, on="nats")
async def test_a_process_without_file_descriptors_backs_off_and_recovers(stage: Stage) -> None:
    """Fault 43."""
    await stage.worker()
    caller = await stage.end()
    pending = PendingRequestMap(caller)
    await run_out_of_descriptors(caller, pending, stage.history)


@pytest.mark.fault(42, on="nats")
async def test_the_deadline_holds_over_a_slow_network(stage: Stage) -> None:
    """Fault 42."""
    proxy = await stage.proxy()
    await stage.worker(proxy=proxy)
    caller = await stage.end()
    proxy.delay = 0.3
    outcome = await stage.history.call(PendingRequestMap(caller), "work.query", timeout=0.2)
    assert outcome.code is ErrorCode.TIMEOUT
    proxy.delay = 0.0


async def test_a_live_worker_with_a_long_queue_loses_no_call(stage: Stage) -> None:
    """One read has requests for many heartbeats: the worker still sends heartbeats, and reports its backlog."""
    heartbeat = 4 * HEARTBEAT  # the worker shares two cores with other tests
    await stage.process("slow", heartbeat)
    pending = PendingRequestMap(await stage.end(heartbeat=heartbeat))
    count = int(6 * heartbeat / 0.004)
    answers = await asyncio.gather(*(pending.call("work.spin", {"seconds": 0.004}) for _ in range(count)))
    assert [answer.data for answer in answers] == ["slow"] * count


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_a_rolling_restart_of_a_cluster_loses_only_calls_in_flight(how: str) -> None:
    """Each server is killed in turn under load: queries succeed, and only mutations in flight at that server fail."""
    history = History()
    with nats_cluster() as servers:
        urls = [server.url for server in servers]
        async with contextlib.AsyncExitStack() as stack:
            ends = [
                await stack.enter_async_context(connect(url, name=f"end{number}", servers=urls, **QUICK))
                for number, url in enumerate(urls * 2)
            ]
            for end in ends[:3]:
                handler = CallHandler(OperationRegistry(history.operations()), end)
                stack.push_async_callback(handler.close)
            callers = [PendingRequestMap(end) for end in ends[3:]]
            await asyncio.gather(
                *(history.call(caller, "work.query", wait=True, timeout=10 * SCALE) for caller in callers)
            )
            stop = asyncio.Event()

            async def work(caller: PendingRequestMap, kind: str) -> None:
                while not stop.is_set():
                    await history.call(caller, f"work.{kind}", retry=kind == "query", wait=True, timeout=5 * SCALE)
                    await asyncio.sleep(0.002)

            load = [asyncio.create_task(work(caller, kind)) for caller in callers for kind in ("query", "mutate") * 4]
            for server in servers:
                done = len(history.outcomes)
                await until(lambda: len(history.outcomes) > done + 200)  # noqa: B023
                getattr(server, how)()
                await until(lambda: all(end.is_up for end in ends))
                server.start()
                done = len(history.outcomes)
                await until(lambda: len(history.outcomes) > done + 200)  # noqa: B023
            stop.set()
            await asyncio.gather(*load)
    history.check(timing=False)
    failed = [(key, ends[0]) for key, ends in history.outcomes.items() if isinstance(ends[0], CallError)]
    assert not [key for key, _ in failed if "query" in key], failed[:3]
    assert {(end.code, end.details["executed"]) for _, end in failed} <= {(ErrorCode.UNAVAILABLE, "unknown")}
    # Three callers have four mutations each in flight, and there are three restarts.
    assert len(failed) <= 3 * 4 * 3


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_random_faults(stage: Stage) -> None:
    """A random schedule from a printed seed: closed and reset connections, lost bytes, freezes, kills, under load."""
    seed = int(os.environ.get("OPERATIONS_FAULT_SEED", str(random.randrange(2**32))))
    print(f"OPERATIONS_FAULT_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    proxies = [await stage.proxy() for _ in range(3)]
    await stage.worker("one", proxies[0])
    await stage.worker("two", proxies[1])
    caller = await stage.end(proxy=proxies[2])
    end = time.monotonic() + float(os.environ.get("OPERATIONS_FAULT_SECONDS", "60"))
    while time.monotonic() < end:
        tasks = stage.load(caller, 50, seconds=chance.random() / 10)
        await asyncio.sleep(chance.random() / 5)
        fault = chance.choice(["cut", "reset", "swallow", "kill", "freeze", "nothing"])
        proxy = chance.choice(proxies)
        if fault == "kill":
            stage.server.kill()
            await asyncio.sleep(chance.random() / 2)
            stage.server.start()
        elif fault == "freeze":
            stage.server.freeze()
            await asyncio.sleep(chance.random() * 4 * HEARTBEAT)
            stage.server.thaw()
        elif fault != "nothing":
            getattr(proxy, fault)()
        await asyncio.gather(*tasks)
        for each in proxies:
            each.passing.set()
    await until(lambda: all(end.is_up for end in stage.ends))
    async with from_call(caller) as remote, asyncio.timeout(20):
        await remote.ready("work.query")
    outcome = await stage.history.call(PendingRequestMap(caller), "work.query", timeout=10.0, retry=True, wait=True)
    assert not isinstance(outcome, CallError)
