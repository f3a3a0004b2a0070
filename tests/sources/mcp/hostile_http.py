"""A raw streamable HTTP server in the test's own loop: sessions that expire, streams that break, endless bodies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import zlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.ports import free_port

READ = {"annotations": {"readOnlyHint": True}}
NAMES = "echo add cut cut_once cut_json big hang status not_json html accepted headers endless nested"
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, **(READ if name in {"echo", "cut_once", "big"} else {})}
    for name in NAMES.split()
]


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


class HostileServer:
    """The state that survives a restart of the server: its address and its counts, not its sessions."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.added = 0
        self.greeted = 0
        self.cut = 0
        self.arrived = asyncio.Event()
        self.sessions: set[str] = set()
        self.cancelled: list[Any] = []
        self.abandoned = 0
        """The number of hanging calls whose client closed the connection."""
        self.resumed = 0
        self.hanging_cancellations = False
        self.tools = TOOLS
        self.notifications: asyncio.Queue[str] | None = None
        """Methods of notifications to send on the stream of notifications; None for no such stream."""
        self.streams_lists = False
        self.endless_bodies: set[str] = set()
        """`DELETE`, `redirect` or `oauth`: which other responses have an endless body."""
        self._leaving = asyncio.Event()
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._leaving.clear()
        methods = ["GET", "POST", "DELETE"]
        routes = [Route("/mcp", self.respond, methods=methods), Route("/{path:path}", self.authorise, methods=methods)]
        app = Starlette(routes=routes)
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(30):
            while not self._server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        assert self._server is not None
        assert self._serving is not None
        self.sessions.clear()
        self._leaving.set()
        self._server.should_exit = self._server.force_exit = True
        await self._serving

    async def authorise(self, request: Request) -> Response:
        """The metadata of an authorisation server."""
        return self._endless("application/json") if "oauth" in self.endless_bodies else Response(status_code=404)

    async def respond(self, request: Request) -> Response:
        if "oauth" in self.endless_bodies:
            return Response(status_code=401)
        session = request.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            return PlainTextResponse("no such session", status_code=404)
        if request.method in self.endless_bodies:
            return self._endless("application/json")
        if request.method == "GET" and self.notifications is not None:
            return StreamingResponse(self._notify(self.notifications), media_type="text/event-stream")
        if request.method == "GET" and "last-event-id" in request.headers:
            self.resumed += 1
        if request.method != "POST":
            return Response(status_code=405 if request.method == "GET" else 200)
        message = await request.json()
        if "id" not in message:
            return await self._notice(message)
        return await self._reply(request, message)

    async def _notify(self, methods: asyncio.Queue[str]) -> AsyncIterator[str]:
        while True:
            message = {"jsonrpc": "2.0", "method": await methods.get()}
            yield f"event: message\ndata: {json.dumps(message)}\n\n"

    async def _notice(self, message: dict[str, Any]) -> Response:
        if message["method"] == "notifications/cancelled":
            self.cancelled.append(message["params"]["requestId"])
            if self.hanging_cancellations:
                await self._leaving.wait()
        return Response(status_code=202)

    async def _reply(self, request: Request, message: dict[str, Any]) -> Response:
        method = message["method"]
        if method == "initialize":
            self.greeted += 1
            session = secrets.token_hex(8)
            self.sessions.add(session)
            info = {"name": "hostile", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            return _result(message, result, {"mcp-session-id": session})
        if method == "tools/list":
            reply = _answer(message, {"tools": self.tools})
            return _stream(_dump(reply)) if self.streams_lists else _json(_dump(reply))
        if method == "tools/call":
            return await self._call(request, message)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})

    async def _call(self, request: Request, message: dict[str, Any]) -> Response:
        name, arguments = message["params"]["name"], message["params"].get("arguments") or {}
        self.arrived.set()
        if name == "add":
            self.added += 1
        if name == "hang" and arguments.get("streams"):
            return StreamingResponse(self._hang(), media_type="text/event-stream")
        if name == "hang":
            waiting = [asyncio.ensure_future(each) for each in (request.receive(), self._leaving.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self.abandoned += waiting[0].done()
            for each in waiting:
                each.cancel()
        if name == "status":
            return PlainTextResponse("go away", status_code=arguments["status"])
        if name == "cut_once":
            self.cut += 1
        if name == "endless":
            return self._endless(**arguments)
        if name == "nested":
            reply = _answer(message, {"structuredContent": {"deep": nested(arguments["levels"])}})
            return _stream(_dump(reply)) if arguments.get("streams") else _json(_dump(reply))
        odd: dict[str, Response] = {
            "cut": _stream(),
            "cut_json": StreamingResponse(_half(), media_type="application/json"),
            "not_json": Response("{oops", media_type="application/json"),
            "html": Response("<p>hello</p>", media_type="text/html"),
            "accepted": Response(status_code=202),
            "big": _stream(json.dumps(_answer(message, text("x" * 20_000_000)))) if name == "big" else _stream(),
            "headers": _result(message, text(json.dumps(dict(request.headers)))),
        }
        if name == "cut_once" and self.cut == 1:
            return odd["cut"]
        return odd.get(name) or _result(message, text(json.dumps(arguments)))

    async def _hang(self) -> AsyncIterator[str]:
        """An event with which a client could resume the stream, and no response."""
        try:
            yield "id: 1\ndata:\n\n"
            await self._leaving.wait()
        finally:
            self.abandoned += 1

    def _endless(self, media_type: str, status: int = 200, encoding: str | None = None) -> Response:
        """A response whose body has 16 MiB in one string, and after that no end."""

        async def body() -> AsyncIterator[bytes]:
            packer = zlib.compressobj(wbits=31) if encoding == "gzip" else None
            prefix = b"data: " if media_type == "text/event-stream" else b""
            for part in (prefix + b'{"text": "', *([b"x" * 65_536] * 256)):
                yield part if packer is None else packer.compress(part)
            yield b"" if packer is None else packer.flush(zlib.Z_SYNC_FLUSH)
            await self._leaving.wait()

        headers = {"content-encoding": encoding} if encoding else {}
        if status == 307:
            headers["location"] = "/mcp"
        return StreamingResponse(body(), status_code=status, media_type=media_type, headers=headers)


class nested:
    """A JSON value of arrays in arrays, which `json` cannot write."""

    def __init__(self, levels: int) -> None:
        self.text = "[" * levels + "]" * levels


def _dump(value: Any) -> str:
    """JSON with nested values of any depth."""
    deep: list[str] = []

    def placeholder(value: Any) -> str:
        assert isinstance(value, nested)
        deep.append(value.text)
        return f"<nested {len(deep) - 1}>"

    text = json.dumps(value, default=placeholder)
    for index, written in enumerate(deep):
        text = text.replace(f'"<nested {index}>"', written)
    return text


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _answer(message: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _result(message: dict[str, Any], result: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(_answer(message, result), headers=headers)


def _stream(*events: str) -> Response:
    """An event stream that ends after its events."""

    async def body() -> AsyncIterator[str]:
        yield ": hello\n\n"
        for event in events:
            yield f"event: message\ndata: {event}\n\n"

    return StreamingResponse(body(), media_type="text/event-stream")


async def _half() -> AsyncIterator[bytes]:
    yield b'{"jsonrpc": '
    raise ConnectionError("the cable was pulled")


@contextlib.asynccontextmanager
async def hostile_server() -> AsyncIterator[HostileServer]:
    """A running server, which the test may stop and restart."""
    server = HostileServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
