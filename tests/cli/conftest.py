from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.driving import Project

SHOP = '''
import asyncio, os, time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal
from operations import AccessControl, CallError, ErrorCode, OperationContext, operation

@dataclass
class Address:
    city: str
    zip: int | None = None

@operation(id="shop.quote", type="query", tags=["money"])
async def quote(item: str, count: int = 1, colour: Literal["red", "blue"] = "red") -> dict[str, Any]:
    """What some of an item would cost.

    Args:
        item: the item's name
        count: how many
    """
    return {"item": item, "total": 2.5 * count, "colour": colour}

@operation(id="shop.send")
async def send(item: str, to: Address, tags: list[str] | None = None) -> dict[str, Any]:
    """Send an item somewhere."""
    return {"item": item, "city": to.city, "zip": to.zip, "tags": tags}

@operation(id="shop.photo", type="query")
async def photo(data: bytes = b"\\x89PNG\\x00\\xff") -> bytes:
    """A photo, as bytes."""
    return data

@operation(id="shop.text", type="query")
async def text(text: str = "one\\ntwo") -> str:
    """A text."""
    return text

@operation(id="shop.fail")
async def fail(code: str = "OUT_OF_STOCK", message: str = "nothing left") -> None:
    """Fail with a code."""
    raise CallError(code, message, {"left": 0})

@operation(id="shop.crash")
async def crash() -> None:
    """Fail with a bug."""
    raise RuntimeError("a bug")

@operation(id="shop.slow")
async def slow(seconds: float = 30.0) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "done"

@operation(id="shop.ticks")
async def ticks(count: int = 1_000_000, interval: float = 0.01, closed: str = "") -> AsyncIterator[dict[str, int]]:
    """Count."""
    try:
        for number in range(count):
            yield {"n": number}
            await asyncio.sleep(interval)
    finally:
        if closed:
            with open(closed, "w") as file:
                file.write("closed")

@operation(id="shop.chatty")
def chatty() -> dict[str, int]:
    """Print something, and return what does not fit."""
    print("a word in between")
    return {"a": "not a number"}

@operation(id="shop.nested", type="query")
async def nested(context: OperationContext, item: str = "tea") -> float:
    """Ask another operation."""
    return (await context.env.other.double(value=2.5)).data
'''
OTHER = """
from operations import operation

@operation(id="other.double", type="query")
async def double(value: float) -> float:
    return value * 2
"""
CONFIG = """
[sources.shop]
python = "./shop"

[sources.other]
python = "./other"
"""


@pytest.fixture(autouse=True)
def trusting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every configuration in commands that run in this process; trust is tested separately."""
    monkeypatch.setenv("OPERATIONS_TRUST", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with two Python sources."""
    return make_project(tmp_path)


def make_project(directory: Path) -> Project:
    """A project with two Python sources, in a directory."""
    made = Project(directory)
    made.write("operations.toml", CONFIG)
    made.write("shop/selling.py", SHOP)
    made.write("other/numbers.py", OTHER)
    return made


@pytest.fixture(scope="session")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose operations are cached."""
    made = make_project(tmp_path_factory.mktemp("listed"))
    assert made.run("ls").code == 0
    return made


@pytest.fixture
def blocked() -> list[str]:
    """A program that runs the command line where some modules are not installed: `*blocked, "jq,mcp", "ls"`."""
    code = (
        "import sys\n"
        "for name in sys.argv[1].split(','): sys.modules[name] = None\n"
        "from operations.cli.main import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    return [sys.executable, "-c", code]
