"""HTTP load from a fixed number of connections, each repeating one request sequentially."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path


class Connection(asyncio.Protocol):
    """One keep-alive connection; responses have a `content-length`."""

    def __init__(self, request: bytes, until: float) -> None:
        self.count = 0
        self.failed = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._until = until
        self._held = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        held = self._held + data if self._held else data
        while True:
            end = held.find(b"\r\n\r\n")
            if end < 0:
                break
            head = held[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(held) < end + 4 + size:
                break
            if not head.startswith(b"http/1.1 200"):
                self.failed += 1
            self.count += 1
            held = held[end + 4 + size :]
            if time.perf_counter() >= self._until:
                self._finish()
                break
            assert self._transport is not None
            self._transport.write(self._request)
        self._held = held

    def connection_lost(self, error: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        if self._transport is not None:
            self._transport.close()


async def load(port: int, request: bytes, *, connections: int = 64, seconds: float = 2.0) -> tuple[int, int]:
    """Repeat a request on each connection for some seconds; return the number of responses, and of failed ones.

    A response with a status other than 200 has failed.
    """
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    opened = [
        (await loop.create_connection(lambda: Connection(request, until), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(each.done for each in opened))
    return sum(each.count for each in opened), sum(each.failed for each in opened)


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def post(path: str, body: bytes, port: int, **headers: str) -> bytes:
    """Return the bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
