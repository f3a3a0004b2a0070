"""A hub in a separate process: it prints its port, and once its input ends its counters and the CPU time of a turn."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

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


class LongestTurn:
    """The most CPU time for which the event loop held up a timer; unlike wall time it does not depend on the load."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def measure(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            self.seconds = max(self.seconds, time.thread_time() - began)


async def main() -> None:
    """Run the hub until the input ends."""
    logging.getLogger("operations.websocket").setLevel(logging.CRITICAL)  # a line for each invalid frame, to its limit
    async with Hub(TOKENS) as hub:
        print(hub.port, flush=True)  # noqa: T201
        longest = LongestTurn()
        measuring = asyncio.create_task(longest.measure())
        await asyncio.to_thread(sys.stdin.read)
        measuring.cancel()
        print(json.dumps({**hub.counters.to_dict(), "longest_turn": longest.seconds}), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
