"""Overhead of observers, in microseconds and as a multiple of a bare execute.

`python -m bench.telemetry`
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable

from bench.measure import report, save, time_calls
from operations import OperationRegistry, operation
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
    times = await time_calls(calls)
    seconds, longest = await rendering()
    print(
        f"\nmetrics of 1,223 operations: {seconds * 1000:.0f} ms, the loop held up for {longest * 1000:.2f} ms at most"
    )
    # Last, because it imports the SDK.
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
    times |= await time_calls({"OpenTelemetry, no exporter": through()})
    report("One call", times, BARE)
    for name, taken in times.items():
        print(f"  {name}: {(taken - times[BARE]) * 1e6:+.2f} us")
    save("telemetry", {**{name: taken / times[BARE] for name, taken in times.items()}, "rendering": seconds})


if __name__ == "__main__":
    asyncio.run(main())
