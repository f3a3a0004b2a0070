"""Growth curves on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.pictures.drawing import DARK, LIGHT, Drawing, Theme

WIDTH, HEIGHT, LEFT, TOP = 250, 150, 60, 70
COLUMNS = 2


@dataclass
class Curve:
    """The cost of one kind of work by size."""

    name: str
    points: dict[int, float] = field(default_factory=dict)

    def add(self, size: int, seconds: float) -> None:
        """Add one measurement, of at least a tenth of a microsecond (the clock's resolution)."""
        self.points[size] = max(seconds, 1e-7)

    def slope(self) -> float:
        """Return the slope of the last segment, where constant costs matter least."""
        sizes = sorted(self.points)
        first, last = sizes[-2 if len(sizes) < 4 else -3], sizes[-1]
        return math.log(self.points[last] / self.points[first]) / math.log(last / first)


def draw(found: Mapping[str, Sequence[Curve]]) -> dict[str, str]:
    """Return the picture in both themes, by file name."""
    return {f"growth-{theme.name}.svg": _draw(found, theme).svg() for theme in (LIGHT, DARK)}


def _draw(found: Mapping[str, Sequence[Curve]], theme: Theme) -> Drawing:
    rows = math.ceil(len(found) / COLUMNS)
    picture = Drawing(860, 40 + rows * (HEIGHT + 90), theme, "CPU time as things grow")
    picture.text(20, 30, "CPU time as things grow", bold=True, anchor="start")
    picture.text(840, 30, "both axes logarithmic", size=12, colour=theme.faint, anchor="end")
    for index, (kind, curves) in enumerate(found.items()):
        x = LEFT + index % COLUMNS * 420
        y = TOP + index // COLUMNS * (HEIGHT + 90)
        _chart(picture, kind, curves, x, y)
    return picture


def _chart(picture: Drawing, kind: str, curves: Sequence[Curve], left: float, top: float) -> None:
    theme = picture.theme
    sizes = sorted({size for curve in curves for size in curve.points})
    costs = [seconds for curve in curves for seconds in curve.points.values()]
    low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
    span = math.log10(sizes[-1] / sizes[0])

    def place(size: int, seconds: float) -> str:
        x = left + math.log10(size / sizes[0]) / span * WIDTH
        y = top + HEIGHT - (math.log10(seconds) - low) / (high - low) * HEIGHT
        return f"{x:.1f},{y:.1f}"

    picture.text(left, top - 12, kind, size=13, bold=True, anchor="start")
    for power in range(low, high + 1):
        y = top + HEIGHT - (power - low) / (high - low) * HEIGHT
        ends = f'x1="{left:g}" x2="{left + WIDTH:g}" y1="{y:.1f}" y2="{y:.1f}"'
        picture.raw(f'<line {ends} stroke="{theme.line}" stroke-width="0.5"/>')
        picture.text(left - 6, y + 4, f"{10 ** (power - low):,} x", size=10, colour=theme.faint, anchor="end")
    for size in (sizes[0], sizes[-1]):
        x = left + math.log10(size / sizes[0]) / span * WIDTH
        picture.text(x, top + HEIGHT + 16, f"{size:,}", size=10, colour=theme.faint)
    for curve, colour in zip(curves, (theme.accent, theme.good, theme.number), strict=False):
        line = " ".join(place(*point) for point in sorted(curve.points.items()))
        picture.raw(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for row, (curve, colour) in enumerate(zip(curves, (theme.accent, theme.good, theme.number), strict=False)):
        label = f"{curve.name}: slope {curve.slope():.2f}"
        picture.text(left, top + HEIGHT + 34 + row * 15, label, size=11, colour=colour, anchor="start")
