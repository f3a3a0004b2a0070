"""Calls over Redis: against the raw protocol on hiredis, FastStream and taskiq, all on the same server.

`python -m bench.redis` measures at concurrency 1, 64 and 1,024, each worker and client in a process of its own, then
two workers against one with a handler that computes, and the cost of a call with many workers and many operations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from bench.calls import TEXT, Figures, echo, measure, run
from bench.measure import save
from operations import Operation, OperationRegistry, operation
from operations.calls import CallHandler, PendingRequestMap
from operations.pubsub.redis import RedisTransport

CONCURRENCIES = (1, 64, 1024)
PEERS = (1, 64)
"""A connection for each call is what the peers take: a thousand are more than they or the server are set up for."""
ROUNDS = 3
COMPUTE_SECONDS = 0.004


@operation(id="bench.compute", type="query")
async def compute(text: str) -> int:
    """A handler that keeps its processor busy."""
    end = time.thread_time() + COMPUTE_SECONDS
    rounds = 0
    while time.thread_time() < end:
        rounds += 1
    return rounds


def many_operations(count: int) -> list[Operation[Any]]:
    """The echo, and so many others beside it."""

    def make(number: int) -> Operation[Any]:
        @operation(id=f"bench.other{number}", type="query")
        async def other(text: str) -> str:
            return text

        return other

    return [echo, compute, *(make(number) for number in range(count - 2))]


async def until_told() -> None:
    """Say that the worker is ready, and work until the one who started it is gone."""
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def serve_operations(url: str, workers: int = 1, count: int = 2) -> None:
    """Our worker, or several in one process."""
    async with AsyncExitStack() as stack:
        handlers = []
        for _ in range(workers):
            transport = await stack.enter_async_context(RedisTransport(url))
            handlers.append(CallHandler(OperationRegistry(many_operations(count)), transport, concurrency=4096))
        probe = await stack.enter_async_context(RedisTransport(url))
        await PendingRequestMap(probe).call("bench.echo", {"text": ""}, wait=True)
        await until_told()


async def call_operations(url: str, concurrency: int, what: str = "bench.echo") -> Figures:
    """Our client."""
    async with RedisTransport(url) as transport:
        pending = PendingRequestMap(transport)
        return await measure(lambda: pending.call(what, {"text": TEXT}), concurrency)


class Raw(asyncio.Protocol):
    """Redis pub/sub with nothing on top: RESP3 on hiredis, one write for each turn of the loop."""

    def __init__(self, receive: Callable[[Raw, bytes], None]) -> None:
        import hiredis

        self._pack: Any = hiredis.pack_command
        self._reader = hiredis.Reader(notEnoughData=self)
        self._push = hiredis.PushNotification
        self._receive = receive
        self._outbox: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def command(self, *parts: Any) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(self._pack(parts))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        self._transport.write(b"".join(outbox))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not self:
            if type(reply) is self._push and reply[0] == b"message":
                self._receive(self, reply[2])


async def open_raw(url: str, channel: str, receive: Callable[[Raw, bytes], None]) -> Raw:
    """A raw connection that listens at a channel."""
    port = int(url.rpartition(":")[2])
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Raw(receive), "127.0.0.1", port)
    protocol.command("HELLO", "3")
    protocol.command("SUBSCRIBE", channel)
    return protocol


async def serve_raw(url: str) -> None:
    """Publishes each message back as it came."""
    await open_raw(url, "raw-in", lambda raw, message: raw.command("PUBLISH", "raw-out", message))
    await asyncio.sleep(0.2)
    await until_told()


async def call_raw(url: str, concurrency: int) -> Figures:
    """An 8-byte id and the same body, answers matched by id."""
    futures: dict[bytes, asyncio.Future[bytes]] = {}
    numbers = iter(range(1, 2**62))
    body = json.dumps({"text": TEXT, "pad": "x" * 20}).encode()
    loop = asyncio.get_running_loop()
    raw = await open_raw(url, "raw-out", lambda _, data: futures.pop(data[:8]).set_result(data))
    await asyncio.sleep(0.2)

    async def call() -> bytes:
        key = struct.pack(">Q", next(numbers))
        future = futures[key] = loop.create_future()
        raw.command("PUBLISH", "raw-in", key + body)
        answer: bytes = await future
        return answer

    return await measure(call, concurrency)


async def serve_faststream(url: str) -> None:
    """FastStream over Redis: a subscriber of a list that returns its answer."""
    from faststream.redis import RedisBroker

    broker = RedisBroker(url, logger=None, max_connections=4096)

    async def answer(text: str) -> str:
        return text

    broker.subscriber(list="faststream-echo")(answer)
    await broker.start()
    await until_told()
    await broker.stop()


async def call_faststream(url: str, concurrency: int) -> Figures:
    """FastStream's own request and reply."""
    from faststream.redis import RedisBroker

    async with RedisBroker(url, logger=None, max_connections=4096) as broker:
        return await measure(lambda: broker.request(TEXT, list="faststream-echo", timeout=30.0), concurrency)


def taskiq_broker(url: str) -> Any:
    """A list and a result backend, as taskiq's pages show it."""
    from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

    broker: Any = ListQueueBroker(url).with_result_backend(RedisAsyncResultBackend(url, result_ex_time=60))

    async def answer(text: str) -> str:
        return text

    return broker, broker.register_task(answer, task_name="bench:echo")


