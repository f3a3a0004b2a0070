"""The tool set that every framework drives: one tool works, one fails, one is refused."""

from __future__ import annotations

from typing import Any

from operations import OperationRegistry, OperationType, operation
from operations.exports.tools import ToolSet
from operations.interceptors import Approval


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


def check_texts(texts: list[str]) -> None:
    """Check what a model got for the three calls."""
    assert texts[0] == '{"item":"tea","total":6}'
    assert "EXECUTION_ERROR: shop.fail" in texts[1]
    assert "out of order" in texts[1]
    assert "ACCESS_DENIED: shop.order was refused and did not run" in texts[2]
