"""OpenTelemetry spans of calls between processes; without an SDK there are none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from operations.context import TRACE_FIELDS

T = TypeVar("T")
SDK = "opentelemetry.sdk.trace"
"""The module that a program with tracing has imported; callers check for it first, as that costs less."""


def is_active() -> bool:
    """Return whether the program has set up an SDK; one that was never imported is not."""
    return SDK in sys.modules and _has_provider()


def _has_provider() -> bool:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    return isinstance(trace.get_tracer_provider(), TracerProvider)


@contextlib.contextmanager
def client_span(operation_id: str, metadata: dict[str, Any]) -> Iterator[None]:
    """Open the span of a call as its caller sees it and write its id to `metadata` as `traceparent`."""
    with _span(operation_id, "CLIENT", None):
        inject(metadata)
        yield


@contextlib.contextmanager
def server_span(operation_id: str, metadata: Mapping[str, Any] | None, request_id: str) -> Iterator[None]:
    """Open the span of a call as its worker sees it, a child of the caller's."""
    if not is_active():
        yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {key: str(metadata[key]) for key in TRACE_FIELDS if key in metadata} if metadata else {}
    with _span(operation_id, "SERVER", TraceContextTextMapPropagator().extract(carrier), request_id):
        yield


async def traced(
    work: Coroutine[Any, Any, T], operation_id: str, metadata: Mapping[str, Any] | None, request_id: str
) -> T:
    """Await `work` within the span of a call as its worker sees it."""
    with server_span(operation_id, metadata, request_id):
        return await work


def inject(metadata: dict[str, Any]) -> None:
    """Write the current span to metadata that is sent with a request."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    TraceContextTextMapPropagator().inject(metadata)


@contextlib.contextmanager
def _span(operation_id: str, kind: str, parent: Any, request_id: str | None = None) -> Iterator[None]:
    from opentelemetry import trace

    attributes = {"rpc.system": "operations", "rpc.method": operation_id}
    if request_id is not None:
        attributes["operations.request_id"] = request_id
    tracer = trace.get_tracer("operations")
    with tracer.start_as_current_span(operation_id, context=parent, kind=trace.SpanKind[kind], attributes=attributes):
        yield
