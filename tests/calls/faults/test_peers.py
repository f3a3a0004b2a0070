"""Peers that freeze, die or cancel, on every transport with a network."""

from __future__ import annotations

import asyncio
import time

import pytest

from operations import CallError, ErrorCode
from operations.calls import PendingRequestMap, request_handler, streams
from tests.calls.faults.stages import HEARTBEAT, Program, Stage
from tests.calls.history import SCALE
from tests.contracts.operations_under_test import Sleeper, Ticker
from tests.waiting import until


@pytest.mark.fault(19)
async def test_a_worker_that_pauses_is_not_declared_lost_too_early(stage: Stage) -> None:
    worker = await stage.work()
    pending = PendingRequestMap(await stage.end())
    call = asyncio.create_task(stage.history.call(pending, "work.mutate", seconds=0.05, timeout=20 * HEARTBEAT))
    await until(lambda: stage.history.journal.read_text() != "")
    worker.freeze()
    await asyncio.sleep(1.5 * HEARTBEAT)
    worker.thaw()
    assert not isinstance(await call, CallError)


@pytest.mark.fault(23)
async def test_a_caller_that_is_killed_has_its_stream_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (streams, request_handler):
        monkeypatch.setattr(module, "LEASE_SECONDS", 0.5 * SCALE)
    ticker = Ticker(pause=0.01)
    await stage.serve(ticker.operation)
    follower = Program("follower", stage.url(), HEARTBEAT)
    try:
        assert await asyncio.to_thread(follower.stdout.readline) == b"0\n"
        assert not ticker.closed.is_set()
    finally:
        follower.kill()
    async with asyncio.timeout(10 * SCALE):
        await ticker.closed.wait()


@pytest.mark.fault(42)
async def test_a_worker_behind_a_slow_network_is_cancelled_when_the_abort_arrives(stage: Stage) -> None:
    sleeper = Sleeper()
    proxy = await stage.proxy()
    await stage.serve(sleeper.operation, proxy=proxy)
    pending = PendingRequestMap(await stage.end())
    proxy.delay = 0.05
    call = asyncio.create_task(pending.call("slow.sleep", deadline=int((time.time() + 2) * 1000)))
    async with asyncio.timeout(30):
        await sleeper.started.wait()
        with pytest.raises(CallError) as caught:
            await call
        await sleeper.cancelled.wait()
    assert caught.value.code is ErrorCode.TIMEOUT
