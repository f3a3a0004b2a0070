"""The documentation page of a served registry, in a real browser."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operations import OperationRegistry, operation
from operations.serving import HTTPServer, app

NODE = Path(__file__).parent.parent / "node"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@operation(namespace="shop", type="query")
async def quote(item: str, count: int = 1) -> dict[str, int]:
    """Return a price. <b>This is text.</b>"""
    return {"price": 3 * count}


@operation(namespace="shop", type="subscription")
async def watch() -> AsyncIterator[int]:
    """Follow the numbers."""
    yield 1
    yield 2


async def test_a_browser_lists_calls_and_follows_operations_without_another_host() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed, and the browser comes from npm: install Node 20")
    if not (NODE / "node_modules" / "playwright-core").exists():
        pytest.skip("the browser is not installed: `make test` does it, or `npm ci` in tests/node")
    served = app(OperationRegistry([quote, watch]), title="The shop")
    async with HTTPServer(served, "127.0.0.1:0") as server:
        host = server.url.removeprefix("http://")
        process = await asyncio.create_subprocess_exec(
            node, "docs_page.mjs", f"{server.url}/", cwd=NODE, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(150):
            output, _ = await process.communicate()
    assert process.returncode == 0
    report = json.loads(output)
    assert report["title"] == "The shop"
    assert report["listed"] == ["shop.quote", "shop.watch"]
    assert (report["found"], report["shown"]) == (["shop.quote"], "shop.quote")
    assert '"price": 6' in report["called"]
    assert [line for line in report["followed"].splitlines()[1:] if line and not line.startswith("id: ")] == [
        "retry: 2000",
        "data: 1",
        "data: 2",
        "event: operations.complete",
        "data: {}",
        "Ended",
    ]
    # Chromium often reports a `no-store` response, of any server, as aborted although the page has read it to its end
    # as a stream. The line "Ended" is there only after the end; a stream that was aborted has "Stopped".
    assert [error for error in report["errors"] if not error.endswith("/shop/watch: net::ERR_ABORTED")] == []
    assert report["hosts"] == [host]
