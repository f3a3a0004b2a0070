"""Serving: server CPU of a request against raw ASGI with msgspec and FastAPI; streams; tokens.

`python -m bench.serving`. Each contender runs in a separate process on uvicorn (httptools, uvloop); 64 connections
send one request after another; the server's process times are divided by the number of requests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.comparisons import Comparison, keep
from bench.measure import save

CONNECTIONS = 64
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "1.5"))
LISTENERS = int(os.environ.get("BENCH_LISTENERS", "2000"))
EVENTS = 20_000
RAW = "raw ASGI, msgspec"
TOKEN = "bench-token"
BODY = b'{"item":"tea","count":2}'
_TICKS = os.sysconf("SC_CLK_TCK")


class Quote(msgspec.Struct):
    """The input of the trivial operation."""

    item: str
    count: int


def raw() -> Any:
    """Return a minimal ASGI application with the same response."""
    decode, encode = msgspec.json.Decoder(Quote).decode, msgspec.json.Encoder().encode

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        event = await receive()
        quote = decode(event["body"])
        body = encode({"item": quote.item, "price": quote.count * 3})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return application


def own(count: int, *, token: bool) -> Any:
    from operations import Operation, OperationRegistry, operation
    from operations.context import Identity
    from operations.identity import Principal, StaticTokens
    from operations.serving import Limits, app
    from operations.spec import OperationSpec, OperationType

    @operation(namespace="shop", type="query")
    async def quote(item: str, count: int) -> dict[str, Any]:
        """Return a price."""
        return {"item": item, "price": count * 3}

    @operation(namespace="shop")
    async def count_up(until: int) -> AsyncIterator[dict[str, int]]:
        """Count."""
        for number in range(until):
            yield {"number": number}

    @operation(namespace="shop")
    async def silence() -> AsyncIterator[int]:
        """Stream nothing."""
        await asyncio.Event().wait()
        yield 1

    others: list[Operation[Any]] = [
        Operation(
            spec=OperationSpec(name=f"o{number}", namespace="more", type=OperationType.QUERY), handler=lambda i, c: None
        )
        for number in range(count - 1)
    ]
    tokens = StaticTokens({TOKEN: Principal(Identity("bench", ("a", "b")))})
    return app(
        OperationRegistry([quote, count_up, silence, *others]),
        mcp=False,
        authenticator=tokens if token else None,
        limits=Limits(streams=100_000, all_streams=100_000),
    )


def fast_api() -> Any:
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Input(BaseModel):
        item: str
        count: int

    class Output(BaseModel):
        item: str
        price: int

    application = FastAPI()

    async def quote(given: Any) -> Any:
        return Output(item=given.item, price=given.count * 3)

    quote.__annotations__ = {"given": Input, "return": Output}  # string annotations of local classes cannot be resolved
    application.post("/shop/quote")(quote)
    return application


def sse_starlette() -> Any:
    from sse_starlette.sse import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def count_up(request: Any) -> Any:
        async def events() -> AsyncIterator[dict[str, str]]:
            for number in range(int(request.query_params["until"])):
                yield {"id": str(number), "data": json.dumps({"number": number})}

        return EventSourceResponse(events())

    return Starlette(routes=[Route("/shop/count_up", count_up)])


SERVERS: dict[str, Callable[[], Any]] = {
    RAW: raw,
    "operations, 1": lambda: own(1, token=False),
    "operations, 1,224": lambda: own(1_224, token=False),
    "operations, 1,224, token": lambda: own(1_224, token=True),
    "FastAPI": fast_api,
    "sse-starlette": sse_starlette,
}


def serve(name: str) -> None:
    """Serve one contender until standard input closes; print its port."""
    import uvloop

    async def run() -> None:
        import socket

        import uvicorn

        application = SERVERS[name]()
        if name.startswith("operations"):
            from operations.serving import HTTPServer

            async with HTTPServer(application, "127.0.0.1:0") as server:
                print(server.url.rpartition(":")[2], flush=True)
                await asyncio.to_thread(sys.stdin.read)
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        config = uvicorn.Config(
            application,
            http="httptools",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
        )
        server_task = asyncio.create_task(uvicorn.Server(config).serve(sockets=[listener]))
        print(listener.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server_task.cancel()

    uvloop.run(run())


class Contender:
    """A server in a separate process."""

    def __init__(self, name: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "bench.serving", "serve", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def cpu(self) -> float:
        """Return the CPU seconds of the process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) * 1024

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Client(asyncio.Protocol):
    """HTTP client that repeats one request sequentially."""

    def __init__(self, request: bytes) -> None:
        self.count = 0
        self.failed = 0
        self.stopped = False
        self.closed = asyncio.get_running_loop().create_future()
        self._request = request
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self._buffer.find(b"content-length: ") + 16
        length = int(self._buffer[start : self._buffer.find(b"\r", start)])
        if len(self._buffer) < end + 4 + length:
            return
        self.count += 1
        self.failed += self._buffer[9:12] != b"200"
        self._buffer = b""
        if self.stopped:
            self._transport.close()
        else:
            self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def call_request(token: bool) -> bytes:
    lines = ["POST /shop/quote HTTP/1.1", "host: 127.0.0.1", "accept: */*", "content-type: application/json"]
    lines += [f"content-length: {len(BODY)}", "user-agent: bench"]
    lines += [f"authorization: Bearer {TOKEN}"] if token else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + BODY


