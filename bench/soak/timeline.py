"""Analysis of a soak's samples: growth, and a chart of each quantity over time."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from bench.pictures.curves import COLOURS

Sample = dict[str, float]
Processes = Mapping[str, Sequence[Sample]]
WIDTH, HEIGHT, LEFT, GAP = 260, 130, 60, 40
KINDS = {
    "memory": ("memory, MB", 1 / (1 << 20)),
    "sockets": ("sockets", 1.0),
    "tasks": ("tasks", 1.0),
    "entries": ("entries", 1.0),
    "objects": ("objects, thousands", 1 / 1000),
    "kept": ("ids of stored calls, ten minutes each", 1.0),
}
KNOWN_SECONDS = 600.0
"""Lifetime of the id of a stored call in Redis: the number of ids rises for this time only."""
WARM_UP = 1 / 3
"""The fraction of the time in which bounded caches may fill."""
ALLOWED = {
    "memory": (0.05, 4 << 20),
    "sockets": (0.0, 0),
    "tasks": (0.1, 16),
    "entries": (0.1, 16),
    "objects": (0.1, 5_000),
}
"""The allowed growth, as a factor and as an absolute amount."""
FLOORS = ("tasks", "entries", "objects")
"""Quantities that vary with the calls in flight. Their minima are compared: a leak raises a minimum, load does not."""


def find_growth(processes: Processes) -> Iterator[str]:
    """Yield a line for each quantity that grew from the middle third of the time to the last."""
    for process, samples in processes.items():
        for kind, (factor, much) in ALLOWED.items():
            values = [sample[kind] for sample in samples if kind in sample]
            if not values:
                continue
            typical = min if kind in FLOORS else statistics.median
            third = max(1, int(len(values) * WARM_UP))
            before, after = typical(values[third : 2 * third + 1]), typical(values[-third:])
            if after > before * (1 + factor) + much:
                yield f"{kind} of the {process} grew from {before:,.0f} to {after:,.0f}"


def find_excess(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem if more ids are stored than calls were stored within the lifetime of an id."""
    kept = [sample["kept"] for sample in result["processes"]["middle"] if "kept" in sample]
    if not kept:
        return
    # At the start, ids of the search for the maximum rate are still stored.
    most = kept[0] + result["tally"].get("stored", 0) * min(1.0, KNOWN_SECONDS / result["seconds"]) * 1.1 + 16
    if max(kept) > most:
        yield f"{max(kept):,.0f} ids of stored calls are kept: expected at most {most:,.0f}"


def draw(results: Mapping[str, Any]) -> str:
    """Draw one row per quantity, one column per process and one line per transport."""
    columns = ["caller", "worker", "middle"]
    body = []
    for row, (kind, (title, scale)) in enumerate(KINDS.items()):
        for column, process in enumerate(columns):
            lines = {
                name: [
                    (sample["at"], sample[kind] * scale) for sample in result["processes"][process] if kind in sample
                ]
                for name, result in results.items()
            }
            x, y = LEFT + column * (WIDTH + LEFT), GAP + row * (HEIGHT + GAP)
            body.append(_panel(f"{title}: {'server or hub' if process == 'middle' else process}", lines, x, y))
    bottom = GAP + len(KINDS) * (HEIGHT + GAP)
    for index, name in enumerate(results):
        x = LEFT + index * 320
        body.append(f'<rect x="{x}" y="{bottom}" width="12" height="12" fill="{COLOURS[index % len(COLOURS)]}"/>')
        load = f"{name}: {results[name]['rate']:,.0f} calls a second, {results[name]['kept']:.0%} of them kept"
        body.append(f'<text x="{x + 18}" y="{bottom + 10}">{escape(load)}</text>')
    size = f'width="{LEFT + len(columns) * (WIDTH + LEFT)}" height="{bottom + 30}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(body) + "\n</svg>\n"


def _panel(title: str, lines: Mapping[str, list[tuple[float, float]]], left: float, top: float) -> str:
    """Draw one panel, with a vertical axis from zero."""
    points = [point for line in lines.values() for point in line]
    parts = [f'<text x="{left}" y="{top - 8}" font-weight="bold">{escape(title)}</text>']
    if not points:
        parts.append(f'<text x="{left}" y="{top + 20}" fill="#888">not measured</text>')
        return "\n".join(parts)
    last, most = max(point[0] for point in points) or 1.0, max(point[1] for point in points) or 1.0
    for value in (0.0, most):
        y = top + HEIGHT - value / most * HEIGHT
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:,.0f}</text>')
    parts.append(f'<text x="{left + WIDTH}" y="{top + HEIGHT + 14}" text-anchor="end">{last / 60:.0f} min</text>')
    for index, line in enumerate(lines.values()):
        shown = " ".join(f"{left + x / last * WIDTH:.1f},{top + HEIGHT - y / most * HEIGHT:.1f}" for x, y in line)
        parts.append(
            f'<polyline points="{shown}" fill="none" stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="1.5"/>'
        )
    return "\n".join(parts)
