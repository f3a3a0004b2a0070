"""The tool set that every framework drives: one tool works, one fails, one is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from operations import OperationRegistry, OperationType, operation
from operations.exports.tools import ToolSet
from operations.interceptors import Approval

WAIT = "shop_wait"


@operation(id="shop.quote", type=OperationType.QUERY)
async def quote(item: str, count: int = 1) -> dict[str, Any]:
    """What some of an item would cost."""
    return {"item": item, "total": 3 * count}


@operation(id="shop.fail", type=OperationType.QUERY)
async def fail() -> None:
    """Fail."""
    raise RuntimeError("out of order")


@operation(id="shop.order", type=OperationType.MUTATION)
async def order(item: str) -> str:
    """Order an item."""
    return f"ordered {item}"


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("shop_quote", {"item": "tea", "count": 2}),
    ("shop_fail", {}),
    ("shop_order", {"item": "tea"}),
]


def tool_set() -> ToolSet:
    return OperationRegistry([quote, fail, order]).tools(approval=Approval(mutations="deny"))


async def check_cancellation(run: Callable[[ToolSet], Coroutine[Any, Any, Any]]) -> None:
    """Check that cancelling a run, whose model calls `shop_wait`, cancels the operation."""
    started, ended = asyncio.Event(), asyncio.Event()

    @operation(id="shop.wait", type=OperationType.QUERY)
    async def wait() -> None:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run(OperationRegistry([wait]).tools(timeout=None)))
    async with asyncio.timeout(30):
        await started.wait()
        running.cancel()
        await ended.wait()
        await asyncio.wait([running])
    assert running.cancelled()


def check_texts(texts: list[str]) -> None:
    """Check what a model got for the three calls."""
    assert texts[0] == '{"item":"tea","total":6}'
    assert "EXECUTION_ERROR: shop.fail" in texts[1]
    assert "out of order" in texts[1]
    assert "ACCESS_DENIED: shop.order was refused and did not run" in texts[2]
