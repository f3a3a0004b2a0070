"""Stages: a broker or hub that can be killed and frozen, and workers and callers around it, each behind a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from operations import CallError, Operation, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.endpoint import endpoint_of
from operations.pubsub import Transport
from tests.calls.faults.programs import CONCURRENCY, named, open_end
from tests.calls.history import SCALE, History
from tests.calls.proxy import Proxy
from tests.nats_server import NatsServer
from tests.ports import free_ports
from tests.redis_servers import Server

HEARTBEAT = 0.2 * SCALE
BACK_WITHIN = 20.0
_names = itertools.count(1)


class Program:
    """A process of `programs.py`."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.calls.faults.programs", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        self.is_frozen = False

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait(10)
        self.stdout.close()


class Middle(Protocol):
    """The broker or hub between callers and workers."""

    scheme: str
    port: int

    @property
    def is_alive(self) -> bool:
        """Whether the process exists, running or frozen."""

    def start(self) -> object:
        """Start the process, on the same port as before."""

    def kill(self) -> None:
        """Kill the process."""

    def freeze(self) -> None:
        """Freeze the process."""

    def thaw(self) -> None:
        """Resume the process."""

    def remove(self) -> None:
        """Kill the process and remove its files."""


class RedisMiddle(Server):
    scheme = "redis"

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    def freeze(self) -> None:
        if self.is_alive:
            self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.is_alive:
            self.signal(signal.SIGCONT)


class NatsMiddle(NatsServer):
    scheme = "nats"

    @property
    def is_alive(self) -> bool:
        return self.process is not None


class HubMiddle:
    scheme = "ws"

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._program: Program | None = None

    @property
    def is_alive(self) -> bool:
        return self._program is not None

    def start(self) -> None:
        self._program = Program("hub", self.port, HEARTBEAT)
        end = time.monotonic() + BACK_WITHIN
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert time.monotonic() < end, "the hub did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._program = None

    def freeze(self) -> None:
        if self._program is not None:
            self._program.freeze()

    def thaw(self) -> None:
        if self._program is not None:
            self._program.thaw()

    def remove(self) -> None:
        self.kill()


MIDDLES: dict[str, Any] = {"websocket": HubMiddle, "redis": RedisMiddle, "nats": NatsMiddle}


class JournaledHistory(History):
    """A history whose operations run in other processes, which record them in a file."""

    def __init__(self, journal: Path) -> None:
        super().__init__()
        self.journal = journal
        journal.touch()

    def read(self) -> None:
        """Read the runs after all processes have ended; stored calls may run more than once."""
        self.runs = Counter(self.journal.read_text().split())
        self.repeatable |= {key for key in self.outcomes if key.startswith("kept.")}


class Stage:
    """One bus with its workers and callers."""

    def __init__(self, middle: Middle, stack: contextlib.AsyncExitStack, folder: Path) -> None:
        self.middle = middle
        self.history = JournaledHistory(folder / f"journal-{os.urandom(4).hex()}")
        self.ends: list[Any] = []
        self._stack = stack

    async def proxy(self) -> Proxy:
        return await self._stack.enter_async_context(Proxy(self.middle.port))

    def url(self, proxy: Proxy | None = None) -> str:
        return f"{self.middle.scheme}://127.0.0.1:{proxy.port if proxy is not None else self.middle.port}"

    async def end(self, who: str = "caller", proxy: Proxy | None = None) -> Any:
        """Connect a peer in this process."""
        end = await self._stack.enter_async_context(open_end(self.url(proxy), HEARTBEAT, who))
        self.ends.append(end)
        return end

    async def serve(self, *operations: Operation[Any], proxy: Proxy | None = None, **options: Any) -> CallHandler:
        """Start a worker in this process and wait until it can be called."""
        name = f"worker{next(_names)}"
        end = await self.end("worker", proxy)
        registry = OperationRegistry([*operations, named(name)])
        handler = CallHandler(registry, end, pool=True, concurrency=CONCURRENCY, **options)
        self._stack.push_async_callback(handler.close)
        await self.until_answered(f"{name}.name")
        return handler

    async def work(self, proxy: Proxy | None = None, *, wait: bool = True) -> Program:
        """Start a worker in a separate process and wait until it can be called."""
        name = f"worker{next(_names)}"
        program = Program("worker", self.url(proxy), HEARTBEAT, self.history.journal, name)
        self._stack.callback(program.kill)
        if wait:
            await self.until_answered(f"{name}.name")
        return program

    async def until_answered(self, operation_id: str, pending: PendingRequestMap | None = None) -> None:
        """Wait until a worker responds; fail after some time."""
        if pending is None:
            pending = PendingRequestMap(await self.end())
        async with asyncio.timeout(BACK_WITHIN):
            while True:
                with contextlib.suppress(CallError):
                    await pending.call(operation_id, deadline=int((time.time() + 2) * 1000), wait=True, retry=True)
                    return
                await asyncio.sleep(0.05)

    async def assert_nothing_waits(self) -> None:
        """Check that no call is pending at any peer."""
        for end in self.ends:
            transport: Transport = end
            assert not endpoint_of(transport).pending


@contextlib.asynccontextmanager
async def open_stage(name: str, folder: Path) -> AsyncIterator[Stage]:
    """A stage with its own broker or hub."""
    middle: Middle = MIDDLES[name]()
    try:
        await asyncio.to_thread(middle.start)
        async with contextlib.AsyncExitStack() as stack:
            yield Stage(middle, stack, folder)
    finally:
        middle.remove()
