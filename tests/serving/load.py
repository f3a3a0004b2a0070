"""Load on a served registry: connections that call one after the other while the server is replaced by another one.

`python -m tests.serving.load` runs it for 30 seconds with 256 connections, as `make faults` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any

BODY = b'{"wait":1 }'
REQUEST = (
    b"POST /shop/work HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)


class Tally:
    """What became of every request."""

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

    shared = socket.socket(fileno=descriptor)
    served: ServedApp = app(OperationRegistry([work]), mcp=False, limits=Limits(calls=100_000))
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
    """Call for some seconds; in the middle a second server takes over and the first one is told to stop."""
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


def main() -> int:
    """Run the long form and print what became of every request."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(int(sys.argv[2])))
        return 0
    seconds = float(os.environ.get("LOAD_SECONDS", "30"))
    tally = asyncio.run(run(256, seconds))
    refused = f"{tally.refused} refused while draining"
    sys.stdout.write(f"{tally.answered:,} answered, {refused}, {tally.lost} connections lost\n")
    sys.stdout.writelines(f"{each!r}\n" for each in tally.unexpected[:5])
    return 1 if tally.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
