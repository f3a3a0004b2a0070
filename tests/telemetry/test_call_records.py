"""Recorded calls and series: bounded in number and time, also against hostile callers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from operations import CallError, Identity, OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.interceptors import Retry
from operations.pubsub.memory import MemoryTransport
from operations.telemetry import CallMetrics, metrics_text
from operations.telemetry.call_recorder import CallRecorder
from operations.telemetry.call_records import CallRecord, CallRecords, caller_name
from operations.telemetry.observer import Call, CallQueued, CallRetried, CallSized, ConnectionChanged, Event
from operations.telemetry.time_series import ALL, TimeSeries, columns
from operations.testing import error_of, stub_operation
from tests.telemetry.test_metrics import samples

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Clock:
    def __init__(self, now: float = 1_200_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def added(records: CallRecords, name: str, **options: Any) -> CallRecord:
    record = records.add(name, options.pop("operation", "a.b"), options.pop("kind", "served"), **options)
    assert record is not None
    return record


def test_the_last_calls_are_kept_and_running_ones_outlast_them() -> None:
    records = CallRecords(max_records=10)
    long = added(records, "long")
    for number in range(100):
        record = added(records, f"r{number}")
        records.start(record)
        records.end(record, "ok", seconds=0.001)
    assert len(records) == 10
    assert records.get("long") is long
    assert records.get("r1") is None
    assert [record.request_id for record in records.newest()] == [
        *(f"r{number}" for number in range(99, 89, -1)),
        "long",
    ]
    records.end(long, "ok", seconds=1.0)
    assert records.get("long") is None
    assert records.trace(long.trace_id) == []
    assert not records.running


def test_running_calls_of_a_busy_caller_are_listed_in_their_order() -> None:
    records = CallRecords(max_records=4)
    records.end(added(records, "other", caller="b"), "ok", seconds=0.001)
    for number in range(4):
        added(records, f"r{number}", caller="a")  # the last one displaces the first record of this caller
    assert [record.number for record in records.newest()] == [5, 4, 3, 2, 1]
    assert [record.request_id for record in records.newest(before=3)] == ["r0", "other"]


def test_running_calls_are_bounded() -> None:
    records = CallRecords(max_records=10)
    for number in range(20_000):
        added(records, f"r{number}")
    assert records.add("one more", "a.b", "served") is None
    assert records.dropped == 1


def test_bodies_have_a_separate_limit() -> None:
    records = CallRecords(max_body_bytes=10_000)
    kept = []
    for number in range(20):
        record = added(records, f"r{number}")
        records.keep_bodies(record, {"text": "x" * 1_000}, None)
        kept.append(record)
    found = [record for record in kept if records.bodies_of(record) is not None]
    assert found == kept[-9:]
    large = added(records, "large")
    records.keep_bodies(large, "x" * 100_000, object())
    bodies = records.bodies_of(large)
    assert bodies is not None
    assert (bodies.input, bodies.output) == (None, None)
    assert bodies.input_bytes == 100_002


def test_strings_of_callers_are_truncated_and_can_be_sent() -> None:
    records = CallRecords()
    record = added(records, "r" * 1_000, operation="a." + "\ud800" * 5_000, parent="p" * 1_000, label="l" * 1_000)
    assert len(record.request_id) == 128
    assert len(record.operation_id.encode()) <= 1_024
    records.end(record, "C" * 1_000, message="m" * 5_000, seconds=0.0)
    assert record.code is not None
    assert len(record.code) == 256
    assert record.message is not None
    assert len(record.message) == 500
    long = caller_name(Identity("i" * 1_000))
    other = caller_name(Identity("i" * 1_000 + "j"))
    assert long is not None
    assert len(long) < 200
    assert long != other
    assert caller_name(Identity("\ud800")) != caller_name(Identity("?"))


def test_an_id_that_is_taken_keeps_its_record() -> None:
    records = CallRecords()
    first = added(records, "same", caller="ann")
    second = added(records, "same", caller="eve")
    assert records.get("same") is first
    records.end(second, "ok", seconds=0.0)
    assert records.get("same") is first


def test_a_trace_is_that_of_the_request_or_of_the_parent() -> None:
    records = CallRecords()
    root = added(records, "root", trace_parent=PARENT, caller="ann")
    child = added(records, "child", parent="root", kind="local", caller="ann")
    foreign = added(records, "foreign", parent="root", caller="eve")
    alone = added(records, "alone", trace_parent="nonsense")
    assert root.trace_id == child.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert foreign.trace_id not in (root.trace_id, alone.trace_id)
    assert len(alone.trace_id) == 32
    assert records.trace(root.trace_id) == [root, child]


@pytest.mark.parametrize(
    "wrong", ["", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", PARENT + "x", PARENT.upper(), 5, None]
)
def test_an_invalid_trace_context_is_ignored(wrong: object) -> None:
    assert added(CallRecords(), "r", trace_parent=wrong).trace_id != "0" * 32


async def test_attempts_items_and_failures_are_recorded() -> None:
    changes: list[str] = []
    failures = iter([CallError("UNAVAILABLE"), CallError("UNAVAILABLE"), None])

    async def skip(seconds: float) -> None:
        return None

    @operation(id="a.flaky", type="query")
    async def flaky() -> int:
        if (error := next(failures)) is not None:
            raise error
        return 1

    records = CallRecords()
    records.changed = lambda change, record: changes.append(change)
    registry = OperationRegistry(
        [flaky, stub_operation("a.bad", raises=CallError("EMPTY"))],
        interceptors=[Retry(3, first_delay=0.01, sleep=skip)],
        observers=[CallRecorder(records, worker="me")],
    )
    await registry.execute("a.flaky")
    await error_of(registry.execute("a.bad"))
    good, bad = reversed(records.newest())
    assert [attempt.code for attempt in good.attempts] == ["UNAVAILABLE", "UNAVAILABLE", None]
    assert (good.outcome, good.worker, good.protocol, good.kind) == ("ok", "me", "local", "local")
    assert (bad.outcome, bad.code, bad.attempts) == ("failed", "EMPTY", [])
    assert changes == ["started", "attempt", "attempt", "ended", "started", "ended"]


async def test_events_reach_observers_that_take_them() -> None:
    seen: list[Event] = []

    class Notes:
        def begin(self, call: Call) -> None:
            return None

        def note(self, event: Event) -> None:
            seen.append(event)

    bus = MemoryTransport(direct=False)
    gate = asyncio.Event()

    async def wait(input: Any, context: OperationContext) -> int:
        await gate.wait()
        return 1

    waiting = msgspec.structs.replace(stub_operation("a.wait"), handler=wait)
    registry = OperationRegistry([waiting], observers=[Notes(), CallMetrics()])
    handler = CallHandler(registry, bus.join(), concurrency=1)
    pending = PendingRequestMap(bus.join())
    calls = [asyncio.ensure_future(pending.call("a.wait")) for _ in range(2)]
    async with asyncio.timeout(5):
        while not seen:  # noqa: ASYNC110  # observers cannot be awaited
            await asyncio.sleep(0)
    assert isinstance(seen[0], CallQueued)
    assert seen[0].call.operation_id == "a.wait"
    gate.set()
    await asyncio.gather(*calls)
    await handler.close()


async def test_retries_sizes_and_lost_connections_are_metrics() -> None:
    metrics = CallMetrics(max_operations=2)
    for number in range(5):
        metrics.note(CallRetried("r", f"a.b{number}", 1, CallError("TIMEOUT"), 0.1))
        metrics.note(CallSized("r", f"a.b{number}", 10, 20))
    metrics.note(ConnectionChanged("Spoke", False, "gone"))
    metrics.note(ConnectionChanged("Spoke", True))
    found = samples(await metrics_text(metrics))
    assert found['operations_call_retries_total{operation="a.b0"}'] == 1
    assert found['operations_call_retries_total{operation="_unknown"}'] == 3
    assert found['operations_response_bytes_total{operation="a.b1"}'] == 20
    assert found["operations_transport_losses_total"] == 1


def test_series_have_three_resolutions() -> None:
    clock = Clock()
    series = TimeSeries(lambda: (3, 1), clock=clock)
    for second in range(120):
        clock.now = 1_200_000.0 + second
        for number in range(10):
            series.add("a.b", "w", 0.010 * (number + 1), failed=number == 9)
    clock.now += 1
    rows = series.rows("15m")
    assert len(rows) == 120
    assert {(row.ok, row.failed) for row in rows} == {(9, 1)}
    assert rows[0].p50 == pytest.approx(50, rel=0.06)
    assert rows[0].p99 == pytest.approx(100, rel=0.06)
    assert rows[0].in_flight == 3
    assert sum(row.ok for row in series.rows("1h")) == 1_080
    assert sum(row.failed for row in series.rows("6h", ("operation", "a.b"))) == 120
    assert series.rows("15m", ("operation", "unknown")) == []
    rate, p95, errors = series.summary(("worker", "w"))
    assert (rate, errors) == (10, 0.1)
    assert p95 == pytest.approx(100, rel=0.06)
    assert series.latest().in_flight == 3
    shown = columns(rows, 1)
    assert len(shown["t"]) == len(shown["queued"]) == 120


def test_seconds_without_calls_are_zero_and_old_ones_are_forgotten() -> None:
    clock = Clock()
    series = TimeSeries(clock=clock)
    series.add("a.b", None, 0.1, failed=False)
    clock.now += 10
    rows = series.rows("15m")
    assert [row.ok for row in rows] == [1, *[0] * 9]
    assert rows[1].p50 is None
    clock.now += 2_000
    series.add("a.b", None, 0.1, failed=False)
    clock.now += 1
    assert [row.ok for row in series.rows("15m")] == [1]


def test_series_are_bounded() -> None:
    clock = Clock()
    series = TimeSeries(clock=clock)
    for number in range(30_000):
        clock.now += 0.01
        series.add(f"a.op{number}", "w", 0.1, failed=False)
    assert len(series._order) <= 60_000
    assert len(series._series) <= 5_001
    clock.now += 60
    assert sum(row.ok for row in series.rows("15m")) + sum(row.ok for row in series.rows("15m", ALL)) > 0
