"""Our own server on a free port of the loopback, and raw connections to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from operations.serving import HTTPServer, ServedApp


@asynccontextmanager
async def running(served: ServedApp, **options: Any) -> AsyncIterator[tuple[str, int]]:
    """Serve an application; gives host and port."""
    async with HTTPServer(served, "127.0.0.1:0", **options) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        yield host, int(port)


@contextmanager
def running_in_thread(served: ServedApp) -> Iterator[str]:
    """Serve an application in a separate thread; gives its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait_for(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    server = HTTPServer(served, "127.0.0.1:0")
    try:
        wait_for(server.__aenter__())
        yield server.url
        wait_for(server.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Connection:
    """A connection on which a test writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response with a Content-Length."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = parse_head(head)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return status, headers, body

    async def rest(self) -> bytes:
        """Read until the server closes the connection."""
        async with asyncio.timeout(20):
            return await self.reader.read()


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), {name.lower(): value for name, _, value in pairs}


@asynccontextmanager
async def connected(place: tuple[str, int]) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(*place)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        writer.transport.abort()  # what the server does not read would keep the socket open
        await asyncio.sleep(0)


def post_bytes(path: str = "/shop/quote", body: bytes = b'{"item":"tea"}', *lines: str) -> bytes:
    """Return a request as it is written on the wire."""
    head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *lines]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        head.append(f"content-length: {len(body)}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
