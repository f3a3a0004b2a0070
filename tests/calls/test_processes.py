"""Workers in separate processes: the example in four processes, SIGTERM, SIGKILL, SIGSTOP."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operations import CallError, ErrorCode, Identity
from operations.calls import PendingRequestMap, from_call
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens
from tests import nats_server, redis_servers
from tests.calls.scenes import drain_one_of_two
from tests.waiting import until

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "hub_and_spokes" / "shop.py"
WORKER = """
import asyncio, sys
from operations import OperationRegistry, operation
from operations.calls import serve_registry
from operations.calls.hub.spoke import Spoke

@operation(id="work.sleep", type="query")
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return sys.argv[2]

async def main():
    async with Spoke(sys.argv[1], token="worker", heartbeat=0.5) as spoke:
        await serve_registry(OperationRegistry([sleep]), spoke, pool=True)

asyncio.run(main())
"""


def test_the_same_program_runs_in_one_process_and_in_four_over_a_hub_redis_and_nats() -> None:
    def output(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLE, *arguments], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        return done.stdout

    together = output()
    assert "order: {'total': 9.0, 'left': 10}" in together
    assert "bob: ACCESS_DENIED: 'bob' may not call stock.take: missing scope buy" in together
    assert output("--split") == together
    for server in (redis_servers.shared_server("redis"), nats_server.shared_server()):
        assert output("--bus", server.url) == together


class Yard:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.pending = PendingRequestMap(hub.transport())
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, name: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, self.hub.url, name)
        self.processes.append(process)
        await until(lambda: self.workers == len([each for each in self.processes if each.returncode is None]))
        return process

    @property
    def workers(self) -> int:
        offer = self.hub.router.operations.get("work.sleep")
        return len(offer.sessions) if offer is not None else 0


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    tokens = StaticTokens({"worker": Principal(Identity("worker"), ("work",))})
    async with Hub(tokens, heartbeat=0.5) as hub:
        yard = Yard(hub)
        yield yard
        for process in yard.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@pytest.mark.fault(27, on="websocket")
async def test_sigterm_under_load_fails_no_call_while_another_worker_lives(yard: Yard) -> None:
    first = await yard.start("first")
    await yard.start("second")
    await drain_one_of_two(first, yard.pending)


@pytest.mark.fault(7, on="websocket")
async def test_a_killed_worker_loses_its_calls_and_queries_go_to_the_other(yard: Yard) -> None:
    first = await yard.start("first")
    await yard.start("second")
    calls = [
        asyncio.create_task(yard.pending.call("work.sleep", {"seconds": 0.3}, retry=number % 2 == 0))
        for number in range(20)
    ]
    await until(lambda: yard.hub.counters.in_flight == 20)
    first.kill()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert not any(isinstance(outcome, BaseException) for outcome in outcomes[::2])
    lost = [outcome for outcome in outcomes if isinstance(outcome, CallError)]
    assert {(error.code, error.details["executed"]) for error in lost} <= {(ErrorCode.UNAVAILABLE, "unknown")}
    assert yard.workers == 1


@pytest.mark.fault(8, on="websocket")
@pytest.mark.slow
async def test_a_frozen_worker_is_lost_after_three_heartbeats_and_returns(yard: Yard) -> None:
    first = await yard.start("first")
    call = asyncio.create_task(yard.pending.call("work.sleep", {"seconds": 0.05}))
    await call
    first.send_signal(signal.SIGSTOP)
    with pytest.raises(CallError) as caught:
        await yard.pending.call("work.sleep", {"seconds": 0.05})
    assert (caught.value.code, caught.value.details["executed"]) == (ErrorCode.UNAVAILABLE, "unknown")
    assert yard.workers == 0
    first.send_signal(signal.SIGCONT)
    async with from_call(yard.hub.transport()) as remote, asyncio.timeout(20):
        await remote.ready("work.sleep")
    assert (await yard.pending.call("work.sleep", {"seconds": 0})).data == "first"
