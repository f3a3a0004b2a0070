"""Metrics: the names of all metrics, and CallMetrics, which counts and times calls."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol

from operations.telemetry.observer import Call, CallRetried, CallSized, ConnectionChanged, Event, Observation

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of durations, in seconds."""
_MAX_OUTCOMES = 20
UNKNOWN_OPERATION = "_unknown"
"""Label of all unknown operations together, because callers can send any number of unknown ids."""


class Metric(NamedTuple):
    """One metric that is exported."""

    type: Literal["counter", "gauge", "histogram"]
    help: str


METRICS: Mapping[str, Metric] = {
    "operations_calls_total": Metric("counter", "Calls that ended, by operation, kind and outcome."),
    "operations_call_duration_seconds": Metric("histogram", "Duration of calls, by operation and kind."),
    "operations_calls_in_progress": Metric("gauge", "Running calls and streams, by operation and kind."),
    "operations_stream_items_total": Metric("counter", "Items of streams, by operation and kind."),
    "operations_call_retries_total": Metric("counter", "Attempts that failed and were repeated, by operation."),
    "operations_request_bytes_total": Metric("counter", "Bytes of request bodies over HTTP, by operation."),
    "operations_response_bytes_total": Metric("counter", "Bytes of response bodies over HTTP, by operation."),
    "operations_result_mismatches_total": Metric("counter", "Schema problems of results, by operation."),
    "operations_result_removed_total": Metric("counter", "Parts of results that normalising removed, by operation."),
    "operations_handlers_abandoned": Metric("gauge", "Handlers still running after their call ended."),
    "operations_dispatcher_in_flight": Metric("gauge", "Served calls that run or wait for a slot."),
    "operations_dispatcher_waiting": Metric("gauge", "Served calls that wait for a slot."),
    "operations_bus_in_flight": Metric(
        "gauge", "Running and queued calls and streams of a worker, hub or served registry."
    ),
    "operations_bus_late_total": Metric("counter", "Responses received after their call ended."),
    "operations_bus_duplicate_total": Metric("counter", "Duplicate requests and responses."),
    "operations_bus_dropped_total": Metric("counter", "Messages without a matching call, or of an unknown type."),
    "operations_bus_rejected_total": Metric("counter", "Requests rejected unread: too many, too large, not allowed."),
    "operations_bus_malformed_total": Metric("counter", "Messages that are not valid events."),
    "operations_bus_foreign_total": Metric("counter", "Messages with an id or address that their sender may not use."),
    "operations_bus_forged_total": Metric("counter", "Identities claimed in a payload without authentication."),
    "operations_bus_expired_total": Metric("counter", "Requests whose deadline passed before they could run."),
    "operations_bus_dead_lettered_total": Metric("counter", "Stored requests that became dead letters."),
    "operations_bus_unsent_total": Metric(
        "counter", "Messages that could not be sent: there was no connection, or the server would refuse them."
    ),
    "operations_bus_abandoned_total": Metric("counter", "Handlers that ignored cancellation."),
    "operations_transport_reconnects_total": Metric("counter", "Reconnections to a broker or hub."),
    "operations_transport_losses_total": Metric("counter", "Connections to a hub or broker that were lost."),
    "operations_signature_refusals_total": Metric("counter", "Requests refused for their signature, by reason."),
    "operations_audit_failures_total": Metric(
        "counter", "Lines of the audit log not written, or written without the input."
    ),
    "operations_hub_peers": Metric("gauge", "Peers connected to the hub."),
    "operations_interceptor_events_total": Metric("counter", "Events of interceptors, by interceptor and event."),
}
"""Every metric by name."""


class Measure(NamedTuple):
    """The present value of a metric, with labels."""

    name: str
    value: float
    labels: Mapping[str, str] = {}
    buckets: tuple[int, ...] | None = None
    """For a histogram: the cumulative counts of `BUCKETS`; `value` is then the sum of the observed values."""
    observations: int = 0
    """For a histogram: the number of observed values."""


