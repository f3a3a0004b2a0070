"""A worker process for the fault tests: `python -m tests.jobs.worker URL PREFIX`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from operations import OperationRegistry, operation
from operations.calls import CallHandler
from operations.pubsub import connect

POISON = -1
"""The input that kills its worker."""
QUICK: dict[str, Any] = {"heartbeat": 0.2, "shortest_delay": 0.02, "longest_delay": 0.1, "trusted": True}


@operation(id="math.square", durable=True)
async def square(value: int) -> int:
    if value == POISON:
        os._exit(7)
    await asyncio.sleep(0.001 * (value % 5))
    return value * value


def options(url: str) -> dict[str, Any]:
    """The options of an end of the bus."""
    return {**QUICK, "ack_wait": 1.0} if url.startswith("nats") else QUICK


async def main(url: str, prefix: str) -> None:
    async with connect(url, prefix=prefix, **options(url)) as transport:
        CallHandler(OperationRegistry([square]), transport, concurrency=32)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
