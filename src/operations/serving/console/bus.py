"""BusWorkers: the workers on Redis and NATS that announce themselves to this process, for the console."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from operations.calls.addresses import ASKS, WORKERS
from operations.calls.announcements import read_specs
from operations.calls.codec import JSON, UNREADABLE
from operations.calls.endpoint import Endpoint
from operations.calls.events import (
    VERSION,
    AnnouncementPayload,
    AskPayload,
    Event,
    WorkerAlive,
    WorkerAnnounced,
    WorkerAsked,
    WorkerGone,
    WorkerPayload,
)
from operations.calls.liveness import LOST_AFTER
from operations.pubsub import Stop
from operations.serving.console.workers import MOST_SLOTS, Load, State, WorkerState

_LOST_SECONDS = 300.0
_MOST_WORKERS = 1_000
_MOST_OPERATIONS = 10_000
_LONGEST_ID = 128
_LONGEST_TEXT = 100
_STEP = 10
_STEPS = 30
"""Number of steps, each of `_STEP` seconds, for which the calls of a worker are counted."""
_MOST_CALLS = 1 << 32


class _KnownWorker(msgspec.Struct, eq=False):
    """A worker that announced itself; times are epoch seconds."""

    name: str
    since: float
    heard_at: float
    operations: frozenset[str] = frozenset()
    generation: int = -1
    in_flight: int = 0
    slots: int = 0
    finished: int = 0
    failed: int = 0
    is_counted: bool = False
    steps: dict[int, tuple[int, int]] = {}
    """The number of calls and of failures in each 10-second step, by the number of the step."""
    is_behind: bool = False
    is_leaving: bool = False
    host: str = ""
    pid: int | None = None
    version: str = ""


class BusWorkers:
    """The workers of one bus, as their announcements and heartbeats report them.

    The announcements are not verified: every user who may publish on the bus can announce a worker.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport = type(endpoint.transport).__name__.removesuffix("Transport").lower()
        self._silence = endpoint.transport.capabilities.heartbeat * LOST_AFTER
        self._known: dict[str, _KnownWorker] = {}
        self._names: dict[str, int] = {}
        self._stop_listening: Stop = endpoint.listen(WORKERS)
        endpoint.notice_handlers.append(self._notice)
        self._asked_at = 0.0
        self._ask()

    def close(self) -> None:
        """Stop listening."""
        self._endpoint.notice_handlers.remove(self._notice)
        self._stop_listening()

    def states(self) -> Iterable[WorkerState]:
        """Return the workers that send heartbeats, and those that stopped a short time ago without leaving."""
        now = time.time()
        for worker_id, known in list(self._known.items()):
            silent = now - known.heard_at
            if silent > self._silence and (known.is_leaving or silent > self._silence + _LOST_SECONDS):
                del self._known[worker_id]
            elif known.generation >= 0:
                yield self._describe(known, is_lost=silent > self._silence)

    def _describe(self, known: _KnownWorker, *, is_lost: bool) -> WorkerState:
        is_full = known.is_behind or 0 < known.slots <= known.in_flight
        state: State = "draining" if known.is_leaving else "saturated" if is_full else "ready"
        return WorkerState(
            name=known.name,
            kind="worker",
            transport=self._transport,
            state="lost" if is_lost else state,
            in_flight=0 if is_lost else known.in_flight,
            operations=frozenset() if is_lost else known.operations,
            since=known.since * 1000,
            slots=known.slots or None,
            host=known.host or None,
            pid=known.pid,
            version=known.version or None,
            lost_at=known.heard_at * 1000 if is_lost else None,
            reason="no heartbeats" if is_lost else None,
            load=self._load(known),
        )

    def _load(self, known: _KnownWorker) -> Load:
        last = int(time.time()) // _STEP
        rates = [known.steps.get(number, (0, 0))[0] for number in range(last - _STEPS, last)]
        minute = [known.steps.get(number, (0, 0)) for number in range(last - 6, last)]
        calls = sum(each[0] for each in minute)
        seconds = max(1.0, min(60.0, time.time() - known.since))
        return Load(calls / seconds, sum(each[1] for each in minute) / calls if calls else 0.0, rates)

    def _notice(self, event: Event) -> None:
        if isinstance(event, WorkerAnnounced):
            self._announced(event.payload)
        elif isinstance(event, WorkerAlive):
            self._alive(event.payload)
        elif isinstance(event, WorkerGone) and (known := self._known.get(event.payload.worker_id)) is not None:
            known.is_leaving = True

    def _announced(self, payload: AnnouncementPayload) -> None:
        known = self._find(payload.worker_id)
        if known is None or payload.generation < known.generation:
            return
        try:
            specs = read_specs(payload)
        except UNREADABLE:
            return
        ids = [_id_of(operation) for operation in specs[:_MOST_OPERATIONS]]
        if not known.name:
            self._name(known, ids, payload.host)
        kept = known.operations if payload.part > 0 and payload.generation == known.generation else frozenset[str]()
        known.operations = kept.union(ids) if len(kept) < _MOST_OPERATIONS else kept
        known.generation, known.is_leaving = payload.generation, False
        known.slots = payload.slots if 0 < payload.slots <= MOST_SLOTS else 0
        known.host, known.version = payload.host[:_LONGEST_TEXT], payload.version[:_LONGEST_TEXT]
        known.pid = payload.pid

    def _alive(self, payload: WorkerPayload) -> None:
        known = self._find(payload.worker_id)
        if known is not None:
            known.in_flight = max(0, min(payload.in_flight, MOST_SLOTS))
            known.is_behind, known.is_leaving = bool(payload.behind), payload.leaving
            self._count(known, payload)
            if payload.generation > known.generation and not payload.leaving:
                self._ask()

    def _count(self, known: _KnownWorker, payload: WorkerPayload) -> None:
        """Count the calls that ended since the last heartbeat.

        The first heartbeat adds no calls: later heartbeats are compared with its totals.
        """
        number = int(time.time()) // _STEP
        calls, failures = payload.finished - known.finished, payload.failed - known.failed
        if known.is_counted and 0 <= failures <= calls <= _MOST_CALLS:
            before = known.steps.get(number, (0, 0))
            known.steps[number] = before[0] + calls, before[1] + failures
        known.finished, known.failed, known.is_counted = payload.finished, payload.failed, True
        while len(known.steps) > _STEPS + 1:
            del known.steps[next(iter(known.steps))]

    def _ask(self) -> None:
        """Ask the workers to announce themselves, at most once a second."""
        now = time.time()
        if now - self._asked_at >= 1.0:
            self._asked_at = now
            question = WorkerAsked(VERSION, "", ASKS, AskPayload(self._endpoint.peer))
            self._endpoint.transport.send(ASKS, JSON.encode(question))

    def _find(self, worker_id: str) -> _KnownWorker | None:
        """Return the worker that sent a message, and add a new worker to the known ones.

        Return None if the id is too long, or if there are `_MOST_WORKERS` known workers that send heartbeats.
        """
        known = self._known.get(worker_id)
        now = time.time()
        if known is None:
            if len(worker_id) > _LONGEST_ID:
                return None
            if len(self._known) >= _MOST_WORKERS:
                silent = next((name for name, each in self._known.items() if now - each.heard_at > self._silence), None)
                if silent is None:
                    return None
                del self._known[silent]
            known = self._known[worker_id] = _KnownWorker("", now, now)
        known.heard_at = now
        return known

    def _name(self, known: _KnownWorker, ids: Iterable[str], host: str) -> None:
        """Name a worker by its only namespace (`shop-1`), or else by its host (`node-a-2`) or the transport."""
        namespaces = {each.partition(".")[0] for each in ids}
        base = namespaces.pop() if len(namespaces) == 1 else host or self._transport
        base = base[:_LONGEST_TEXT]
        if len(self._names) >= _MOST_WORKERS and base not in self._names:
            self._names.clear()
        number = self._names[base] = self._names.get(base, 0) + 1
        known.name = f"{base}-{number}"


def _id_of(operation: dict[str, object]) -> str:
    return f"{operation.get('namespace', '')}.{operation.get('name', '')}"[:256]


class Buses:
    """The workers of every bus that a registry uses, for remote operations or to store jobs."""

    def __init__(self, endpoints: Callable[[], Iterable[Endpoint]]) -> None:
        self._endpoints = endpoints
        self._buses: dict[Endpoint, BusWorkers] = {}

    def find(self) -> None:
        """Start to listen to buses that were added since the last call."""
        for endpoint in self._endpoints():
            if endpoint not in self._buses and not endpoint.transport.capabilities.tracks_peers:
                self._buses[endpoint] = BusWorkers(endpoint)

    def states(self) -> Iterable[WorkerState]:
        """Return the workers of every bus."""
        self.find()
        for bus in self._buses.values():
            yield from bus.states()

    def close(self) -> None:
        """Stop listening."""
        for bus in self._buses.values():
            bus.close()
        self._buses.clear()
