"""Overhead of observers, as a multiple of a call without them; our spans against the same spans of the SDK alone.

`python -m bench.telemetry` compares CPU time.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bench.comparisons import Comparison, keep
from bench.measure import report, save, time_calls
from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.memory import MemoryTransport
from operations.telemetry import AuditLog, CallMetrics, LogContext, Observer, metrics_text
from operations.telemetry.call_recorder import CallRecorder
from operations.telemetry.call_records import CallRecords

BARE = "no observer"


@operation("shop.quote", type="query")
async def quote(item: str) -> float:
    """Quote an item."""
    return 2.5


def through(*observers: Observer) -> Callable[[], Awaitable[object]]:
    """Return a call with observers."""
    registry = OperationRegistry([quote], observers=observers)
    return lambda: registry.execute("shop.quote", {"item": "tea"})


async def rendering(operations: int = 1_223) -> tuple[float, float]:
    """Return the seconds of rendering the metrics of many operations, and of the longest loop iteration."""
    registry = OperationRegistry(observers=[CallMetrics()])
    for number in range(operations):

        @operation(f"api.op{number}", type="query")
        async def nothing() -> None: ...

        registry.register(nothing)
        await registry.execute(nothing)
    longest, began = 0.0, time.perf_counter()
    writing = asyncio.create_task(metrics_text(registry))
    while not writing.done():
        turn = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - turn)
    return time.perf_counter() - began, longest


def sdk_span(provider: Any) -> Callable[[], Awaitable[object]]:
    """Return a function that makes the span of a local call with the SDK alone, and makes it current for a moment."""
    from opentelemetry import trace

    tracer = provider.get_tracer("bare")

    async def make() -> None:
        attributes = {"operations.request_id": "r1", "operations.operation": "shop.quote"}
        with tracer.start_as_current_span("shop.quote", kind=trace.SpanKind.INTERNAL, attributes=attributes):
            pass

    return make


def sdk_spans(provider: Any) -> Callable[[], Awaitable[object]]:
    """Return a function that makes the spans of a caller and its server with the SDK alone."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer, propagator = provider.get_tracer("bare"), TraceContextTextMapPropagator()

    async def make() -> None:
        attributes = {"rpc.system.name": "operations", "rpc.method": "shop.quote"}
        carrier: dict[str, str] = {}
        with tracer.start_as_current_span("shop.quote", kind=trace.SpanKind.CLIENT, attributes=attributes):
            propagator.inject(carrier)
            parent = propagator.extract(carrier)
            given = {"operations.request_id": "r1", **attributes}
            with tracer.start_as_current_span("shop.quote", parent, trace.SpanKind.SERVER, given):
                pass

    return make


async def compare_spans() -> Mapping[str, float]:
    """Return the seconds of our spans, without the time of their calls, and of the SDK's spans."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    bus = MemoryTransport()
    worker = CallHandler(OperationRegistry([quote]), bus.join())
    caller = PendingRequestMap(bus.join())
    ours = {"local": through(), "remote": lambda: caller.call("shop.quote", {"item": "tea"})}
    without = await time_calls(ours, clock=time.process_time)
    provider = TracerProvider()
    trace.set_tracer_provider(provider)  # from here on, every call has a span
    alone = {"SDK, local": sdk_span(provider), "SDK, remote": sdk_spans(provider)}
    taken = await time_calls({**ours, **alone}, clock=time.process_time)
    await worker.close()
    spans = {name: taken[name] - without[name] for name in ours} | {name: taken[name] for name in alone}
    for name, seconds in spans.items():
        print(f"  span, {name}: {seconds * 1e6:.1f} us")
    keep(
        "telemetry",
        [
            Comparison("Span of a local call", "the SDK's span alone", "time", spans["local"] / spans["SDK, local"]),
            Comparison(
                "Spans of a call in memory, caller and worker",
                "the SDK's spans alone",
                "time",
                spans["remote"] / spans["SDK, remote"],
            ),
        ],
    )
    return spans


async def main() -> None:
    """Measure, print and save the figures."""
    calls = {
        BARE: through(),
        "metrics": through(CallMetrics()),
        "log context": through(LogContext()),
        "console": through(CallRecorder(CallRecords())),
        "audit log": through(AuditLog(tempfile.mkstemp()[1])),
        "all three": through(CallMetrics(), LogContext(), AuditLog(tempfile.mkstemp()[1])),
    }
    times = await time_calls(calls, clock=time.process_time)
    report("One call", times, BARE)
    for name, taken in times.items():
        print(f"  {name}: {(taken - times[BARE]) * 1e6:+.2f} us")
    seconds, longest = await rendering()
    print(f"\nmetrics of 1,223 operations: {seconds * 1000:.0f} ms, loop blocked for {longest * 1000:.2f} ms at most")
    spans = await compare_spans()  # last, because it imports the SDK
    save("telemetry", {**{name: taken / times[BARE] for name, taken in times.items()}, "rendering": seconds, **spans})


if __name__ == "__main__":
    asyncio.run(main())
