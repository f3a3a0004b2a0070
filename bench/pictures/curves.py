"""Curves on logarithmic axes, such as the growth of cost; costs are shown as multiples of the axis's lowest value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.pictures.drawing import DARK, LIGHT, Drawing, Theme

WIDTH, HEIGHT, LEFT, TOP = 300, 150, 70, 76
COLUMNS, LEGEND_LINE = 2, 15
COLOURS = ("#3b82f6", "#22a06b", "#d97706", "#db2777", "#8b5cf6", "#8593a5", "#14b8a6", "#ef4444")
"""Colours that are visible on a light and on a dark page."""


@dataclass
class Curve:
    """The cost of one kind of work by size."""

    name: str
    points: dict[int, float] = field(default_factory=dict)

    def add(self, size: int, seconds: float) -> None:
        """Add one measurement; a time below 0.1 µs, the clock's resolution, counts as 0.1 µs."""
        self.points[size] = max(seconds, 1e-7)

    def slope(self) -> float:
        """Return the slope of the curve at its largest sizes, where constant costs matter least."""
        sizes = sorted(self.points)
        first, last = sizes[-2 if len(sizes) < 4 else -3], sizes[-1]
        return math.log(self.points[last] / self.points[first]) / math.log(last / first)

    def with_slope(self) -> str:
        """Return the name and the slope."""
        return f"{self.name}: slope {self.slope():.2f}"


Charts = Mapping[str, Sequence[Curve]]


def draw(name: str, title: str, charts: Charts, label: Callable[[Curve], str]) -> dict[str, str]:
    """Return the picture in both themes, by file name."""
    return {f"{name}-{theme.name}.svg": _draw(title, charts, label, theme).svg() for theme in (LIGHT, DARK)}


def _draw(title: str, charts: Charts, label: Callable[[Curve], str], theme: Theme) -> Drawing:
    row = HEIGHT + 73 + LEGEND_LINE * max(len(curves) for curves in charts.values())
    picture = Drawing(860, 40 + math.ceil(len(charts) / COLUMNS) * row, theme, title)
    picture.text(20, 30, title, bold=True, anchor="start")
    picture.text(840, 30, "multiples; both axes are logarithmic", size=12, colour=theme.faint, anchor="end")
    for index, (kind, curves) in enumerate(charts.items()):
        _chart(picture, kind, curves, label, LEFT + index % COLUMNS * 420, TOP + index // COLUMNS * row)
    return picture


def _chart(
    picture: Drawing, kind: str, curves: Sequence[Curve], label: Callable[[Curve], str], left: float, top: float
) -> None:
    theme = picture.theme
    sizes = sorted({size for curve in curves for size in curve.points})
    costs = [cost for curve in curves for cost in curve.points.values()]
    low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
    span = math.log10(sizes[-1] / sizes[0])

    def place(size: int, cost: float) -> str:
        x = left + math.log10(size / sizes[0]) / span * WIDTH
        y = top + HEIGHT - (math.log10(cost) - low) / (high - low) * HEIGHT
        return f"{x:.1f},{y:.1f}"

    picture.text(left, top - 12, kind, size=13, bold=True, anchor="start")
    for power in range(low, high + 1):
        y = top + HEIGHT - (power - low) / (high - low) * HEIGHT
        ends = f'x1="{left:g}" x2="{left + WIDTH:g}" y1="{y:.1f}" y2="{y:.1f}"'
        picture.raw(f'<line {ends} stroke="{theme.line}" stroke-width="0.5"/>')
        picture.text(left - 6, y + 4, f"{_short(10 ** (power - low))}x", size=10, colour=theme.faint, anchor="end")
    for size in (sizes[0], sizes[-1]):
        x = left + math.log10(size / sizes[0]) / span * WIDTH
        picture.text(x, top + HEIGHT + 16, _short(size), size=10, colour=theme.faint)
    for row, (curve, colour) in enumerate(zip(curves, COLOURS, strict=False)):
        line = " ".join(place(*point) for point in sorted(curve.points.items()))
        picture.raw(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + HEIGHT + 34 + row * LEGEND_LINE
        picture.bar(left, y - 8, 10, 9, colour)
        picture.text(left + 16, y, label(curve), size=11, anchor="start")


def _short(number: int) -> str:
    """Return a number in at most four characters if it is a power of ten."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= unit and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)
