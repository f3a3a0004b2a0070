"""Liveness: detects lost workers by missing heartbeats, on a bus that does not report lost peers."""

from __future__ import annotations

import asyncio
import random

from operations.calls.addresses import WORKERS
from operations.calls.endpoint import Endpoint
from operations.calls.events import Event, WorkerAlive, WorkerAnnounced, WorkerGone
from operations.calls.requests import PendingRequest
from operations.failures import unavailable
from operations.pubsub import Stop

LOST_AFTER = 3
"""Number of missing heartbeats after which a worker counts as lost."""
_ALIVE_WITHIN = 1.5
"""A repeated request is sent directly to workers whose last message arrived within this many heartbeat intervals."""
_LONGEST_NAME = 256
_MOST_NAMES = 10_000
"""Limits of the names that are kept.

`_LONGEST_NAME` is the number of characters of a namespace, `_MOST_NAMES` the number of workers and of namespaces.
"""


class LivenessMonitor:
    """Fails calls whose worker sends no heartbeats.

    A worker accepts a call within a fraction of a second. A call that no worker accepts counts as lost after three
    heartbeat intervals; a call with `retry` counts as lost already after half of its time limit, if that is sooner.
    While workers report a backlog for a namespace, calls of that namespace do not count as lost, because their requests
    may still wait at the bus.

    The monitor listens to heartbeats only while calls are pending, so that idle peers do not receive the heartbeats of
    all workers.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._seen: dict[str, float] = {}
        self._backlog: dict[str, float] = {}
        self.timer: asyncio.TimerHandle | None = None
        """The timer of the next check; None while no call is pending."""
        self._due = 0.0
        self._stop_listening: Stop | None = None
        endpoint.notice_handlers.append(self._notice)

    def watch(self) -> None:
        """Check pending calls regularly until there are none."""
        if self.timer is None:
            if self._stop_listening is None:
                self._stop_listening = self._endpoint.listen(WORKERS)
            heartbeat = self._endpoint.transport.capabilities.heartbeat
            self.timer = asyncio.get_running_loop().call_later(heartbeat, self._check)
            self._due = self.timer.when()

    def _notice(self, event: Event) -> None:
        if isinstance(event, (WorkerAlive, WorkerAnnounced, WorkerGone)):
            # A worker that leaves finishes its calls and keeps sending heartbeats.
            now = asyncio.get_running_loop().time()
            _note(self._seen, event.payload.worker_id, now)
            if isinstance(event, WorkerAlive):
                for namespace in event.payload.behind:
                    _note(self._backlog, namespace[:_LONGEST_NAME], now)

    def live_peers(self) -> list[str]:
        """Return the peers whose workers sent a message within `_ALIVE_WITHIN` heartbeat intervals, in random order."""
        oldest = asyncio.get_running_loop().time() - self._endpoint.transport.capabilities.heartbeat * _ALIVE_WITHIN
        peers = list(
            {worker_id.rpartition(".")[0] for worker_id, last_seen in self._seen.items() if last_seen > oldest}
        )
        random.shuffle(peers)
        return peers

    def _check(self) -> None:
        self.timer = None
        now, heartbeat = asyncio.get_running_loop().time(), self._endpoint.transport.capabilities.heartbeat
        if now - self._due > heartbeat:
            self.watch()  # this process was stopped or busy, and has not read the heartbeats of that time
            return
        oldest = now - heartbeat * LOST_AFTER
        for table in (self._seen, self._backlog):
            for name in [name for name, last_seen in table.items() if last_seen < oldest]:
                del table[name]
        for pending in list(self._endpoint.pending.values()):
            last_seen = self._seen.get(pending.worker) if pending.worker is not None else self._last_backlog(pending)
            is_accepted = pending.worker is not None or last_seen is not None
            limit = oldest if is_accepted else max(oldest, now - pending.patience)
            if max(last_seen or 0.0, pending.since) < limit:
                pending.failed(unavailable(pending.operation_id, "the worker sends no heartbeats", "unknown"))
        if self._endpoint.pending:
            self.watch()
        elif self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _last_backlog(self, pending: PendingRequest) -> float | None:
        """Return when a worker last reported a backlog in the call's namespace; None if no worker did."""
        return self._backlog.get(pending.operation_id.rpartition(".")[0])


def _note(table: dict[str, float], name: str, now: float) -> None:
    """Store the time for a name, unless the table is full: on Redis, any caller can send heartbeats under any name."""
    if name in table or len(table) < _MOST_NAMES:
        table[name] = now


def liveness_of(endpoint: Endpoint) -> LivenessMonitor:
    """Return the liveness monitor of an endpoint; create it on the first call."""
    if not isinstance(endpoint.liveness, LivenessMonitor):
        endpoint.liveness = LivenessMonitor(endpoint)
    return endpoint.liveness
