"""Calls in memory and over WebSocket: against a bare execute, raw picows, tRPC and python-socketio.

`python -m bench.calls` measures at concurrency 1, 64 and 1,024, each peer with its server in a separate process.
With enough cores, client and server are pinned to separate cores, so that scheduling does not affect the comparison.
Calls from spoke to spoke use a third process for the hub.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bench.comparisons import Comparison, Kind, keep
from bench.measure import save
from operations import Identity, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap, from_call
from operations.pubsub.memory import MemoryTransport

CONCURRENCIES = (1, 64, 1024)
SECONDS = 1.0
ROUNDS = 9
TEXT = "x" * 300
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
NODE = Path(__file__).parent / "node" / "trpc"
Call = Callable[[], Awaitable[object]]
Figures = dict[str, float]
"""Figures of a measurement: `rate` in calls per second, and `p99`, the 99th percentile of the seconds of a call."""


@operation(id="bench.echo", type="query")
async def echo(text: str) -> str:
    return text


async def measure(call: Call, concurrency: int, seconds: float = SECONDS) -> Figures:
    """Return the calls per second and p99 latency of `concurrency` sequential callers."""
    taken: list[float] = []

    async def work(until: float) -> None:
        while (start := time.perf_counter()) < until:
            await call()
            taken.append(time.perf_counter() - start)

    async def round_of(length: float) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(work(start + length) for _ in range(concurrency)))
        return time.perf_counter() - start

    await round_of(0.3)
    taken.clear()
    elapsed = await round_of(seconds)
    taken.sort()
    return {"rate": len(taken) / elapsed, "p99": taken[int(len(taken) * 0.99)]}


def pin(side: str) -> None:
    """Pin this process and its children to the core for `side`, which is `client` or `server`."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the parent may be pinned: undo this first
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[0] if side == "client" else cores[-1]})


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine, on uvloop if it is installed, and return its result."""
    try:
        import uvloop

        return uvloop.run(main)
    except ImportError:
        return asyncio.run(main)


async def measure_memory(contender: str, concurrency: int) -> Figures:
    """Return the figures of a contender in one process: a bare execute, a call by reference or a call as bytes."""
    registry = OperationRegistry([echo])
    input = {"text": TEXT}
    if contender == "registry.execute":
        return await measure(lambda: registry.execute("bench.echo", input), concurrency)
    transport = MemoryTransport(direct=contender == "memory")
    handler = CallHandler(registry, transport, concurrency=4096)
    pending = PendingRequestMap(transport)
    figures = await measure(lambda: pending.call("bench.echo", input), concurrency)
    await handler.close()
    return figures


async def serve_hub() -> None:
    """Run a hub whose own process serves the calls."""
    from operations.calls.hub import Hub
    from operations.identity import Principal, StaticTokens

    tokens = StaticTokens({"caller": Principal(Identity("caller")), "worker": Principal(Identity("worker"), ("*",))})
    async with Hub(tokens) as hub:
        CallHandler(OperationRegistry([echo]), hub.transport(), concurrency=4096)
        print(hub.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def serve_spoke() -> None:
    """Run a hub without operations, and a spoke in a separate process that serves the calls."""
    from operations.calls.hub import Hub
    from operations.identity import Principal, StaticTokens

    tokens = StaticTokens({"caller": Principal(Identity("caller")), "worker": Principal(Identity("worker"), ("*",))})
    async with Hub(tokens) as hub:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.calls", "--worker", str(hub.port), stdin=asyncio.subprocess.PIPE
        )
        async with from_call(hub.transport()) as remote:
            await remote.ready("bench.echo")
        print(hub.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        assert worker.stdin is not None
        worker.stdin.close()
        await worker.wait()


async def work_for_hub(port: int) -> None:
    """Run the spoke that serves the calls."""
    from operations.calls.hub.spoke import Spoke

    async with Spoke(f"ws://127.0.0.1:{port}/", token="worker") as spoke:
        handler = CallHandler(OperationRegistry([echo]), spoke, concurrency=4096)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await handler.close()


async def call_hub(port: int, concurrency: int) -> Figures:
    """Return the figures of our client, a spoke."""
    from operations.calls.hub.spoke import Spoke

    async with Spoke(f"ws://127.0.0.1:{port}/", token="caller") as spoke:
        pending = PendingRequestMap(spoke)
        return await measure(lambda: pending.call("bench.echo", {"text": TEXT}), concurrency)


async def serve_raw() -> None:
    """Echo each frame with raw picows."""
    import picows

    class Echo(picows.WSListener):
        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            if frame.msg_type == picows.WSMsgType.BINARY:
                transport.send(picows.WSMsgType.BINARY, frame.get_payload_as_bytes())

    server = await picows.ws_create_server(lambda request: Echo(), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def call_raw(port: int, concurrency: int) -> Figures:
    """Return the figures of raw picows: an 8-byte id and the same body, with replies matched by id."""
    import picows

    futures: dict[bytes, asyncio.Future[bytes]] = {}
    numbers = iter(range(1, 2**62))
    body = json.dumps({"text": TEXT, "pad": "x" * 20}).encode()

    class Client(picows.WSListener):
        def on_ws_frame(self, transport: Any, frame: Any) -> None:
            data = frame.get_payload_as_bytes()
            futures.pop(data[:8]).set_result(data)

    transport, _ = await picows.ws_connect(Client, f"ws://127.0.0.1:{port}/")
    loop = asyncio.get_running_loop()

    def send() -> asyncio.Future[bytes]:
        key = struct.pack(">Q", next(numbers))
        future = futures[key] = loop.create_future()
        transport.send(picows.WSMsgType.BINARY, key + body)
        return future

    figures = await measure(send, concurrency)
    transport.disconnect()
    return figures


async def serve_socketio() -> None:
    """Serve python-socketio on aiohttp."""
    import socketio
    from aiohttp import web

    server = socketio.AsyncServer(async_mode="aiohttp")

    async def answer(sid: str, data: Any) -> Any:
        return data["text"]

    server.on("echo", answer)
    app = web.Application()
    server.attach(app)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def call_socketio(port: int, concurrency: int) -> Figures:
    """Return the figures of python-socketio's client over WebSocket only."""
    import socketio

    client = socketio.AsyncClient()
    await client.connect(f"http://127.0.0.1:{port}", transports=["websocket"])
    figures = await measure(lambda: client.call("echo", {"text": TEXT}), concurrency)
    await client.disconnect()
    return figures


