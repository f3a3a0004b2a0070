"""The members of a random schedule, their rights, and the bus that connects them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap, RemoteOperations
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.pubsub import Transport
from tests.waiting import until

SCOPES = ("red", "green", "blue")
WORKERS = ("w0", "w1", "w2", "p0", "p1")
POOL = ("p0", "p1")
NAMESPACES = ("w0", "w1", "w2", "pool")
CALLERS = ("c0", "c1", "c2", "c3")


class Bus(Protocol):
    """The transport that a schedule runs on."""

    closing_seconds: float
    """How long after an abort a worker may still call for its caller."""

    knows_ends: bool
    """Whether a right that a worker keeps ends with its request; otherwise it ends at the root's deadline."""

    async def open(self, name: str) -> Transport:
        """Return a new connection of a member, which calls and serves with the member's rights."""

    async def close(self, transport: Transport) -> None:
        """Close a connection."""

    def nested_identity(self, worker: Principal, caller: Identity | None) -> Identity | None:
        """Return the identity of nested calls that a worker makes while it runs a request of `caller`."""

    def serve(self, registry: OperationRegistry, transport: Transport, *, pool: bool) -> CallHandler:
        """Answer a member's requests."""

    def cut(self, transport: Transport) -> None:
        """Drop a connection; it is restored automatically."""

    def trusted(self) -> Transport | None:
        """Return an end that may call on behalf of any identity, if there is one."""

    async def check_idle(self) -> None:
        """Wait until no state of any call is left; fail if some remains."""


class HubBus:
    """A hub and its spokes."""

    closing_seconds = 0.05
    """Less than the time after which a worker abandons a handler that it cancelled."""

    knows_ends = True

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self.hub = Hub(StaticTokens(dict(principals)), closing_seconds=self.closing_seconds)
        self._end = self.hub.transport()

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, principals: Mapping[str, Principal]) -> AsyncIterator[Bus]:
        bus = cls(principals)
        async with bus.hub:
            yield bus

    async def open(self, name: str) -> Transport:
        spoke = Spoke(self.hub.url, token=name, shortest_delay=0.001, longest_delay=0.02)
        return await spoke.__aenter__()

    async def close(self, transport: Transport) -> None:
        assert isinstance(transport, Spoke)
        await transport.close()

    def nested_identity(self, worker: Principal, caller: Identity | None) -> Identity | None:
        return worker.identity_for(caller)

    def serve(self, registry: OperationRegistry, transport: Transport, *, pool: bool) -> CallHandler:
        return CallHandler(registry, transport, pool=pool)

    def cut(self, transport: Transport) -> None:
        assert isinstance(transport, Spoke)
        transport.drop_connection()

    def trusted(self) -> Transport | None:
        return self._end

    async def check_idle(self) -> None:
        def left() -> list[str]:
            return [
                f"{each.principal.identity.id}: {each.calls}, {each.running}, {len(each.grants)} grants"
                for each in self.hub.router.sessions.values()
                if each.calls or each.running or len(each.grants)
            ]

        try:
            await until(lambda: not left())
        except TimeoutError:
            raise AssertionError(f"something is left of calls that have ended: {left()}") from None


class Member:
    """A worker or a caller: its connection, which a restart replaces."""

    def __init__(self, name: str, principal: Principal) -> None:
        self.name = name
        self.principal = principal
        self.transport: Transport
        self.pending: PendingRequestMap
        self.handler: CallHandler | None = None
        self.remote: RemoteOperations | None = None
        self.is_closing = False
        """Whether it cancels what it runs, without an abort of the caller."""

    @property
    def namespace(self) -> str:
        return "pool" if self.name in POOL else self.name

    async def close(self, bus: Bus) -> None:
        self.is_closing = True
        if self.remote is not None:
            await self.remote.close()
        if self.handler is not None:
            await self.handler.close()
        await bus.close(self.transport)
        self.is_closing = False


def draw_principals(seed: int) -> dict[str, Principal]:
    """Draw the rights of every member; each is its own token."""
    draw = random.Random(seed)

    def identity(name: str) -> Identity:
        return Identity(name, [scope for scope in SCOPES if draw.random() < 0.5])

    workers = {
        name: Principal(identity(name), ("pool" if name in POOL else name,), speaks_for_callers=draw.random() < 0.7)
        for name in WORKERS
    }
    return workers | {name: Principal(identity(name)) for name in CALLERS}
