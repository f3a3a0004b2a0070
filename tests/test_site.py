"""The documentation site builds without a warning, is complete, and works in a browser without any other host."""

from __future__ import annotations

import ast
import functools
import http.server
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml

from tests.test_docs import PAGES, snippets

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
NODE = ROOT / "tests" / "node"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built as `make docs` builds it."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return SITE


class _Page(HTMLParser):
    """The ids and the links of a page; `loads` are those that a browser fetches by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[key] for key in ("id", "name") if key in given}
        if "href" in given:
            (self.links if tag in ("a", "area") else self.loads).add(given["href"])
        if "src" in given:
            self.loads.add(given["src"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, _Page]:
    """Each page by its address below the site's root."""
    found = {}
    for path in site.rglob("*.html"):
        address = "/" + path.relative_to(site).as_posix().removesuffix("index.html")
        found[address] = _Page(path)
    return found


def test_every_link_of_the_site_leads_to_a_page_and_its_heading(site: Path, pages: dict[str, _Page]) -> None:
    broken = []
    for address, page in pages.items():
        if address == "/404.html":
            continue  # its addresses are relative to the page that shows it
        for link in page.links | page.loads:
            parts = urlsplit(urljoin("http://site" + address, link))
            if parts.scheme not in ("http", "https") or parts.netloc != "site":
                continue
            path = unquote(parts.path)
            if path not in pages and not (site / path.lstrip("/")).is_file():
                broken.append(f"{address}: {link}")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].ids:
                broken.append(f"{address}: {link}, no such heading")
    assert broken == []


def test_no_page_loads_anything_from_another_host(pages: dict[str, _Page]) -> None:
    for address, page in pages.items():
        assert [link for link in page.loads if urlsplit(link).netloc] == [], address


def test_every_page_is_in_the_navigation_or_in_an_index(pages: dict[str, _Page]) -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def listed(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, list):
            for each in entry:
                yield from listed(each)
        else:
            yield from listed(list(entry.values()))

    found = set(listed(config["nav"]))
    found |= {f"decisions/{name}" for name in re.findall(r"\]\(([^)]+\.md)\)", _page("decisions/index.md"))}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written - found == set()
    assert found - written == set()


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.fixture(scope="module")
def inventory(site: Path) -> set[str]:
    """Every name that the reference describes."""
    packed = (site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]
    return {line.split(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}


def _modules() -> Iterator[ModuleType]:
    """The modules that list their public names."""
    root = ROOT / "src"
    for path in sorted((root / "operations").rglob("*.py")):
        if re.search(r"^__all__ = ", path.read_text(), re.M):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            module = importlib.import_module(name)
            if hasattr(module, "__all__"):
                yield module


def test_every_public_name_is_in_the_reference(inventory: set[str]) -> None:
    modules = list(_modules())
    public = [(module.__name__, name, getattr(module, name)) for module in modules for name in module.__all__]
    described = {id(value) for module, name, value in public if f"{module}.{name}" in inventory}
    missing = []
    for module, name, value in public:
        own = f"{getattr(value, '__module__', module)}.{getattr(value, '__qualname__', name)}"
        if id(value) not in described and own not in inventory:
            missing.append(f"{module}.{name}")
    assert len(public) > 100
    assert missing == []


def test_every_name_that_a_page_imports_is_in_the_reference(inventory: set[str]) -> None:
    missing = set()
    for page in PAGES:
        for code, _, _ in snippets(page):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "operations":
                    missing |= {f"{node.module}.{alias.name}" for alias in node.names} - inventory
    missing -= {name for name in missing if _canonical(name) in inventory}
    assert missing == set()


def _canonical(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module), attribute)
    return f"{getattr(value, '__module__', module)}.{getattr(value, '__qualname__', attribute)}"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site, served over HTTP on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_browser_shows_and_searches_the_site_without_another_host(address: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed, and the browser comes from npm: install Node 20")
    if not (NODE / "node_modules" / "playwright-core").exists():
        pytest.skip("the browser is not installed: `make test` does it, or `npm ci` in tests/node")
    done = subprocess.run([node, "site.mjs", address], cwd=NODE, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["start"].startswith("operations")
    assert "/guide/registry/" in report["found"]
    assert report["guide"].startswith("Hub and spokes")
    assert report["code"] > 3
    assert report["errors"] == []
    assert report["hosts"] == [urlsplit(address).netloc]
