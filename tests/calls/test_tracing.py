"""Spans of calls across the bus; none without an SDK."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from operations import OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.memory import MemoryTransport
from operations.telemetry import tracing

sdk = pytest.importorskip("opentelemetry.sdk.trace")


@pytest.fixture
def finished() -> Iterator[Any]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The API allows one provider per process; the tests of this module share one and restore the previous one.
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    yield exporter
    trace._TRACER_PROVIDER = before
    provider.shutdown()


@operation(id="trace.inner", type="query")
async def inner(context: OperationContext) -> Any:
    return dict(context.metadata)


@operation(id="nest.outer", type="query")
async def outer(context: OperationContext) -> Any:
    return (await context.env["trace"]["inner"]()).data


@pytest.mark.parametrize("direct", [True, False])
async def test_spans_of_nested_calls_form_one_trace(finished: Any, direct: bool) -> None:
    finished.clear()
    bus = MemoryTransport(direct=direct)
    handlers = [CallHandler(OperationRegistry([each]), bus.join()) for each in (inner, outer)]
    metadata = (await PendingRequestMap(bus.join()).call("nest.outer")).data
    for handler in handlers:
        await handler.close()
    spans = {(span.name, span.kind.name): span for span in finished.get_finished_spans()}
    assert spans.keys() == {(name, kind) for name in ("nest.outer", "trace.inner") for kind in ("CLIENT", "SERVER")}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    chain = [("nest.outer", "CLIENT"), ("nest.outer", "SERVER"), ("trace.inner", "CLIENT"), ("trace.inner", "SERVER")]
    for parent, child in itertools.pairwise(chain):
        assert spans[child].parent.span_id == spans[parent].context.span_id
    assert format(spans[chain[2]].context.span_id, "016x") in metadata["traceparent"]


def test_without_a_provider_no_telemetry_library_is_imported() -> None:
    assert not tracing.is_active()
    code = (
        "import sys, asyncio; from operations import *; from operations.calls import *;"
        "from operations.pubsub.memory import MemoryTransport\n"
        "async def main():\n"
        "    bus = MemoryTransport(); CallHandler(OperationRegistry(), bus); PendingRequestMap(bus)\n"
        "asyncio.run(main()); print([name for name in sys.modules if 'opentelemetry' in name or 'picows' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
