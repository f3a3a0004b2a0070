"""Every Python snippet of the README and the guide is run; a `text` block right after one is its output."""

from __future__ import annotations

import contextlib
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
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)


def snippets(page: Path) -> Iterator[tuple[str, str | None, int]]:
    """Each Python block of a page, the output it promises (None: it promises none), and its line."""
    text = page.read_text()
    blocks = list(FENCE.finditer(text))
    for index, block in enumerate(blocks):
        if block[1] != "python" or "title=" in block[2]:
            continue  # a block with a title is a file, which tests/test_pages.py writes
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        promised = None
        if following is not None and following[1] == "text" and not text[block.end() : following.start()].strip():
            promised = following[3]
        yield block[3], promised, text[: block.start()].count("\n") + 2


@contextlib.contextmanager
def page_module() -> Iterator[ModuleType]:
    module = ModuleType("guide_page")
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


def run(code: str, module: ModuleType, place: str) -> str:
    """Run a snippet and return what it printed."""
    for shown, real in SERVERS.items():
        if shown in code:
            code = code.replace(shown, real())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), module.__dict__)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_print_the_documented_output(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_first_screen_of_the_readme_has_an_install_line_and_a_picture_and_an_example_follows() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert any("pip install" in line for line in lines[:12])
    assert any("<picture>" in line for line in lines[:20])
    _, promised, _ = next(snippets(ROOT / "README.md"))
    assert promised is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_are_one_program(page: Path) -> None:
    program = "\n".join(code for code, _, _ in snippets(page))
    try:
        compile(program, str(page), "exec")
    except SyntaxError as error:
        pytest.fail(f"{page.name} does not run as a script ({error.msg}): put `await` into a main() for asyncio.run")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", ["architecture.md", "where-to-change.md"])
def test_the_files_that_a_page_names_exist(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    known = {
        path.relative_to(ROOT).as_posix() for top in ("src", "tests", "bench") for path in (ROOT / top).rglob("*.py")
    }
    for named in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", text):
        assert any(path.endswith(f"/{named}") or path == named for path in known), f"{name} names {named}"


def test_the_layers_of_the_architecture_are_the_modules_of_the_package() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().partition("\n![")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")]
    named = {name.partition(".")[0] for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    package = ROOT / "src" / "operations"
    modules = {path.name.removesuffix(".py") for path in package.iterdir() if (path / "__init__.py").exists()}
    modules |= {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    assert named == modules
