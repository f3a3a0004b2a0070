"""Memory of a registry of 10,000 operations: after registration, and after one call of each.

`python -m bench.memory`
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

from bench.comparisons import Comparison, keep
from bench.measure import save
from operations import OperationRegistry, operation
from operations.sources.openapi import HTTPServiceConfig, from_openapi

COUNT = 10_000
Build = Callable[[], OperationRegistry]
_CONFIG = HTTPServiceConfig(namespace="shop", base_url="http://127.0.0.1")


def functions() -> OperationRegistry:
    """Return a registry of Python functions, each with its own signature and docstring."""
    registry = OperationRegistry()
    for number in range(COUNT):
        registry.register(operation(id=f"shop.item_{number}", type="query")(_function(number)))
    return registry


def _function(number: int) -> Callable[..., Any]:
    async def quote(item: str, count: int = 1) -> int:
        return len(item) * count

    quote.__name__ = f"item_{number}"
    quote.__doc__ = f"Return the price of item {number}."
    return quote


def endpoints() -> OperationRegistry:
    """Return a registry of one OpenAPI document in JSON; its text stays in memory."""
    return OperationRegistry(from_openapi(json.dumps(_document()).encode(), _CONFIG))


def decoded_endpoints() -> OperationRegistry:
    """Return a registry of a decoded document; its objects stay in memory."""
    return OperationRegistry(from_openapi(_document(), _CONFIG))


def _document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "paths": {f"/items/{number}": {"get": _endpoint(number)} for number in range(COUNT)},
    }


def _endpoint(number: int) -> dict[str, Any]:
    item = {"type": "object", "properties": {"name": {"type": "string"}, "price": {"type": "number"}}}
    return {
        "operationId": f"item_{number}",
        "summary": f"Return item {number}.",
        "parameters": [{"name": "currency", "in": "query", "schema": {"type": "string"}}],
        "responses": {"200": {"description": "", "content": {"application/json": {"schema": item}}}},
    }


def measure(build: Build) -> tuple[OperationRegistry, float]:
    """Return the registry and its bytes per operation."""
    gc.collect()
    tracemalloc.start()
    registry = build()
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return registry, kept / COUNT


async def use(registry: OperationRegistry) -> float:
    """Return the bytes that the first call adds per operation."""
    gc.collect()
    tracemalloc.start()
    for spec in registry.list():
        await registry.execute(spec.id, {"item": "tea"})
    gc.collect()
    added = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return added / COUNT


def main() -> None:
    """Measure, print and save."""
    registry, registered = measure(functions)
    used = asyncio.run(use(registry))
    _, imported = measure(endpoints)
    _, decoded = measure(decoded_endpoints)
    found = {"function": registered, "first call adds": used, "endpoint": imported, "decoded endpoint": decoded}
    save("memory", found)
    work = f"Memory of one of {COUNT:,} operations"
    keep(
        "bench.memory",
        [
            Comparison(f"{work}, a Python function", "before its first use", "bytes", registered, at_most=2048),
            Comparison(f"{work}, an OpenAPI endpoint", "before its first use", "bytes", imported, at_most=2048),
            Comparison(f"{work}, an OpenAPI endpoint of a decoded document", "before its first use", "bytes", decoded),
            Comparison(f"{work}, a Python function", "added by its first call", "bytes", used),
        ],
    )


if __name__ == "__main__":
    main()
