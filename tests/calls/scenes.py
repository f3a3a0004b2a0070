"""Steps of fault tests on every bus: a worker process, a drain under load, no free file descriptors."""

from __future__ import annotations

import asyncio
import resource
import signal
from typing import Protocol

from operations import CallError, ErrorCode
from operations.calls import PendingRequestMap
from operations.calls.endpoint import endpoint_of
from operations.calls.pending_call import PendingCall
from operations.pubsub import Transport
from tests.calls.history import History
from tests.waiting import until

WORKER = """
import asyncio, sys, time
from operations import OperationRegistry, operation
from operations.calls import serve_registry
from operations.pubsub import connect

@operation(id="work.sleep", type="query")
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return sys.argv[2]

@operation(id="work.spin")
async def spin(seconds: float) -> str:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return sys.argv[2]

async def main():
    async with connect(sys.argv[1], name=sys.argv[2], heartbeat=float(sys.argv[3])) as transport:
        await serve_registry(OperationRegistry([sleep, spin]), transport)

asyncio.run(main())
"""
"""The program of a worker; arguments: a URL, the worker's name, which its operations return, and a heartbeat."""


class DroppableTransport(Protocol):
    """A transport that reconnects by itself."""

    failures: int

    @property
    def is_up(self) -> bool:
        """Whether it is connected."""

    def drop_connection(self) -> None:
        """Abort the connection."""


def is_held_back(transport: Transport) -> bool:
    """Return whether a call of this peer waits for a worker, to be sent again."""
    waiting = endpoint_of(transport).pending.values()
    return any(isinstance(call, PendingCall) and call.timer is not None for call in waiting)


async def drain_one_of_two(first: asyncio.subprocess.Process, pending: PendingRequestMap) -> None:
    """Send SIGTERM to the worker `first` while it and `second` serve many calls; no call fails."""
    answers: list[str] = []
    stop = asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            answers.append((await pending.call("work.sleep", {"seconds": 0.005})).data)

    load = [asyncio.create_task(work()) for _ in range(30)]
    await until(lambda: len(answers) > 200)
    first.send_signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        assert await first.wait() == 0
    seen = len(answers)
    await until(lambda: len(answers) > seen + 200)
    stop.set()
    await asyncio.gather(*load)
    assert set(answers) == {"first", "second"}
    assert set(answers[-30:]) == {"second"}


async def run_out_of_descriptors(caller: DroppableTransport, pending: PendingRequestMap, history: History) -> None:
    """Check that a caller without file descriptors backs off, fails calls with `executed: "no"`, and recovers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # The limit is the highest descriptor in use, so that no further connection can be opened.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        caller.drop_connection()
        await until(lambda: not caller.is_up and caller.failures >= 2)
        error = await history.call(pending, "work.mutate")
        assert (error.code, error.details["executed"]) == (ErrorCode.UNAVAILABLE, "no")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await until(lambda: caller.is_up)
    assert not isinstance(await history.call(pending, "work.query"), CallError)
