"""Workers: the processes that run the calls, and their load."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import msgspec

from operations.dispatch import Dispatcher
from operations.serving.console.rights import Viewer
from operations.telemetry.time_series import TimeSeries

MOST_SLOTS = 1_000_000
"""Largest number of slots that a worker may announce; larger numbers are ignored."""
State = Literal["ready", "saturated", "draining", "lost"]


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """One worker; unknown fields are None."""

    name: str
    kind: Literal["server", "spoke", "worker"]
    transport: str
    state: State
    in_flight: int
    operations: frozenset[str] | None
    """The ids of the operations that the worker offers; None for all served operations."""
    since: float
    """Time at which the worker connected, in epoch milliseconds."""
    slots: int | None = None
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    lost_at: float | None = None
    reason: str | None = None
    load: Load | None = None
    """The load that the worker reports; None if all of its calls are recorded here."""


class Load(msgspec.Struct, frozen=True):
    """The calls of a worker: `rate` per second and `error_rate` (0 to 1) in the last minute.

    `rates` are the numbers of calls in each 10 seconds of the last 5 minutes.
    """

    rate: float
    error_rate: float
    rates: list[int]


class Workers(Protocol):
    """The workers of a server."""

    def states(self) -> Iterable[WorkerState]:
        """Return every worker, and those that were lost a short time ago."""


class OwnProcess:
    """This process as a worker."""

    def __init__(self, name: str, dispatchers: Callable[[], Iterable[Dispatcher]], *, slots: int, version: str) -> None:
        self.name = name
        self.is_draining = False
        self._dispatchers = dispatchers
        self._slots = slots
        self._version = version
        self._host = socket.gethostname()
        self._since = time.time() * 1000

    def states(self) -> Iterable[WorkerState]:
        """Return the state of this process."""
        in_flight = sum(dispatcher.in_flight for dispatcher in self._dispatchers())
        is_full = any(dispatcher.slots.free <= 0 for dispatcher in self._dispatchers())
        state: State = "draining" if self.is_draining else "saturated" if is_full else "ready"
        yield WorkerState(
            name=self.name,
            kind="server",
            transport="http",
            state=state,
            in_flight=in_flight,
            operations=None,
            since=self._since,
            slots=self._slots,
            host=self._host,
            pid=os.getpid(),
            version=self._version,
        )


def worker_json(worker: WorkerState, viewer: Viewer, series: TimeSeries) -> dict[str, Any]:
    """Return a worker in the console's format."""
    key = ("worker", worker.name)
    rate, p95, error_rate = series.summary(key)
    rates = series.counts(key)
    if worker.load is not None:
        rate, error_rate, rates = worker.load.rate, worker.load.error_rate, worker.load.rates
    visible = viewer.operations
    offered = visible.keys() if worker.operations is None else worker.operations & visible.keys()
    optional = {
        "slots": worker.slots,
        "p95": p95,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "lostAt": worker.lost_at,
        "reason": worker.reason,
    }
    return {
        "name": worker.name,
        "kind": worker.kind,
        "transport": worker.transport,
        "state": worker.state,
        "inFlight": worker.in_flight,
        "rate": round(rate, 3),
        "errorRate": round(error_rate, 5),
        "rates": rates,
        "operations": len(offered),
        "since": round(worker.since, 3),
        **{name: value for name, value in optional.items() if value is not None},
    }
