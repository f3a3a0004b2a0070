"""CallRecords: the last calls of a process, in bounded memory."""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from operations.context import Identity, is_own_request_id
from operations.telemetry.differences import Difference
from operations.telemetry.time_series import TimeSeries
from operations.wire import valid_text

CallKind = Literal["local", "served", "routed"]
Outcome = Literal["ok", "failed", "cancelled"]
Change = Literal["queued", "started", "attempt", "items", "ended"]
Changed = Callable[[Change, "CallRecord"], None]
_MOST_RECORDS = 10_000
_MOST_RUNNING = 20_000
_MOST_BODY_BYTES = 16 << 20
_LONGEST_BODY = 64 << 10
_LONGEST_ID = 128
_LONGEST_NAME = 256
_LONGEST_MESSAGE = 500
_MOST_ATTEMPTS = 20
_ITEMS_SECONDS = 1.0
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_CANCELLED = "ABORTED"


class Attempt(msgspec.Struct, omit_defaults=True, rename="camel"):
    """One attempt of a retried call; times are epoch milliseconds."""

    started_at: float
    ended_at: float | None = None
    code: str | None = None
    status: int | None = None
    delay_ms: float | None = None
    """Delay before the next attempt."""


class CallRecord(msgspec.Struct, eq=False, kw_only=True, gc=False):
    """One call; times are epoch milliseconds, by the clock of this process."""

    number: int
    """Sequence number: each call gets the next one."""
    request_id: str
    trace_id: str
    operation_id: str
    kind: CallKind
    parent_request_id: str | None = None
    caller: str | None = None
    """The name of the caller, by `caller_name`; None for an anonymous caller."""
    protocol: str = ""
    worker: str | None = None
    queued_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    busy_slots: int | None = None
    """Number of slots of the worker, all of which were busy when the call was queued."""
    attempts: list[Attempt] = []
    outcome: Outcome | None = None
    code: str | None = None
    status: int | None = None
    bytes: int | None = None
    label: str | None = None
    streaming: bool = False
    items: int = 0
    message: str | None = None
    items_reported: float = 0.0
    """Time at which the number of items was last reported."""

    @property
    def began_at(self) -> float:
        """Time at which the call was queued or started, whichever was first."""
        return self.queued_at or self.started_at or 0.0


class Bodies(msgspec.Struct, frozen=True):
    """Input and output of a call as JSON, and how the output was normalised; a field is None if it is not stored."""

    input: bytes | None = None
    output: bytes | None = None
    input_bytes: int = 0
    output_bytes: int = 0
    differences: bytes | None = None


