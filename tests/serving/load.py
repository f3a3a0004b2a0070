"""Load on a served registry: connections that call while the server is replaced, and listeners of idle streams.

`python -m tests.serving.load` runs 256 connections for 30 seconds and holds 10,000 listeners, as `make faults` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

BODY = b'{"wait":1 }'
REQUEST = (
    b"POST /shop/work HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)


class Tally:
    """The outcomes of all requests."""

    def __init__(self) -> None:
        self.answered = 0
        self.refused = 0
        """Answers 503 with `DRAINING`: the request did not run."""
        self.lost = 0
        """Connections that ended without an answer to a request that was sent."""
        self.unexpected: list[bytes] = []


async def serve(descriptor: int) -> None:
    """Serve on a listening socket that another process may share, until SIGTERM."""
    from operations import OperationRegistry, operation
    from operations.serving import Limits, ServedApp, app, server

    @operation(namespace="shop", type="mutation")
    async def work(wait: int) -> int:
        """Wait a little."""
        await asyncio.sleep(wait / 1000)
        return wait

    @operation(namespace="shop")
    async def silence() -> AsyncIterator[int]:
        """Send no event."""
        await asyncio.Event().wait()
        yield 1

    allow_files()
    shared = socket.socket(fileno=descriptor)
    limits = Limits(calls=100_000, streams=100_000, all_streams=100_000)
    served: ServedApp = app(OperationRegistry([work, silence]), mcp=False, limits=limits)
    with contextlib.ExitStack() as stack:
        original = server._listen
        server._listen = lambda host, port: shared  # the port outlives this process
        stack.callback(setattr, server, "_listen", original)
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        async with server.HTTPServer(served, "127.0.0.1:0"):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await stopped.wait()


def allow_files() -> None:
    """Let this process open as many files as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def start(listener: socket.socket) -> subprocess.Popen[str]:
    """Start a server on the socket and wait until it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.serving.load", "serve", str(listener.fileno())],
        pass_fds=[listener.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def call(place: tuple[str, int], tally: Tally, stopped: asyncio.Event) -> None:
    """Call one after the other; a connection that the server closes between two calls is opened again."""
    while not stopped.is_set():
        try:
            reader, writer = await asyncio.open_connection(*place)
        except OSError:
            await asyncio.sleep(0.01)
            continue
        with contextlib.closing(writer):
            while not stopped.is_set():
                writer.write(REQUEST)
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                    body = await reader.readexactly(length)
                except (asyncio.IncompleteReadError, ConnectionError) as error:
                    if getattr(error, "partial", b""):
                        tally.unexpected.append(error.partial)  # type: ignore[union-attr]
                    tally.lost += 1
                    break
                if head[9:12] == b"200":
                    tally.answered += 1
                elif head[9:12] == b"503" and b"DRAINING" in body:
                    tally.refused += 1
                else:
                    tally.unexpected.append(head[:200] + body[:200])
                if b"connection: close" in head:
                    break


async def run(connections: int, seconds: float) -> Tally:
    """Call for some seconds; in the middle a second server starts and the first one gets SIGTERM."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    place = listener.getsockname()[:2]
    first = start(listener)
    tally = Tally()
    stopped = asyncio.Event()
    callers = [asyncio.create_task(call(place, tally, stopped)) for _ in range(connections)]
    second: subprocess.Popen[Any] | None = None
    try:
        await asyncio.sleep(seconds / 2)
        second = await asyncio.to_thread(start, listener)
        first.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 60) == 0
        before = tally.answered
        await asyncio.sleep(seconds / 2)
        stopped.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*callers)
        assert tally.answered > before
    finally:
        for process in (first, second):
            if process is not None:
                process.terminate()
                process.wait(60)
                assert process.stdout is not None
                process.stdout.close()
        listener.close()
    return tally


async def listen(place: tuple[str, int]) -> asyncio.StreamWriter:
    """Open a stream and wait for its head."""
    reader, writer = await asyncio.open_connection(*place)
    writer.write(b"GET /shop/silence HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"retry: 2000")
    return writer


async def hold(listeners: int) -> float:
    """Hold idle listeners while a call is answered; return the bytes of the server's memory for each."""
    allow_files()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    place = listener.getsockname()[:2]
    process = start(listener)
    held: list[asyncio.StreamWriter] = []
    try:
        held.append(await listen(place))
        before = memory(process.pid)
        while len(held) < listeners:
            held += await asyncio.gather(*(listen(place) for _ in range(min(100, listeners - len(held)))))
        taken = (memory(process.pid) - before) / listeners
        reader, writer = await asyncio.open_connection(*place)
        writer.write(REQUEST)
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        held.append(writer)
    finally:
        for writer in held:
            writer.close()
        process.terminate()
        assert await asyncio.to_thread(process.wait, 60) == 0
        assert process.stdout is not None
        process.stdout.close()
        listener.close()
    return taken


def memory(process: int) -> int:
    """Return the bytes that a process has in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) * 1024


def main() -> int:
    """Run the long version and print the outcomes of all requests."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(int(sys.argv[2])))
        return 0
    seconds = float(os.environ.get("LOAD_SECONDS", "30"))
    tally = asyncio.run(run(256, seconds))
    refused = f"{tally.refused} refused while draining"
    sys.stdout.write(f"{tally.answered:,} answered, {refused}, {tally.lost} connections lost\n")
    taken = asyncio.run(hold(10_000))
    sys.stdout.write(f"10,000 idle listeners: {taken / 1024:.1f} KiB each\n")
    sys.stdout.writelines(f"{each!r}\n" for each in tally.unexpected[:5])
    return 1 if tally.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
