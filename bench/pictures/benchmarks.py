"""Bar chart of the published comparisons with other libraries."""

from __future__ import annotations

import math

from bench.comparisons import PUBLISHED, Comparison, Results, number, read
from bench.pictures.drawing import DARK, LIGHT, Drawing, Theme


def figures(results: Results) -> list[Comparison]:
    """Return the comparisons with other libraries, greatest first; each from the latest Python that measured it."""
    found: dict[tuple[str, str], Comparison] = {}
    for _, benchmarks in sorted(results.items(), reverse=True):
        for each in (each for rows in benchmarks.values() for each in rows if each.kind == "faster"):
            found.setdefault((each.work, each.against), each)
    return sorted(found.values(), key=lambda each: -each.value)


def draw(results: Results, theme: Theme) -> Drawing:
    """Draw bars on a logarithmic scale from 1 (equally fast)."""
    rows = figures(results)
    picture = Drawing(860, 74 + 34 * len(rows), theme, "Time of others, as a multiple of ours")
    picture.text(20, 30, "Time of others, as a multiple of ours", bold=True, anchor="start")
    picture.text(840, 30, "logarithmic; 1 is as fast", size=12, colour=theme.faint, anchor="end")
    for index, each in enumerate(rows):
        y = 50 + index * 34
        picture.text(20, y + 17, each.work.replace("`", ""), size=13, anchor="start")
        picture.text(470, y + 17, each.against.replace("`", ""), size=12, colour=theme.faint, anchor="end")
        width = 6 + math.log10(max(each.value, 1.0)) / 2 * 270
        picture.bar(482, y + 3, width, 20, theme.accent if each.value > 1 else theme.bad)
        picture.text(490 + width, y + 18, number(each.value), size=13, bold=True, anchor="start")
    return picture


def draw_all(results: Results) -> dict[str, str]:
    """Return the picture in both themes, by file name."""
    return {f"benchmarks-{theme.name}.svg": draw(results, theme).svg() for theme in (LIGHT, DARK)}


def pictures() -> dict[str, str]:
    """Return the picture of the published results in both themes, by file name."""
    return draw_all(read(PUBLISHED))
