"""SVG chart of throughput and p99 latency by concurrency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

Results = Mapping[str, Mapping[int, Mapping[str, float]]]
COLOURS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a", "#787774", "#dfab01", "#e03e3e")
WIDTH, HEIGHT, LEFT, TOP = 420, 300, 70, 40


def draw(results: Results) -> str:
    """Draw both charts side by side, with a legend."""
    names = list(results)
    body = [
        _chart(results, "rate", "calls per second", offset=0),
        _chart(results, "p99", "p99 in seconds", offset=WIDTH + 80),
    ]
    for index, name in enumerate(names):
        x, y = 20 + index % 4 * 230, TOP + HEIGHT + 60 + index // 4 * 22
        body.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLOURS[index % len(COLOURS)]}"/>')
        body.append(f'<text x="{x + 18}" y="{y}">{escape(name)}</text>')
    size = f'width="{2 * WIDTH + 160}" height="{TOP + HEIGHT + 110}"'
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(body) + "\n</svg>\n"


def _chart(results: Results, key: str, title: str, *, offset: int) -> str:
    """Draw one chart with logarithmic axes."""
    values = [point[key] for points in results.values() for point in points.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    concurrencies = sorted({concurrency for points in results.values() for concurrency in points})
    last = math.log(concurrencies[-1]) or 1.0

    def x(concurrency: int) -> float:
        return offset + LEFT + math.log(concurrency) / last * (WIDTH - LEFT)

    def y(value: float) -> float:
        return TOP + HEIGHT - (math.log10(value) - low) / (high - low) * HEIGHT

    parts = [f'<text x="{offset + LEFT}" y="{TOP - 15}" font-weight="bold">{title}, over concurrency</text>']
    for power in range(low, high + 1):
        height = y(10.0**power)
        parts.append(f'<line x1="{x(1)}" x2="{x(concurrencies[-1])}" y1="{height}" y2="{height}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(1) - 8}" y="{height + 4}" text-anchor="end">{10.0**power:,.10g}</text>')
    for concurrency in concurrencies:
        parts.append(f'<text x="{x(concurrency)}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{concurrency:,}</text>')
    for index, points in enumerate(results.values()):
        colour = COLOURS[index % len(COLOURS)]
        line = " ".join(f"{x(concurrency):.1f},{y(point[key]):.1f}" for concurrency, point in sorted(points.items()))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return "\n".join(parts)
