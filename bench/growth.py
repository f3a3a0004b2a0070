"""Growth of cost with operations, input size, concurrency, subscribers and depth of nested calls.

`python -m bench.growth` prints the slope of each curve on logarithmic axes: 0 is constant, 1 is linear, more is
worse than linear. The picture in the documentation is drawn from the same run.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.measure import save
from bench.pictures.curves import Curve, draw
from operations import OperationContext, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.memory import MemoryTransport

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
OPERATIONS = (10, 100, 1_000, 10_000, 100_000)
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
CONCURRENCIES = (1, 10, 100, 1_000, 10_000)
SUBSCRIBERS = (1, 10, 100, 1_000, 10_000)
DEPTHS = (1, 2, 4, 8, 16, 32)


@operation(id="grow.echo", type="query")
async def echo(text: str) -> str:
    return text


@operation(id="grow.nest", type="query")
async def nest(depth: int, context: OperationContext) -> int:
    if depth <= 1:
        return 1
    below: int = (await context.env.grow.nest(depth=depth - 1)).data
    return below + 1


def numbered(count: int) -> OperationRegistry:
    """Return a registry of `count` operations with the same code."""
    return OperationRegistry(operation(id=f"grow.echo_{number}", type="query")(_new_echo()) for number in range(count))


def _new_echo() -> Callable[..., Awaitable[str]]:
    async def numbered_echo(text: str) -> str:
        return text

    return numbered_echo


async def cpu(work: Callable[[], Awaitable[object]], times: int) -> float:
    """Return the CPU seconds of one call of `work`: the minimum of three rounds of `times` calls."""
    await work()
    rounds = []
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        for _ in range(times):
            await work()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)


async def grow_operations() -> list[Curve]:
    """Return the curves of registration, calls and search by number of operations."""
    register, call, search = Curve("register all"), Curve("one call"), Curve("one search")
    for count in OPERATIONS:
        began = time.process_time()
        registry = numbered(count)
        register.add(count, time.process_time() - began)
        last = f"grow.echo_{count - 1}"
        call.add(count, await cpu(lambda: registry.execute(last, {"text": "x"}), 2_000))  # noqa: B023
        registry.search("echo")  # builds the index

        async def ask(registry: OperationRegistry = registry, query: str = f"echo {count - 1}") -> None:
            registry.search(query, limit=5)

        search.add(count, await cpu(ask, 3))
    return [register, call, search]


async def grow_inputs() -> list[Curve]:
    """Return the curves of calls by input size: in process, and as bytes over the memory transport."""
    local, as_bytes = Curve("execute"), Curve("memory as bytes")
    registry = OperationRegistry([echo])
    bus = MemoryTransport(direct=False)
    handler, caller = CallHandler(registry, bus), PendingRequestMap(bus.join())
    try:
        for size in SIZES:
            given = {"text": "x" * size}
            times = max(1, min(1_000, 10_000_000 // size))
            local.add(size, await cpu(lambda: registry.execute("grow.echo", given), times))  # noqa: B023
            as_bytes.add(size, await cpu(lambda: caller.call("grow.echo", given), times))  # noqa: B023
    finally:
        await handler.close()
    return [local, as_bytes]


async def grow_concurrency() -> list[Curve]:
    """Return the curves of one call by number of calls in flight."""
    local, as_bytes = Curve("execute, each call"), Curve("memory as bytes, each call")
    registry = OperationRegistry([echo])
    bus = MemoryTransport(direct=False)
    handler, caller = CallHandler(registry, bus), PendingRequestMap(bus.join())
    try:
        for count in CONCURRENCIES:
            rounds = max(1, 5_000 // count)

            async def burst(call: Callable[[str, dict[str, str]], Awaitable[object]], count: int = count) -> None:
                await asyncio.gather(*(call("grow.echo", {"text": "x"}) for _ in range(count)))

            local.add(count, await cpu(lambda: burst(registry.execute), rounds) / count)
            as_bytes.add(count, await cpu(lambda: burst(caller.call), rounds) / count)
    finally:
        await handler.close()
    return [local, as_bytes]


async def grow_subscribers() -> list[Curve]:
    """Return the curve of one message by number of listeners at one address."""
    curve = Curve("one message to all")
    for count in SUBSCRIBERS:
        bus = MemoryTransport(direct=False)
        heard: list[bytes] = []
        for _ in range(count):
            bus.listen("news", lambda message, arrival: heard.append(message))  # noqa: B023

        async def publish(bus: MemoryTransport = bus, heard: list[bytes] = heard, count: int = count) -> None:
            heard.clear()
            bus.send("news", b"x")
            await asyncio.sleep(0)
            assert len(heard) == count

        curve.add(count, await cpu(publish, max(3, 3_000 // count)))
        await bus.close()
    return [curve]


async def grow_depth() -> list[Curve]:
    """Return the curve of a recursive call by depth."""
    curve = Curve("nested calls")
    registry = OperationRegistry([nest])
    for depth in DEPTHS:
        curve.add(depth, await cpu(lambda: registry.execute("grow.nest", {"depth": depth}), 200))  # noqa: B023
    return [curve]


KINDS: dict[str, Callable[[], Awaitable[list[Curve]]]] = {
    "operations": grow_operations,
    "bytes of input": grow_inputs,
    "calls at once": grow_concurrency,
    "listeners": grow_subscribers,
    "depth of nested calls": grow_depth,
}


async def main() -> None:
    """Measure, print the slopes, save and draw the curves."""
    found = {kind: await measure() for kind, measure in KINDS.items()}
    for kind, curves in found.items():
        for curve in curves:
            slope = curve.slope()
            growth = "worse than linear" if slope > 1.1 else "constant" if slope < 0.1 else "at most linear"
            print(f"  {kind}: {curve.name}: slope {slope:.2f}, {growth}")
    save("growth", {kind: {curve.name: curve.points for curve in curves} for kind, curves in found.items()})
    for name, picture in draw("growth", "CPU time as things grow", found, Curve.with_slope).items():
        (PICTURES / name).write_text(picture)


if __name__ == "__main__":
    asyncio.run(main())
