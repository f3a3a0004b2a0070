"""Workers count as lost by missed heartbeats, not by time in which this process itself was stopped or busy."""

from __future__ import annotations

import asyncio
import time

import msgspec

from operations.calls.announcements import WorkerDirectory
from operations.calls.codec import JSON
from operations.calls.endpoint import endpoint_of
from operations.calls.events import VERSION, AnnouncementPayload, WorkerAnnounced
from operations.pubsub.memory import MemoryTransport
from tests.waiting import until

HEARTBEAT = 0.05


async def test_a_directory_keeps_its_workers_while_this_process_is_busy() -> None:
    end = MemoryTransport(direct=False)
    worker = end.join()
    end.capabilities = msgspec.structs.replace(end.capabilities, tracks_peers=False, heartbeat=HEARTBEAT)
    changes: list[bool] = []
    directory = WorkerDirectory(endpoint_of(end), lambda worker_id, announced: changes.append(announced is not None))
    announced = AnnouncementPayload("desk.1", 1, [], False, 0, 1)
    worker.send("workers", JSON.encode(WorkerAnnounced(VERSION, "desk.1", "workers", announced, ())))
    await until(lambda: changes == [True])
    time.sleep(10 * HEARTBEAT)  # noqa: ASYNC251  # the loop is blocked
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert changes == [True]
    await until(lambda: changes == [True, False])
    directory.close()
