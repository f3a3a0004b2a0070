"""A hub in a separate process: it prints its port, and its counters once its input ends."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from operations import Identity
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens

TOKENS = StaticTokens(
    {
        "mallory": Principal(Identity("mallory")),
        "shop": Principal(Identity("shop"), ("shop",)),
        "ada": Principal(Identity("ada", ("shop",))),
    }
)


async def main() -> None:
    """Run the hub until the input ends."""
    logging.getLogger("operations.websocket").setLevel(logging.CRITICAL)  # a line for each invalid frame, to its limit
    async with Hub(TOKENS) as hub:
        print(hub.port, flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps(hub.counters.to_dict()), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