async def load(contender: Contender, seconds: float) -> float:
    """Return the CPU seconds of the server for one request."""
    loop = asyncio.get_running_loop()
    request = call_request("token" in contender.name)
    clients: list[Client] = []
    for _ in range(CONNECTIONS):
        _, client = await loop.create_connection(lambda: Client(request), "127.0.0.1", contender.port)
        clients.append(client)
    await asyncio.sleep(0.2)
    began, counted = contender.cpu(), sum(client.count for client in clients)
    await asyncio.sleep(seconds)
    used, count = contender.cpu() - began, sum(client.count for client in clients) - counted
    for client in clients:
        client.stopped = True
    await asyncio.gather(*(client.closed for client in clients))
    failed = sum(client.failed for client in clients)
    if failed or not count:
        raise RuntimeError(f"{contender.name}: {failed} of {count} requests failed")
    return used / count


async def read_stream(contender: Contender) -> float:
    """Return the CPU seconds of the server for one event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", contender.port)
    began = contender.cpu()
    target = f"/shop/count_up?until={EVENTS}"
    writer.write(f"GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n".encode())
    count, last = 0, b""
    while count < EVENTS:
        data = await reader.read(1 << 16)
        if not data:
            raise RuntimeError(f"{contender.name}: the stream ended after {count} events")
        count += (last + data).count(b'{"number"') - last.count(b'{"number"')
        last = data[-8:]
    writer.close()
    return (contender.cpu() - began) / EVENTS


async def hold_listeners(contender: Contender) -> float:
    """Return the server's memory per idle listener in bytes."""
    before = contender.memory()
    held = []
    for _ in range(LISTENERS):
        reader, writer = await asyncio.open_connection("127.0.0.1", contender.port)
        writer.write(b"GET /shop/silence HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        held.append((reader, writer))
    for reader, _ in held:
        await reader.readuntil(b"retry: 2000")
    taken = (contender.memory() - before) / LISTENERS
    for _, writer in held:
        writer.close()
    return taken


def time_token() -> float:
    """Return the seconds of a lookup of a cached verified token."""
    from operations.context import Identity
    from operations.identity import Principal, StaticTokens
    from operations.identity.token_cache import TokenCache

    token = "e" * 800
    cache = TokenCache()
    asyncio.run(cache.verify(token, StaticTokens({token: Principal(Identity("a"))})))
    rounds = []
    for _ in range(20):
        began = time.process_time()
        for _ in range(10_000):
            cache.get(token)
        rounds.append((time.process_time() - began) / 10_000)
    return min(rounds)


async def measure_calls(contenders: list[Contender]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {each.name: [] for each in contenders}
    for _ in range(ROUNDS):
        for each in contenders:
            samples[each.name].append(await load(each, SECONDS))
    return samples


def report(title: str, samples: dict[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    print(f"\n{title}")
    results = {}
    for name, taken in samples.items():
        paired = statistics.median(own / other for own, other in zip(taken, samples[base], strict=True))
        results[name] = {"microseconds": min(taken) * 1e6, "ratio": paired}
        print(f"  {name:<26} {min(taken) * 1e6:7.1f} us  {paired:6.2f} x")
    return results


def compare(results: dict[str, Any]) -> Iterator[Comparison]:
    """Yield the comparisons whose peer was measured."""
    for name in ("operations, 1", "operations, 1,224"):
        served = name.removeprefix("operations, ")
        ratio = results["calls"][name]["ratio"]
        yield Comparison(f"HTTP call, {served} served", "raw ASGI with msgspec", "time", ratio, at_most=1.8)
    if "FastAPI" in results["calls"]:
        ratio = results["calls"]["FastAPI"]["ratio"] / results["calls"]["operations, 1"]["ratio"]
        yield Comparison("HTTP call, 1 served", "FastAPI", "faster", ratio)
    events = results["events"]["sse-starlette"]["ratio"]
    yield Comparison("Event of a served stream", "sse-starlette", "faster", events, at_least=2)
    token = results["cached_token_microseconds"] / 1e6
    yield Comparison("A verified token found again", "CPU", "seconds", token, at_most=3e-6)
    yield Comparison("Idle listener of a served stream", "memory of the server", "bytes", results["listener_bytes"])


def main() -> None:
    import uvloop

    has_fastapi = importlib.util.find_spec("fastapi") is not None
    names = [RAW, "operations, 1", "operations, 1,224", "operations, 1,224, token"] + ["FastAPI"] * has_fastapi
    contenders = [Contender(name) for name in names]
    try:
        calls = uvloop.run(measure_calls(contenders))
        results: dict[str, Any] = {"calls": report(f"a call, {CONNECTIONS} connections, CPU of the server", calls, RAW)}
        bytes_each = uvloop.run(hold_listeners(contenders[1]))
        results["listener_bytes"] = bytes_each
        print(f"\nan idle listener of a stream: {bytes_each / 1024:.1f} KiB ({LISTENERS} of them)")
    finally:
        for each in contenders:
            each.close()
    streams = [Contender("operations, 1"), Contender("sse-starlette")]
    try:
        taken: dict[str, list[float]] = {each.name: [] for each in streams}
        for _ in range(ROUNDS):
            for each in streams:
                taken[each.name].append(uvloop.run(read_stream(each)))
        results["events"] = report("an event of a stream, CPU of the server", taken, "operations, 1")
    finally:
        for each in streams:
            each.close()
    results["cached_token_microseconds"] = time_token() * 1e6
    print(f"\nlookup of a cached verified token: {results['cached_token_microseconds']:.2f} us")
    save("serving", results)
    keep("bench.serving", compare(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main()
