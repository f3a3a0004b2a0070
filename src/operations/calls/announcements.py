"""Announcements: workers announce their operations and send heartbeats; callers keep a directory of workers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import msgspec

from operations import __version__
from operations.calls.addresses import ASKS, WORKERS
from operations.calls.codec import JSON, MSGPACK, UNREADABLE, part_reader
from operations.calls.endpoint import Endpoint
from operations.calls.events import (
    MOST_NAMESPACES,
    VERSION,
    AnnouncementPayload,
    AskPayload,
    Event,
    WorkerAlive,
    WorkerAnnounced,
    WorkerAsked,
    WorkerGone,
    WorkerPayload,
    WorkerRegistered,
)
from operations.calls.liveness import LOST_AFTER
from operations.errors import CallError, ErrorCode
from operations.pubsub import Flushes, InProcess, ReportsBacklog
from operations.spec import Operation
from operations.wire import encode_json

T = TypeVar("T")
_log = logging.getLogger("operations")
_ACKNOWLEDGED_WITHIN = 2.0
"""Longest time in seconds for which a leaving worker waits for the hub's confirmation."""
_ANSWER_SECONDS = 0.05
"""Share of each second that may be spent on announcements to single peers that request one.

When this time is used up, further peers wait until the end of the second. Then one announcement is sent to all peers.
"""
_MOST_WORKERS = 10_000
_MOST_OPERATIONS = 100_000
_MOST_BYTES = 128 << 20
"""Limits of `WorkerDirectory`: the number of workers, and the total number and bytes of their specs.

On Redis, any caller can send announcements.
"""
OVERHEAD = 1_024
"""Bytes of an announcement's message that are reserved for everything except the specs."""


