"""Functions that use OpenTelemetry if the program has set it up, and import it only then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operations.telemetry.observer import Observer  # most programs have none

SDK = "opentelemetry.sdk.trace"
"""A module that every program with tracing has imported; checking `sys.modules` for it is cheap."""
modules = sys.modules


def is_active() -> bool:
    """Return whether the program has set up an SDK."""
    return SDK in sys.modules and _has_provider()


def _has_provider() -> bool:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    return isinstance(trace.get_tracer_provider(), TracerProvider)


def active_observers(observers: Sequence[Observer]) -> Sequence[Observer]:
    """Return `observers`, and OpenTelemetry's if the program has set up its SDK."""
    if not is_active():
        return observers
    from operations.telemetry.otel import OBSERVER

    return (*observers, OBSERVER)


@contextlib.contextmanager
def client_span(operation_id: str, metadata: dict[str, Any]) -> Iterator[None]:
    """Open the client span of a call and write its id to `metadata` as `traceparent`."""
    from operations.telemetry import otel

    with otel.client_span(operation_id):
        inject(metadata)
        yield


def inject(metadata: dict[str, Any]) -> None:
    """Write the current span to the metadata of a request."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    TraceContextTextMapPropagator().inject(metadata)


def current_trace() -> dict[str, str]:
    """Return `traceparent` and `tracestate` of the current span; empty without tracing."""
    found: dict[str, str] = {}
    if is_active():
        inject(found)
    return found