SERVERS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "hub": serve_hub,
    "spoke to spoke": serve_spoke,
    "raw picows": serve_raw,
    "python-socketio": serve_socketio,
}
CLIENTS: dict[str, Callable[[int, int], Coroutine[Any, Any, Figures]]] = {
    "hub": call_hub,
    "spoke to spoke": call_hub,
    "raw picows": call_raw,
    "python-socketio": call_socketio,
}
IN_PROCESS = ("registry.execute", "memory", "memory as bytes")
MODULES = {
    "raw picows": "picows",
    "hub": "picows",
    "spoke to spoke": "picows",
    "python-socketio": "socketio",
}


@contextmanager
def server_process(command: list[str]) -> Iterator[int]:
    """Run a server in a separate process within the block; yield its port."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin("server")
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def measure_apart(contender: str, port: int, concurrency: int) -> Figures:
    """Run one client in a separate process, with a fresh heap, and return its figures."""
    command = [sys.executable, "-m", "bench.calls", "--client", contender, str(port), str(concurrency)]
    return run_client(command)


def run_client(command: list[str]) -> Figures:
    """Run a client on the core for clients and return its figures."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, preexec_fn=lambda: pin("client")
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def measure_trpc(folder: Path, port: int, concurrency: int) -> Figures:
    """Run the Node client of tRPC and return its figures."""
    return run_client(["node", str(folder / "client.mjs"), str(port), str(concurrency), str(SECONDS)])


