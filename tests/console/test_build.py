"""The built console: small files, no resources of other hosts, and a lock file without addresses."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ASSETS = ROOT / "src" / "operations" / "serving" / "console" / "assets"
FIRST_LOAD = 60 * 1024
EVERYTHING = 200 * 1024


@pytest.fixture(scope="module")
def scripts() -> dict[str, bytes]:
    """The built scripts by name."""
    found = {path.name: path.read_bytes() for path in (ASSETS / "assets").glob("*.js")}
    if not found:
        pytest.skip("the console is not built: `make console` does it")
    return found


def _size(*scripts: bytes) -> int:
    return sum(len(gzip.compress(script, 9)) for script in scripts)


def test_the_first_load_and_everything_are_small(scripts: dict[str, bytes]) -> None:
    page = (ASSETS / "index.html").read_text()
    (entry,) = re.findall(r'src="/console/assets/([^"]+)"', page)
    first = {entry, *(name for name in scripts if name.startswith("worker-"))}
    pending = [entry]
    while pending:  # what the entry imports before it runs; the rest is imported on use
        for name in re.findall(r'(?:from|import)"\./([^"]+)"', scripts[pending.pop()].decode()):
            if name not in first:
                first.add(name)
                pending.append(name)
    assert _size(*(scripts[name] for name in first)) <= FIRST_LOAD
    assert _size(*scripts.values()) <= EVERYTHING


def test_the_page_has_no_inline_script_and_no_other_host(scripts: dict[str, bytes]) -> None:
    page = (ASSETS / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\bstyle=|\bon\w+=", page) == []
    assert re.findall(r'(?:src|href)="(?!/console/)', page) == []


def test_no_script_makes_html_or_code_of_text(scripts: dict[str, bytes]) -> None:
    for name, script in scripts.items():
        assert b"eval(" not in script, name
        assert b"new Function" not in script, name
        assert b"document.write" not in script, name


def test_the_lock_file_names_no_registry() -> None:
    lock = (ROOT / "console" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "registry" not in lock
