"""Workers count as lost by missed heartbeats, not by time in which this process itself was stopped or busy."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from operations.calls import PendingRequestMap
from operations.calls.announcements import WorkerDirectory
from operations.calls.codec import JSON
from operations.calls.endpoint import endpoint_of
from operations.calls.events import VERSION, AnnouncementPayload, WorkerAnnounced
from operations.calls.liveness import liveness_of
from operations.pubsub.memory import MemoryTransport
from tests.waiting import until

HEARTBEAT = 0.05


async def test_a_directory_keeps_its_workers_while_this_process_is_busy() -> None:
    end = MemoryTransport(direct=False)
    worker = end.join()
    end.capabilities = msgspec.structs.replace(end.capabilities, tracks_peers=False, heartbeat=HEARTBEAT)
    changes: list[bool] = []
    directory = WorkerDirectory(endpoint_of(end), lambda name, specs: changes.append(name in directory._known))
    announced = AnnouncementPayload("desk.1", 1, msgspec.Raw(b"[]"), False, 0, 1)
    worker.send("workers", JSON.encode(WorkerAnnounced(VERSION, "desk.1", "workers", announced, ())))
    await until(lambda: changes == [True])
    time.sleep(10 * HEARTBEAT)  # noqa: ASYNC251  # the loop is blocked
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert changes == [True]
    await until(lambda: changes == [True, False])
    directory.close()


@pytest.mark.parametrize(
    ("retry", "has_backlog", "attempts"), [(True, False, 2), (True, True, 1), (False, False, 1)], ids=str
)
async def test_a_query_that_no_worker_accepts_is_sent_again_after_half_of_its_time(
    retry: bool, has_backlog: bool, attempts: int
) -> None:
    """The first worker is frozen: it gets the request and never accepts it."""
    end = MemoryTransport(direct=False)
    end.capabilities = msgspec.structs.replace(end.capabilities, tracks_peers=False, heartbeat=1_000.0)
    received: list[bytes] = []
    end.join().listen("work.shop", lambda message, arrival: received.append(message))
    pending = PendingRequestMap(end)
    call = asyncio.create_task(pending.call("shop.price", retry=retry, timeout=1_000.0))
    await until(lambda: len(received) == 1)
    endpoint, now = endpoint_of(end), asyncio.get_running_loop().time()
    monitor = liveness_of(endpoint)
    (waiting,) = endpoint.pending.values()
    for waited, expected in ((499.0, 1), (501.0, attempts)):
        waiting.since = now - waited
        if has_backlog:
            monitor._backlog["shop"] = now - 600.0
        monitor._check()
        await until(lambda: waiting.timer is None)  # type: ignore[attr-defined]
        for _ in range(10):
            await asyncio.sleep(0)  # the transport delivers in another iteration
        assert len(received) == expected
    call.cancel()
    await asyncio.wait([call])