def install_trpc(folder: Path) -> bool:
    """Install tRPC from npm into a directory; print a message and return False on failure."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("Node is not installed: skipping tRPC")
        return False
    for source in NODE.iterdir():
        if source.is_file():
            shutil.copy(source, folder)
    done = subprocess.run(["npm", "install", "--silent"], cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        print("tRPC could not be installed: skipping it")
    return done.returncode == 0


def available() -> list[str]:
    """Return the contenders whose libraries are installed; print the others."""
    names = list(IN_PROCESS)
    for name, module in MODULES.items():
        try:
            __import__(module)
        except ImportError:
            print(f"{module} is not installed: skipping {name}")
            continue
        names.append(name)
    return names


def measure_all() -> dict[str, dict[int, Figures]]:
    """Return the figures of every contender at every concurrency, measured in interleaved rounds."""
    results: dict[str, dict[int, list[Figures]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = available()
        if install_trpc(folder):
            names.append("tRPC")
        for round_number in range(ROUNDS):
            for name in names:
                print(f"round {round_number + 1}: {name}", flush=True)
                for concurrency, figures in measure_one(name, folder).items():
                    results.setdefault(name, {}).setdefault(concurrency, []).append(figures)
    return summarise(results)


def summarise(results: dict[str, dict[int, list[Figures]]]) -> dict[str, dict[int, Figures]]:
    """Return the median of the rounds of each contender and concurrency, and the best rate.

    Other load on the machine can halve a round: the gap between median and best shows how noisy a run was.
    """
    return {
        name: {
            concurrency: {
                "rate": statistics.median(figures["rate"] for figures in rounds),
                "best": max(figures["rate"] for figures in rounds),
                "p99": statistics.median(figures["p99"] for figures in rounds),
            }
            for concurrency, rounds in by_concurrency.items()
        }
        for name, by_concurrency in results.items()
    }


def measure_one(name: str, folder: Path) -> dict[int, Figures]:
    """Return the figures of one contender at every concurrency."""
    if name in IN_PROCESS:
        return {concurrency: measure_apart(name, 0, concurrency) for concurrency in CONCURRENCIES}
    if name == "tRPC":
        with server_process(["node", str(folder / "server.mjs")]) as port:
            return {concurrency: measure_trpc(folder, port, concurrency) for concurrency in CONCURRENCIES}
    with server_process([sys.executable, "-m", "bench.calls", "--server", name]) as port:
        return {concurrency: measure_apart(name, port, concurrency) for concurrency in CONCURRENCIES}


class Wanted(NamedTuple):
    """A comparison of the rates of two contenders, with its targets at some concurrencies."""

    work: str
    ours: str
    against: str
    other: str
    kind: Kind
    limits: Mapping[int, float]

    def compare(self, results: Mapping[str, Mapping[int, Figures]]) -> Iterator[Comparison]:
        """Yield the ratio of the medians at each concurrency, if both were measured."""
        if self.ours not in results or self.other not in results:
            return
        for concurrency, other in results[self.other].items():
            ratio = results[self.ours][concurrency]["rate"] / other["rate"]
            value = 1 / ratio if self.kind == "time" else ratio
            limit = self.limits.get(concurrency)
            at_most, at_least = (limit, None) if self.kind == "time" else (None, limit)
            yield Comparison(f"{self.work}, c{concurrency}", self.against, self.kind, value, at_most, at_least)


_AT_ALL = dict.fromkeys(CONCURRENCIES, 3.0)
_HUB, _BETWEEN_SPOKES = "hub", "spoke to spoke"
WANTED = (
    Wanted("Call in memory", "memory", "`registry.execute`", "registry.execute", "time", _AT_ALL),
    Wanted("Call in memory as bytes", "memory as bytes", "by reference", "memory", "time", {64: 2.5}),
    Wanted("Call over a WebSocket", _HUB, "raw picows", "raw picows", "rate", {64: 0.6}),
    Wanted("Call over a WebSocket", _HUB, "tRPC 11", "tRPC", "faster", {64: 2}),
    Wanted("Call over a WebSocket", _HUB, "python-socketio", "python-socketio", "faster", {64: 4}),
    Wanted("Call from spoke to spoke", _BETWEEN_SPOKES, "spoke to hub", _HUB, "rate", {1: 0.45}),
)


def main() -> None:
    """Measure, print, save and draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server")
    parser.add_argument("--client", nargs=3)
    parser.add_argument("--worker", type=int)
    options = parser.parse_args()
    if options.server:
        run(SERVERS[options.server]())
    elif options.worker:
        pin("client")  # The worker shares the core for clients, so that the hub has a core to itself.
        run(work_for_hub(options.worker))
    elif options.client:
        name, port, concurrency = options.client
        client = (
            measure_memory(name, int(concurrency)) if name in IN_PROCESS else CLIENTS[name](int(port), int(concurrency))
        )
        print(json.dumps(run(client)))
    else:
        report()


def report() -> None:
    """Run the whole comparison and print the results."""
    from bench.pictures.curves import Curve, draw

    results = measure_all()
    print(f"\n{'':<26}" + "".join(f"{f'c{concurrency}':>12}" for concurrency in CONCURRENCIES))
    for name, figures in results.items():
        print(f"{name:<26}" + "".join(f"{figures[concurrency]['rate']:>12,.0f}" for concurrency in CONCURRENCIES))
    save("calls", {"results": results})
    keep("bench.calls", chain.from_iterable(each.compare(results) for each in WANTED))
    charts = {
        title: [Curve(name, {size: figures[size][figure] for size in figures}) for name, figures in results.items()]
        for title, figure in (("calls per second", "rate"), ("99th percentile of the duration", "p99"))
    }
    for name, picture in draw("calls", "Calls by number of concurrent calls", charts, lambda curve: curve.name).items():
        (PICTURES / name).write_text(picture)


if __name__ == "__main__":
    main()
