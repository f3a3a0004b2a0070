"""The in-memory transport: all peers are in one process. Objects can be passed by reference."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from operations.pubsub.protocols import Arrival, Capabilities, InProcess, Part, Receive, Stop, Undelivered

_CAPABILITIES = Capabilities(tracks_peers=True, identity="caller", claims_identity=True)


class _Listeners:
    """The listeners at one address. Each message goes to all listeners without a group, and to one of each group."""

    def __init__(self, address: str) -> None:
        self.arrival = Arrival(address)
        self.groups: dict[object, deque[Receive]] = {}

    def pick(self) -> list[Receive]:
        picked = []
        for members in self.groups.values():
            picked.append(members[0])
            members.rotate(-1)
        return picked


class MemoryBus:
    """The state that the transports on one in-process bus share."""

    def __init__(self) -> None:
        self.listeners: dict[str, _Listeners] = {}
        self.targets: dict[str, deque[Any]] = {}
        self._posted: list[tuple[str, bytes, Undelivered | None]] = []

    def post(self, address: str, message: bytes, undelivered: Undelivered | None) -> None:
        """Deliver a message in the next iteration of the event loop, with all other messages of this iteration."""
        if not self._posted:
            asyncio.get_running_loop().call_soon(self.flush)
        self._posted.append((address, message, undelivered))

    def flush(self) -> None:
        """Deliver the posted messages."""
        posted, self._posted = self._posted, []
        for address, message, undelivered in posted:
            listeners = self.listeners.get(address)
            if listeners is not None:
                for receive in listeners.pick():
                    receive(message, listeners.arrival)
            elif undelivered is not None:
                undelivered(f"no listener at {address}")


# The only global table: `memory:<name>` is the same bus in the whole process, until its last transport is deleted.
_named: weakref.WeakValueDictionary[str, MemoryBus] = weakref.WeakValueDictionary()


class MemoryTransport:
    """A peer's connection to an in-process bus; `join()` returns a connection of another peer to the same bus.

    With `direct`, peers offer objects, and other peers call these objects by reference, so nothing is encoded. Without
    `direct`, every message is bytes, as on any other transport.
    """

    def __init__(
        self, *, bus: MemoryBus | None = None, direct: bool = True, capabilities: Capabilities = _CAPABILITIES
    ) -> None:
        self.peer = os.urandom(16).hex()
        self.capabilities = capabilities
        self.attachment: object | None = None
        self._direct = direct
        self._bus = bus if bus is not None else MemoryBus()
        self._stops: set[Stop] = set()

    def join(self) -> MemoryTransport:
        """Return another transport on the same bus."""
        return MemoryTransport(bus=self._bus, direct=self._direct, capabilities=self.capabilities)

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send bytes to the listeners at `address`, in the next iteration of the loop."""
        self._bus.post(address, message, undelivered)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive the messages that are sent to `address`."""
        listeners = self._bus.listeners.setdefault(address, _Listeners(address))
        key: object = object() if group is None else group
        listeners.groups.setdefault(key, deque()).append(receive)

        def stop() -> None:
            members = listeners.groups.get(key)
            if members is None or receive not in members:
                return
            members.remove(receive)
            if not members:
                del listeners.groups[key]
            if not listeners.groups and self._bus.listeners.get(address) is listeners:
                del self._bus.listeners[address]

        return self._keep(stop)

    def offer(self, address: str, target: Any) -> Stop:
        """Offer an object at an address: `reach` returns it to peers of this bus. Several objects share the load."""
        targets = self._bus.targets.setdefault(address, deque())
        targets.append(target)

        def stop() -> None:
            if target in targets:
                targets.remove(target)
            if not targets and self._bus.targets.get(address) is targets:
                del self._bus.targets[address]

        return self._keep(stop)

    def reach(self, address: str) -> Any:
        """Return one of the objects that are offered at an address, in turn; None if no object is offered there."""
        targets = self._bus.targets.get(address)
        if targets is None:
            return None
        if len(targets) > 1:
            targets.rotate(-1)
        return targets[0]

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Do nothing: an in-process bus is never lost."""
        return lambda: None

    def optional(self, kind: type[Part]) -> Part | None:
        """Return this transport if `kind` is `InProcess` and the bus is direct; otherwise None."""
        return self if self._direct and kind is InProcess and isinstance(self, kind) else None

    async def close(self) -> None:
        """Deliver the posted messages of the bus, then stop every listener and offer of this peer."""
        self._bus.flush()
        for stop in list(self._stops):
            stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _keep(self, stop: Stop) -> Stop:
        def stop_once() -> None:
            self._stops.discard(stop_once)
            stop()

        self._stops.add(stop_once)
        return stop_once


@contextlib.asynccontextmanager
async def connect(url: str = "memory:", **options: Any) -> AsyncIterator[MemoryTransport]:
    """Open a transport on the bus `memory:<name>` of this process; `memory:` alone is always a new bus."""
    name = url.partition(":")[2].strip("/")
    bus = _named.setdefault(name, MemoryBus()) if name else MemoryBus()
    transport = MemoryTransport(bus=bus, **options)
    try:
        yield transport
    finally:
        await transport.close()
