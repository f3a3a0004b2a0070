"""Metrics and their text: what every part counts, under one naming scheme."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import operations
from operations import CallError, Identity, OperationContext, OperationRegistry
from operations.calls import CallHandler, Counters, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.signed_transport import SignedTransport
from operations.identity import StaticTokens
from operations.interceptors import Cache, Only, RateLimit
from operations.pubsub.memory import MemoryTransport
from operations.telemetry import METRICS, AuditLog, CallMetrics, Measure, metrics_text
from operations.testing import error_of, stub_operation
from tests.security.untrusted_bus import SECRET, TOKENS, UNTRUSTED, session

SOURCES = Path(operations.__file__).parent
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "telemetry.md"
SAMPLE = re.compile(r'^(\w+)(?:\{(\w+="(?:[^"\\\n]|\\.)*"(?:,\w+="(?:[^"\\\n]|\\.)*")*)\})? (\S+)$')


def samples(text: str) -> dict[str, float]:
    """The values in a text by metric and labels; every line must be well formed."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            matched = SAMPLE.match(line)
            assert matched, line
            found[line.rpartition(" ")[0]] = float(matched[3])
    return found


async def test_calls_are_counted_and_timed() -> None:
    registry = OperationRegistry(
        [stub_operation("a.b", returns=1), stub_operation("a.bad", raises=CallError("EMPTY"))],
        observers=[CallMetrics()],
    )
    for _ in range(3):
        await registry.execute("a.b")
    await error_of(registry.execute("a.bad"))
    found = samples(await metrics_text(registry))
    assert found['operations_calls_total{operation="a.b",kind="local",outcome="ok"}'] == 3
    assert found['operations_calls_total{operation="a.bad",kind="local",outcome="EMPTY"}'] == 1
    assert found['operations_call_duration_seconds_bucket{operation="a.b",kind="local",le="+Inf"}'] == 3
    assert found['operations_call_duration_seconds_count{operation="a.b",kind="local"}'] == 3
    assert found['operations_calls_in_progress{operation="a.b",kind="local"}'] == 0
    buckets = [
        value
        for key, value in found.items()
        if key.startswith('operations_call_duration_seconds_bucket{operation="a.b"')
    ]
    assert buckets == sorted(buckets)


async def test_a_worker_exports_every_counter() -> None:
    bus = MemoryTransport(direct=False)
    limited = Only(Only(RateLimit(1, burst=1), ["a.*"]), types=["query"])
    registry = OperationRegistry([stub_operation("a.b")], observers=[CallMetrics()], interceptors=[limited, Cache(9)])
    handler = CallHandler(registry, bus.join())
    pending = PendingRequestMap(bus.join())
    await pending.call("a.b")
    await error_of(pending.call("a.b"))
    await error_of(pending.call("a.gone"))
    found = samples(await metrics_text(handler))
    await handler.close()
    assert found['operations_calls_total{operation="a.b",kind="served",outcome="ok"}'] == 1
    assert found['operations_calls_total{operation="a.b",kind="served",outcome="UNAVAILABLE"}'] == 1
    assert found['operations_calls_total{operation="_unknown",kind="served",outcome="OPERATION_NOT_FOUND"}'] == 1
    assert found['operations_interceptor_events_total{interceptor="RateLimit",event="refused"}'] == 1
    assert found['operations_interceptor_events_total{interceptor="Cache",event="misses"}'] == 1
    for name in Counters().to_dict():
        assert f"operations_bus_{name}" in found or f"operations_bus_{name}_total" in found


async def test_refused_signatures_and_lost_audit_lines_are_exported(tmp_path: Path) -> None:
    bus = MemoryTransport(direct=False, capabilities=UNTRUSTED)
    signed = SignedTransport(bus.join(), secret=SECRET, tokens=TOKENS, required=True)
    audit = AuditLog(tmp_path / "audit.jsonl")
    handler = CallHandler(
        OperationRegistry([stub_operation("a.b")], observers=[audit]), signed, identify=signed.identify
    )
    audit.close()
    await error_of(PendingRequestMap(bus.join()).call("a.b"))
    await PendingRequestMap(SignedTransport(bus.join(), session=session("ada"))).call("a.b")
    found = samples(await metrics_text(handler))
    await handler.close()
    assert found['operations_signature_refusals_total{reason="unsigned"}'] == 1
    assert found["operations_audit_failures_total"] == 1


