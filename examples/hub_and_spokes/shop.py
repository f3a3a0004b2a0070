"""One program, in one process or in four: `python shop.py`, `python shop.py --split`, `python shop.py --bus URL`.

Three workers serve the shop's three namespaces. In one process, they share a bus in memory. With `--split`, each worker
is a spoke in a separate process, connected to a hub. With `--bus`, each worker is a process on any machine that reaches
the Redis or NATS server (`redis://127.0.0.1`, `nats://127.0.0.1`). The code that calls the operations never changes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

from operations import AccessControl, CallError, Identity, Operation, OperationContext, OperationRegistry, operation
from operations.calls import PendingRequestMap, from_call, serve_registry
from operations.pubsub import Transport, connect
from operations.pubsub.memory import MemoryTransport

STOCK = {"tea": 12, "honey": 3}
PRICES = {"tea": 4.5, "honey": 9.0}


@operation(id="stock.left", type="query")
async def left(item: str) -> int:
    """Return how many of an item are left."""
    return STOCK.get(item, 0)


@operation(id="stock.take", access_control=AccessControl(required_scopes=["buy"]))
async def take(item: str, count: int) -> int:
    """Take items out of stock."""
    if STOCK.get(item, 0) < count:
        raise CallError("OUT_OF_STOCK", f"not enough {item}", {"left": STOCK.get(item, 0)})
    STOCK[item] -= count
    return STOCK[item]


@operation(id="prices.of", type="query")
async def price_of(item: str) -> float:
    """Return the price of one item."""
    return PRICES[item]


@operation(id="prices.follow")
async def follow_price(item: str, changes: int) -> AsyncIterator[float]:
    """Stream the price and its changes."""
    for change in range(changes):
        yield PRICES[item] + change / 2


@operation(id="orders.place")
async def place(item: str, count: int, context: OperationContext) -> dict[str, float]:
    """Place an order: two calls to other workers, on behalf of the caller."""
    price = (await context.env.prices.of(item=item)).data
    remaining = (await context.env.stock.take(item=item, count=count)).data
    return {"total": price * count, "left": remaining}


WORKERS: dict[str, list[Operation[object]]] = {
    "stock": [left, take],
    "prices": [price_of, follow_price],
    "orders": [place],
}
IDS = [worker.id for operations in WORKERS.values() for worker in operations]
ADA = Identity("ada", scopes=["buy"])
BOB = Identity("bob")


async def program(transport: Transport) -> None:
    """Call the operations of all workers, and print the results."""
    pending = PendingRequestMap(transport)
    order = {"item": "tea", "count": 2}
    print("order:", (await pending.call("orders.place", order, identity=ADA)).data)
    prices = [envelope.data async for envelope in pending.subscribe("prices.follow", {"item": "tea", "changes": 3})]
    print("prices:", prices)
    for who, wanted in ((ADA, {"item": "honey", "count": 9}), (BOB, order)):
        try:
            await pending.call("orders.place", wanted, identity=who)
        except CallError as error:
            print(f"{who.id}:", error)
    async with from_call(transport) as remote:
        await remote.ready(*IDS)
        print("offered:", ", ".join(remote.ids))
        print("left:", (await remote.registry.execute("stock.left", {"item": "tea"})).data)


async def run_in_one_process() -> None:
    """Run three workers and the program on a bus in memory."""
    bus = MemoryTransport()
    async with contextlib.AsyncExitStack() as stack:
        for operations in WORKERS.values():
            await stack.enter_async_context(serve_registry(OperationRegistry(operations), bus.join()))
        await program(bus.join())


async def run_split() -> None:
    """Run the hub and the program here, and each worker as a spoke in a separate process."""
    from operations.calls.hub import Hub
    from operations.identity import Principal, StaticTokens

    tokens = StaticTokens({f"{name}-token": Principal(Identity(name), [name]) for name in WORKERS})
    async with Hub(tokens) as hub:
        await run_with_workers(hub.transport(), hub.url)


async def run_on_bus(url: str) -> None:
    """Run the program here and each worker in a separate process, on a broker that only this program uses."""
    async with connect(url, trusted=True) as transport:
        await run_with_workers(transport, url)


async def run_with_workers(transport: Transport, url: str) -> None:
    """Start the workers, run the program, and stop the workers."""
    workers = [
        await asyncio.create_subprocess_exec(sys.executable, __file__, "--worker", name, url) for name in WORKERS
    ]
    try:
        async with from_call(transport) as remote:
            await remote.ready(*IDS)
        await program(transport)
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        await asyncio.gather(*(worker.wait() for worker in workers))


async def run_worker(name: str, url: str) -> None:
    """Run one worker until it is stopped. A hub requires a token; the broker is declared as trusted."""
    opened = connect(url, token=f"{name}-token") if url.startswith("ws") else connect(url, trusted=True)
    async with opened as transport:
        await serve_registry(OperationRegistry(WORKERS[name]), transport)


def main() -> None:
    """Run the example as the options select."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", action="store_true", help="a hub and three spokes, in four processes")
    parser.add_argument("--bus", metavar="URL", help="three workers and the program at a Redis or NATS server")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "URL"), help="run one worker; --split and --bus use this")
    options = parser.parse_args()
    if options.worker:
        asyncio.run(run_worker(*options.worker))
    elif options.bus:
        asyncio.run(run_on_bus(options.bus))
    else:
        asyncio.run(run_split() if options.split else run_in_one_process())


if __name__ == "__main__":
    main()
