"""How much longer others take than this library for the same work: one bar for each comparison."""

from __future__ import annotations

import math

from bench.pictures.drawing import DARK, LIGHT, Drawing, Theme

FIGURES = (
    ("Typed call in process", "FastMCP server.call_tool", 70.0),
    ("Load GitHub's API document", "FastMCP from_openapi", 55.0),
    ("64 calls over Redis", "FastStream, taskiq", 48.0),
    ("OpenAPI call", "FastMCP call_tool", 13.0),
    ("64 calls over a WebSocket", "python-socketio", 6.0),
    ("64 calls over NATS", "FastStream", 4.8),
    ("64 calls over a WebSocket", "tRPC 11", 3.8),
    ("64 calls over NATS", "nats-py request", 1.4),
    ("MCP call", "the SDK's Client.call_tool", 1.0),
)
"""The lower end of what `make bench` measured, medians within one run; docs/benchmarks.md has all of it."""


def draw(theme: Theme) -> Drawing:
    """Bars on a logarithmic scale that begins at 1: as fast."""
    picture = Drawing(860, 74 + 34 * len(FIGURES), theme, "Time of others, as a multiple of ours")
    picture.text(20, 30, "Time of others, as a multiple of ours", bold=True, anchor="start")
    picture.text(840, 30, "logarithmic; 1 is as fast", size=12, colour=theme.faint, anchor="end")
    for index, (work, other, times) in enumerate(FIGURES):
        y = 50 + index * 34
        picture.text(20, y + 17, work, size=13, anchor="start")
        picture.text(400, y + 17, other, size=12, colour=theme.faint, anchor="end")
        width = 6 + math.log10(times) / 2 * 380
        picture.bar(412, y + 3, width, 20, theme.accent if times > 1 else theme.line)
        label = f"{times:g} times" if times > 1 else "the same"
        picture.text(420 + width, y + 18, label, size=13, bold=True, anchor="start")
    return picture


def pictures() -> dict[str, str]:
    """The picture in both themes, by file name."""
    return {f"benchmarks-{theme.name}.svg": draw(theme).svg() for theme in (LIGHT, DARK)}
