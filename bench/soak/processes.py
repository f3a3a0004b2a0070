"""Processes of a soak: a caller, a worker and, where no broker is used, a hub; each reports samples of itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.calls import TEXT, echo, measure
from operations import CallError, Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.endpoint import endpoint_of
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens
from operations.pubsub import Transport, connect

CONCURRENCY = 64
TICK_SECONDS = 0.01
MOST_BEHIND_SECONDS = 0.25
TRIED_SECONDS = 3.0
TRIED = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1)
"""Fractions of the closed-loop rate to try as the open-loop rate, until one is sustained."""
KEPT = 0.97
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@operation(id="soak.wait", type="query")
async def wait(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "done"


@operation(id="soak.count")
async def count(to: int) -> AsyncIterator[int]:
    """Count: a stream."""
    for number in range(to):
        yield number


@operation(id="soak.keep", durable=True)
async def keep(text: str) -> str:
    """Return the text: a durable operation."""
    return text


def report(**values: Any) -> None:
    """Print one JSON line for the parent process."""
    print(json.dumps(values), flush=True)


def sample_process(pid: int) -> dict[str, float]:
    """Return a process's CPU time, memory and number of sockets."""
    folder = Path("/proc") / str(pid)
    memory = int((folder / "statm").read_text().split()[1]) * PAGE
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    sockets = 0
    for descriptor in (folder / "fd").iterdir():
        with contextlib.suppress(OSError):
            sockets += os.readlink(descriptor).startswith("socket:")
    return {"cpu": cpu, "memory": memory, "sockets": sockets}


async def report_samples(seconds: float, every: float, *transports: Transport) -> None:
    """Print samples of this process at intervals."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(every)
        endpoints = [endpoint_of(transport) for transport in transports]
        report(
            sample={
                **sample_process(os.getpid()),
                "tasks": len(asyncio.all_tasks()),
                "entries": sum(len(endpoint.pending) + len(endpoint.running) for endpoint in endpoints),
                "objects": len(gc.get_objects()),
            }
        )


def open_transport(url: str, token: str) -> contextlib.AbstractAsyncContextManager[Any]:
    """Return the transport of a URL; only a hub requires the token."""
    return connect(url, token=token) if url.startswith("ws") else connect(url)


async def run_hub(seconds: float, every: float) -> None:
    """Run the hub of a soak over WebSockets."""
    tokens = StaticTokens({"caller": Principal(Identity("caller")), "worker": Principal(Identity("worker"), ("*",))})
    async with Hub(tokens) as hub:
        report(ready=hub.url)
        await report_samples(seconds, every, hub.transport())


async def run_worker(url: str, seconds: float, every: float) -> None:
    """Run the worker that serves all operations."""
    async with open_transport(url, "worker") as transport:
        handler = CallHandler(OperationRegistry([echo, wait, count, keep]), transport, concurrency=4096)
        report(ready=handler.worker_id)
        await report_samples(seconds, every, transport)
        await handler.drain(grace=5)


async def measure_most(url: str) -> None:
    """Print the maximum calls per second of one caller and one worker under the load of a soak.

    A closed loop gives an upper bound; lower open-loop rates are tried until one is sustained.
    """
    async with open_transport(url, "caller") as transport:
        pending = PendingRequestMap(transport)
        await pending.call("bench.echo", {"text": ""}, wait=True)
        guess = (await measure(lambda: pending.call("bench.echo", {"text": TEXT}), CONCURRENCY, TRIED_SECONDS))["rate"]
        for part in TRIED:
            tally: Counter[str] = Counter()
            await offer(pending, guess * part, TRIED_SECONDS, tally, durable=transport.capabilities.durable)
            if tally["answered"] >= KEPT * guess * part * TRIED_SECONDS and not tally["skipped"]:
                break
        report(most=guess * part, guess=guess)


async def offer(pending: PendingRequestMap, rate: float, seconds: float, tally: Counter[str], *, durable: bool) -> None:
    """Apply the load of a soak at a given rate."""
    await asyncio.gather(
        keep_calling(pending, rate, seconds, tally), keep_misbehaving(pending, seconds, tally, durable=durable)
    )


async def run_caller(url: str, rate: float, seconds: float, every: float) -> None:
    """Call at a given rate, with concurrent faults that could leak resources."""
    tally: Counter[str] = Counter()
    async with open_transport(url, "caller") as transport:
        pending = PendingRequestMap(transport)
        await pending.call("bench.echo", {"text": ""}, wait=True)
        report(ready=url)
        reporting = asyncio.create_task(report_samples(seconds, every, transport))
        async with asyncio.timeout(seconds + 60):
            await offer(pending, rate, seconds, tally, durable=transport.capabilities.durable)
            await reporting
        report(tally=tally, counters=pending.counters.to_dict(), left=pending.in_flight)


async def keep_calling(pending: PendingRequestMap, rate: float, seconds: float, tally: Counter[str]) -> None:
    """Make `rate` calls per second without waiting for earlier ones; skip calls if the machine is too slow."""
    running: set[asyncio.Task[None]] = set()
    begun = time.monotonic()
    due = 0.0
    most = rate * MOST_BEHIND_SECONDS
    while (elapsed := time.monotonic() - begun) < seconds:
        behind = elapsed * rate - due
        if behind > most or len(running) > most:
            tally["skipped"] += int(behind)
            due += behind
            behind = 0.0
        for _ in range(int(behind)):
            task = asyncio.create_task(one_call(pending, tally))
            running.add(task)
            task.add_done_callback(running.discard)
        due += int(behind)
        await asyncio.sleep(TICK_SECONDS)
    await asyncio.gather(*running)


async def one_call(
    pending: PendingRequestMap, tally: Counter[str], operation_id: str = "bench.echo", *, durable: bool = False
) -> None:
    """Make a call that should succeed."""
    try:
        await pending.call(operation_id, {"text": TEXT}, durable=durable)
        tally["stored" if durable else "answered"] += 1
    except CallError as error:
        tally[f"failed {operation_id} {error.code}"] += 1


async def keep_misbehaving(pending: PendingRequestMap, seconds: float, tally: Counter[str], *, durable: bool) -> None:
    """Cause faults about ten times a second, while `keep_calling` makes normal calls.

    Each time, a stream is read to its end, a stream is abandoned, a call is cancelled, a call reaches its deadline, and
    a call has no worker.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            async for _ in pending.subscribe("soak.count", {"to": 500}):
                tally["items"] += 1
            async for _ in pending.subscribe("soak.count", {"to": 100_000}):
                tally["streams left"] += 1
                break
        except CallError as error:
            tally[f"failed soak.count {error.code}"] += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await pending.call("soak.wait", {"seconds": 60})
        tally["calls left"] += 1
        for operation_id, deadline in (("soak.wait", 20), ("nobody.there", 1000)):
            try:
                await pending.call(operation_id, {"seconds": 60}, deadline=int(time.time() * 1000) + deadline)
            except CallError as error:
                tally[f"{operation_id} {error.code}"] += 1
        if durable:
            await one_call(pending, tally, "soak.keep", durable=True)
        await asyncio.sleep(0.05)


def main(role: str, url: str, *numbers: str) -> Any:
    """Return the coroutine of a role."""
    values = [float(number) for number in numbers]
    if role == "hub":
        return run_hub(*values)
    if role == "worker":
        return run_worker(url, *values)
    return measure_most(url) if role == "most" else run_caller(url, *values)


if __name__ == "__main__":
    from bench.calls import run

    run(main(*sys.argv[1:]))