class CallRecords:
    """The last calls: all running ones, and a bounded number of ended ones.

    `changed` is called with each change. Strings that callers choose are truncated. Bodies have a separate limit. A
    caller with more than half of the records displaces its own records, never those of other callers.
    """

    def __init__(
        self,
        *,
        series: TimeSeries | None = None,
        max_records: int = _MOST_RECORDS,
        max_body_bytes: int = _MOST_BODY_BYTES,
    ) -> None:
        self.series = series or TimeSeries()
        self.changed: Changed | None = None
        self.dropped = 0
        """Number of calls that were not recorded because too many ran."""
        self.running: dict[int, CallRecord] = {}
        """The calls that run or wait, by number, the oldest first."""
        self._max_records = max_records
        self._max_body_bytes = max_body_bytes
        self._records: OrderedDict[int, CallRecord] = OrderedDict()
        self._of_callers: dict[str | None, dict[int, None]] = {}
        """The numbers of the records of each caller, the oldest first."""
        self._by_id: dict[str, CallRecord] = {}
        self._traces: dict[str, dict[int, CallRecord]] = {}
        self._bodies: OrderedDict[int, Bodies] = OrderedDict()
        self._body_bytes = 0
        self._last = 0
        self._epoch = os.urandom(8).hex()
        """The first half of trace ids that are generated here."""

    def __len__(self) -> int:
        return len(self._records)

    def add(
        self,
        request_id: str,
        operation_id: str,
        kind: CallKind,
        *,
        parent: str | None = None,
        caller: str | None = None,
        protocol: str = "",
        worker: str | None = None,
        trace_parent: object = None,
        streaming: bool = False,
        label: str | None = None,
    ) -> CallRecord | None:
        """Record a call that waits or starts; return None if too many are running."""
        if len(self.running) >= _MOST_RUNNING:
            self.dropped += 1
            return None
        self._last += 1
        parent = None if parent is None else valid_text(parent[:_LONGEST_ID])
        record = CallRecord(
            number=self._last,
            request_id=valid_text(request_id[:_LONGEST_ID]),
            trace_id=self._trace_of(trace_parent, parent, caller, is_own=kind != "served"),
            operation_id=valid_text(operation_id[:_LONGEST_NAME]),
            kind=kind,
            parent_request_id=parent,
            caller=caller,
            protocol=protocol,
            worker=worker,
            streaming=streaming,
            label=None if label is None else valid_text(label[:_LONGEST_ID]),
            attempts=[],
        )
        self.running[record.number] = self._records[record.number] = record
        self._of_callers.setdefault(caller, {})[record.number] = None
        # Peers choose the ids of their requests: a call whose id is in use, or has the form of this process's own ids,
        # is not found by its id.
        if protocol != "ws" or kind == "local" or not is_own_request_id(record.request_id):
            self._by_id.setdefault(record.request_id, record)
        self._traces.setdefault(record.trace_id, {})[record.number] = record
        while len(self._records) > self._max_records:
            self._evict(caller)
        return record

    def queue(self, record: CallRecord, busy_slots: int | None = None) -> None:
        """Record that a call waits for a slot because all `busy_slots` slots of its worker are busy."""
        record.queued_at = record.started_at or self._now()
        record.started_at = None
        record.busy_slots = busy_slots
        self._notify("queued", record)

    def start(self, record: CallRecord) -> None:
        """Record that a call has started."""
        record.started_at = self._now()
        self._notify("started", record)

    def retry(self, record: CallRecord, code: str, status: int | None, delay: float) -> None:
        """Record that an attempt failed and another follows."""
        now = self._now()
        if len(record.attempts) < _MOST_ATTEMPTS:
            record.attempts.append(Attempt(self._attempt_start(record), now, code, status, round(delay * 1000, 3)))
        self._notify("attempt", record)

    def item(self, record: CallRecord, items: int) -> None:
        """Record the number of items of a stream; `changed` is called for it at most once a second."""
        record.items = items
        now = time.time()
        if now - record.items_reported >= _ITEMS_SECONDS:
            record.items_reported = now
            self._notify("items", record)

    def end(
        self,
        record: CallRecord,
        code: str,
        *,
        status: int | None = None,
        message: str | None = None,
        seconds: float,
        is_measured: bool = True,
    ) -> None:
        """Record the end of a call: `code` is `ok` or an error code.

        If `is_measured` is false, the time series ignore the call.
        """
        if self.running.pop(record.number, None) is None:
            return
        record.ended_at = self._now()
        record.outcome = "ok" if code == "ok" else "cancelled" if code == _CANCELLED else "failed"
        record.code = None if code == "ok" else valid_text(code[:_LONGEST_NAME])
        record.status = status
        record.message = None if message is None else valid_text(message[:_LONGEST_MESSAGE])
        if record.attempts:
            last = Attempt(self._attempt_start(record), record.ended_at, record.code, status)
            record.attempts.append(last)
        if is_measured:
            # The consumer determines how long a stream takes: the time of a stream is not a latency.
            self.series.add(
                record.operation_id,
                record.worker,
                0.0 if record.streaming else seconds,
                failed=record.outcome == "failed",
            )
        if record.number not in self._records:
            self._forget(record)
        self._notify("ended", record)

    def keep_bodies(
        self,
        record: CallRecord,
        input: Any,
        output: Any,
        differences: Sequence[Difference] = (),
        *,
        clean: Callable[[Any], Any] | None = None,
    ) -> None:
        """Store input, output and differences of a call; an input or output above 64 KiB is left out.

        `clean` removes secrets from input and output. Beyond `max_body_bytes` in total, the oldest bodies are dropped.
        """
        if record.number not in self._records:
            return
        encoded = [_encode(value) for value in (input, output)]
        sizes = [0 if body is None else len(body) for body in encoded]
        kept = [None if body is None or len(body) > _LONGEST_BODY else body for body in encoded]
        if clean is not None:  # only small values: cleaning a large one takes time
            values = zip(kept, (input, output), strict=True)
            kept = [None if body is None else _encode(clean(value)) for body, value in values]
        encoded_differences = _encode(differences) if differences else None
        bodies = Bodies(kept[0], kept[1], sizes[0], sizes[1], encoded_differences)
        self._bodies[record.number] = bodies
        self._body_bytes += _size(bodies)
        while self._body_bytes > self._max_body_bytes:
            self._body_bytes -= _size(self._bodies.popitem(last=False)[1])

    def get(self, request_id: str) -> CallRecord | None:
        """Return the call with a request id, or None."""
        return self._by_id.get(request_id)

    def bodies_of(self, record: CallRecord) -> Bodies | None:
        """Return the stored input and output of a call; None if they are not stored."""
        return self._bodies.get(record.number)

    def trace(self, trace_id: str) -> list[CallRecord]:
        """Return the calls of a trace, in the order in which they were recorded."""
        return list(self._traces.get(trace_id, {}).values())

    def newest(self, before: int | None = None) -> list[CallRecord]:
        """Return the calls, newest first; with `before`, only those with a lower number."""
        calls = {**self._records, **self.running}  # newer records may have displaced running calls
        return [calls[number] for number in sorted(calls, reverse=True) if before is None or number < before]

    def _now(self) -> float:
        return round(time.time() * 1000, 3)

    def _attempt_start(self, record: CallRecord) -> float:
        if not record.attempts:
            return record.started_at or record.began_at
        before = record.attempts[-1]
        return round((before.ended_at or 0.0) + (before.delay_ms or 0.0), 3)

    def _notify(self, change: Change, record: CallRecord) -> None:
        if self.changed is not None:
            self.changed(change, record)

    def _trace_of(self, trace_parent: object, parent: str | None, caller: str | None, *, is_own: bool) -> str:
        """Return the trace id of a call: that of its request, or of its parent call in this process, or a new one."""
        matched = _TRACE_PARENT.fullmatch(trace_parent) if isinstance(trace_parent, str) else None
        if matched is not None:
            return matched[1]
        above = self._by_id.get(parent) if parent is not None else None
        if above is not None and (is_own or above.caller == caller):
            return above.trace_id
        return f"{self._epoch}{self._last:016x}"

    def _evict(self, caller: str | None) -> None:
        """Drop the oldest record, or this caller's oldest record if the caller has too many.

        A dropped call that still runs can be found by its id and in its trace until it ends.
        """
        own = self._of_callers[caller]
        number = next(iter(own if 2 * len(own) > self._max_records else self._records))
        record = self._records.pop(number)
        listed = self._of_callers[record.caller]
        del listed[number]
        if not listed:
            del self._of_callers[record.caller]
        bodies = self._bodies.pop(number, None)
        if bodies is not None:
            self._body_bytes -= _size(bodies)
        if number not in self.running:
            self._forget(record)

    def _forget(self, record: CallRecord) -> None:
        if self._by_id.get(record.request_id) is record:
            del self._by_id[record.request_id]
        trace = self._traces.get(record.trace_id)
        if trace is not None:
            trace.pop(record.number, None)
            if not trace:
                del self._traces[record.trace_id]


def caller_name(identity: Identity | None) -> str | None:
    """Return the id of an identity; an id that is too long or not valid Unicode is truncated, and a digest is added."""
    if identity is None:
        return None
    name = identity.id
    if len(name) <= _LONGEST_NAME and valid_text(name) == name:
        return name
    return (
        f"{valid_text(name[:_LONGEST_ID])}~{blake2b(name.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"
    )


def _encode(value: Any) -> bytes | None:
    if value is None:
        return None
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None  # not JSON: an open file, a string with a lone surrogate


def _size(bodies: Bodies) -> int:
    return len(bodies.input or b"") + len(bodies.output or b"") + len(bodies.differences or b"") + 100
