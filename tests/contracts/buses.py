"""The transports that every contract is held against: a new one adds a class and its name to BUSES."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from operations import Identity
from operations.calls.authentication import Principal, StaticTokens
from operations.calls.hub import Hub
from operations.calls.spoke import Spoke
from operations.pubsub import Transport, nats
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.redis import RedisTransport
from tests import nats_server
from tests.redis_servers import shared_cluster, shared_server

CALLER = Identity("ada", scopes=("read",))
"""Who makes the calls, on every bus: by its token where there are tokens, by its own word where it is trusted."""


class Bus(Protocol):
    """One bus under test."""

    identity: Identity | None
    """What a caller passes as `identity=`; None where the bus itself knows who it is."""

    async def end(self, name: str = "caller") -> Transport:
        """Another end of the bus; `worker` may register operations."""


class MemoryBusUnderTest:
    identity: Identity | None = CALLER

    def __init__(self, *, direct: bool) -> None:
        self._first = MemoryTransport(direct=direct)

    async def end(self, name: str = "caller") -> Transport:
        return self._first.join()


class WebSocketBusUnderTest:
    identity: Identity | None = None

    def __init__(self, hub: Hub, stack: contextlib.AsyncExitStack) -> None:
        self.hub = hub
        self._stack = stack

    async def end(self, name: str = "caller") -> Transport:
        return await self._stack.enter_async_context(Spoke(self.hub.url, token=name))


class NatsBusUnderTest:
    identity: Identity | None = CALLER

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._prefix = f"t{next(_numbers)}"

    async def end(self, name: str = "caller") -> Transport:
        transport = nats.connect(nats_server.shared_server().url, name=name, prefix=self._prefix, trusted=True)
        return await self._stack.enter_async_context(transport)


_numbers = itertools.count(1)


class RedisBusUnderTest:
    identity: Identity | None = CALLER

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self._url = url
        self._stack = stack
        self._prefix = os.urandom(8).hex()

    async def end(self, name: str = "caller") -> Transport:
        return await self._stack.enter_async_context(RedisTransport(self._url, prefix=self._prefix, trusted=True))


TOKENS = StaticTokens(
    {
        "caller": Principal(CALLER),
        "worker": Principal(Identity("worker"), ("*",)),
        "other": Principal(Identity("other"), ("other",)),
    }
)


@contextlib.asynccontextmanager
async def memory() -> AsyncIterator[Bus]:
    yield MemoryBusUnderTest(direct=True)


@contextlib.asynccontextmanager
async def memory_of_bytes() -> AsyncIterator[Bus]:
    yield MemoryBusUnderTest(direct=False)


@contextlib.asynccontextmanager
async def websocket() -> AsyncIterator[Bus]:
    async with Hub(TOKENS) as hub, contextlib.AsyncExitStack() as stack:
        yield WebSocketBusUnderTest(hub, stack)


@contextlib.asynccontextmanager
async def nats_bus() -> AsyncIterator[Bus]:
    async with contextlib.AsyncExitStack() as stack:
        yield NatsBusUnderTest(stack)


@contextlib.asynccontextmanager
async def redis(engine: str, *, cluster: bool = False) -> AsyncIterator[Bus]:
    server = shared_cluster(engine) if cluster else shared_server(engine)
    async with contextlib.AsyncExitStack() as stack:
        yield RedisBusUnderTest(server.url, stack)


BUSES: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Bus]]] = {
    "memory": memory,
    "memory of bytes": memory_of_bytes,
    "websocket": websocket,
    "nats": nats_bus,
    "redis": functools.partial(redis, "redis"),
    "valkey": functools.partial(redis, "valkey"),
    "redis cluster": functools.partial(redis, "redis", cluster=True),
}
