"""Shapes and colours of the pictures: boxes, arrows and text on a light or a dark page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Theme(NamedTuple):
    """The colours of a page."""

    name: str
    page: str
    text: str
    faint: str
    line: str
    fill: str
    accent: str
    soft: str
    good: str
    bad: str
    number: str


LIGHT = Theme(
    "light",
    "#ffffff",
    "#1f2328",
    "#59636e",
    "#9aa4af",
    "#f6f8fa",
    "#0b63c5",
    "#ddeeff",
    "#1a7f37",
    "#c0392b",
    "#9a6700",
)
DARK = Theme(
    "dark", "#0d1117", "#e6edf3", "#9198a1", "#59636e", "#161b22", "#58a6ff", "#12294a", "#3fb950", "#ff7b72", "#e3b341"
)


@dataclass
class Drawing:
    """A picture in one theme; the origin is at the top left."""

    width: int
    height: int
    theme: Theme
    title: str

    def __post_init__(self) -> None:
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 14,
        colour: str | None = None,
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Add one line of text; `y` is its baseline."""
        weight = ' font-weight="600"' if bold else ""
        family = f' font-family="{MONO}"' if mono else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour or self.theme.text}"'
            f' text-anchor="{anchor}"{weight}{family} xml:space="preserve">{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, *lines: str, strong: bool = False) -> None:
        """Add a box with its first line in bold and the others below it."""
        fill, stroke = (self.theme.soft, self.theme.accent) if strong else (self.theme.fill, self.theme.line)
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{stroke}"/>'
        )
        start = y + height / 2 + 5 - (len(lines) - 1) * 9
        for index, line in enumerate(lines):
            faint = None if index == 0 else self.theme.faint
            self.text(
                x + width / 2, start + index * 18, line, size=14 if index == 0 else 12, colour=faint, bold=index == 0
            )

    def arrow(self, *points: tuple[float, float], colour: str | None = None, dashed: bool = False) -> None:
        """Add a line through points, with an arrowhead at the last one."""
        stroke = colour or self.theme.faint
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="1.6"{dash}/>')
        (from_x, from_y), (x, y) = points[-2], points[-1]
        length = max(abs(x - from_x), abs(y - from_y)) or 1
        dx, dy = (x - from_x) / length * 9, (y - from_y) / length * 9
        head = f"{x:g},{y:g} {x - dx - dy / 2:g},{y - dy + dx / 2:g} {x - dx + dy / 2:g},{y - dy - dx / 2:g}"
        self._parts.append(f'<polygon points="{head}" fill="{stroke}"/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Add a filled bar."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{colour}"/>')

    def raw(self, part: str) -> None:
        """Add an SVG element."""
        self._parts.append(part)

    def svg(self) -> str:
        """Return the picture as SVG."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' height="{self.height}" role="img" font-family="{SANS}">'
        )
        page = f'<rect width="{self.width}" height="{self.height}" rx="10" fill="{self.theme.page}"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", page, *self._parts, "</svg>\n"])