class Measurable(Protocol):
    """An object with metrics, such as a registry, dispatcher, worker, hub or counter."""

    def measures(self) -> Iterable[Measure]:
        """Return the present values of the metrics."""


def measures_of(sources: Iterable[object]) -> Iterator[Measure]:
    """Return the values of all sources that have metrics."""
    for source in sources:
        measures = getattr(source, "measures", None)
        if measures is not None:
            yield from measures()


class CallMetrics:
    """An observer that counts and times calls, by operation and kind (`local` or `served`).

    At most `max_operations` pairs of operation and kind have their own counts. Other pairs, and operations that do not
    exist, are counted as the operation `_unknown`.
    """

    def __init__(self, *, max_operations: int = 10_000) -> None:
        self._max_operations = max_operations
        self._series: dict[tuple[str, str], _Series] = {}
        self._retries: Counter[str] = Counter()
        self._request_bytes: Counter[str] = Counter()
        self._response_bytes: Counter[str] = Counter()
        self._lost = 0

    def note(self, event: Event) -> None:
        """Count retries, sizes and lost connections."""
        if isinstance(event, CallRetried):
            self._retries[self._label(self._retries, event.operation_id)] += 1
        elif isinstance(event, CallSized):
            label = self._label(self._request_bytes, event.operation_id)
            self._request_bytes[label] += event.request_bytes
            self._response_bytes[label] += event.response_bytes
        elif isinstance(event, ConnectionChanged):
            self._lost += not event.is_up

    def _label(self, counts: Counter[str], operation_id: str) -> str:
        """Return `operation_id`; if it is new and `counts` already has the largest number of operations, return
        `_unknown`.
        """
        return operation_id if operation_id in counts or len(counts) < self._max_operations else UNKNOWN_OPERATION

    def begin(self, call: Call) -> Observation:
        """Count a new call as in progress; return the observation that times it."""
        key = call.operation_id if call.spec is not None else UNKNOWN_OPERATION, call.kind
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._max_operations:
                key = UNKNOWN_OPERATION, call.kind
            series = self._series.setdefault(key, _Series())
        series.in_progress += 1
        return _Timed(call, series)

    def measures(self) -> Iterator[Measure]:
        """Return the present values of the metrics."""
        for (operation, kind), series in list(self._series.items()):
            labels = {"operation": operation, "kind": kind}
            for outcome, count in list(series.outcomes.items()):
                yield Measure("operations_calls_total", count, {**labels, "outcome": outcome})
            cumulative, total = [], 0
            for count in series.buckets[:-1]:
                total += count
                cumulative.append(total)
            count = total + series.buckets[-1]
            yield Measure("operations_call_duration_seconds", series.seconds, labels, tuple(cumulative), count)
            yield Measure("operations_calls_in_progress", series.in_progress, labels)
            if series.items:
                yield Measure("operations_stream_items_total", series.items, labels)
        for name, counts in (
            ("operations_call_retries_total", self._retries),
            ("operations_request_bytes_total", self._request_bytes),
            ("operations_response_bytes_total", self._response_bytes),
        ):
            for operation, count in list(counts.items()):
                yield Measure(name, count, {"operation": operation})
        if self._lost:
            yield Measure("operations_transport_losses_total", self._lost)


class _Series:
    """The counts of one operation and kind."""

    __slots__ = ("buckets", "in_progress", "items", "outcomes", "seconds")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.in_progress = 0
        self.items = 0


class _Timed(Observation):
    """One call that is timed."""

    __slots__ = ("_call", "_series")

    def __init__(self, call: Call, series: _Series) -> None:
        self._call = call
        self._series = series

    def end(self, outcome: str, error: BaseException | None) -> None:
        """Add the call to its series."""
        series, seconds = self._series, self._call.seconds
        series.in_progress -= 1
        series.items += self._call.items
        series.seconds += seconds
        series.buckets[bisect_left(BUCKETS, seconds)] += 1
        if outcome not in series.outcomes and len(series.outcomes) >= _MAX_OUTCOMES:
            outcome = "other"  # declared errors may have any code
        series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1
