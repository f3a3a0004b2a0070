"""Presence: workers say what they offer and that they live; whoever cares keeps a directory of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from operations.calls.addresses import ASKS, WORKERS
from operations.calls.codec import JSON
from operations.calls.endpoint import Endpoint
from operations.calls.events import (
    VERSION,
    Announced,
    Asked,
    Event,
    Worker,
    WorkerAlive,
    WorkerAnnounced,
    WorkerAsked,
    WorkerGone,
    WorkerRegistered,
)
from operations.calls.failures import unavailable
from operations.calls.parties import Waiting
from operations.calls.workplace import Workplace
from operations.pubsub import Stop
from operations.wire import encode_json

HEARTBEAT_SECONDS = 2.0
"""How often a worker says that it lives, on a transport that has no heartbeat of its own."""
LOST_AFTER = 3
"""How many heartbeats may be missing before a worker counts as lost."""
_ACKNOWLEDGED_WITHIN = 2.0
_AROUND = 1_024


def heartbeat_of(endpoint: Endpoint) -> float:
    """How often workers say that they live: as often as the transport looks after its server. All ends must agree."""
    heartbeat: float = getattr(endpoint.transport, "heartbeat", HEARTBEAT_SECONDS)
    return heartbeat


class Announcer:
    """Tells the bus what one CallHandler offers: at the start, on changes, when asked, when the bus comes back."""

    def __init__(self, handler: Workplace, *, pool: bool) -> None:
        self._handler = handler
        self._endpoint: Endpoint = handler.endpoint
        self._pool = pool
        self._generation = 0
        self._gone = False
        self._leaving: asyncio.Future[None] | None = None
        self._pulse: asyncio.TimerHandle | None = None
        self.rejected: Mapping[str, str] = {}
        self._stop_hearing = self._endpoint.hear(ASKS)
        self._endpoint.notices.append(self._notice)
        self._unwatch = handler.transport.watch(self.announce, lambda reason: None)
        self._is_hub = handler.transport.capabilities.identity == "hub"
        if not handler.transport.capabilities.tracks_peers:
            self._beat()

    def announce(self) -> None:
        """Say what is offered; in process, where nobody may care, only that there is somebody to ask."""
        self._generation += 1
        if getattr(self._handler.transport, "direct", False):
            self._say_alive()
        else:
            self._tell(WORKERS)

    async def leave(self) -> None:
        """Say that nothing more is accepted, and where a hub routes, wait until it has taken note."""
        if self._gone:
            return
        self._gone = True
        # Before anything is sent: a hub in this process answers at once.
        self._leaving = asyncio.get_running_loop().create_future()
        self._send(WorkerGone(VERSION, "", WORKERS, Worker(self._handler.worker_id)))
        if self._is_hub:
            await asyncio.wait((self._leaving,), timeout=_ACKNOWLEDGED_WITHIN)

    def close(self) -> None:
        """Leave at once."""
        if self._notice in self._endpoint.notices:
            self._endpoint.notices.remove(self._notice)
            if not self._gone:
                self._gone = True
                self._send(WorkerGone(VERSION, "", WORKERS, Worker(self._handler.worker_id)))
            self._stop_hearing()
            self._unwatch()
        if self._pulse is not None:
            self._pulse.cancel()

    def _notice(self, event: Event) -> None:
        if isinstance(event, WorkerAsked):
            if self._gone:
                return
            self._tell(f"inbox.{event.payload.peer}")
        elif isinstance(event, WorkerRegistered) and event.to in ("", self._handler.worker_id):
            self.rejected = event.payload.rejected
            if self._leaving is not None and not self._leaving.done():
                self._leaving.set_result(None)

    def _tell(self, address: str) -> None:
        operations = [describe(self._handler, spec.id) for spec in self._handler.registry.list()]
        limit = None if self._is_hub else self._endpoint.transport.capabilities.max_payload
        parts = split(operations, limit)
        for number, part in enumerate(parts):
            payload = Announced(self._handler.worker_id, self._generation, part, self._pool, number, len(parts))
            self._send(WorkerAnnounced(VERSION, "", address, payload), address)

    def _beat(self) -> None:
        self._say_alive()
        self._pulse = asyncio.get_running_loop().call_later(heartbeat_of(self._endpoint), self._beat)

    def _say_alive(self) -> None:
        behind = tuple(getattr(self._handler.transport, "behind", ()))
        payload = Worker(self._handler.worker_id, self._generation, self._gone, behind)
        self._send(WorkerAlive(VERSION, "", WORKERS, payload))

    def _send(self, event: Event, address: str = WORKERS) -> None:
        self._endpoint.transport.send(address, JSON.encode(event))


def describe(handler: Workplace, operation_id: str) -> dict[str, Any]:
    """A spec as it is announced: as data, with the ways in which the operation can be called."""
    operation = handler.registry.get_operation(operation_id)
    if operation is None:
        return {}
    ways = {"executes": operation.handler is not None, "streams": operation.stream is not None}
    return operation.spec.to_dict() | ways


def split(operations: list[dict[str, Any]], limit: int | None) -> list[list[dict[str, Any]]]:
    """Operations in as few parts as fit in messages of so many bytes, with room for what is around them."""
    if limit is None:
        return [operations]
    parts: list[list[dict[str, Any]]] = [[]]
    room = most = limit - _AROUND
    for operation in operations:
        size = len(encode_json(operation)) + 1
        if size > room and parts[-1]:
            parts.append([])
            room = most
        parts[-1].append(operation)
        room -= size
    return parts


class Lifeline:
    """Fails what waits for a worker that gives no sign of life, on a bus that would not tell.

    A worker says within a fraction of a second that it has a call. A call that nobody has after three heartbeats went
    to a worker that was lost; unless workers that live say that they are behind, for then it may still lie at the bus.
    Workers are listened to only while something waits: else each of many workers, which call nobody, would hear all
    others for nothing.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._seen: dict[str, float] = {}
        self._behind: dict[str, float] = {}
        self.timer: asyncio.TimerHandle | None = None
        """When it looks next; None while nothing waits."""
        self._stop_hearing: Stop | None = None
        endpoint.notices.append(self._notice)

    def watch(self) -> None:
        """Look after what waits, until nothing does."""
        if self.timer is None:
            if self._stop_hearing is None:
                self._stop_hearing = self._endpoint.hear(WORKERS)
            self.timer = asyncio.get_running_loop().call_later(heartbeat_of(self._endpoint), self._check)

    def _notice(self, event: Event) -> None:
        if isinstance(event, (WorkerAlive, WorkerAnnounced, WorkerGone)):
            # One that leaves finishes what it has, and goes on saying that it lives.
            now = self._seen[event.payload.worker_id] = asyncio.get_running_loop().time()
            if isinstance(event, WorkerAlive):
                self._behind.update(dict.fromkeys(event.payload.behind, now))

    def _check(self) -> None:
        self.timer = None
        oldest = asyncio.get_running_loop().time() - heartbeat_of(self._endpoint) * LOST_AFTER
        for table in (self._seen, self._behind):
            for name in [name for name, heard in table.items() if heard < oldest]:
                del table[name]
        for waiting in list(self._endpoint.waiting.values()):
            heard = self._seen.get(waiting.worker) if waiting.worker is not None else self._progress(waiting)
            if max(heard or 0.0, waiting.since) < oldest:
                waiting.failed(unavailable(waiting.operation_id, "the worker gives no sign of life", "unknown"))
        if self._endpoint.waiting:
            self.watch()
        elif self._stop_hearing is not None:
            self._stop_hearing()
            self._stop_hearing = None

    def _progress(self, waiting: Waiting) -> float | None:
        """When it was last heard that a call which nobody has may still lie at the bus."""
        return self._behind.get(waiting.operation_id.rpartition(".")[0])


