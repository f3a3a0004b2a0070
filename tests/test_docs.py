"""Every Python snippet of the README and the guide is run; a `text` block right after one is its output."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests import nats_server, redis_servers

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVERS: dict[str, Callable[[], str]] = {
    "redis://127.0.0.1:6379": lambda: redis_servers.shared_server("redis").url,
    "nats://127.0.0.1:4222": lambda: nats_server.shared_server().url,
}
"""The addresses that pages show, and the servers that their snippets run with."""
"""What pages call their server; the tests have one on another port."""
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)


def snippets(page: Path) -> Iterator[tuple[str, str | None, int]]:
    """Each Python block of a page, the output it promises (None: it promises none), and its line."""
    text = page.read_text()
    blocks = list(FENCE.finditer(text))
    for index, block in enumerate(blocks):
        if block[1] != "python":
            continue
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        promised = None
        if following is not None and following[1] == "text" and not text[block.end() : following.start()].strip():
            promised = following[2]
        yield block[2], promised, text[: block.start()].count("\n") + 2


@contextlib.contextmanager
def page_module() -> Iterator[ModuleType]:
    module = ModuleType("guide_page")
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


def run(code: str, module: ModuleType, place: str) -> str:
    """Run a snippet, which may await at its top level, and return what it printed."""
    for shown, real in SERVERS.items():
        if shown in code:
            code = code.replace(shown, real())
    compiled = compile(code, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        outcome = eval(compiled, module.__dict__)
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_do_what_it_says(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "NATS_URL" in page.read_text():
        monkeypatch.setenv("NATS_URL", nats_server.shared_server().url)
    logging.getLogger("operations").setLevel(logging.ERROR)
    try:
        with page_module() as module:
            for code, promised, line in snippets(page):
                printed = run(code, module, f"{page.name}:{line}")
                if promised is not None:
                    assert printed.strip() == promised.strip(), f"{page.name}:{line}"
    finally:
        logging.getLogger("operations").setLevel(logging.NOTSET)


def test_the_readme_shows_a_working_example_on_its_first_screen() -> None:
    _, promised, line = next(snippets(ROOT / "README.md"))
    assert line < 20
    assert promised is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
