"""mypy and pyright in strict mode accept what the guide shows, and find planted mistakes."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_docs import snippets

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GOOD = [HERE / "public_names.py", HERE / "more_public_names.py"]
HEAD = """
from collections.abc import AsyncIterator
from operations import Identity, OperationContext, OperationRegistry, OperationSpec, OperationType, operation
from operations.calls import serve_registry
from operations.pubsub.memory import MemoryTransport
from operations.sources.openapi import HTTPAuth, from_openapi
from operations.sources.mcp import MCPClientConfig

@operation(id="shop.quote")
async def quote(item: str, count: int = 1) -> dict[str, float]:
    return {item: 2.5 * count}

@operation(id="shop.watch")
async def watch(item: str) -> AsyncIterator[int]:
    yield 1

@operation(id="shop.greet")
async def greet(context: OperationContext, name: str) -> str:
    return name
"""
MISTAKES = [
    'await registry.call(quote, itme="tea")',  # unknown argument
    "await registry.call(quote, item=5)",  # wrong type
    "await registry.call(quote)",  # missing argument
    'await registry.call(greet, "Ada", "extra")',  # too many arguments
    'await registry.call("shop.quote", item="tea")',  # an id is for execute
    'x: int = (await registry.call(quote, item="tea")).data["tea"]',  # wrong result
    'await OperationContext().call(quote, itme="tea")',  # unknown argument of a nested call
    'x: int = (await OperationContext().call(greet, name="Ada")).data',  # wrong result of a nested call
    '(await registry.execute(quote, {"item": "tea"})).data.upper()',  # wrong member of the result
    '(await registry.execute("shop.quote")).body',  # unknown member of an envelope
    'registry.execute(quote, {"item": "tea"}).data',  # missing await
    'registry.execute("shop.quote")',  # never awaited
    'await registry.execute("shop.quote", {}, timeout="5")',  # a time is a number
    'await registry.execute("shop.quote", {}, context={})',  # a context is an object
    'await registry.subscribe(watch, {"item": "tea"})',  # a stream is iterated
    'x: str = [each.data async for each in registry.subscribe(watch, {"item": "tea"})][0]',  # wrong item
    'OperationSpec(name="a", namespace="b")',  # missing type
    'OperationSpec(name="a", namespace="b", type=OperationType.QUERY, output_policy="loose")',  # unknown policy
    'Identity(id="ada", roles=["admin"])',  # unknown field
    'HTTPAuth(type="digest", token="t")',  # unknown kind
    'from_openapi({}, namespace="shop")',  # the configuration is an object
    "serve_registry(MemoryTransport(), registry)",  # the registry comes first
    'MCPClientConfig(cmd="server")',  # unknown field
    '(await registry.execute("shop.quote")).meta.status_code',  # not every meta has one
]


def run(tool: str, path: Path, folder: Path) -> list[int]:
    """Return the lines of a file in which a checker finds errors."""
    strict = ["--strict", "--enable-error-code", "unused-awaitable", "--cache-dir", str(folder / ".cache")]
    options = [*strict, "--no-error-summary"] if tool == "mypy" else ["--pythonpath", sys.executable]
    command = [sys.executable, "-m", tool, *options, path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    found = re.finditer(rf"{re.escape(path.name)}:(\d+)(?::\d+)?(?: -|:) error", done.stdout)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return sorted({int(each[1]) for each in found})


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_guide_examples_are_well_typed(tool: str, tmp_path: Path) -> None:
    for path in GOOD:
        copy = tmp_path / path.name
        copy.write_text(f"# pyright: strict\n{path.read_text()}")
        assert run(tool, copy, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_planted_mistakes_are_found(tool: str, tmp_path: Path) -> None:
    lines = ["# pyright: strict", *HEAD.splitlines()]
    expected = []
    for number, mistake in enumerate(MISTAKES):
        lines += [f"async def mistake_{number}(registry: OperationRegistry) -> None:", f"    {mistake}"]
        expected.append(len(lines))
    path = tmp_path / "planted.py"
    path.write_text("\n".join(lines) + "\n")
    assert run(tool, path, tmp_path) == expected


def public_names() -> set[str]:
    """Return the names in `__all__` of each module of the reference, and those that pages import from the others."""
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    modules = {name for page in pages for name in re.findall(r"^::: (\S+)", page, re.M)}
    listed = {name: getattr(importlib.import_module(name), "__all__", None) for name in modules if is_module(name)}
    found = {each for names in listed.values() for each in names or ()}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for code, _, _ in snippets(page):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and node.module in listed:
                    found |= {alias.name for alias in node.names}
    return found


def is_module(name: str) -> bool:
    """Return whether a name of the reference is a module."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_every_public_name_is_used() -> None:
    trees = [ast.parse(path.read_text()) for path in GOOD]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    public = public_names()
    assert len(public) > 250
    assert public - used == set()