async def serve_taskiq(url: str) -> None:
    """taskiq's receiver, in this process."""
    from taskiq.receiver import Receiver

    broker, _ = taskiq_broker(url)
    broker.is_worker_process = True
    await broker.startup()
    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=4096, run_startup=False)
    task = asyncio.create_task(receiver.listen(finish))
    await until_told()
    finish.set()
    await asyncio.wait((task,), timeout=2)


async def call_taskiq(url: str, concurrency: int) -> Figures:
    """Send a task and wait for its result, asking as often as is worth it."""
    broker, answer = taskiq_broker(url)
    await broker.startup()

    async def call() -> Any:
        task = await answer.kiq(TEXT)
        return await task.wait_result(check_interval=0.005, timeout=30)

    figures = await measure(call, concurrency)
    await broker.shutdown()
    return figures


SERVERS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "operations": serve_operations,
    "raw hiredis": serve_raw,
    "FastStream": serve_faststream,
    "taskiq": serve_taskiq,
}
CLIENTS: dict[str, Callable[..., Coroutine[Any, Any, Figures]]] = {
    "operations": call_operations,
    "raw hiredis": call_raw,
    "FastStream": call_faststream,
    "taskiq": call_taskiq,
}
MODULES = {"operations": "hiredis", "raw hiredis": "hiredis", "FastStream": "faststream", "taskiq": "taskiq_redis"}


@contextmanager
def worker(name: str, url: str, *options: int) -> Iterator[None]:
    """A worker in a process of its own; it ends when its standard input does."""
    command = [sys.executable, "-m", "bench.redis", "--server", name, url, *map(str, options)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the worker of {name} did not start")
        yield
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def call_from(name: str, url: str, concurrency: int, *options: str) -> Figures:
    """A client in a process of its own."""
    command = [sys.executable, "-m", "bench.redis", "--client", name, url, str(concurrency), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def available() -> list[str]:
    """The contenders whose libraries are installed; the others are named and left out."""
    names = []
    for name, module in MODULES.items():
        try:
            __import__(module)
        except ImportError:
            print(f"{module} is not installed: {name} is left out")
            continue
        names.append(name)
    return names


def measure_all(url: str) -> dict[str, dict[int, Figures]]:
    """Every contender at every concurrency, in interleaved rounds; the median of each."""
    results: dict[str, dict[int, list[Figures]]] = {}
    names = available()
    for number in range(ROUNDS):
        for name in names:
            print(f"round {number + 1}: {name}", flush=True)
            with worker(name, url):
                for concurrency in PEERS if name in ("FastStream", "taskiq") else CONCURRENCIES:
                    figures = call_from(name, url, concurrency)
                    results.setdefault(name, {}).setdefault(concurrency, []).append(figures)
    return {
        name: {
            concurrency: {key: statistics.median(figures[key] for figures in rounds) for key in ("rate", "p99")}
            for concurrency, rounds in by_concurrency.items()
        }
        for name, by_concurrency in results.items()
    }


def measure_workers(url: str) -> dict[str, float]:
    """How much two workers do of what one does, with a handler that computes."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        with worker("operations", url):
            rates[1].append(call_from("operations", url, 16, "bench.compute")["rate"])
            with worker("operations", url):
                rates[2].append(call_from("operations", url, 16, "bench.compute")["rate"])
    return {"two workers, times one": statistics.median(rates[2]) / statistics.median(rates[1])}


def measure_growth(url: str) -> dict[str, float]:
    """What a call costs with many workers and with many operations, as a multiple of few."""
    cases = {"1 worker": (1, 10), "64 workers": (64, 10), "10,000 operations": (1, 10_000)}
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, options in cases.items():
            with worker("operations", url, *options):
                rates[name].append(call_from("operations", url, 64)["rate"])
    base = statistics.median(rates["1 worker"])
    return {f"cost of a call, {name}": base / statistics.median(taken) for name, taken in rates.items()}


WANTED = (
    ("of the raw protocol (wanted: 0.4 or more at c64)", "raw hiredis"),
    ("times FastStream (wanted: 20 or more)", "FastStream"),
    ("times taskiq (wanted: 20 or more)", "taskiq"),
)


def report(url: str) -> None:
    """The whole comparison."""
    results = measure_all(url)
    print(f"\n{'':<16}" + "".join(f"{f'c{concurrency}':>12}" for concurrency in CONCURRENCIES))
    for name, figures in results.items():
        print(f"{name:<16}" + "".join(f"{each['rate']:>12,.0f}" for each in figures.values()))
    verdicts = {
        text: {
            concurrency: results["operations"][concurrency]["rate"] / figures["rate"]
            for concurrency, figures in results[name].items()
        }
        for text, name in WANTED
        if name in results
    }
    for text, by_concurrency in verdicts.items():
        print(f"  {text}: " + ", ".join(f"c{number} {ratio:.2f}" for number, ratio in by_concurrency.items()))
    growth = measure_workers(url) | measure_growth(url)
    for text, ratio in growth.items():
        print(f"  {text}: {ratio:.2f}")
    save("redis", {"results": results, "verdicts": verdicts, "growth": growth})


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", nargs="+")
    parser.add_argument("--client", nargs="+")
    parser.add_argument("--engine", default="redis", choices=["redis", "valkey"])
    options = parser.parse_args()
    if options.server:
        name, url, *numbers = options.server
        run(SERVERS[name](url, *map(int, numbers)))
    elif options.client:
        name, url, concurrency, *what = options.client
        print(json.dumps(run(CLIENTS[name](url, int(concurrency), *what))))
    else:
        from tests.redis_servers import Server

        server = Server(options.engine)
        try:
            report(server.start().url)
        finally:
            server.remove()


if __name__ == "__main__":
    main()