async def test_a_hub_exports_its_counters() -> None:
    async with Hub(StaticTokens({}), port=0) as hub:
        found = samples(await metrics_text(hub))
    assert found["operations_hub_peers"] == 0
    assert found["operations_bus_forged_total"] == 0


async def test_mismatches_are_exported_by_operation() -> None:
    wrong = stub_operation("a.b", returns={"n": "x"}, output_schema={"properties": {"n": {"type": "integer"}}})
    registry = OperationRegistry([wrong])
    await registry.execute("a.b")
    assert samples(await metrics_text(registry))['operations_result_mismatches_total{operation="a.b"}'] == 1


async def test_names_that_callers_choose_make_no_series() -> None:
    bus, metrics = MemoryTransport(direct=False), CallMetrics(max_operations=3)
    handler = CallHandler(OperationRegistry([stub_operation("a.b")], observers=[metrics]), bus.join())
    pending = PendingRequestMap(bus.join())
    for number in range(50):
        await error_of(pending.call(f"a.gone{number}"))
    await handler.close()
    assert len(metrics._series) == 1
    registry = OperationRegistry([stub_operation(f"a.b{number}") for number in range(9)], observers=[metrics])
    for spec in registry.list():
        await registry.execute(spec.id)
    assert len(metrics._series) <= 4


async def test_codes_that_domains_choose_make_few_series() -> None:
    async def handler(input: Any, context: OperationContext) -> Any:
        raise CallError(f"CODE{input['n']}")

    failing = stub_operation("a.b")
    registry = OperationRegistry([msgspec.structs.replace(failing, handler=handler)], observers=[CallMetrics()])
    for number in range(100):
        await error_of(registry.execute("a.b", {"n": number}))
    found = samples(await metrics_text(registry))
    series = [key for key in found if key.startswith("operations_calls_total")]
    assert len(series) == 21
    assert found['operations_calls_total{operation="a.b",kind="local",outcome="other"}'] == 80


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text()), st.floats(0, 1e12))
async def test_any_label_can_be_parsed_again(labels: dict[str, str], value: float) -> None:
    class Source:
        def measures(self) -> list[Measure]:
            return [Measure("operations_hub_peers", value, labels)]

    text = await metrics_text(Source(), object())
    assert text.encode()
    lines = text.split("\n")
    assert len(lines) == 4
    assert SAMPLE.match(lines[2]), lines


async def test_calls_continue_while_metrics_of_many_operations_are_written() -> None:
    """1,223 operations with every series: other tasks run often meanwhile (times: `bench.telemetry`)."""
    metrics = CallMetrics()
    registry = OperationRegistry([stub_operation(f"api.op{number}") for number in range(1_223)], observers=[metrics])
    for spec in registry.list():
        await registry.execute(spec.id)
    writing, turns = asyncio.create_task(metrics_text(registry)), 0
    while not writing.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(writing.result().splitlines()) > 1_223 * 17
    assert turns > 50


def test_the_guide_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(operations_\w+)` \| (\w+) \| (.+) \|$", GUIDE.read_text(), re.M)
    assert rows == [(name, *metric) for name, metric in METRICS.items()]


def test_every_metric_that_the_code_writes_is_listed_once_and_by_the_naming_scheme() -> None:
    written = {measure.name for measure in Counters().measures()}
    for path in SOURCES.rglob("*.py"):
        written |= set(re.findall(r'(?:Measure\(|^            \()"(operations_\w+)"', path.read_text(), re.M))
    assert written == METRICS.keys()
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.type == "counter"), name
        assert name.endswith("_seconds") == (metric.type == "histogram"), name


async def test_an_identity_is_not_a_label() -> None:
    registry = OperationRegistry([stub_operation("a.b")], observers=[CallMetrics()])
    await registry.execute("a.b", None, OperationContext(identity=Identity("ann")))
    assert "ann" not in await metrics_text(registry)
