"""The transports of the contract suite; for a new one, add a class and its name to BUSES."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

from operations import Identity
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.pubsub import Transport, nats
from operations.pubsub.memory import MemoryTransport
from operations.pubsub.redis import RedisTransport
from operations.testing import RecordingTransport
from tests import nats_server
from tests.asgi_server import serving_here
from tests.redis_servers import shared_cluster, shared_server

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "transports.md"
CALLER = Identity("ada", scopes=("read",))
"""The caller on every bus: known by its token, or passed as `identity=` on a trusted bus."""


class Bus(Protocol):
    """One bus under test."""

    identity: Identity | None
    """The value of `identity=` in calls; None if the bus authenticates the caller."""

    async def end(self, name: str = "caller") -> Transport:
        """Connect another peer; `worker` may register operations."""


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


class ASGIBusUnderTest:
    identity: Identity | None = None

    def __init__(self, hub: Hub, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.hub = hub
        self._url = url
        self._stack = stack

    async def end(self, name: str = "caller") -> Transport:
        return await self._stack.enter_async_context(Spoke(self._url, token=name))


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


class UnixBusUnderTest:
    """The transport of the guide page "Writing a transport"."""

    identity: Identity | None = CALLER

    def __init__(self, directory: str, stack: contextlib.AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._module: dict[str, Any] = {}
        exec(guide_transport(), self._module)

    async def end(self, name: str = "caller") -> Transport:
        end: Transport = await self._stack.enter_async_context(self._module["UnixTransport"](self._directory))
        return end


def guide_transport() -> str:
    """Return the source of the transport in the guide."""
    block = re.search(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    assert block is not None
    return block[1]


class RecordedBusUnderTest:
    """A bus whose transports are wrapped: a wrapper that changes nothing passes all contracts."""

    def __init__(self, bus: Bus) -> None:
        self.identity = bus.identity
        self._bus = bus

    async def end(self, name: str = "caller") -> Transport:
        recording = RecordingTransport(await self._bus.end(name))
        # Some contracts measure memory: recorded messages must not count.
        recording.messages = deque(maxlen=100)  # type: ignore[assignment]
        return recording


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
async def asgi() -> AsyncIterator[Bus]:
    hub = Hub(TOKENS)
    async with serving_here(hub.asgi_app()) as url, contextlib.AsyncExitStack() as stack:
        yield ASGIBusUnderTest(hub, url, stack)


@contextlib.asynccontextmanager
async def nats_bus() -> AsyncIterator[Bus]:
    async with contextlib.AsyncExitStack() as stack:
        yield NatsBusUnderTest(stack)


@contextlib.asynccontextmanager
async def redis(engine: str, *, cluster: bool = False) -> AsyncIterator[Bus]:
    server = shared_cluster(engine) if cluster else shared_server(engine)
    async with contextlib.AsyncExitStack() as stack:
        yield RedisBusUnderTest(server.url, stack)


@contextlib.asynccontextmanager
async def unix() -> AsyncIterator[Bus]:
    with tempfile.TemporaryDirectory() as directory:
        async with contextlib.AsyncExitStack() as stack:
            yield UnixBusUnderTest(directory, stack)


@contextlib.asynccontextmanager
async def recorded(opened: contextlib.AbstractAsyncContextManager[Bus]) -> AsyncIterator[Bus]:
    async with opened as bus:
        yield RecordedBusUnderTest(bus)


BUSES: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Bus]]] = {
    "memory": memory,
    "memory of bytes": memory_of_bytes,
    "websocket": websocket,
    "asgi": asgi,
    "nats": nats_bus,
    "redis": functools.partial(redis, "redis"),
    "valkey": functools.partial(redis, "valkey"),
    "redis cluster": functools.partial(redis, "redis", cluster=True),
    "unix": unix,
    "recorded memory": lambda: recorded(memory()),
    "recorded nats": lambda: recorded(nats_bus()),
}
