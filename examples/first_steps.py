"""A tour in ten seconds: it calls four local operations and prints their envelopes in colour.

Run it with `python examples/first_steps.py` once the package is installed.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from operations import CallError, OperationContext, OperationRegistry, ResponseEnvelope, operation
from operations.wire import encode_json

COLOURED = sys.stdout.isatty() and "NO_COLOR" not in os.environ
STOCK = {"tea": 12, "honey": 3}


@dataclass
class Order:
    """A purchase that went through."""

    item: str
    count: int
    left: int


@operation(namespace="shop", type="query")
async def stock(item: str) -> int:
    """Return how many of an item are left.

    Args:
        item: the item's name, as on the shelf
    """
    return STOCK.get(item, 0)


@operation(namespace="shop")
async def buy(item: str, context: OperationContext, count: int = 1) -> Order:
    """Buy some items; call another operation for the stock."""
    there = (await context.env.shop.stock(item=item)).data
    if there < count:
        raise CallError("OUT_OF_STOCK", f"only {there} {item} left", {"item": item, "left": there})
    STOCK[item] = there - count
    return Order(item, count, STOCK[item])


@operation(namespace="shop")
async def restock(items: dict[str, int]) -> dict[str, int]:
    """Fill the shelves."""
    STOCK.update({item: STOCK.get(item, 0) + count for item, count in items.items()})
    return STOCK


@operation(namespace="shop")
async def watch(item: str, times: int = 3) -> AsyncIterator[dict[str, Any]]:
    """Follow an item's stock while others buy."""
    for _ in range(times):
        yield {"item": item, "left": STOCK.get(item, 0)}
        STOCK[item] = max(0, STOCK.get(item, 0) - 1)
        await asyncio.sleep(0.05)


async def main() -> None:
    """Register operations, call them, and show the results."""
    registry = OperationRegistry([stock, buy, restock, watch])
    heading("One registry")
    for spec in registry.list():
        say(f"  {spec.id:<14} {spec.type:<13} {spec.description.splitlines()[0]}")

    heading('A query: await registry.execute("shop.stock", {"item": "tea"})')
    show(await registry.execute("shop.stock", {"item": "tea"}))

    heading("A mutation that calls another operation through context.env")
    show(await registry.execute("shop.buy", {"item": "tea", "count": 2}))

    heading("The same operation, called by its function: data is an Order")
    order = (await registry.execute(buy, {"item": "honey"})).data
    say(f"  {order!r}")

    heading("A subscription: async for event in registry.subscribe(...)")
    async for event in registry.subscribe("shop.watch", {"item": "tea"}):
        show(event)

    heading("Bad input is one error that lists every problem")
    await fail(registry, "shop.buy", {"itme": "tea", "count": "two"})

    heading("A domain error keeps its code and its details")
    await fail(registry, "shop.buy", {"item": "honey", "count": 99})

    heading("Next")
    say("  README.md             your own first operation, in a few lines")
    say("  docs/guide/           one page for each capability")
    say("  examples/             this tour's source: examples/first_steps.py")


async def fail(registry: OperationRegistry, operation_id: str, input: Any) -> None:
    """Make a call that fails, and show its error."""
    try:
        await registry.execute(operation_id, input)
    except CallError as error:
        say(paint("31", "  " + str(error).replace("\n", "\n    ")))


def show(envelope: ResponseEnvelope[Any]) -> None:
    """Print an envelope as JSON on one line."""
    text = encode_json(envelope.to_dict()).decode()
    say(
        "  "
        + re.sub(r'("(?:[^"\\]|\\.)*")(:?)', lambda part: paint("36" if part[2] else "32", part[1]) + part[2], text)
    )


def heading(text: str) -> None:
    """Print the heading of a part of the tour."""
    say("\n" + paint("1", text))


def paint(style: str, text: str) -> str:
    """Return text in an ANSI style, if the terminal shows colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if COLOURED else text


def say(text: str) -> None:
    """Print a line."""
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
