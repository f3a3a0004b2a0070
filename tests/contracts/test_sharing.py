"""Workers share requests: none has a long queue while others are idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from operations import Operation, operation
from operations.calls import PendingRequestMap
from tests.contracts.conftest import Serve

WORKERS = 4
CALLS = 64


def operations_of(worker: int) -> list[Operation[Any]]:
    @operation(id="row.quick", type="query")
    async def quick() -> int:
        return worker

    @operation(id="row.waits", type="query")
    async def waits() -> int:
        await asyncio.sleep(0.02)
        return worker

    return [quick, waits]


async def burst(caller: PendingRequestMap, operation_id: str) -> Counter[int]:
    """Return the number of calls of a burst by worker."""
    envelopes = await asyncio.gather(*(caller.call(operation_id, {}) for _ in range(CALLS)))
    return Counter(envelope.data for envelope in envelopes)


async def test_slow_calls_are_shared_also_after_many_quick_ones(serve: Serve, caller: PendingRequestMap) -> None:
    for worker in range(WORKERS):
        await serve(*operations_of(worker), pool=True, concurrency=2)
    answered: Counter[int] = Counter()
    for _ in range(30):
        answered += await burst(caller, "row.quick")
    assert sum(answered.values()) == 30 * CALLS
    await burst(caller, "row.waits")  # the caller may still expect quick responses in the first burst
    shared = await burst(caller, "row.waits")
    assert sum(shared.values()) == CALLS
    assert len(shared) >= 2
    assert max(shared.values()) <= CALLS * 3 // 4
