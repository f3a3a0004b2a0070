"""MCP over standard input and output: one JSON message a line. The process that started the server is its caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Protocol

import msgspec

from operations.context import Identity
from operations.dispatch import Dispatcher
from operations.pubsub import require_extra
from operations.registry import OperationRegistry
from operations.serving.admission import Caller
from operations.serving.exposure import Exposure
from operations.serving.mcp import requests
from operations.serving.mcp.endpoint import Endpoint

MAX_LINE = 16 * 1024 * 1024
_CHUNK = 256 * 1024
_MOST_RUNNING = 1_024
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
    identity: Identity | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
) -> None:
    """Serve a registry to the process that started this one, until it closes standard input.

    The caller is trusted with every served operation unless `identity` says who it is. What operations print goes to
    standard error. `stdin` and `stdout` are file descriptors; the process's own by default.
    """
    if find_spec("mcp") is None:  # most clients begin with a handshake, which the SDK answers
        raise require_extra("mcp", "mcp")
    exposure = Exposure(registry, allow=allow, deny=deny, read_only=read_only)
    dispatcher = Dispatcher(registry)
    endpoint = Endpoint(exposure, dispatcher, name=name, version=version, instructions=instructions)
    caller = LocalUser(exposure) if identity is None else Caller(None, identity, "", exposure)
    with _descriptors(stdin, stdout) as (source, target), contextlib.redirect_stdout(sys.stderr):
        async with _writer(target) as write:
            server = StdioServer(endpoint, caller, write)
            await server.serve(read_lines(source))
    await dispatcher.close()


class LocalUser(Caller):
    """The person who started the server: everything that is served may be called."""

    def __init__(self, exposure: Exposure) -> None:
        super().__init__(None, None, "", exposure)
        self._served = exposure
        self._generation = -1

    @property
    def identity(self) -> Identity:
        """An identity that holds whatever any served operation requires."""
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


class Fallback(Protocol):
    """Serves the messages that the own path leaves."""

    async def feed(self, line: bytes) -> None:
        """Take one message."""

    async def close(self) -> None:
        """End it."""


class StdioServer:
    """Answers each line: by the own path where it can, else by the SDK, which is imported when it is needed."""

    def __init__(self, endpoint: Endpoint, caller: Caller, write: Write) -> None:
        self._endpoint = endpoint
        self._caller = caller
        self._write = write
        self._fallback: Fallback | None = None
        self._running: dict[int | str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_MOST_RUNNING)

    async def serve(self, lines: AsyncIterator[bytes | None]) -> None:
        """Serve until the lines end; then what runs is cancelled."""
        try:
            async for line in lines:
                await self._take(line)
        finally:
            await self._close()

    async def _take(self, line: bytes | None) -> None:
        if line is None:
            await self._write(_TOO_LONG)
            return
        message = requests.read(line)
        if message is not None and message.id not in self._running:
            await self._room.acquire()
            # Over this transport no header can contradict an argument.
            task = asyncio.create_task(self._answer(message))
            self._running[message.id] = task
            task.add_done_callback(lambda _: self._done(message.id))
        elif _CANCELLED in line and self._cancel(line):
            return
        elif line.strip():
            await (self._fallback or self._start_fallback()).feed(line)

    async def _answer(self, message: requests.Message) -> None:
        try:
            tool = self._endpoint.listing.tools.get(message.params.name)
            _, body = await requests.answer(self._endpoint, message, self._caller, tool)
        except Exception as error:  # noqa: BLE001  # whatever it was, its text stays here
            requests.log_failure(message.method, error)
            body = _FAILED % msgspec.json.encode(message.id)
        await self._write(body)

    def _done(self, request_id: int | str) -> None:
        self._running.pop(request_id, None)
        self._room.release()

    def _cancel(self, line: bytes) -> bool:
        """Cancel a call of the own path; False where the message is about another."""
        try:
            wanted = msgspec.json.decode(line, type=_Cancelled)
        except msgspec.DecodeError:
            return False
        task = self._running.get(wanted.params.request_id) if wanted.method == _CANCELLED.decode() else None
        if task is not None:
            task.cancel()
        return task is not None

    def _start_fallback(self) -> Fallback:
        from operations.serving.mcp.sdk.stdio import SDKStreams

        self._fallback = SDKStreams(self._endpoint, self._caller, self._write)
        return self._fallback

    async def _close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await self._endpoint.suspensions.close()
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
    """Yield the lines of a file descriptor; None for one that is too long, which is skipped."""
    held = bytearray()
    is_too_long = False
    async for chunk in _chunks(descriptor):
        # Only the new part is searched: a long line costs no more than its length.
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
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    except ValueError:  # a regular file
        while chunk := await asyncio.to_thread(pipe.read, _CHUNK):
            yield chunk
        pipe.close()
        return
    try:
        while chunk := await reader.read(_CHUNK):
            yield chunk
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def _writer(descriptor: int) -> AsyncIterator[Write]:
    """Give a function that writes one line."""
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(os.dup(descriptor), "wb", buffering=0)
    try:
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    except ValueError:  # a regular file

        async def write_file(line: bytes) -> None:
            pipe.write(line + b"\n")

        yield write_file
        pipe.close()
        return
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def write(line: bytes) -> None:
        writer.write(line + b"\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()

    try:
        yield write
    finally:
        transport.close()


@contextlib.contextmanager
def _descriptors(stdin: int | None, stdout: int | None) -> Iterator[tuple[int, int]]:
    """Give the descriptors of the messages; what else the process reads and writes there goes elsewhere meanwhile."""
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
