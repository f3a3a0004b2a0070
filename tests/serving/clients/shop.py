"""A registry with one operation of every kind, for third-party clients."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from operations import CallError, OperationRegistry, from_schema, operation


class Colour(enum.StrEnum):
    """A closed set."""

    RED = "red"
    BLUE = "blue"


class Money(msgspec.Struct):
    """An amount."""

    amount: float
    currency: Literal["EUR", "USD"] = "EUR"


class Item(msgspec.Struct):
    """Something that is sold."""

    id: int
    name: str
    price: Money
    colour: Colour | None = None
    tags: list[str] = []


class Node(msgspec.Struct):
    """A tree."""

    value: int
    children: list[Node] = []


class Circle(msgspec.Struct, tag="circle"):
    """A round shape."""

    radius: float


class Square(msgspec.Struct, tag="square"):
    """A shape with corners."""

    side: float


SOLD_OUT = from_schema(
    {"type": "object", "properties": {"left": {"type": "integer"}}, "required": ["left"], "x-http-status": 404}
)
REFUSED = from_schema({"type": "object", "properties": {"reason": {"type": "string"}}, "required": ["reason"]})


@operation(namespace="shop", type="query")
async def find(name: str, limit: int = 10, colours: list[Colour] | None = None, cheap: bool = False) -> list[Item]:
    """Find items by name."""
    colour = colours[0] if colours else None
    return [Item(id=number, name=name, price=Money(1.5), colour=colour) for number in range(min(abs(limit), 3))]


@operation(namespace="shop", type="mutation", error_schemas={"SOLD_OUT": SOLD_OUT, "REFUSED": REFUSED})
async def buy(item: int, count: int = 1, note: str | None = None) -> dict[str, int]:
    """Buy items."""
    if item % 7 == 1:
        raise CallError("SOLD_OUT", "no more of these", {"left": 0})
    if item % 7 == 2:
        raise CallError("REFUSED", "not today", {"reason": "closed"})
    return {"bought": count}


@operation(namespace="shop.trees", type="query")
async def depth(tree: Node) -> int:
    """Count the levels of a tree."""
    levels, nodes = 0, [tree]
    while nodes:
        levels, nodes = levels + 1, [child for node in nodes for child in node.children]
    return levels


@operation(namespace="shop.trees", name="grow/once", type="query")
async def grow(tree: Node) -> Node:
    """Add a level."""
    return Node(tree.value, [tree])


@operation(namespace="shop", type="query")
async def area(shape: Circle | Square) -> float:
    """Measure a shape."""
    return shape.side if isinstance(shape, Square) else shape.radius


@operation(namespace="files", type="mutation")
async def store(content: bytes) -> dict[str, int]:
    """Store a file."""
    return {"size": len(content)}


@operation(namespace="files", type="query")
async def load(size: int) -> bytes:
    """Load a file."""
    return b"\xff" * min(abs(size), 10)


@operation(namespace="files", type="mutation")
async def rename(content: bytes, colour: Literal["red", "blue"], size: int = 0, place: Money | None = None) -> str:
    """Store a file under a colour."""
    return colour


@operation(namespace="files", type="mutation")
async def label(content: bytes, names: list[str], place: Money | None = None) -> str:
    """Store a file with names."""
    return ",".join(names)


@operation(namespace="shop", type="subscription")
async def watch(item: int, events: int = 3) -> AsyncIterator[Item]:
    """Follow the price of an item."""
    for number in range(min(abs(events), 3)):
        yield Item(id=item, name=f"item {number}", price=Money(float(number)))


@operation(namespace="shop", type="subscription", error_schemas={"REFUSED": REFUSED})
async def countdown(start: int) -> AsyncIterator[int]:
    """Count down; odd starts fail on the way."""
    for number in range(min(abs(start), 3)):
        yield number
    if start % 2:
        raise CallError("REFUSED", "odd numbers are not counted", {"reason": "odd"})


@operation(namespace="shop", type="query")
async def ping() -> Literal["pong"]:
    """Answer."""
    return "pong"


@operation(namespace="shop", type="query")
async def anything(value: Any = None) -> Any:
    """Return what was given."""
    return value


@operation(namespace="shop", type="query")
async def hostile() -> None:
    """<img src=x onerror=alert(1)><script>alert(2)</script>"""


def registry() -> OperationRegistry:
    """The whole shop."""
    return OperationRegistry(
        [find, buy, depth, grow, area, store, load, label, rename, watch, countdown, ping, anything, hostile]
    )
