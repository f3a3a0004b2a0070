"""Stdio transport: runs a server as a child process, with messages over its stdin and stdout; logs its stderr.

This replaces the SDK's stdio transport, which copies a long message once per received chunk (seconds for 20 MB), does
not limit the length of a message, and fails on output that is not UTF-8.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.protocol import RequestLostError
from operations.sources.mcp.server_messages import is_response, substitute

_log = logging.getLogger("operations.mcp")

CLOSED_SECONDS = 0.5
"""Time limit for the server to exit after its stdin is closed; then it gets SIGTERM, which it may handle."""
EXIT_SECONDS = 2.0
"""Time limit for the server to exit after SIGTERM, and again after SIGKILL."""
MAX_LOG_LINE = 8_192
MAX_UNSENT_REQUESTS = 32 * 1024 * 1024
"""Maximum number of bytes of queued requests; a request that is larger is queued alone."""
_MAX_IGNORED = 100
"""Maximum number of lines on stdout that are logged because they are not messages."""

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], "_Sender"]


@contextlib.asynccontextmanager
async def stdio_transport(name: str, config: MCPClientConfig) -> AsyncIterator[Streams]:
    """Run the server for the duration of the block; raise OSError if it cannot be started."""
    # An interrupted start would leave a process without an owner.
    with anyio.CancelScope(shield=True):
        process = await _start(config)
    # Sending a request never blocks: a server that does not read its stdin must not delay the deadlines of calls.
    send, outgoing = anyio.create_memory_object_stream[bytes](math.inf)
    respond, responses = anyio.create_memory_object_stream[bytes](0)
    incoming, receive = anyio.create_memory_object_stream[SessionMessage | Exception](64)
    pump = _Pump(name, process, config.max_message_bytes)
    with send, outgoing, respond, responses, incoming, receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pump.read_messages, incoming)
            tasks.start_soon(pump.write_requests, outgoing, incoming)
            tasks.start_soon(pump.write_messages, responses, incoming)
            tasks.start_soon(pump.log_stderr)
            failure: Exception | None = None
            try:
                yield receive, _Sender(send, respond, pump)
            except Exception as error:
                failure = error
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    receive.close()
                    await _stop(process, name)
                    await pump.drained()
                if failure is not None and pump.last_stderr:
                    failure.add_note(f"the server's stderr ends with: {' / '.join(pump.last_stderr)}")
                tasks.cancel_scope.cancel()


class _Sender:
    """The sending end: `send` queues a request or notification; for a response, it waits until writing begins."""

    def __init__(
        self, requests: MemoryObjectSendStream[bytes], responses: MemoryObjectSendStream[bytes], pump: _Pump
    ) -> None:
        self._requests = requests
        self._responses = responses
        self._pump = pump

    async def send(self, item: SessionMessage) -> None:
        """Send a message. If the queue is full, drop a notification, and raise `RequestLostError` for a request.

        The queue may still have requests of calls that have ended.
        """
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if is_response(item):
            await self._responses.send(line)
        elif not self._pump.unsent or self._pump.unsent + len(line) <= MAX_UNSENT_REQUESTS:
            self._pump.unsent += len(line)
            await self._requests.send(line)
        elif isinstance(item.message, JSONRPCRequest):
            raise RequestLostError("the server does not read its requests", executed="no", sent=False)

    async def aclose(self) -> None:
        """Close the sending end."""
        self._requests.close()
        self._responses.close()


class _Pump:
    """Reads from and writes to a child process; each method returns when the process ends."""

    def __init__(self, name: str, process: Process, max_bytes: int) -> None:
        self._name = name
        self._process = process
        self._max_bytes = max_bytes
        self._stderr_ended = asyncio.Event()
        self._ignored = 0
        self.unsent = 0
        """Number of bytes of the queued requests and notifications."""
        self.last_stderr: deque[str] = deque(maxlen=3)

    async def read_messages(self, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Pass on each line of stdout that is a message; log other lines."""
        stdout = self._process.stdout
        assert stdout is not None
        with incoming, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            while line := await self._read_line(stdout):
                message = self._parse(line)
                if message is not None:
                    await incoming.send(message)
                else:
                    await asyncio.sleep(0)  # the next line may have arrived, too: let other tasks run
        # A server whose output is not read cannot exit.
        while await stdout.read(65_536):
            pass

    async def _read_line(self, stdout: asyncio.StreamReader) -> bytes:
        try:
            return await stdout.readline()
        except ValueError:
            limit = f"{self._max_bytes:,} bytes"
            _log.error("%s: a message exceeds %s; closing the connection", self._name, limit)
            return b""

    async def write_requests(
        self, outgoing: MemoryObjectReceiveStream[bytes], incoming: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        """Write each request and notification, and count it as sent."""

        async def counted() -> AsyncIterator[bytes]:
            async for line in outgoing:
                yield line
                self.unsent -= len(line)

        await self.write_messages(counted(), incoming)

    async def write_messages(
        self,
        outgoing: AsyncIterable[bytes],
        incoming: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Write each message as a line to stdin; a closed stdin ends the connection."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            async for line in outgoing:
                stdin.write(line)
                await stdin.drain()
        except (OSError, anyio.ClosedResourceError):
            incoming.close()

    async def log_stderr(self) -> None:
        """Log each line of stderr under the server's name."""
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        try:
            while chunk := await stderr.read(65_536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._log_line(line)
                await asyncio.sleep(0)
                if len(rest) > MAX_LOG_LINE:
                    self._log_line(rest)
                    rest = b""
        finally:
            self._log_line(rest)
            self._stderr_ended.set()

    async def drained(self) -> None:
        """Wait briefly for the end of stderr, which another process may keep open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self._stderr_ended.wait()

    def _parse(self, line: bytes) -> SessionMessage | None:
        with contextlib.suppress(ValidationError):
            return _read(line)
        instead = substitute(line)
        if instead is not None:
            return _read(instead)
        shown = line[:200].decode(errors="replace").strip()
        if shown and self._ignored < _MAX_IGNORED:
            self._ignored += 1
            more = "; further ones are not logged" if self._ignored == _MAX_IGNORED else ""
            _log.warning("%s: ignored a line on stdout that is not a message: %s%s", self._name, shown, more)
        return None

    def _log_line(self, line: bytes) -> None:
        text = line[:MAX_LOG_LINE].decode(errors="replace").rstrip()
        if text:
            self.last_stderr.append(text[:200])
            _log.info("%s: %s", self._name, text)


def _read(line: bytes) -> SessionMessage:
    return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))


async def _start(config: MCPClientConfig) -> Process:
    assert config.command is not None
    environment = get_default_environment() | dict(config.env or {})
    command = shutil.which(config.command, path=environment.get("PATH")) or config.command
    return await asyncio.create_subprocess_exec(
        command,
        *config.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment,
        cwd=config.cwd,
        limit=config.max_message_bytes,
        # A separate process group: the server is stopped with its children, and does not receive this program's Ctrl-C.
        start_new_session=True,
    )


async def _stop(process: Process, name: str) -> None:
    """Stop the server as the protocol requires: close its stdin, wait, then SIGTERM and SIGKILL to its group."""
    assert process.stdin is not None
    process.stdin.close()
    steps: tuple[Callable[[], None] | None, ...] = (
        None,
        lambda: _signal(process, "SIGTERM"),
        lambda: _signal(process, "SIGKILL"),
    )
    for step in steps:
        if step is not None:
            step()
        if await _ended(process, CLOSED_SECONDS if step is None else EXIT_SECONDS):
            break
    else:
        _log.warning("%s: process %d does not exit; it is abandoned", name, process.pid)
    _signal(process, "SIGKILL")
    with contextlib.suppress(OSError):
        await process.stdin.wait_closed()


async def _ended(process: Process, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _signal(process: Process, name: str) -> None:
    """Send a signal to the server's process group; on Windows, kill the server."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform != "win32":
            os.killpg(process.pid, getattr(signal, name))
        elif process.returncode is None:
            process.kill()
