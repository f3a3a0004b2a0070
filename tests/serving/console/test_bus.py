"""Workers on Redis and NATS in the console: those whose operations are served, and those that run its jobs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import Identity, OperationRegistry, __version__, operation
from operations.calls import CallHandler, from_call
from operations.calls.codec import JSON
from operations.calls.events import VERSION, AnnouncementPayload, WorkerAlive, WorkerAnnounced, WorkerPayload
from operations.identity import Principal, StaticTokens
from operations.serving import ServedApp, app
from operations.serving.console.bus import BusWorkers
from tests.jobs.places import BUSES, Place, open_place
from tests.serving.asgi_client import following, post, request
from tests.waiting import until

TOKENS = {"ann": Principal(Identity("ann")), "eye": Principal(Identity("eye", ("operations:watch",)))}
API = "/console/api"
pytestmark = pytest.mark.slow


class Waiting:
    """Operations of a worker that wait for the test."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()

        @operation(id="shop.wait", type="mutation", durable=True)
        async def wait(fails: bool = False) -> int:
            self.started.set()
            await self.go_on.wait()
            if fails:
                raise ValueError
            return 1

        self.registry = OperationRegistry([wait])


@pytest.fixture(params=BUSES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with asyncio.timeout(60), open_place(request.param, []) as opened:
        yield opened


async def _workers(served: ServedApp) -> dict[str, dict[str, Any]]:
    listed = (await request(served, "GET", f"{API}/workers", token="eye")).json["workers"]
    return {each["name"]: each for each in listed if each["kind"] == "worker"}


async def _until(served: ServedApp, condition: Any) -> dict[str, dict[str, Any]]:
    while not condition(found := await _workers(served)):  # noqa: ASYNC110  # as a page that looks again
        await asyncio.sleep(0.02)
    return found


async def test_a_worker_is_listed_with_its_load_and_its_loss_is_reported(place: Place) -> None:
    waiting = Waiting()
    registry = OperationRegistry()
    async with from_call(await place.end(), registry=registry) as remote:
        served = app(registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False)
        worker = CallHandler(waiting.registry, await place.end(), concurrency=1)
        await remote.ready("shop.wait", timeout=20)
        [listed] = (await _until(served, lambda found: found)).values()
        assert (listed["name"], listed["kind"], listed["transport"]) == ("shop-1", "worker", place.kind)
        assert (listed["state"], listed["slots"], listed["operations"]) == ("ready", 1, 1)
        assert (listed["host"], listed["pid"], listed["version"]) == (socket.gethostname(), os.getpid(), __version__)
        async with following(served, f"{API}/feed?topics=workers", token="eye") as feed:
            await feed.until(lambda feed: b"hello" in feed.body)
            inputs = ({"fails": False}, {"fails": True})
            calls = [asyncio.create_task(post(served, "/shop/wait", each, token="ann")) for each in inputs]
            await feed.until(lambda feed: b'"state":"saturated"' in feed.body)
        found = await _until(served, lambda found: found["shop-1"]["inFlight"] >= 1)
        assert found["shop-1"]["state"] == "saturated"
        waiting.go_on.set()
        await asyncio.gather(*calls)
        await _until(served, lambda found: found["shop-1"]["state"] == "ready")
        assert (await request(served, "GET", f"{API}/workers", token="ann")).status == 403
        worker._announcer._pulse.cancel()  # type: ignore[union-attr]  # as if its process was gone
        lost = (await _until(served, lambda found: found["shop-1"]["state"] == "lost"))["shop-1"]
        assert lost["lostAt"] > 0
        assert lost["operations"] == 0
        await worker.close()
        await served.drain()


async def test_a_worker_that_leaves_is_not_lost(place: Place) -> None:
    waiting = Waiting()
    registry = OperationRegistry()
    async with from_call(await place.end(), registry=registry) as remote:
        served = app(registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False)
        worker = CallHandler(waiting.registry, await place.end())
        await remote.ready("shop.wait", timeout=20)
        await _until(served, lambda found: found)
        call = asyncio.create_task(post(served, "/shop/wait", {}, token="ann"))
        await waiting.started.wait()
        draining = asyncio.create_task(worker.drain())
        await _until(served, lambda found: found["shop-1"]["state"] == "draining")
        waiting.go_on.set()
        assert (await call).json == 1
        await draining
        await _until(served, lambda found: not found)
        await served.drain()


async def test_workers_that_run_jobs_are_listed(place: Place) -> None:
    waiting = Waiting()
    jobs = await place.jobs()
    served = app(waiting.registry, authenticator=StaticTokens(TOKENS), console=True, mcp=False, jobs=jobs)
    worker = CallHandler(waiting.registry, await place.end())
    found = await _until(served, lambda found: found)
    assert found["shop-1"]["operations"] == 1
    await worker.close()
    await served.drain()


async def test_announcements_of_a_peer_are_bounded(place: Place) -> None:
    end, other = await place.end(), await place.end()
    registry = OperationRegistry()
    async with from_call(end, registry=registry) as remote:
        workers = BusWorkers(remote._endpoint)
        for number in range(1_500):
            worker_id = f"peer.{number}"
            specs = msgspec.Raw(msgspec.json.encode([{"namespace": "x" * 500, "name": "y" * 500}]))
            payload = AnnouncementPayload(
                worker_id, 1, specs, slots=1 << 60, host="<b>" * 500, pid=1, version="v" * 500
            )
            other.send("workers", JSON.encode(WorkerAnnounced(VERSION, worker_id, "workers", payload)))
            alive = WorkerPayload(worker_id, 1, False, (), 1 << 60, -5, 1 << 62)
            other.send("workers", JSON.encode(WorkerAlive(VERSION, "", "workers", alive)))
        await until(lambda: len(workers._known) >= 1_000)
        for state in workers.states():
            assert state.slots is None
            assert state.in_flight <= 1_000_000
            assert len(state.name) < 150
            assert len(state.host or "") <= 100
            assert len(state.version or "") <= 100
            assert state.load is not None
            assert state.load.rate == 0
        assert len(workers._known) == 1_000
        assert len(workers._names) <= 1_000
        workers.close()
