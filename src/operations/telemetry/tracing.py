"""Whether OpenTelemetry is set up, and what is needed of it where it may not be. It is imported only where it is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from operations.telemetry.observer import Observer

SDK = "opentelemetry.sdk.trace"
"""The module that a program with tracing has imported; callers check for it first, as that costs less."""
modules = sys.modules


def is_active() -> bool:
    """Return whether the program has set up an SDK; one that was never imported is not."""
    return SDK in sys.modules and _has_provider()


def _has_provider() -> bool:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    return isinstance(trace.get_tracer_provider(), TracerProvider)


def active_observers(observers: Sequence[Observer]) -> Sequence[Observer]:
    """Return the observers to tell: those given, and OpenTelemetry's where the program has set up its SDK."""
    if not is_active():
        return observers
    from operations.telemetry.otel import OBSERVER

    return (*observers, OBSERVER)


@contextlib.contextmanager
def client_span(operation_id: str, metadata: dict[str, Any]) -> Iterator[None]:
    """Open the span of a call as its caller sees it and write its id to `metadata` as `traceparent`."""
    from operations.telemetry import otel

    with otel.client_span(operation_id):
        inject(metadata)
        yield


def inject(metadata: dict[str, Any]) -> None:
    """Write the current span to metadata that is sent with a request."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    TraceContextTextMapPropagator().inject(metadata)


def current_trace() -> dict[str, str]:
    """Return `traceparent` and `tracestate` of the current span; empty without tracing."""
    found: dict[str, str] = {}
    if is_active():
        inject(found)
    return found