def lifeline_of(endpoint: Endpoint) -> Lifeline:
    """The one lifeline of an endpoint."""
    if not isinstance(endpoint.lifeline, Lifeline):
        endpoint.lifeline = Lifeline(endpoint)
    return endpoint.lifeline


class Directory:
    """Who offers what, as far as this end was told."""

    def __init__(self, endpoint: Endpoint, changed: Callable[[str, Announced | None], None]) -> None:
        self._endpoint = endpoint
        self._changed = changed
        self._seen: dict[str, float] = {}
        self._known: dict[str, Announced] = {}
        self._parts: dict[str, list[Announced]] = {}
        self._stop_hearing = endpoint.hear(WORKERS)
        self._unwatch = endpoint.transport.watch(self.ask, self._lost)
        self._timer: asyncio.TimerHandle | None = None
        endpoint.notices.append(self._notice)
        if not endpoint.transport.capabilities.tracks_peers:
            self._expire_silent()

    def ask(self) -> None:
        """Ask every worker what it offers."""
        event = WorkerAsked(VERSION, "", ASKS, Asked(self._endpoint.peer))
        self._endpoint.transport.send(ASKS, JSON.encode(event))

    def close(self) -> None:
        """Follow nothing any more."""
        self._endpoint.notices.remove(self._notice)
        self._stop_hearing()
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _notice(self, event: Event) -> None:
        if isinstance(event, WorkerAnnounced):
            announced = self._join(event.payload)
            if announced is not None:
                self._announced(announced)
        elif isinstance(event, WorkerAlive):
            if event.payload.leaving:
                return
            self._seen[event.payload.worker_id] = asyncio.get_running_loop().time()
            known = self._known.get(event.payload.worker_id)
            if known is None or known.generation < event.payload.generation:
                self.ask()
        elif isinstance(event, WorkerGone):
            self._remove(event.payload.worker_id)

    def _join(self, announced: Announced) -> Announced | None:
        """The whole announcement, once its last part is here; parts of one generation come in order."""
        if announced.parts <= 1:
            return announced
        parts = self._parts.pop(announced.worker_id, [])
        if announced.part != len(parts) or any(part.generation != announced.generation for part in parts):
            parts = []
        if announced.part == len(parts):
            parts.append(announced)
            if len(parts) < announced.parts:
                self._parts[announced.worker_id] = parts
                return None
            operations = [operation for part in parts for operation in part.operations]
            return msgspec.structs.replace(announced, operations=operations, part=0, parts=1)
        return None

    def _announced(self, announced: Announced) -> None:
        known = self._known.get(announced.worker_id)
        if known is not None and announced.generation < known.generation:
            self._endpoint.counters.dropped += 1
            return
        self._seen[announced.worker_id] = asyncio.get_running_loop().time()
        self._known[announced.worker_id] = announced
        if known is None or msgspec.structs.replace(known, generation=announced.generation) != announced:
            self._changed(announced.worker_id, announced)

    def _remove(self, worker_id: str) -> None:
        self._seen.pop(worker_id, None)
        self._parts.pop(worker_id, None)
        if self._known.pop(worker_id, None) is not None:
            self._changed(worker_id, None)

    def _lost(self, reason: str) -> None:
        for worker_id in list(self._known):
            self._remove(worker_id)

    def _expire_silent(self) -> None:
        loop = asyncio.get_running_loop()
        heartbeat = heartbeat_of(self._endpoint)
        oldest = loop.time() - heartbeat * LOST_AFTER
        for worker_id, seen in list(self._seen.items()):
            if seen < oldest:
                self._remove(worker_id)
        self._timer = loop.call_later(heartbeat, self._expire_silent)
