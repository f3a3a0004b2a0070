"""Calls over Redis: against the raw protocol on hiredis, FastStream and taskiq, all on the same server.

Run `python -m bench.redis`; `bench.buses` describes the measurements.
`--engine valkey` uses Valkey instead of Redis 6.2.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any

from bench.buses import (
    OURS,
    BrokerBenchmark,
    Bus,
    Contender,
    arguments,
    call_ours,
    run_part,
    serve_ours,
    until_stdin_closes,
)
from bench.calls import TEXT, Figures, Wanted, measure

PEERS = (1, 64)
"""Concurrencies of the peers: they use one connection per call, and a thousand exceed their limits and the server's."""


class Raw(asyncio.Protocol):
    """Bare Redis pub/sub: RESP3 on hiredis, one write per loop iteration."""

    def __init__(self, receive: Callable[[Raw, bytes], None]) -> None:
        import hiredis

        self._pack: Any = hiredis.pack_command
        self._reader = hiredis.Reader(notEnoughData=self)
        self._push = hiredis.PushNotification
        self._receive = receive
        self._unwritten: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def command(self, *parts: Any) -> None:
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten.append(self._pack(parts))

    def _flush(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        self._transport.write(b"".join(unwritten))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not self:
            if type(reply) is self._push and reply[0] == b"message":
                self._receive(self, reply[2])


async def open_raw(url: str, channel: str, receive: Callable[[Raw, bytes], None]) -> Raw:
    """Open a raw connection that subscribes to a channel."""
    port = int(url.rpartition(":")[2])
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Raw(receive), "127.0.0.1", port)
    protocol.command("HELLO", "3")
    protocol.command("SUBSCRIBE", channel)
    return protocol


async def serve_raw(url: str) -> None:
    """Echo each message."""
    await open_raw(url, "raw-in", lambda raw, message: raw.command("PUBLISH", "raw-out", message))
    await asyncio.sleep(0.2)
    await until_stdin_closes()


async def call_raw(url: str, concurrency: int) -> Figures:
    """Return the figures of raw pub/sub: an 8-byte id and the same body, with replies matched by id."""
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
    """Serve FastStream over Redis: a list subscriber that returns its reply."""
    from faststream.redis import RedisBroker

    broker = RedisBroker(url, logger=None, max_connections=4096)

    async def answer(text: str) -> str:
        return text

    broker.subscriber(list="faststream-echo")(answer)
    await broker.start()
    await until_stdin_closes()
    await broker.stop()


async def call_faststream(url: str, concurrency: int) -> Figures:
    """Return the figures of FastStream's request and reply."""
    from faststream.redis import RedisBroker

    async with RedisBroker(url, logger=None, max_connections=4096) as broker:
        return await measure(lambda: broker.request(TEXT, list="faststream-echo", timeout=30.0), concurrency)


def taskiq_broker(url: str) -> Any:
    """Return taskiq's list broker with a result backend, as in its documentation."""
    from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

    broker: Any = ListQueueBroker(url).with_result_backend(RedisAsyncResultBackend(url, result_ex_time=60))

    async def answer(text: str) -> str:
        return text

    return broker, broker.register_task(answer, task_name="bench:echo")


async def serve_taskiq(url: str) -> None:
    """Run taskiq's receiver in this process."""
    from taskiq.receiver import Receiver

    broker, _ = taskiq_broker(url)
    broker.is_worker_process = True
    await broker.startup()
    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=4096, run_startup=False)
    task = asyncio.create_task(receiver.listen(finish))
    await until_stdin_closes()
    finish.set()
    await asyncio.wait((task,), timeout=2)


async def call_taskiq(url: str, concurrency: int) -> Figures:
    """Return the figures of taskiq: send a task and poll for its result."""
    broker, answer = taskiq_broker(url)
    await broker.startup()

    async def call() -> Any:
        task = await answer.kiq(TEXT)
        return await task.wait_result(check_interval=0.005, timeout=30)

    figures = await measure(call, concurrency)
    await broker.shutdown()
    return figures


BUS = Bus(
    "bench.redis",
    {
        OURS: Contender(serve_ours, call_ours),
        "raw hiredis": Contender(serve_raw, call_raw),
        "FastStream": Contender(serve_faststream, call_faststream, "faststream", PEERS),
        "taskiq": Contender(serve_taskiq, call_taskiq, "taskiq_redis", PEERS),
    },
    (
        Wanted("Call over Redis", OURS, "raw hiredis", "raw hiredis", "rate", {64: 0.4, 1024: 0.45}),
        Wanted("Call over Redis", OURS, "FastStream", "FastStream", "faster", {64: 20}),
        Wanted("Call over Redis", OURS, "taskiq", "taskiq", "faster", {64: 20}),
    ),
)


def main() -> None:
    """Measure, print and save."""
    parser = arguments()
    parser.add_argument("--engine", default="redis", choices=["redis", "valkey"])
    options = parser.parse_args()
    if run_part(BUS, options):
        return
    from tests.redis_servers import Server

    server = Server(options.engine).start()
    try:
        BrokerBenchmark(BUS, server.url, server.pid).report("redis", options.only)
    finally:
        server.remove()


if __name__ == "__main__":
    main()
