"""Functions that use OpenTelemetry if the program has set it up, and import it only then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from operations.telemetry.observer import Observer  # most programs have none

SDK = "opentelemetry.sdk.trace"
"""A module that every program with tracing has imported; checking `sys.modules` for it is cheap."""
modules = sys.modules


def is_active() -> bool:
    """Return whether the program has set up an SDK."""
    return SDK in modules and bool(_otel().has_provider())


@cache
def _otel() -> ModuleType:
    """Import the module that uses OpenTelemetry; cached because each import statement would take a microsecond."""
    from operations.telemetry import otel

    return otel


def active_observers(observers: Sequence[Observer]) -> Sequence[Observer]:
    """Return `observers`; if the program has set up OpenTelemetry's SDK, OpenTelemetry's observer is added."""
    if not is_active():
        return observers
    return (*observers, _otel().OBSERVER)


def client_span(operation_id: str, metadata: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Open the client span of a call and write its id to `metadata` as `traceparent`."""
    return _otel().client_span(operation_id, metadata)  # type: ignore[no-any-return]


def with_trace(metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the metadata of a request with the current span as `traceparent`; unchanged without tracing."""
    if not is_active():
        return metadata
    traced = dict(metadata or {})
    _otel().inject(traced)
    return traced
