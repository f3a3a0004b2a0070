"""MCP over standard input and output, one JSON message per line. The caller is the process that started the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from operations.context import Identity
from operations.dispatch import Dispatcher
from operations.exports.code_limits import CodeLimits
from operations.jobs import Jobs
from operations.pubsub import require_extra
from operations.registry import OperationRegistry
from operations.serving.admission import Caller
from operations.serving.exposure import Exposure
from operations.serving.mcp import fast_path
from operations.serving.mcp.server import MCPServer

if TYPE_CHECKING:
    from operations.serving.mcp.sdk.stdio import SDKStreams  # imported for messages that need the SDK

MAX_LINE = 16 * 1024 * 1024
_CHUNK = 256 * 1024
_MAX_RUNNING = 1_024
_CANCELLED = b"notifications/cancelled"
_TOO_LONG = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"The message is too long"}}'
_FAILED = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32603,"message":"Internal server error"}}'

Write = Callable[[bytes], Awaitable[None]]


async def serve_mcp_stdio(
    registry: OperationRegistry,
    *,
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    read_only: bool = False,
    name: str = "operations",
    version: str = "1.0.0",
    instructions: str | None = None,
    search: bool | None = None,
    code: CodeLimits | bool = False,
    jobs: Jobs | None = None,
    identity: Identity | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
) -> None:
    """Serve a registry to the process that started this one, until standard input closes.

    The caller may call every served operation; with `identity`, only those that this identity may call. Output that
    operations print goes to standard error. With `search`, clients get three tools (search, describe, call) in place of
    all tools. This is the default for more than 200 tools. With `code`, clients get one tool that runs scripts. `stdin`
    and `stdout` are file descriptors, by default those of the process.
    """
    if find_spec("mcp") is None:  # most clients start with a handshake, which needs the SDK
        raise require_extra("mcp", "mcp")
    exposure = Exposure(registry, allow=allow, deny=deny, read_only=read_only)
    dispatcher = Dispatcher(registry)
    mcp_server = MCPServer(
        exposure,
        dispatcher,
        name=name,
        version=version,
        instructions=instructions,
        search=search,
        code=code,
        jobs=jobs,
    )
    caller = LocalUser(exposure) if identity is None else Caller(None, identity, "", exposure)
    with _descriptors(stdin, stdout) as (source, target), contextlib.redirect_stdout(sys.stderr):
        async with _writer(target) as write:
            server = StdioServer(mcp_server, caller, write)
            await server.serve(read_lines(source))
    await dispatcher.close()


class LocalUser(Caller):
    """The user who started the server, who may call every served operation."""

    def __init__(self, exposure: Exposure) -> None:
        super().__init__(None, None, "", exposure)
        self._served = exposure
        self._generation = -1

    @property
    def identity(self) -> Identity:
        """An identity with all rights that the served operations require."""
        if self._generation != self._served.generation:
            self._known = all_rights(self._served)
            self._generation = self._served.generation
        return self._known

    @identity.setter
    def identity(self, value: Identity | None) -> None:
        self._known = value or Identity(id="local")


def all_rights(exposure: Exposure) -> Identity:
    """Return an identity that may call every served operation."""
    scopes: set[str] = set()
    resources: defaultdict[str, set[str]] = defaultdict(set)
    for operation in exposure.operations.values():
        access = operation.spec.access_control
        scopes.update(access.required_scopes, access.required_scopes_any)
        if access.resource_type is not None or access.resource_action is not None:
            resources[f"{access.resource_type or 'any'}:*"].add(access.resource_action or "any")
    return Identity(id="local", scopes=sorted(scopes), resources={each: sorted(of) for each, of in resources.items()})


class StdioServer:
    """Answers each line by the fast path, or by the SDK, which is imported when it is first needed."""

    def __init__(self, mcp_server: MCPServer, caller: Caller, write: Write) -> None:
        self._mcp_server = mcp_server
        self._caller = caller
        self._write = write
        self._fallback: SDKStreams | None = None
        self._running: dict[int | str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MAX_RUNNING)

    async def serve(self, lines: AsyncIterator[bytes | None]) -> None:
        """Serve until the lines end; then wait up to a second for running calls, and cancel the rest."""
        try:
            async for line in lines:
                await self._handle(line)
            if self._running:
                await asyncio.wait(self._running.values(), timeout=1.0)
        finally:
            await self._close()

    async def _handle(self, line: bytes | None) -> None:
        if line is None:
            await self._write(_TOO_LONG)
            return
        message = fast_path.read(line)
        if message is not None and message.id not in self._running:
            await self._room.acquire()
            # There are no headers here that could contradict an argument.
            task = asyncio.create_task(self._answer(message))
            self._running[message.id] = task
            task.add_done_callback(lambda _: self._done(message.id))
        elif _CANCELLED in line and self._cancel(line):
            return
        elif line.strip():
            await (self._fallback or self._start_fallback()).feed(line)

    async def _answer(self, message: fast_path.Message) -> None:
        try:
            tool = self._mcp_server.tool_list.tools.get(message.params.name)
            _, body = await fast_path.answer(self._mcp_server, message, self._caller, tool)
        except Exception as error:  # noqa: BLE001  # the text of an exception is not sent
            fast_path.log_failure(message.method, error)
            body = _FAILED % msgspec.json.encode(message.id)
        await self._write(body)

    def _done(self, request_id: int | str) -> None:
        self._running.pop(request_id, None)
        self._room.release()

    def _cancel(self, line: bytes) -> bool:
        """Cancel a call of the fast path; return False if the message does not cancel such a call."""
        try:
            wanted = msgspec.json.decode(line, type=_Cancelled)
        except msgspec.DecodeError:
            return False
        task = self._running.get(wanted.params.request_id) if wanted.method == _CANCELLED.decode() else None
        if task is not None:
            task.cancel()
        return task is not None

    def _start_fallback(self) -> SDKStreams:
        from operations.serving.mcp.sdk.stdio import SDKStreams

        self._fallback = SDKStreams(self._mcp_server, self._caller, self._write)
        return self._fallback

    async def _close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await self._mcp_server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        if self._fallback is not None:
            await self._fallback.close()


class _CancelledParams(msgspec.Struct, rename="camel"):
    request_id: int | str


class _Cancelled(msgspec.Struct):
    method: str
    params: _CancelledParams


async def read_lines(descriptor: int) -> AsyncIterator[bytes | None]:
    """Yield the lines of a file descriptor, with None in place of a line that is too long."""
    held = bytearray()
    is_too_long = False
    async for chunk in _chunks(descriptor):
        # Only the new part is searched, so a long line takes linear time.
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            is_too_long |= len(held) + len(line) > MAX_LINE
            yield None if is_too_long else bytes(held) + line
            is_too_long = False
            held.clear()
        is_too_long |= len(held) + len(rest) > MAX_LINE
        if is_too_long:
            held.clear()
        else:
            held += rest
    if held:
        yield bytes(held)


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    pipe = os.fdopen(os.dup(descriptor), "rb", buffering=0)
    if not _is_pipe(descriptor):
        with pipe:
            while chunk := await asyncio.to_thread(pipe.read, _CHUNK):
                yield chunk
        return
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        while chunk := await reader.read(_CHUNK):
            yield chunk
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def _writer(descriptor: int) -> AsyncIterator[Write]:
    """Yield a function that writes one line."""
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(os.dup(descriptor), "wb", buffering=0)
    if not _is_pipe(descriptor):

        async def write_file(line: bytes) -> None:
            pipe.write(line + b"\n")

        with pipe:
            yield write_file
        return
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def write(line: bytes) -> None:
        writer.write(line + b"\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()

    try:
        yield write
    finally:
        transport.close()


def _is_pipe(descriptor: int) -> bool:
    """Whether an event loop can wait for a descriptor. For a file or `/dev/null`, uvloop would abort the process."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


@contextlib.contextmanager
def _descriptors(stdin: int | None, stdout: int | None) -> Iterator[tuple[int, int]]:
    """Yield the descriptors for messages.

    Unless both are given, standard input is empty in the block, and output goes to standard error.
    """
    if stdin is not None and stdout is not None:
        yield stdin, stdout
        return
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        with contextlib.suppress(OSError):
            os.dup2(2, 1)
        yield source if stdin is None else stdin, target if stdout is None else stdout
    finally:
        os.dup2(source, 0)
        os.dup2(target, 1)
        for each in (source, target, nothing):
            os.close(each)
