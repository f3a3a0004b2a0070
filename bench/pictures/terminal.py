"""A terminal session, drawn from a real run of the example in `examples/quickstart`."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.pictures.drawing import DARK, LIGHT, MONO, Drawing, Theme

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
COLUMNS = 92
COMMANDS = (
    "ops search 'weather price words'",
    "ops call shop.quote item=tea count=4",
    "ops call weather.forecast city=Rome --jq .days[0]",
    "ops call text.count text='one registry for all of them'",
    "ops call shop.quote itme=tea",
)
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]")


def record() -> list[tuple[str, str]]:
    """Run the commands on a terminal; return each with its output, colours included."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "quickstart"
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        api = [sys.executable, str(folder / "weather_api.py"), "--port", "0"]
        with subprocess.Popen(api, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = server.stdout.readline().strip().rpartition(":")[2]
            environment = {
                **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")},
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "OPERATIONS_TRUST": "1",
                "QUICKSTART_PORT": port,
                "TERM": "xterm-256color",
                "XDG_CACHE_HOME": directory,
                "XDG_STATE_HOME": directory,
            }
            try:
                _run("ops ls", folder, environment)  # fills the cache
                return [(command, _run(command, folder, environment)) for command in COMMANDS]
            finally:
                server.terminate()


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    controller, terminal = pty.openpty()
    resize = ["stty", "cols", str(COLUMNS), "rows", "40"]
    subprocess.run(resize, stdin=terminal, check=True)
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    try:
        while chunk := os.read(controller, 65_536):
            shown += chunk
    except OSError:
        pass  # EIO: the other end of the terminal is closed
    os.close(controller)
    process.wait()
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    text = "\n".join(_OTHER.sub("", line.rpartition("\r\x1b[K")[2] or line) for line in lines)
    return text.rstrip("\n")


def draw(session: list[tuple[str, str]], theme: Theme) -> str:
    """Draw the session."""
    lines = []
    for command, shown in session:
        lines += [f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m", *shown.split("\n"), ""]
    height = 58 + 19 * (len(lines) - 1)
    drawing = Drawing(820, height, theme, "A terminal session with ops")
    drawing.raw(f'<rect width="820" height="{height}" rx="10" fill="{theme.fill}" stroke="{theme.line}"/>')
    for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        drawing.raw(f'<circle cx="{22 + index * 20}" cy="20" r="6" fill="{colour}"/>')
    for number, line in enumerate(lines):
        spans = "".join(_spans(line, theme))
        drawing.raw(
            f'<text x="18" y="{56 + number * 19}" font-family="{MONO}" font-size="14" fill="{theme.text}"'
            f' xml:space="preserve">{spans}</text>'
        )
    return drawing.svg()


def _spans(line: str, theme: Theme) -> list[str]:
    """Return the spans of a line, coloured by its escape sequences."""
    colours = {31: theme.bad, 32: theme.good, 33: theme.number, 34: theme.accent, 35: theme.accent, 36: theme.accent}
    style: dict[str, str] = {}
    parts = []
    pieces = _SGR.split(line)
    for text, codes in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if text:
            attributes = "".join(f' {name}="{value}"' for name, value in style.items())
            escaped = text.replace("&", "&amp;").replace("<", "&lt;")
            parts.append(f"<tspan{attributes}>{escaped}</tspan>")
        for code in (int(each) if each else 0 for each in codes.split(";")):
            if code == 0:
                style = {}
            elif code == 1:
                style["font-weight"] = "600"
            elif code == 2 or code == 90:
                style["fill"] = theme.faint
            elif code % 60 in colours:
                style["fill"] = colours[code % 60]
    return parts


def pictures() -> dict[str, str]:
    """Return the picture in both themes, by file name."""
    session = record()
    return {f"terminal-{theme.name}.svg": draw(session, theme) for theme in (LIGHT, DARK)}
