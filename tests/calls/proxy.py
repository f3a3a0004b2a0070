"""A TCP proxy that delays, drops, slices and resets the traffic between peers."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType


class Proxy:
    """Forwards connections to a port, with faults on request: close, reset, drop bytes, delay, slice."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.slices: int | None = None
        self.delay = 0.0
        self.limits: tuple[int | None, int | None] = (None, None)
        """Number of bytes from the client, or to it, after which the first connection is closed."""
        self.passed = [0, 0]
        """Number of bytes from clients, and to them."""
        self._connections = 0
        self.passing = asyncio.Event()
        self.passing.set()
        self.arriving = asyncio.Event()
        """While this is not set, no bytes are forwarded to clients."""
        self.arriving.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.passing.set()
        self.arriving.set()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/"

    def cut(self) -> None:
        """Close every connection, as a leaving peer does."""
        for writer in list(self._writers):
            writer.close()

    def reset(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def swallow(self) -> None:
        """Drop all bytes silently."""
        self.passing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            self._tasks.discard(task)
            return
        self._writers |= {writer, far_writer}
        self._connections += 1
        limits = self.limits if self._connections == 1 else (None, None)
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, 0, limits[0]), self._pump(far_reader, writer, 1, limits[1])
            )
        except asyncio.CancelledError:
            # asyncio's server logs a cancelled connection as an error.
            return
        finally:
            for end in (writer, far_writer):
                end.close()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int, limit: int | None
    ) -> None:
        left = limit
        try:
            while data := await reader.read(65_536):
                await self.passing.wait()
                if way == 1:
                    await self.arriving.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                self.passed[way] += len(data)
                await self._write(writer, data)
                if left == 0:
                    self.cut()
                    break
        except (ConnectionError, OSError):
            pass
        finally:
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.slices is None:
            writer.write(data)
            await writer.drain()
            return
        for start in range(0, len(data), self.slices):
            writer.write(data[start : start + self.slices])
            await writer.drain()
            if random.random() < 0.05:
                await asyncio.sleep(0)
