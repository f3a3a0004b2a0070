"""Servers for the HTTP tests: one that writes every byte by hand, and a Starlette application on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.asgi_server import serving


class Exchange:
    """One connection at the server: the received data, and methods to respond."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.peer: tuple[str, int] = writer.get_extra_info("peername")

    async def head(self) -> bytes:
        """The request line and headers of the next request."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Return when the client has closed the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """Close the connection with a reset instead of an end."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


Behaviour = Callable[[Exchange], Awaitable[None]]


class RawServer:
    """A server whose connections run one function each, and which knows how many are open."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self.heads: list[bytes] = []
        self.accepted = 0
        self.open = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await self._count(1)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                await self._behaviour(Exchange(reader, writer))
            writer.close()
            with suppress(ConnectionError, TimeoutError, ssl.SSLError):
                await writer.wait_closed()
        except asyncio.CancelledError:
            pass  # the server is stopping; asyncio's streams report a cancelled handler as an error
        finally:
            with contextlib.suppress(AttributeError):  # a closed one has no event loop
                writer.transport.abort()
            self._tasks.discard(task)
            await self._count(-1)

    async def _count(self, change: int) -> None:
        async with self._changed:
            self.open += change
            self.accepted += max(change, 0)
            self._changed.notify_all()

    async def until_open(self, count: int) -> None:
        """Return once exactly `count` connections are open."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: self.open == count)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def raw_server(behaviour: Behaviour, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    """Serve on a free port of the loopback until the block ends."""
    server = RawServer(behaviour)
    abort_seconds = None if tls is None else 1
    listener = await asyncio.start_server(
        server.serve, "127.0.0.1", 0, ssl=tls, ssl_shutdown_timeout=abort_seconds, backlog=2048, limit=1 << 20
    )
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
        await listener.wait_closed()


def answering(data: bytes, *, heads: list[bytes] | None = None, keep: bool = False) -> Behaviour:
    """Respond to each request with these bytes; then close and report it, or with `keep` wait for the next."""
    if not keep and data.startswith(b"HTTP/1.1 "):
        # Without this header, a client may send its next request on a connection that is being closed.
        data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)

    async def behaviour(exchange: Exchange) -> None:
        while True:
            head = await exchange.head()
            if heads is not None:
                heads.append(head)
            await exchange.write(data)
            if not keep:
                return

    return behaviour


def response(body: bytes = b"", *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    """A response with its true length."""
    return b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status.encode(), headers, len(body), body)


async def _echo(request: Request) -> Response:
    body = await request.body()
    return JSONResponse(
        {
            "method": request.method,
            "path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "headers": [[name.decode(), value.decode("latin-1")] for name, value in request.headers.raw],
            "body": body.decode("latin-1"),
        }
    )


async def _digest(request: Request) -> Response:
    digest, size = hashlib.sha256(), 0
    async for chunk in request.stream():
        digest.update(chunk)
        size += len(chunk)
    return JSONResponse(
        {
            "sha256": digest.hexdigest(),
            "size": size,
            "length": request.headers.get("content-length"),
            "encoding": request.headers.get("transfer-encoding"),
        }
    )


async def _redirect(request: Request) -> Response:
    return RedirectResponse("/echo?redirected=1", status_code=int(request.path_params["status"]))


async def _cookies(request: Request) -> Response:
    answer = Response(b"ok")
    answer.set_cookie("a", "1")
    answer.set_cookie("b", "2")
    return answer


async def _large(request: Request) -> Response:
    return Response(b"0123456789" * 200_000, media_type="text/plain")


async def _pieces(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(int(request.path_params["count"])):
            yield b"%08d" % number * 1024

    return StreamingResponse(pieces())


def _application() -> Starlette:
    every = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            Route("/echo", _echo, methods=every),
            Route("/echo/{rest:path}", _echo, methods=every),
            Route("/digest", _digest, methods=["POST", "PUT"]),
            Route("/redirect/{status}", _redirect, methods=every),
            Route("/cookies", _cookies),
            Route("/large", _large),
            Route("/pieces/{count}", _pieces),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=100_000)],
    )


def starlette_server() -> AbstractContextManager[str]:
    """The application on uvicorn; gives its base URL."""
    return serving(_application())