class Announcer:
    """Announces the operations of one worker: at the start, on changes, on request, and after a reconnect."""

    def __init__(
        self,
        served: Callable[[], list[Operation[Any]]],
        endpoint: Endpoint,
        *,
        pool: bool,
        slots: int,
        load: Callable[[], tuple[int, int, int]],
    ) -> None:
        transport = endpoint.transport
        self._slots = slots
        self._load = load
        """Returns three numbers of calls: running or waiting, ended, and failed."""
        self.worker_id = f"{endpoint.peer}.{os.urandom(4).hex()}"
        self.rejected: Mapping[str, str] = {}
        """The operations that the hub rejected, each with the reason."""
        self._served = served
        self._endpoint = endpoint
        self._transport = transport
        self._pool = pool
        self._generation = 0
        self._unconfirmed = 0
        """Number of announcements that the hub has not confirmed yet."""
        self._confirmed: asyncio.Event = asyncio.Event()
        self._is_gone = False
        self._pulse: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        """Timer for the end of the second in which `_answer_seconds` is counted."""
        self._answer_seconds = 0.0
        """Seconds spent on announcements to single peers since the timer `_answer_timer` started."""
        self._is_answer_due = False
        """Whether a peer got no announcement because `_answer_seconds` exceeds `_ANSWER_SECONDS`."""
        self._stop_listening = endpoint.listen(ASKS)
        endpoint.notice_handlers.append(self._notice)
        # Announce before pending calls are sent again: until it has the announcement, a hub lets this peer call without
        # a grant.
        endpoint.before_resending.append(self._announce_again)
        self._is_hub = transport.capabilities.identity == "hub"

    def start_heartbeats(self) -> None:
        """Send heartbeats, on a transport that does not report lost peers."""
        if not self._transport.capabilities.tracks_peers:
            self._beat()

    def announce(self) -> None:
        """Announce the operations.

        If the transport stays within one process, send only a heartbeat. Callers that receive the heartbeat request the
        announcement.
        """
        self._generation += 1
        if self._transport.optional(InProcess) is not None:
            self._send_alive()
            return
        self._confirmed.clear()
        self._unconfirmed += 1
        self._send_operations(WORKERS)

    async def registered(self, timeout: float | None) -> None:
        """Wait until the hub or bus has confirmed the last announcement; return immediately if a bus is not connected.

        Raise `TIMEOUT` after `timeout` seconds, and `ACCESS_DENIED` if the hub rejected an operation.
        """
        flushes = self._transport.optional(Flushes)
        try:
            async with asyncio.timeout(timeout):
                if self._is_hub:
                    await self._confirmed.wait()
                elif flushes is not None:  # afterwards the server has also processed the worker's subscriptions
                    await flushes.flush()
        except TimeoutError:
            details = {"executed": "no", "workerId": self.worker_id}
            message = f"the {'hub' if self._is_hub else 'bus'} did not confirm the registration within {timeout:g} s"
            raise CallError(ErrorCode.TIMEOUT, message, details) from None
        if self.rejected:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.rejected.items())
            message = f"the hub rejected {len(self.rejected)} operation{'s' * (len(self.rejected) > 1)}: {reasons}"
            raise CallError(ErrorCode.ACCESS_DENIED, message, {"rejected": dict(self.rejected)})

    async def leave(self, within: float) -> None:
        """Announce that this worker accepts no more requests.

        Wait for the confirmation of a hub, at most `within` seconds and at most `_ACKNOWLEDGED_WITHIN`.
        """
        if self._is_gone:
            return
        self._is_gone = True
        self._confirmed.clear()
        self._unconfirmed += 1  # confirmations of earlier announcements may still arrive
        self._send(WorkerGone(VERSION, "", WORKERS, WorkerPayload(self.worker_id)))
        if self._is_hub:
            try:
                await asyncio.wait_for(self._confirmed.wait(), min(within, _ACKNOWLEDGED_WITHIN))
            except TimeoutError:
                _log.info("the hub did not confirm that this worker leaves")

    def close(self) -> None:
        """Announce that the worker leaves, and stop sending and listening immediately."""
        if self._notice in self._endpoint.notice_handlers:
            self._endpoint.notice_handlers.remove(self._notice)
            if not self._is_gone:
                self._is_gone = True
                self._send(WorkerGone(VERSION, "", WORKERS, WorkerPayload(self.worker_id)))
            self._stop_listening()
            self._endpoint.before_resending.remove(self._announce_again)
        for timer in (self._pulse, self._answer_timer):
            if timer is not None:
                timer.cancel()

    def _announce_again(self) -> None:
        self._unconfirmed = 0  # the confirmations of earlier announcements are lost
        self.announce()

    def _notice(self, event: Event) -> None:
        if isinstance(event, WorkerAsked):
            if not self._is_gone:
                self._answer(event.payload.peer)
        elif isinstance(event, WorkerRegistered) and event.to in ("", self.worker_id):
            self._note_registered({**event.payload.rejected, **self._expand(event.payload.refused)})

    def _answer(self, peer: str) -> None:
        """Send a peer the announcement; limit the time for that, because a peer of a bus may request it very often."""
        if self._answer_timer is None:
            self._answer_timer = asyncio.get_running_loop().call_later(1.0, self._end_second)
        if self._answer_seconds > _ANSWER_SECONDS:
            self._is_answer_due = True
            return
        began = time.perf_counter()
        self._send_operations(f"inbox.{peer}")
        self._answer_seconds += time.perf_counter() - began

    def _end_second(self) -> None:
        is_due, self._is_answer_due = self._is_answer_due, False
        self._answer_timer, self._answer_seconds = None, 0.0
        if is_due and not self._is_gone:
            self._send_operations(WORKERS)

    def _expand(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Return the reasons for rejections by operation id, from the reasons by namespace that the hub sent."""
        return {
            operation.id: reason
            for name, reason in refused.items()
            for operation in self._served()
            if name == "*" or f"{operation.spec.namespace}.".startswith(f"{name}.")
        }

    def _note_registered(self, rejected: Mapping[str, str]) -> None:
        for operation_id, reason in rejected.items():
            if self.rejected.get(operation_id) != reason:
                _log.warning("the hub rejected %s: %s", operation_id, reason)
        self.rejected = rejected
        self._unconfirmed -= 1
        if self._unconfirmed <= 0:
            self._unconfirmed = 0
            self._confirmed.set()

    def _send_operations(self, address: str) -> None:
        served = [] if self._is_gone else self._served()  # a worker that leaves announces none if it reconnects
        namespaces = listed_namespaces(operation.spec.namespace for operation in served)
        operations = [describe(operation) for operation in served]
        limit = None if self._is_hub else self._transport.capabilities.max_payload
        parts = split(operations, lambda described: len(encode_json(described)), limit)
        for number, part in enumerate(parts):
            payload = AnnouncementPayload(
                self.worker_id,
                self._generation,
                msgspec.Raw(msgspec.json.encode(part)),
                self._pool,
                number,
                len(parts),
                slots=self._slots,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=__version__,
            )
            self._send(WorkerAnnounced(VERSION, self.worker_id, address, payload, namespaces), address)

    def _beat(self) -> None:
        self._send_alive()
        heartbeat = self._transport.capabilities.heartbeat
        self._pulse = asyncio.get_running_loop().call_later(heartbeat, self._beat)

    def _send_alive(self) -> None:
        reports = self._transport.optional(ReportsBacklog)
        backlog = () if reports is None else tuple(reports.backlog())
        payload = WorkerPayload(self.worker_id, self._generation, self._is_gone, backlog, *self._load())
        self._send(WorkerAlive(VERSION, "", WORKERS, payload))

    def _send(self, event: Event, address: str = WORKERS) -> None:
        self._transport.send(address, JSON.encode(event))


def listed_namespaces(namespaces: Iterable[str]) -> tuple[str, ...]:
    """Return the namespaces that an announcement lists, at most `MOST_NAMESPACES`.

    If there are more, return only the first part of each name; if these are also too many, return `*` (any namespace).
    """
    found = set(namespaces)
    if len(found) > MOST_NAMESPACES:
        found = {namespace.partition(".")[0] for namespace in found}
    return tuple(sorted(found)) if len(found) <= MOST_NAMESPACES else ("*",)


def describe(operation: Operation[Any]) -> dict[str, Any]:
    """Return the spec of an operation as data, including whether it can be called and whether it is a stream."""
    modes = {"executes": operation.handler is not None, "streams": operation.stream is not None}
    return operation.spec.to_dict() | modes


def split(operations: list[T], size_of: Callable[[T], int], limit: int | None) -> list[list[T]]:
    """Split operations into parts that each fit in a message of `limit` bytes; without a limit, return one part.

    An operation that is larger than the limit is a separate part.
    """
    if limit is None:
        return [operations]
    parts: list[list[T]] = [[]]
    room = most = limit - OVERHEAD
    for operation in operations:
        size = size_of(operation) + 1
        if size > room and parts[-1]:
            parts.append([])
            room = most
        parts[-1].append(operation)
        room -= size
    return parts


def read_specs(announced: AnnouncementPayload) -> list[dict[str, Any]]:
    """Decode the specs of an announcement; raise an exception of `UNREADABLE` if they cannot be decoded."""
    encoded = bytes(announced.operations)
    return _read_specs(announced.operations, JSON if encoded[:1] == b"[" else MSGPACK)


_read_specs = part_reader(list[dict[str, Any]])


class _KnownWorker(NamedTuple):
    """The parts of an announcement that `WorkerDirectory` stores."""

    generation: int
    digest: bytes
    """A hash of the specs."""
    number: int
    size: int
    """Number and bytes of the specs."""


_UNKNOWN = _KnownWorker(-1, b"", 0, 0)


class WorkerDirectory:
    """The workers whose announcements this process has received.

    `changed` is called with the id and the specs of a worker when its specs change; without specs when it is gone.
    """

    def __init__(self, endpoint: Endpoint, changed: Callable[[str, Sequence[dict[str, Any]]], None]) -> None:
        self._endpoint = endpoint
        self._changed = changed
        self._silent: dict[str, int] = {}
        """Number of heartbeat intervals of this process since the last message of each worker.

        A number of seconds would include time in which this process was stopped or busy and read no messages.
        """
        self._known: dict[str, _KnownWorker] = {}
        self._parts: dict[str, tuple[list[AnnouncementPayload], int]] = {}
        """The parts of each worker's incomplete announcement, and their size."""
        self._count = self._size = 0
        """Number and bytes of the specs of all known workers; the bytes of incomplete announcements count as well."""
        self._stop_listening = endpoint.listen(WORKERS)
        self._unwatch = endpoint.transport.watch(self.ask, self._lost)
        self._timer: asyncio.TimerHandle | None = None
        endpoint.notice_handlers.append(self._notice)
        if not endpoint.transport.capabilities.tracks_peers:
            self._expire_silent()

    def ask(self) -> None:
        """Request an announcement from every worker."""
        event = WorkerAsked(VERSION, "", ASKS, AskPayload(self._endpoint.peer))
        self._endpoint.transport.send(ASKS, JSON.encode(event))

    def close(self) -> None:
        """Stop following announcements."""
        self._endpoint.notice_handlers.remove(self._notice)
        self._stop_listening()
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()

    def _notice(self, event: Event) -> None:
        if isinstance(event, WorkerAnnounced):
            parts = self._join(event.payload)
            if parts:
                self._announced(event.payload, parts)
        elif isinstance(event, WorkerAlive):
            if event.payload.leaving or not self._hear(event.payload.worker_id):
                return
            known = self._known.get(event.payload.worker_id)
            if known is None or known.generation < event.payload.generation:
                self.ask()
        elif isinstance(event, WorkerGone):
            self._remove(event.payload.worker_id)

    def _hear(self, worker_id: str) -> bool:
        """Store that a worker is alive; return False, to ignore the message, if there are too many workers."""
        if worker_id not in self._silent and len(self._silent) >= _MOST_WORKERS:
            self._endpoint.counters.rejected += 1
            return False
        self._silent[worker_id] = 0
        return True

    def _join(self, announced: AnnouncementPayload) -> Sequence[AnnouncementPayload]:
        """Return all parts of an announcement if `announced` is the last one, otherwise none; parts arrive in order."""
        if announced.parts <= 1:
            return (announced,)
        if not self._hear(announced.worker_id):  # incomplete announcements expire
            return ()
        parts, size = self._take_parts(announced.worker_id)
        if announced.part != len(parts) or (parts and parts[0].generation != announced.generation):
            parts, size = [], 0
        if announced.part != len(parts):
            return ()
        parts.append(announced)
        if len(parts) == announced.parts:
            return parts
        size += memoryview(announced.operations).nbytes + OVERHEAD
        if self._size + size > _MOST_BYTES:
            self._endpoint.counters.rejected += 1
            return ()
        self._parts[announced.worker_id] = parts, size
        self._size += size
        return ()

    def _take_parts(self, worker_id: str) -> tuple[list[AnnouncementPayload], int]:
        """Remove and return the parts of an incomplete announcement, and their size."""
        parts, size = self._parts.pop(worker_id, ([], 0))
        self._size -= size
        return parts, size

    def _announced(self, announced: AnnouncementPayload, parts: Sequence[AnnouncementPayload]) -> None:
        worker_id, generation = announced.worker_id, announced.generation
        known = self._known.get(worker_id, _UNKNOWN)
        if generation < known.generation:
            self._endpoint.counters.dropped += 1
            return
        if not self._hear(worker_id):
            return
        size = sum(memoryview(part.operations).nbytes for part in parts)
        digest = blake2b(b"".join(bytes(part.operations) for part in parts), digest_size=16).digest()
        if digest == known.digest:
            self._known[worker_id] = known._replace(generation=generation)
            return
        try:
            specs = [spec for part in parts for spec in read_specs(part)]
        except UNREADABLE:
            self._endpoint.counters.malformed += 1
            return
        count, total = self._count + len(specs) - known.number, self._size + size - known.size
        if count > _MOST_OPERATIONS or total > _MOST_BYTES:
            self._endpoint.counters.rejected += 1
            return
        self._known[worker_id] = _KnownWorker(generation, digest, len(specs), size)
        self._count, self._size = count, total
        self._changed(worker_id, specs)

    def _remove(self, worker_id: str) -> None:
        self._silent.pop(worker_id, None)
        self._take_parts(worker_id)
        known = self._known.pop(worker_id, None)
        if known is not None:
            self._count -= known.number
            self._size -= known.size
            self._changed(worker_id, ())

    def _lost(self, reason: str) -> None:
        for worker_id in list(self._known):
            self._remove(worker_id)

    def _expire_silent(self) -> None:
        for worker_id, beats in list(self._silent.items()):
            self._silent[worker_id] = beats + 1
            if beats >= LOST_AFTER:
                self._remove(worker_id)
        heartbeat = self._endpoint.transport.capabilities.heartbeat
        self._timer = asyncio.get_running_loop().call_later(heartbeat, self._expire_silent)
