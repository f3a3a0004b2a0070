"""OpenTelemetry: spans and durations of calls, by its semantic conventions.

Imported only if the program uses the SDK of OpenTelemetry.
"""

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
_WITHOUT_SDK = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


def has_provider() -> bool:
    """Return whether the program has set up tracing: the provider is not a placeholder of the OpenTelemetry API."""
    return type(trace.get_tracer_provider()) not in _WITHOUT_SDK


class OpenTelemetryObserver:
    """Makes a span for each call: SERVER for a served call, INTERNAL for a local one.

    The parent of a served call's span is read from the call's metadata. The parent of a local call's span is the
    current span; without a current span, it is read from the metadata.
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
    """The span of one call, and the context in which it is current."""

    __slots__ = ("_call", "_context", "_span")

    def __init__(self, call: Call, span: trace.Span) -> None:
        self._call = call
        self._span = span
        self._context = trace.set_span_in_context(span)

    def enter(self) -> Any:
        """Make the span current."""
        return otel_context.attach(self._context)

    def leave(self, entered: Any) -> None:
        """Make the previous span current again."""
        if entered is not None:
            otel_context.detach(entered)

    def end(self, outcome: str, error: BaseException | None) -> None:
        """End the span and record the duration."""
        call, span = self._call, self._span
        if call.streaming:
            span.set_attribute("operations.stream.items", call.items)
        if outcome != "ok":
            _mark(span, outcome)
        if call.kind == "served":
            attributes = {"rpc.system.name": _NAME, "rpc.method": _method(call)}
            if outcome != "ok":
                attributes["error.type"] = outcome
            _duration("rpc.server.call.duration").record(call.seconds, attributes, context=self._context)
        span.end()


OBSERVER = OpenTelemetryObserver()


def client_span(operation_id: str, metadata: dict[str, Any]) -> contextlib.AbstractContextManager[trace.Span]:
    """Open the span of a call to another process and write its id to `metadata` as `traceparent`."""
    return _open_span(operation_id, {"rpc.system.name": _NAME, "rpc.method": operation_id}, metadata)


def http_span(method: str, url: str, headers: dict[str, str]) -> contextlib.AbstractContextManager[trace.Span]:
    """Open the span of an HTTP request and write its id to `headers`.

    Pass `url` without its query, which may have secrets.
    """
    parts = urlsplit(url)
    attributes: dict[str, Any] = {
        "http.request.method": method,
        "url.full": url,
        "server.address": parts.hostname or "",
    }
    if parts.port is not None:
        attributes["server.port"] = parts.port
    return _open_span(method, attributes, headers)


@contextlib.contextmanager
def _open_span(name: str, attributes: dict[str, Any], carrier: dict[str, Any]) -> Iterator[trace.Span]:
    """Make a CLIENT span current until the end of the block, and write its id to `carrier` as `traceparent`."""
    span = _tracer().start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
    context = trace.set_span_in_context(span)
    _PROPAGATOR.inject(carrier, context)
    entered = otel_context.attach(context)
    try:
        yield span
    except BaseException as error:
        _mark(span, str(error.code) if isinstance(error, CallError) else type(error).__name__)
        raise
    finally:
        otel_context.detach(entered)
        span.end()


def inject(metadata: dict[str, Any]) -> None:
    """Add the id of the current span to the metadata of a request."""
    _PROPAGATOR.inject(metadata)


def note_status(span: trace.Span, status: int) -> None:
    """Add the HTTP status of a response to the span of the request."""
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
    """Add the error of a call to its span, without the message, which may contain secrets."""
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
    """Return the operation's id; `_OTHER` for an unknown operation, as OpenTelemetry's conventions require."""
    return call.operation_id if call.spec is not None else "_OTHER"


def _remote_parent(metadata: Mapping[str, Any]) -> Any:
    carrier = {name: str(metadata[name]) for name in TRACE_FIELDS if name in metadata}
    return _PROPAGATOR.extract(carrier) if carrier else None


@cache
def _duration(name: str) -> metrics.Histogram:
    return metrics.get_meter(_NAME).create_histogram(
        name, unit="s", description="Duration of a call.", explicit_bucket_boundaries_advisory=list(_BUCKETS)
    )
