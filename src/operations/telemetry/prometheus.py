"""metrics_text: metrics in the text format of Prometheus. Other tasks run while the text is written."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from time import perf_counter

from operations.telemetry.metrics import BUCKETS, METRICS, Measure, measures_of
from operations.wire import valid_text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of the text."""
_SLICE = 25
_SLICE_SECONDS = 0.001
_LIMITS = tuple(f"{limit:g}" for limit in BUCKETS)
_SPECIAL = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


async def metrics_text(*sources: object) -> str:
    """Return the metrics of sources (registries, workers, hubs, …) in the text format of Prometheus.

    The values are read in slices of a millisecond, and written in a thread: calls continue meanwhile. Sources without
    metrics are ignored, and so are metrics that are not in `METRICS`. Values with the same name and labels are summed.
    """
    measures: list[Measure] = []
    until = perf_counter() + _SLICE_SECONDS
    for measure in measures_of(sources):
        measures.append(measure)
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + _SLICE_SECONDS
    return await asyncio.to_thread(_render, measures)


def _render(measures: Sequence[Measure]) -> str:
    """Return the text of measures; runs in a thread."""
    families: dict[str, dict[str, _Sum]] = {}
    for number, measure in enumerate(measures):
        _add(families.setdefault(measure.name, {}), measure)
        _yield_after(number)
    lines: list[str] = []
    for name in METRICS:
        if name not in families:
            continue
        lines += (f"# HELP {name} {METRICS[name].help}", f"# TYPE {name} {METRICS[name].type}")
        for number, (labels, total) in enumerate(families[name].items()):
            _write(lines, name, labels, total)
            _yield_after(number)
    return "\n".join(lines) + "\n"


def _yield_after(number: int) -> None:
    """Release the interpreter lock after every 25th measure: otherwise the event loop would wait up to 5 ms for the
    lock.
    """
    if number % _SLICE == 0:
        time.sleep(0)


class _Sum:
    """Values with the same name and labels, added up."""

    __slots__ = ("buckets", "count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.buckets: list[int] | None = None
        self.count = 0


def _add(family: dict[str, _Sum], measure: Measure) -> None:
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in measure.labels.items())
    total = family.get(labels)
    if total is None:
        total = family[labels] = _Sum()
    total.value += measure.value
    if measure.buckets is not None:
        before = total.buckets or [0] * len(measure.buckets)
        total.buckets = [old + new for old, new in zip(before, measure.buckets, strict=True)]
        total.count += measure.observations


def _write(lines: list[str], name: str, labels: str, total: _Sum) -> None:
    shown = f"{{{labels}}}" if labels else ""
    if total.buckets is None:
        lines.append(f"{name}{shown} {total.value:.15g}")
        return
    before = f"{labels}," if labels else ""
    for limit, count in zip(_LIMITS, total.buckets, strict=True):
        lines.append(f'{name}_bucket{{{before}le="{limit}"}} {count}')
    lines.append(f'{name}_bucket{{{before}le="+Inf"}} {total.count}')
    lines.append(f"{name}_sum{shown} {total.value:.15g}")
    lines.append(f"{name}_count{shown} {total.count}")


def _escape(value: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], valid_text(value))
