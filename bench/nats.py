"""Calls over NATS: against the raw client protocol, nats-py's request and FastStream; and how the cost grows.

`python -m bench.nats` measures at concurrency 1, 64 and 1,024 through one nats-server, each contender's worker in a
process of its own; then one worker against two with a CPU-bound handler, and the cost of a call with more workers and
operations.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from tests.nats_server import nats_server

from bench.calls import CONCURRENCIES, ROUNDS, TEXT, Figures, echo, measure, run
from bench.measure import save
from operations import OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub import nats

SUBJECT = "raw.echo"
BODY = json.dumps({"text": TEXT, "pad": "x" * 20}).encode()
WORKERS = (1, 8, 64)
OPERATIONS = (10, 1_000, 10_000)


@operation(id="bench.spin", type="query")
async def spin(rounds: int) -> int:
    """A handler that does nothing but compute."""
    total = 0
    for number in range(rounds):
        total += number * number
    return total


async def until_told() -> None:
    """Say that this worker is ready, and work until standard input ends."""
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Raw(asyncio.Protocol):
    """The bare protocol: one write per turn of the loop, nothing but what an echo needs."""

    def __init__(self, hello: bytes, received: Callable[[bytes | None, bytes], None]) -> None:
        self._hello = hello
        self._received = received
        self._outbox: list[bytes] = []
        self._rest = b""
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n' + self._hello + b"PING\r\n"
        )

    def send(self, data: bytes) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(data)

    def _flush(self) -> None:
        self.transport.write(b"".join(self._outbox))
        self._outbox.clear()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        position = 0
        while (end := data.find(b"\r\n", position)) >= 0:
            if data[position] == 77:
                words = data[position + 4 : end].split()
                stop = end + 2 + int(words[-1])
                if stop + 2 > len(data):
                    break
                self._received(words[2] if len(words) > 3 else None, data[end + 2 : stop])
                position = stop + 2
            else:
                if data.startswith(b"PING", position):
                    self.transport.write(b"PONG\r\n")
                elif data.startswith(b"PONG", position) and not self.ready.done():
                    self.ready.set_result(None)
                position = end + 2
        self._rest = data[position:]


async def open_raw(port: int, hello: bytes, received: Callable[[bytes | None, bytes], None]) -> Raw:
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Raw(hello, received), "127.0.0.1", port)
    await protocol.ready
    return protocol


async def work_raw(port: int) -> None:
    """Each message goes back as it came."""
    protocol = await open_raw(
        port,
        f"SUB {SUBJECT} workers 1\r\n".encode(),
        lambda reply, data: protocol.send(b"PUB %b %d\r\n%b\r\n" % (reply or b"", len(data), data)),
    )
    await until_told()


async def call_raw(port: int, concurrency: int) -> Figures:
    """An 8-byte id and the body, answers matched by id."""
    futures: dict[bytes, asyncio.Future[bytes]] = {}
    numbers = iter(range(1, 2**62))
    loop = asyncio.get_running_loop()
    protocol = await open_raw(port, b"SUB raw.inbox 1\r\n", lambda reply, data: futures.pop(data[:8]).set_result(data))

    async def call() -> bytes:
        key = b"%08x" % next(numbers)
        future = futures[key] = loop.create_future()
        protocol.send(b"PUB %b raw.inbox %d\r\n%b%b\r\n" % (SUBJECT.encode(), len(BODY) + 8, key, BODY))
        answer: bytes = await future
        return answer

    return await measure(call, concurrency)


async def work_ours(port: int) -> None:
    async with nats.connect(f"nats://127.0.0.1:{port}") as transport:
        handler = CallHandler(OperationRegistry([echo, spin]), transport, concurrency=4096)
        await transport.flush()
        await until_told()
        await handler.close()


async def call_ours(port: int, concurrency: int) -> Figures:
    async with nats.connect(f"nats://127.0.0.1:{port}") as transport:
        pending = PendingRequestMap(transport)
        return await measure(lambda: pending.call("bench.echo", {"text": TEXT}), concurrency)


async def work_nats_py(port: int) -> None:
    import nats as nats_py

    client = await nats_py.connect(f"nats://127.0.0.1:{port}")

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe(SUBJECT, queue="workers", cb=answer)
    await client.flush()
    await until_told()
    await client.close()


async def call_nats_py(port: int, concurrency: int) -> Figures:
    import nats as nats_py

    client = await nats_py.connect(f"nats://127.0.0.1:{port}")
    figures = await measure(lambda: client.request(SUBJECT, BODY, timeout=30), concurrency)
    await client.close()
    return figures


async def work_faststream(port: int) -> None:
    from faststream.nats import NatsBroker

    broker = NatsBroker(f"nats://127.0.0.1:{port}", logger=None)

    @broker.subscriber(SUBJECT, queue="workers")  # type: ignore[untyped-decorator]
    async def answer(body: dict[str, str]) -> str:
        return body["text"]

    await broker.start()
    await until_told()
    await broker.stop()


async def call_faststream(port: int, concurrency: int) -> Figures:
    from faststream.nats import NatsBroker

    broker = NatsBroker(f"nats://127.0.0.1:{port}", logger=None)
    await broker.start()
    figures = await measure(lambda: broker.request({"text": TEXT}, SUBJECT, timeout=30), concurrency)
    await broker.stop()
    return figures


Client = Callable[[int, int], Coroutine[Any, Any, Figures]]
CONTENDERS: dict[str, tuple[Callable[[int], Coroutine[Any, Any, None]], Client]] = {
    "raw protocol": (work_raw, call_raw),
    "operations": (work_ours, call_ours),
    "nats-py request": (work_nats_py, call_nats_py),
    "FastStream": (work_faststream, call_faststream),
}


async def call_scaled(port: int, what: str, count: int) -> float:
    """CPU seconds of this process, and wall seconds, for a fixed number of calls with `count` workers or operations."""
    url = f"nats://127.0.0.1:{port}"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count if what == "workers" else 1):
            transport = await stack.enter_async_context(nats.connect(url))
            more = [stub(number) for number in range(count - 1)] if what == "operations" else []
            handler = CallHandler(OperationRegistry([echo, *more]), transport, concurrency=4096)
            stack.push_async_callback(handler.close)
        pending = PendingRequestMap(await stack.enter_async_context(nats.connect(url)))
        await transport.flush()
        for _ in range(2):
            start = time.process_time()
            await many(lambda: pending.call("bench.echo", {"text": TEXT}), 10_000)
        return time.process_time() - start


def stub(number: int) -> Any:
    async def nothing(text: str) -> str:
        return text

    return operation(id=f"bench.other{number}", type="query")(nothing)


async def many(call: Callable[[], Awaitable[object]], calls: int) -> None:
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(work() for _ in range(64)))


async def call_spin(port: int, seconds: float) -> float:
    """Calls per second to a CPU-bound handler of about a millisecond."""
    async with nats.connect(f"nats://127.0.0.1:{port}") as transport:
        pending = PendingRequestMap(transport)
        return (await measure(lambda: pending.call("bench.spin", {"rounds": 20_000}), 16, seconds))["rate"]


@contextlib.contextmanager
def worker(name: str, port: int) -> Iterator[None]:
    """A worker in a process of its own; it ends when its standard input does."""
    command = [sys.executable, "-m", "bench.nats", "--worker", name, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        yield
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def apart(*arguments: object) -> Any:
    """Run one client in a process of its own, so that none inherits another's garbage."""
    command = [sys.executable, "-m", "bench.nats", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    return json.loads(done.stdout)


def available() -> list[str]:
    names = []
    for name, module in (
        ("raw protocol", "json"),
        ("operations", "json"),
        ("nats-py request", "nats"),
        ("FastStream", "faststream"),
    ):
        try:
            __import__(module)
        except ImportError:
            print(f"{module} is not installed: {name} is left out")
            continue
        names.append(name)
    return names


def compare(port: int) -> dict[str, dict[int, Figures]]:
    """Every contender at every concurrency, in interleaved rounds; the median of each."""
    results: dict[str, dict[int, list[Figures]]] = {}
    for round_number in range(ROUNDS):
        for name in available():
            print(f"round {round_number + 1}: {name}", flush=True)
            with worker(name, port):
                for concurrency in CONCURRENCIES:
                    figures = apart("--client", name, port, concurrency)
                    results.setdefault(name, {}).setdefault(concurrency, []).append(figures)
    return {
        name: {
            concurrency: {key: statistics.median(each[key] for each in rounds) for key in ("rate", "p99")}
            for concurrency, rounds in by_concurrency.items()
        }
        for name, by_concurrency in results.items()
    }


def two_workers(port: int) -> dict[str, float]:
    """The rate of two workers over that of one, with a handler that only computes."""
    ratios = []
    for _ in range(ROUNDS):
        with worker("operations", port):
            one = apart("--spin", port, 2.0)
            with worker("operations", port):
                ratios.append(apart("--spin", port, 2.0) / one)
    return {"two workers over one": statistics.median(ratios), "cores": float(os.cpu_count() or 1)}


def growth(port: int) -> dict[str, dict[int, float]]:
    """The CPU time of a call with more workers, and with more operations, over that with the fewest."""
    grown = {}
    for what, counts in (("workers", WORKERS), ("operations", OPERATIONS)):
        taken: dict[int, list[float]] = {}
        for _ in range(ROUNDS):
            for count in counts:
                taken.setdefault(count, []).append(apart("--scaled", port, what, count))
        least = statistics.median(taken[counts[0]])
        grown[what] = {count: statistics.median(taken[count]) / least for count in counts}
    return grown


WANTED = (
    ("of the raw protocol (wanted: 0.4 or more at c64)", "raw protocol"),
    ("times nats-py's request", "nats-py request"),
    ("times FastStream (wanted: 4 or more)", "FastStream"),
)


def report() -> None:
    """The whole comparison."""
    with nats_server(jetstream=False) as server:
        results = compare(server.port)
        print(f"\n{'':<20}" + "".join(f"{f'c{concurrency}':>12}" for concurrency in CONCURRENCIES))
        for name, figures in results.items():
            print(f"{name:<20}" + "".join(f"{figures[concurrency]['rate']:>12,.0f}" for concurrency in CONCURRENCIES))
        verdicts = {
            text: {c: results["operations"][c]["rate"] / results[base][c]["rate"] for c in CONCURRENCIES}
            for text, base in WANTED
            if base in results
        }
        for text, ratios in verdicts.items():
            print(f"  {text}: " + ", ".join(f"c{number} {ratio:.2f}" for number, ratio in ratios.items()))
        shared = two_workers(server.port)
        print(
            f"  two workers over one, CPU-bound (wanted: 1.7 or more): {shared['two workers over one']:.2f}"
            f" on {shared['cores']:.0f} cores, of which the caller and the server use a part"
        )
        grown = growth(server.port)
        for what, ratios in grown.items():
            shown = ", ".join(f"{count:,}: {ratio:.2f}" for count, ratio in ratios.items())
            print(f"  CPU of a call by number of {what}, over the fewest: {shown}")
    save("nats", {"results": results, "verdicts": verdicts, "shared": shared, "growth": grown})


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", nargs=2)
    parser.add_argument("--client", nargs=3)
    parser.add_argument("--scaled", nargs=3)
    parser.add_argument("--spin", nargs=2)
    options = parser.parse_args()
    if options.worker:
        name, port = options.worker
        run(CONTENDERS[name][0](int(port)))
    elif options.client:
        name, port, concurrency = options.client
        print(json.dumps(run(CONTENDERS[name][1](int(port), int(concurrency)))))
    elif options.scaled:
        port, what, count = options.scaled
        print(json.dumps(run(call_scaled(int(port), what, int(count)))))
    elif options.spin:
        print(json.dumps(run(call_spin(int(options.spin[0]), float(options.spin[1])))))
    else:
        report()


if __name__ == "__main__":
    main()
