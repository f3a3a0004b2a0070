"""Types of `execute` and `subscribe`, for the type checker only."""

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, assert_type

from operations import (
    Operation,
    OperationContext,
    OperationRegistry,
    ResponseEnvelope,
    http_envelope,
    operation,
    unwrap,
)
from operations.blocking import BlockingRegistry


@dataclass
class Item:
    """A thing that can be bought."""

    sku: str


@operation
async def get(sku: str) -> Item:
    """Get one."""
    return Item(sku)


@operation(namespace="shop", type="query")
async def find(text: str, limit: int = 10) -> list[Item]:
    """Find some."""
    return []


@operation
def count() -> int:
    """Count them, in a thread."""
    return 1


@operation(inline=True)
def names() -> list[str]:
    """Name them."""
    return []


@operation
async def watch(sku: str) -> AsyncIterator[Item]:
    """Follow one."""
    yield Item(sku)


@operation(namespace="shop")
async def follow(sku: str) -> AsyncIterator[Item]:
    """Follow one."""
    yield Item(sku)


@operation
async def greet(context: OperationContext, name: str) -> str:
    """Greet somebody."""
    return name


@operation
async def fetch() -> ResponseEnvelope[Item]:
    """Fetch one, meta included."""
    return http_envelope(Item("a"), status_code=200)


async def check(registry: OperationRegistry, blocking: BlockingRegistry, imported: Operation[int]) -> None:
    """Each call with the type it must have."""
    assert_type(await registry.execute(get, {"sku": "a"}), ResponseEnvelope[Item])
    assert_type((await registry.execute(get, {"sku": "a"})).data.sku, str)
    assert_type(await registry.execute(find, {"text": "a"}), ResponseEnvelope[list[Item]])
    assert_type(await registry.execute(count), ResponseEnvelope[int])
    assert_type(await registry.execute(names), ResponseEnvelope[list[str]])
    assert_type(await registry.execute(fetch), ResponseEnvelope[Item])
    assert_type(await registry.execute(imported), ResponseEnvelope[int])
    assert_type(await registry.execute("shop.find"), ResponseEnvelope[Any])
    assert_type(unwrap(await registry.execute(get, {"sku": "a"})), Item)
    assert_type(registry.subscribe(watch, {"sku": "a"}), AsyncGenerator[ResponseEnvelope[Item], None])
    assert_type(registry.subscribe(follow, {"sku": "a"}), AsyncGenerator[ResponseEnvelope[Item], None])
    assert_type(blocking.execute(get, {"sku": "a"}), ResponseEnvelope[Item])
    assert_type(blocking.subscribe(watch, {"sku": "a"}), Iterator[ResponseEnvelope[Item]])
    async for event in registry.subscribe(watch, {"sku": "a"}):
        assert_type(event.data, Item)


async def check_calls_by_arguments(registry: OperationRegistry) -> None:
    """`call` takes the parameters of the function, without its context."""
    assert_type(await registry.call(get, sku="a"), ResponseEnvelope[Item])
    assert_type(await registry.call(find, "a", limit=3), ResponseEnvelope[list[Item]])
    assert_type(await registry.call(greet, name="Ada"), ResponseEnvelope[str])
    await registry.call(get, skq="a")  # type: ignore[call-overload]
    await registry.call(get)  # type: ignore[call-overload]
    await registry.call(find, text=1)  # type: ignore[call-overload]


async def check_nested_calls(context: OperationContext) -> None:
    """`context.call` is typed as `registry.call` is."""
    assert_type(await context.call(get, sku="a"), ResponseEnvelope[Item])
    assert_type(await context.call(find, "a", limit=3), ResponseEnvelope[list[Item]])
    assert_type(await context.call(greet, name="Ada"), ResponseEnvelope[str])
    await context.call(get, skq="a")  # type: ignore[call-overload]
    await context.call(get)  # type: ignore[call-overload]
    await context.call(find, text=1)  # type: ignore[call-overload]


async def check_direct_calls() -> None:
    """The function itself keeps its parameters and its return type."""
    started: Coroutine[Any, Any, Item] = get("a")
    assert_type(await started, Item)
    assert_type(await find("a", limit=5), list[Item])
    assert_type(count(), int)
    assert_type(watch("a"), AsyncIterator[Item])
    await get(5)  # type: ignore[arg-type]
    await find()  # type: ignore[call-arg]


async def check_meta(registry: OperationRegistry) -> None:
    """The source discriminates the metas."""
    meta = (await registry.execute("shop.find")).meta
    if meta.source == "http":
        assert_type(meta.status_code, int)
    elif meta.source == "mcp":
        assert_type(meta.is_error, bool)
    else:
        assert_type(meta.operation_id, str)
