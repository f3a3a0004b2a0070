"""Calls over NATS: against the raw client protocol, nats-py's request and FastStream, all on the same server.

Run `python -m bench.nats`; `bench.buses` describes the measurements.
"""

from __future__ import annotations

import asyncio
import json
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

SUBJECT = "raw.echo"
BODY = json.dumps({"text": TEXT, "pad": "x" * 20}).encode()


class Raw(asyncio.Protocol):
    """The bare protocol, reduced to an echo: one write per loop iteration."""

    def __init__(self, hello: bytes, received: Callable[[bytes | None, bytes], None]) -> None:
        self._hello = hello
        self._received = received
        self._unwritten: list[bytes] = []
        self._rest = b""
        self.ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n' + self._hello + b"PING\r\n"
        )

    def send(self, data: bytes) -> None:
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten.append(data)

    def _flush(self) -> None:
        self.transport.write(b"".join(self._unwritten))
        self._unwritten.clear()

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


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def open_raw(url: str, hello: bytes, received: Callable[[bytes | None, bytes], None]) -> Raw:
    _, protocol = await asyncio.get_running_loop().create_connection(
        lambda: Raw(hello, received), "127.0.0.1", port_of(url)
    )
    await protocol.ready
    return protocol


async def serve_raw(url: str) -> None:
    """Echo each message."""
    protocol = await open_raw(
        url,
        f"SUB {SUBJECT} workers 1\r\n".encode(),
        lambda reply, data: protocol.send(b"PUB %b %d\r\n%b\r\n" % (reply or b"", len(data), data)),
    )
    await until_stdin_closes()


async def call_raw(url: str, concurrency: int) -> Figures:
    """Return the figures of the raw protocol: an 8-byte id and the body, with replies matched by id."""
    futures: dict[bytes, asyncio.Future[bytes]] = {}
    numbers = iter(range(1, 2**62))
    loop = asyncio.get_running_loop()
    protocol = await open_raw(url, b"SUB raw.inbox 1\r\n", lambda reply, data: futures.pop(data[:8]).set_result(data))

    async def call() -> bytes:
        key = b"%08x" % next(numbers)
        future = futures[key] = loop.create_future()
        protocol.send(b"PUB %b raw.inbox %d\r\n%b%b\r\n" % (SUBJECT.encode(), len(BODY) + 8, key, BODY))
        answer: bytes = await future
        return answer

    return await measure(call, concurrency)


async def serve_nats_py(url: str) -> None:
    import nats as nats_py

    client = await nats_py.connect(url)

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe(SUBJECT, queue="workers", cb=answer)
    await client.flush()
    await until_stdin_closes()
    await client.close()


async def call_nats_py(url: str, concurrency: int) -> Figures:
    import nats as nats_py

    client = await nats_py.connect(url)
    figures = await measure(lambda: client.request(SUBJECT, BODY, timeout=30), concurrency)
    await client.close()
    return figures


async def serve_faststream(url: str) -> None:
    from faststream.nats import NatsBroker

    broker = NatsBroker(url, logger=None)

    @broker.subscriber(SUBJECT, queue="workers")  # type: ignore[untyped-decorator]
    async def answer(body: dict[str, str]) -> str:
        return body["text"]

    await broker.start()
    await until_stdin_closes()
    await broker.stop()


async def call_faststream(url: str, concurrency: int) -> Figures:
    from faststream.nats import NatsBroker

    broker = NatsBroker(url, logger=None)
    await broker.start()
    figures = await measure(lambda: broker.request({"text": TEXT}, SUBJECT, timeout=30), concurrency)
    await broker.stop()
    return figures


BUS = Bus(
    "bench.nats",
    {
        "raw protocol": Contender(serve_raw, call_raw),
        OURS: Contender(serve_ours, call_ours),
        "nats-py request": Contender(serve_nats_py, call_nats_py, "nats"),
        "FastStream": Contender(serve_faststream, call_faststream, "faststream"),
    },
    (
        Wanted("Call over NATS", OURS, "the raw protocol", "raw protocol", "rate", {64: 0.4}),
        Wanted("Call over NATS", OURS, "nats-py's request", "nats-py request", "faster", {}),
        Wanted("Call over NATS", OURS, "FastStream", "FastStream", "faster", {64: 4}),
    ),
)


def main() -> None:
    """Measure, print and save."""
    options = arguments().parse_args()
    if run_part(BUS, options):
        return
    from tests.nats_server import nats_server

    with nats_server(jetstream=False) as server:
        assert server.process is not None
        BrokerBenchmark(BUS, server.url, server.process.pid).report("nats", options.only)


if __name__ == "__main__":
    main()
