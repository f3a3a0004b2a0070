"""Where jobs are kept: in this process, on Redis and on NATS; every contract of jobs holds in each of them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from operations import Identity, Operation, OperationRegistry
from operations.calls import CallHandler
from operations.jobs import JobLimits, Jobs
from operations.pubsub import Transport, nats
from operations.pubsub.redis import RedisTransport
from tests import nats_server
from tests.redis_servers import shared_cluster, shared_server

PLACES = ("memory", "redis", "nats")
BUSES = ("redis", "nats")
QUICK: dict[str, Any] = {"heartbeat": 0.1, "shortest_delay": 0.01, "longest_delay": 0.05}
ADA, BOB = Identity("ada"), Identity("bob")
ADMIN = Identity("root", scopes=("jobs.admin",))
_numbers = itertools.count(1)


class Place:
    """One place with a worker."""

    def __init__(self, kind: str, registry: OperationRegistry, stack: contextlib.AsyncExitStack) -> None:
        self.kind = kind
        self.registry = registry
        self.handlers: list[CallHandler] = []
        self._stack = stack
        self._prefix = f"j{next(_numbers)}{os.urandom(4).hex()}"
        self._shared: Jobs | None = None

    async def end(self, **options: Any) -> Transport:
        """Another end of the bus."""
        options = {**QUICK, "prefix": self._prefix, "trusted": True, **options}
        if self.kind == "nats":
            bus = nats.connect(nats_server.shared_server().url, ack_wait=1.0, **options)
            return await self._stack.enter_async_context(bus)
        url = shared_cluster("redis").url if self.kind == "cluster" else shared_server(self.kind).url
        return await self._stack.enter_async_context(RedisTransport(url, **options))

    async def jobs(self, **limits: Any) -> Jobs:
        """The jobs as another process has them; in memory there is only one process."""
        if self.kind != "memory":
            return Jobs(await self.end(), limits=JobLimits(**limits))
        if self._shared is None:
            self._shared = await self._stack.enter_async_context(Jobs(self.registry, limits=JobLimits(**limits)))
        return self._shared

    async def work(self, **options: Any) -> None:
        """Start a worker."""
        if self.kind != "memory":
            handler = CallHandler(self.registry, await self.end(), **options)
            self.handlers.append(handler)
            self._stack.push_async_callback(handler.close)


@contextlib.asynccontextmanager
async def open_place(kind: str, operations: Sequence[Operation[Any]]) -> AsyncIterator[Place]:
    """Open a place without a worker."""
    async with contextlib.AsyncExitStack() as stack:
        yield Place(kind, OperationRegistry(operations), stack)
