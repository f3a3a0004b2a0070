"""Connections that are cancelled while they are opened."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.calls.hub.spoke import Spoke
from operations.pubsub import websocket_client
from operations.pubsub.link import Link
from operations.pubsub.websocket_client import connect, open_cancellable
from operations.pubsub.websocket_server import serve
from tests.pubsub.test_websocket import Recorder
from tests.waiting import until


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[int, list[float], list[float]]]:
    """A server that never responds: its port, and the times at which requests arrived and connections closed."""
    asked: list[float] = []
    left: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        asked.append(time.monotonic())
        while await reader.read(1000):
            pass
        left.append(time.monotonic())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked, left


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_a_silent_server_is_disconnected_when_no_caller_waits(scheme: str) -> None:
    async with silent_server() as (port, asked, left):
        dialling = asyncio.create_task(connect(f"{scheme}://127.0.0.1:{port}/", Recorder()))
        await until(lambda: bool(asked))
        await cancel(dialling)
        await until(lambda: bool(left))
        assert left[0] - asked[0] < 4, "the library's own limit is five seconds"


def test_a_loop_that_ends_after_a_cancelled_connection_leaves_no_socket_open() -> None:
    async def main() -> socket.socket:
        server = socket.create_server(("127.0.0.1", 0))
        dialling = asyncio.create_task(connect(f"ws://127.0.0.1:{server.getsockname()[1]}/", Recorder()))
        with server:
            taken, _ = await asyncio.to_thread(server.accept)
            await asyncio.to_thread(taken.recv, 1000)
        await cancel(dialling)
        return taken

    loop = asyncio.new_event_loop()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        taken = loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        gc.collect()
    with taken:
        assert taken.recv(1000) == b""
    assert [str(warning.message) for warning in caught] == []


async def test_a_connecting_socket_is_closed_when_no_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    connect_socket, connecting = loop.sock_connect, asyncio.Event()

    async def connect_noted(each: socket.socket, address: Any) -> None:
        connecting.set()
        await connect_socket(each, address)

    monkeypatch.setattr(loop, "sock_connect", connect_noted)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        with socket.create_connection(place):  # the queue of the listening socket is full
            dialling = asyncio.create_task(connect(f"ws://127.0.0.1:{place[1]}/", Recorder()))
            await connecting.wait()
            assert not dialling.done()
            await cancel(dialling)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                gc.collect()


async def test_all_addresses_of_a_host_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()

    async def resolve(name: str, port: int, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in (nobody, ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    async with silent_server() as (port, asked, _):
        dialling = asyncio.create_task(connect(f"ws://localhost:{port}/", Recorder()))
        await until(lambda: bool(asked))
        await cancel(dialling)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "no-such-host.invalid"])
async def test_the_error_names_the_url_of_a_server_that_does_not_listen(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(CallError) as caught:
        await connect(f"ws://{host}:{port}/", Recorder())
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message.startswith(f"no connection to ws://{host}:{port}/: ")


async def test_a_failed_attempt_leaves_no_reference_cycles() -> None:
    async def make(reach: Callable[..., Any]) -> None:
        await reach(SimpleNamespace(host="127.0.0.1", port=port))

    def errors() -> int:
        return sum(type(each) is ConnectionRefusedError for each in gc.get_objects())

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gc.collect()
    gc.disable()
    try:
        others = errors()
        for _ in range(5):
            with contextlib.suppress(ConnectionRefusedError):
                await open_cancellable(make)
            await asyncio.sleep(0)
        assert errors() == others
    finally:
        gc.enable()


async def test_a_socket_that_is_reset_before_the_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async def connect_and_lose(host: str, port: int) -> socket.socket:
        found = await connect_socket(host, port)
        listener.close()  # resets the connection, which was not accepted yet
        opened.append(found)
        return found

    connect_socket = websocket_client._connect_socket
    monkeypatch.setattr(websocket_client, "_connect_socket", connect_and_lose)
    with pytest.raises(CallError, match="no connection to"):
        await connect(f"ws://127.0.0.1:{port}/", Recorder())
    assert [each.fileno() for each in opened] == [-1]


async def test_an_error_without_a_waiting_caller_is_not_logged() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def make(reach: Callable[..., Any]) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("too late") from None

    dialling = asyncio.create_task(open_cancellable(make))
    await asyncio.sleep(0)
    await cancel(dialling)
    del dialling
    gc.collect()
    assert complaints == []


async def test_a_spoke_cancelled_when_its_socket_opens_logs_nothing() -> None:
    class Leaving(Spoke):
        def opened(self, link: Link) -> None:
            assert self._keeper is not None
            self._keeper.cancel()

    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    server = Recorder()
    listener = await serve(lambda token: server)
    with pytest.raises(asyncio.CancelledError):
        await Leaving(f"ws://127.0.0.1:{listener.port}/").__aenter__()
    await until(lambda: server.reason is not None)
    gc.collect()
    assert complaints == []
    await listener.close()
