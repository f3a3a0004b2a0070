"""WebSocket connections of bytes: frames, batches, limits, the missing extra."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from operations import CallError, ErrorCode
from operations.pubsub import websocket
from operations.pubsub.websocket import Connection, connect, serve
from tests.waiting import until


class Recorder:
    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.messages: list[bytes] = []
        self.reason: str | None = None

    def opened(self, connection: Connection) -> None:
        self.connection = connection

    def received(self, connection: Connection, message: bytes) -> None:
        self.messages.append(message)

    def closed(self, connection: Connection, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize("batches", [False, True])
async def test_messages_of_any_size_arrive_in_order(batches: bool) -> None:
    server, client = Recorder(), Recorder()
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", client)
    connection.batches = batches
    messages = [b"{%d}" % number for number in range(500)] + [b"x" * 300_000, b"", b"y", b"z" * (8 << 20), b"end"]
    for message in messages:
        connection.send(message)
    await until(lambda: len(server.messages) == len(messages))
    assert server.messages == messages
    await connection.close("done")
    await until(lambda: server.reason is not None)
    assert server.reason == "closed by the peer: done"
    assert client.reason == "done"
    connection.send(b"lost")
    await listener.close()


async def test_what_is_sent_last_is_written_before_closing() -> None:
    server = Recorder()
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", Recorder())
    connection.send(b"first")
    connection.send(b"last")
    await connection.close()
    await until(lambda: server.messages == [b"first", b"last"])
    await listener.close()


async def test_the_token_is_the_bearer_of_the_upgrade() -> None:
    tokens: list[str | None] = []

    def admit(token: str | None) -> Recorder:
        tokens.append(token)
        return Recorder()

    listener = await serve(admit)
    url = f"ws://127.0.0.1:{listener.port}/"
    for token in ("abc", None):
        await (await connect(url, Recorder(), token=token)).close()
    assert tokens == ["abc", None]
    await listener.close()
    with pytest.raises(CallError) as caught:
        await connect(url, Recorder())
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_a_frame_over_the_limit_ends_the_connection_not_the_server() -> None:
    server = Recorder()
    listener = await serve(lambda token: server, max_payload=1_000)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", Recorder())
    connection.send(b"x" * 100_000)
    async with asyncio.timeout(10):
        await connection.wait_closed()
    await (await connect(f"ws://127.0.0.1:{listener.port}/", Recorder())).close()
    await listener.close()


@pytest.mark.parametrize("batch", [b"\0", b"\0\0\0\0\x05ab", b"\0\0\0", b"\0\0\0\0\x01a\xff"])
def test_a_batch_that_is_cut_short_gives_what_is_whole(batch: bytes) -> None:
    assert all(message in (b"a", b"\0") for message in websocket._split(batch))


def test_a_missing_library_names_the_extra() -> None:
    code = "import sys; sys.modules['picows'] = None; import operations.pubsub.websocket"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == "ImportError: picows is not installed: pip install 'operations[ws]'"
