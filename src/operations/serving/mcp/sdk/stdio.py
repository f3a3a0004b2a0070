"""SDKStreams: the server of the SDK on the lines of standard input and output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from operations.serving.admission import Caller
from operations.serving.mcp.sdk.server import SDKServer
from operations.serving.mcp.server import MCPServer

_log = logging.getLogger("operations.mcp")
_BUFFERED = 64
Write = Callable[[bytes], Awaitable[None]]


class SDKStreams:
    """A connection of the SDK's server that receives its messages line by line."""

    def __init__(self, mcp_server: MCPServer, caller: Caller, write: Write) -> None:
        self._sdk = SDKServer(mcp_server, caller=caller)
        self._write = write
        self._lines, self._read = anyio.create_memory_object_stream[SessionMessage | Exception](_BUFFERED)
        self._sent, self._answers = anyio.create_memory_object_stream[SessionMessage](_BUFFERED)
        self._sdk.changes.start()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._write_all())]

    async def _run(self) -> None:
        server = self._sdk.server
        try:
            await server.run(self._read, self._sent, server.create_initialization_options())
        except Exception as error:  # noqa: BLE001  # the fast path continues
            _log.error("the MCP connection failed", exc_info=error)

    async def _write_all(self) -> None:
        async for answer in self._answers:
            await self._write(answer.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def feed(self, line: bytes) -> None:
        """Pass one message to the server; wait while the server has too many unread ones."""
        message: SessionMessage | Exception
        try:
            message = SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValidationError as error:
            message = error
        await self._lines.send(message)

    async def close(self) -> None:
        """Close the connection and cancel running calls."""
        self._sdk.changes.stop()
        await self._lines.aclose()
        _, pending = await asyncio.wait(self._tasks, timeout=1.0)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=1.0)
