"""The processes that faults are applied to: a hub, a worker that records its runs in a file, and callers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from operations import CallError, Identity, Operation, OperationRegistry, operation
from operations.calls import PendingRequestMap, serve_registry
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens
from operations.pubsub import connect
from tests.calls.history import History

TOKENS = StaticTokens({"caller": Principal(Identity("ada")), "worker": Principal(Identity("worker"), ("*",))})
CONCURRENCY = 4_096


def open_end(url: str, heartbeat: float, who: str = "caller") -> AbstractAsyncContextManager[Any]:
    """Connect a peer with short heartbeats and delays."""
    options: dict[str, Any] = {"heartbeat": heartbeat, "shortest_delay": 0.02, "longest_delay": 0.2}
    return connect(url, **options, **({"token": who} if url.startswith("ws") else {"trusted": True}))


def journaled(journal: str, name: str) -> list[Operation[Any]]:
    """Operations that record each run in a file before it begins."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def run(key: str, seconds: float) -> str:
        os.write(file, f"{key}\n".encode())
        await asyncio.sleep(seconds)
        return key

    @operation(id="work.query", type="query")
    async def query(key: str, seconds: float = 0) -> str:
        return await run(key, seconds)

    @operation(id="work.mutate")
    async def mutate(key: str, seconds: float = 0) -> str:
        return await run(key, seconds)

    @operation(id="work.count")
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number
            if number % 50 == 0:
                await asyncio.sleep(0.001)

    @operation(id="kept.store", durable=True)
    async def store(key: str, seconds: float = 0) -> str:
        return await run(key, seconds)

    return [query, mutate, count, store, named(name)]


def named(name: str) -> Operation[Any]:
    """An operation of this worker only, for waiting until it can be called."""

    @operation(id=f"{name}.name", type="query")
    async def tell_name() -> str:
        return name

    return tell_name


async def work(url: str, heartbeat: str, journal: str, name: str) -> None:
    """Run a worker until SIGTERM."""
    async with open_end(url, float(heartbeat), "worker") as end:
        registry = OperationRegistry(journaled(journal, name))
        await serve_registry(registry, end, pool=True, concurrency=CONCURRENCY)


async def serve_hub(port: str, heartbeat: str, host: str = "127.0.0.1") -> None:
    """Run a hub on a fixed port."""
    async with Hub(TOKENS, host=host, port=int(port), heartbeat=float(heartbeat)):
        await asyncio.Event().wait()


async def call(url: str, heartbeat: str, timeout: str) -> None:
    """Run a caller that calls until SIGTERM and prints a line for each outcome."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    history = History()
    async with open_end(url, float(heartbeat)) as end:
        pending = PendingRequestMap(end)

        async def keep_calling(operation_id: str, **options: Any) -> None:
            while not stopped.is_set():
                outcome = await history.call(pending, operation_id, timeout=float(timeout), **options)
                key, _ = history.outcomes.popitem()
                error = outcome if isinstance(outcome, CallError) else None
                told = {
                    "key": key,
                    "code": error and str(error.code),
                    "executed": error and error.details["executed"],
                    "late": [late for late in history.late if late[0] == key],
                }
                sys.stdout.write(json.dumps(told) + "\n")
                sys.stdout.flush()
                await asyncio.sleep(0.01)

        await asyncio.gather(
            *(keep_calling("work.query", retry=True) for _ in range(4)),
            *(keep_calling("work.mutate") for _ in range(4)),
        )


async def follow(url: str, heartbeat: str) -> None:
    """Run a caller that follows an endless stream and prints a line when it begins."""
    async with open_end(url, float(heartbeat)) as end:
        async for envelope in PendingRequestMap(end).subscribe("clock.ticks"):
            sys.stdout.write(f"{envelope.data}\n")
            sys.stdout.flush()


PROGRAMS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "worker": work,
    "hub": serve_hub,
    "follower": follow,
    "caller": call,
}

if __name__ == "__main__":
    logging.getLogger("operations").setLevel(logging.ERROR)
    program, *arguments = sys.argv[1:]
    asyncio.run(PROGRAMS[program](*arguments))
