"""OpenTelemetry: spans and durations of calls, by its semantic conventions. Imported only if its SDK is used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from operations.context import TRACE_FIELDS
from operations.errors import CallError
from operations.telemetry.observer import Call, Observation

_NAME = "operations"
_PROPAGATOR = TraceContextTextMapPropagator()
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class OpenTelemetryObserver:
    """Makes a span for each call: SERVER for a served call, INTERNAL for a local one.

    A served call's parent is in its metadata; a local call's is the current span, else that of its metadata.
    """

    def begin(self, call: Call) -> Observation:
        """Start the span."""
        served = call.kind == "served"
        parent = None
        if served or not trace.get_current_span().get_span_context().is_valid:
            parent = _remote_parent(call.metadata)
        kind = SpanKind.SERVER if served else SpanKind.INTERNAL
        span = _tracer().start_span(call.operation_id, context=parent, kind=kind, attributes=_attributes(call))
        return _Span(call, span)


class _Span(Observation):
    """The span of one call."""

    __slots__ = ("_call", "_span")

    def __init__(self, call: Call, span: trace.Span) -> None:
        self._call = call
        self._span = span

    def enter(self) -> Any:
        """Make the span current."""
        return otel_context.attach(trace.set_span_in_context(self._span))

    def leave(self, entered: Any) -> None:
        """Make the previous span current again."""
        if entered is not None:
            otel_context.detach(entered)

    def end(self, outcome: str, error: BaseException | None) -> None:
        """End the span and record the duration."""
        call, span = self._call, self._span
        if call.streaming:
            span.set_attribute("operations.stream.items", call.items)
        _mark(span, outcome)
        if call.kind == "served":
            attributes = {"rpc.system.name": _NAME, "rpc.method": _method(call)}
            if outcome != "ok":
                attributes["error.type"] = outcome
            _duration("rpc.server.call.duration").record(
                call.seconds, attributes, context=trace.set_span_in_context(span)
            )
        span.end()


OBSERVER = OpenTelemetryObserver()


@contextlib.contextmanager
def client_span(operation_id: str) -> Iterator[None]:
    """Open the span of a call to another process."""
    attributes = {"rpc.system.name": _NAME, "rpc.method": operation_id}
    with _tracer().start_as_current_span(
        operation_id, kind=SpanKind.CLIENT, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except CallError as error:
            _mark(span, str(error.code))
            raise


@contextlib.contextmanager
def http_span(method: str, url: str) -> Iterator[trace.Span]:
    """Open the span of an HTTP request; `url` has no query, which may contain secrets."""
    parts = urlsplit(url)
    attributes: dict[str, Any] = {
        "http.request.method": method,
        "url.full": url,
        "server.address": parts.hostname or "",
    }
    if parts.port is not None:
        attributes["server.port"] = parts.port
    with _tracer().start_as_current_span(
        method, kind=SpanKind.CLIENT, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            _mark(span, str(error.code) if isinstance(error, CallError) else type(error).__name__)
            raise


def note_status(span: trace.Span, status: int) -> None:
    """Write the status of a response."""
    span.set_attribute("http.response.status_code", status)
    if status >= 400:
        _mark(span, str(status))


_kept: tuple[Any, trace.Tracer] | None = None


def _tracer() -> trace.Tracer:
    """Return the tracer of the current provider, cached because making one costs as much as a span."""
    global _kept
    provider = trace.get_tracer_provider()
    if _kept is None or _kept[0] is not provider:
        _kept = provider, provider.get_tracer(_NAME)
    return _kept[1]


def _mark(span: trace.Span, outcome: str) -> None:
    """Write the outcome of a call, without error messages, which may contain secrets."""
    if outcome == "ok":
        return
    span.set_attribute("error.type", outcome)
    span.set_status(Status(StatusCode.ERROR, outcome))


def _attributes(call: Call) -> dict[str, Any]:
    attributes: dict[str, Any] = {"operations.request_id": call.request_id}
    if call.kind == "served":
        attributes |= {"rpc.system.name": _NAME, "rpc.method": _method(call)}
        if call.identity is not None:
            attributes["enduser.id"] = call.identity.id
    else:
        attributes["operations.operation"] = call.operation_id
    return attributes


def _method(call: Call) -> str:
    """Return the operation's id; `_OTHER` for an unknown one, by the conventions."""
    return call.operation_id if call.spec is not None else "_OTHER"


def _remote_parent(metadata: Mapping[str, Any]) -> Any:
    carrier = {name: str(metadata[name]) for name in TRACE_FIELDS if name in metadata}
    return _PROPAGATOR.extract(carrier) if carrier else None


@cache
def _duration(name: str) -> metrics.Histogram:
    return metrics.get_meter(_NAME).create_histogram(
        name, unit="s", description="Duration of a call.", explicit_bucket_boundaries_advisory=list(_BUCKETS)
    )
