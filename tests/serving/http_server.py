"""Our own server on a free port of the loopback, and raw connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from operations.serving import HTTPServer, ServedApp


@asynccontextmanager
async def running(served: ServedApp, **options: Any) -> AsyncIterator[tuple[str, int]]:
    """Serve an application; gives host and port."""
    async with HTTPServer(served, "127.0.0.1:0", **options) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        yield host, int(port)


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


def post_bytes(path: str = "/shop/quote", body: bytes = b'{"item":"tea"}', *lines: str) -> bytes:
    """Return a request as it is written on the wire."""
    head = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *lines]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        head.append(f"content-length: {len(body)}")
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
