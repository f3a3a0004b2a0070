"""Spans in memory, for the tests of traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))


@contextmanager
def spans_in_memory() -> Iterator[InMemorySpanExporter]:
    """Set up an SDK that keeps spans, for as long as the block lasts.

    It is the same one each time: libraries such as the MCP SDK keep the tracer of the first that they see.
    """
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = _provider
    _exporter.clear()
    try:
        yield _exporter
    finally:
        trace._TRACER_PROVIDER = before


def path_of(span: Any, spans: list[Any]) -> list[str]:
    """The names and kinds of a span and its parents, the root first."""
    by_id = {each.context.span_id: each for each in spans}
    path: list[str] = []
    while span is not None:
        path.insert(0, f"{span.name} {span.kind.name}")
        span = None if span.parent is None else by_id[span.parent.span_id]
    return path
