"""WebSocket connections of bytes: frames, batches, limits, the missing extra."""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from operations import CallError, ErrorCode
from operations.pubsub.framing import split
from operations.pubsub.websocket import Connection, connect, serve
from tests.http.certificates import Authority
from tests.node_peers import npm_binary
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


class Numbered(Recorder):
    """Sends messages with numbers in the order of `send`, and answers each that comes with one."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__()
        self.sent = 0
        self._answers = answers
        self._sizes = random.Random(7)

    def send(self) -> None:
        assert self.connection is not None
        size = self._sizes.choice([0, 10, 300]) if self._sizes.random() < 0.998 else 200_000
        self.connection.send(b"%d:" % self.sent + b"x" * size)
        self.sent += 1

    def received(self, connection: Connection, message: bytes) -> None:
        self.messages.append(message.partition(b":")[0])
        if self._answers:
            self.send()

    async def write(self, turns: int) -> None:
        for _ in range(turns):
            for _ in range(self._sizes.choice([1, 1, 3, 70])):
                self.send()
            await asyncio.sleep(self._sizes.choice([0, 0, 0.001]))


@pytest.mark.parametrize("batches", [False, True])
async def test_however_many_write_at_once_what_was_sent_first_comes_first(batches: bool) -> None:
    """A connection has one writer: messages of many tasks, answers too, of any size, keep the order of `send`."""
    server, client = Numbered(answers=True), Numbered(answers=False)
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", client)
    await until(lambda: server.connection is not None)
    assert server.connection is not None
    connection.batches = server.connection.batches = batches
    await asyncio.gather(*(end.write(20) for end in (server, client) for _ in range(20)))
    await until(lambda: len(server.messages) == client.sent and len(client.messages) == server.sent)
    assert client.sent > 1_000
    assert server.messages == [b"%d" % number for number in range(client.sent)]
    assert client.messages == [b"%d" % number for number in range(server.sent)]
    await connection.close()
    await listener.close()


PEER = """
const socket = new WebSocket(process.argv[1], process.argv.slice(2));
socket.onopen = () => { console.log(`open ${socket.protocol}`); socket.close(1000, "bye"); };
socket.onerror = () => { console.log("refused"); };
"""


async def dial_as_a_browser(url: str, *protocols: str) -> str:
    """What a client gets that has the browsers' WebSocket, and so cannot set a header."""
    process = await asyncio.create_subprocess_exec(
        npm_binary("node"), "--eval", PEER, url, *protocols, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().strip()


async def test_a_browser_sends_its_token_as_a_sub_protocol_and_never_gets_it_back() -> None:
    tokens: list[str | None] = []

    def admit(token: str | None) -> Recorder:
        tokens.append(token)
        if token != "s3.cret-_~":
            raise CallError(ErrorCode.ACCESS_DENIED, "an unknown token")
        return Recorder()

    listener = await serve(admit)
    url = f"ws://127.0.0.1:{listener.port}/"
    assert await dial_as_a_browser(url, "operations.v1", "bearer.s3.cret-_~") == "open operations.v1"
    assert await dial_as_a_browser(url, "operations.v1", "bearer.wrong") == "refused"
    assert await dial_as_a_browser(url, "operations.v1") == "refused"
    # A browser that does not name the protocol beside its token is told none, and hangs up: the token is not echoed.
    assert await dial_as_a_browser(url, "bearer.s3.cret-_~") == "refused"
    assert tokens == ["s3.cret-_~", "wrong", None, "s3.cret-_~"]
    await listener.close()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.path))


async def test_a_connection_over_tls_and_a_certificate_of_another_authority(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(authority.issue("hub"))
    server = Recorder()
    listener = await serve(lambda token: server, tls=identity)
    url = f"wss://127.0.0.1:{listener.port}/"
    connection = await connect(url, Recorder(), tls=trusting(authority))
    connection.send(b"x" * 1_000_000)
    await until(lambda: [len(message) for message in server.messages] == [1_000_000])
    await connection.close()
    for tls in (trusting(other), None):
        with pytest.raises(CallError) as caught:
            await connect(url, Recorder(), tls=tls)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert "certificate" in caught.value.message
        assert "tls=" in caught.value.message
    with pytest.raises(CallError) as caught:
        await connect(url.replace("wss", "ws"), Recorder())
    assert caught.value.code is ErrorCode.UNAVAILABLE
    await listener.close()


@pytest.mark.parametrize("batch", [b"\0", b"\0\0\0\0\x05ab", b"\0\0\0", b"\0\0\0\0\x01a\xff"])
def test_a_batch_that_is_cut_short_gives_what_is_whole(batch: bytes) -> None:
    assert all(message in (b"a", b"\0") for message in split(batch))


def test_a_missing_library_names_the_extra() -> None:
    code = "import sys; sys.modules['picows'] = None; import operations.pubsub.websocket"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == "ImportError: picows is not installed: pip install 'operations[ws]'"
