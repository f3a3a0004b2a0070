"""Runs the pages that a reader follows step by step: writes the files, runs the commands, compares the outputs.

A block with a title (`title="ops/shop.py"`) is a file. A `sh` block is typed; a `text` block right after it is what it
prints. Comments before a block steer the test: `<!-- terminal: hub -->` types it in another terminal, where it keeps
running, `<!-- exit: 2 -->` expects that exit code, `<!-- not run: why -->` leaves it out.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.driving import Terminal
from tests.ports import free_ports
from tests.test_docs import SERVERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
TESTED_ELSEWHERE = {"docs/guide/command-line.md"}
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if re.search(r"^```sh|^```\w+ .*title=", page.read_text(), re.M)
    and page.relative_to(ROOT).as_posix() not in TESTED_ELSEWHERE
]
COLUMNS = 96
PORTS = ("8700", "8765", "8766")
"""The ports that pages use; the tests take free ones. Redis and NATS run at the addresses of `SERVERS`."""
CHANGING = (
    (re.compile(r"\d+ ms|\d+\.\d s\b"), "12 ms"),
    (re.compile(r" in \d+\.\d\ds"), " in 0.12s"),
    (re.compile(r"^\d\d:\d\d:\d\d ", re.M), ""),
    (re.compile(r" +(?=\[100%\])"), " "),
)


@dataclass
class Block:
    """One fenced block of a page."""

    kind: str
    text: str
    line: int
    title: str | None
    marks: dict[str, str]
    promised: str | None = None


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, `text` blocks as the promise of the one before."""
    text = page.read_text()
    end, last = 0, None
    for found in BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', found[3])
        marks = dict(re.findall(r"<!-- ([\w ]+): (.*?) -->", found[1]))
        block = Block(found[2], found[4], text[: found.start()].count("\n") + 1, title[1] if title else None, marks)
        if block.kind == "text" and last is not None and not text[end : found.start()].strip():
            last.promised = block.text
        else:
            yield_now, last = last, block
            if yield_now is not None:
                yield yield_now
        end = found.end()
    if last is not None:
        yield last


@dataclass
class Reader:
    """A person with terminals open in an empty home directory."""

    home: Path
    ports: dict[str, str]
    running: list[Terminal] = field(default_factory=list)

    def follow(self, block: Block) -> None:
        """Do what a block shows."""
        if "not run" in block.marks:
            return
        if block.title is not None:
            path = self._where() / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._ported(block.text))
        elif block.kind == "sh":
            promised = settled(self._ported(block.promised or ""))
            name = block.marks.get("terminal")
            terminal = self._terminal(block.text, name or "main", "+" if "exit" in block.marks else "-")
            if name is None:
                self._finish(terminal, block, promised)
            else:
                self.running.append(terminal)
                for line in promised.splitlines():
                    terminal.until(line, timeout=60)

    def _finish(self, terminal: Terminal, block: Block, promised: str) -> None:
        with terminal:
            code = terminal.end(timeout=120)
            lines = (line.rpartition("\r\x1b[K")[2].rstrip() for line in terminal.raw.replace("\r\n", "\n").split("\n"))
            shown = settled("\n".join(lines)).replace(str(self.home), "/home/ada")
        assert code == int(block.marks.get("exit", "0")), f"line {block.line}: {shown}"
        if block.promised is not None:
            assert shown == promised, f"line {block.line}"

    def _terminal(self, commands: str, name: str, strict: str) -> Terminal:
        """Type commands in a terminal, which keeps its directory and variables between blocks."""
        state = self.home / f".terminal-{name}"
        script = f"[ ! -e {state} ] || . {state}\nset {strict}e\n{self._ported(commands)}\ncode=$?\n"
        script += f"export -p > {state}; echo cd $PWD >> {state}; exit $code"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPERATIONS_", "XDG_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"HOME": str(self.home), "PATH": path, "NO_COLOR": "1", "TERM": "xterm"}
        environment = {**kept, **own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return Terminal(["bash", "-c", script], self.home, environment, COLUMNS)

    def _where(self) -> Path:
        state = self.home / ".terminal-main"
        return Path(state.read_text().rpartition("\ncd ")[2].strip()) if state.exists() else self.home

    def _ported(self, text: str) -> str:
        for shown, real in self.ports.items():
            text = text.replace(shown, real)
        for shown, server in SERVERS.items():
            if shown in text:
                text = text.replace(shown, server())
        return text

    def close(self) -> None:
        """Stop what runs in the other terminals, the last first."""
        for terminal in reversed(self.running):
            with terminal:
                os.killpg(terminal.process.pid, signal.SIGTERM)
                terminal.end()


def settled(text: str) -> str:
    """A text without the parts that change from run to run."""
    for pattern, stable in CHANGING:
        text = pattern.sub(stable, text)
    return text.strip()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    person = Reader(tmp_path, dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True)))
    yield person
    person.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed_to_its_end(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        reader.follow(block)
