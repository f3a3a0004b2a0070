"""WebSocket connections of bytes: frames, batches, limits, the missing extra."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import random
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from operations import CallError, ErrorCode
from operations.pubsub.link import BATCH_BYTES, Link
from operations.pubsub.websocket import WebSocketLink
from operations.pubsub.websocket_client import connect
from operations.pubsub.websocket_server import serve
from tests.http.certificates import Authority
from tests.node_peers import npm_binary
from tests.waiting import until


class Recorder:
    def __init__(self) -> None:
        self.connection: WebSocketLink | None = None
        self.messages: list[bytes] = []
        self.reason: str | None = None
        self.backlogs = 0

    def opened(self, link: Link) -> None:
        assert isinstance(link, WebSocketLink)
        self.connection = link

    def received(self, message: bytes, connection: Link) -> None:
        self.messages.append(message)

    def drained(self, link: Link) -> None:
        pass

    def receiving(self, link: Link) -> None:
        pass

    def backlogged(self, link: Link, size: int) -> None:
        self.backlogs += 1

    def closed(self, connection: Link, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize("batches", [False, True])
async def test_messages_of_any_size_arrive_in_order(batches: bool) -> None:
    server, client = Recorder(), Recorder()
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", client)
    connection.batch_bytes = BATCH_BYTES if batches else 0
    messages = [b"{%d}" % number for number in range(500)] + [b"x" * 300_000, b"", b"y", b"z" * (8 << 20), b"end"]
    for message in messages:
        connection.send(message)
    await until(lambda: len(server.messages) == len(messages))
    assert server.messages == messages
    connection.close("done")
    await connection.wait_closed()
    await until(lambda: server.reason is not None)
    assert server.reason == "closed by the peer: done"
    assert client.reason == "done"
    connection.send(b"lost")
    await listener.close()


async def test_the_last_message_is_written_before_closing() -> None:
    server = Recorder()
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", Recorder())
    connection.send(b"first")
    connection.send(b"last")
    connection.close()
    await connection.wait_closed()
    await until(lambda: server.messages == [b"first", b"last"])
    await listener.close()


async def test_writes_to_a_lost_connection_are_counted_without_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = await serve(lambda token: Recorder())
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", Recorder())
    connection._transport.underlying_transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    for number in range(1_000):
        connection.send(b"%d" % number)  # the first write fails before the loop reports the loss
    await connection.wait_closed()
    assert connection.sent + connection.unsent == 1_000
    assert connection.unsent > 900
    assert [record.getMessage() for record in caplog.records if record.name != "operations"] == []
    await listener.close()


async def test_the_token_is_the_bearer_of_the_upgrade() -> None:
    tokens: list[str | None] = []

    def admit(token: str | None) -> Recorder:
        tokens.append(token)
        return Recorder()

    listener = await serve(admit)
    url = f"ws://127.0.0.1:{listener.port}/"
    for token in ("abc", None):
        connection = await connect(url, Recorder(), token=token)
        connection.close()
        await connection.wait_closed()
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
    async with asyncio.timeout(30):
        await connection.wait_closed()
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", Recorder())
    connection.close()
    await connection.wait_closed()
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

    def received(self, message: bytes, connection: Link) -> None:
        self.messages.append(message.partition(b":")[0])
        if self._answers:
            self.send()

    async def write(self, turns: int) -> None:
        for _ in range(turns):
            for _ in range(self._sizes.choice([1, 1, 3, 70])):
                self.send()
            await asyncio.sleep(self._sizes.choice([0, 0, 0.001]))


@pytest.mark.parametrize("batches", [False, True])
async def test_messages_of_concurrent_writers_keep_their_order(batches: bool) -> None:
    """A connection has one writer: messages of many tasks, answers too, of any size, keep the order of `send`."""
    server, client = Numbered(answers=True), Numbered(answers=False)
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", client)
    await until(lambda: server.connection is not None)
    assert server.connection is not None
    connection.batch_bytes = server.connection.batch_bytes = BATCH_BYTES if batches else 0
    await asyncio.gather(*(end.write(20) for end in (server, client) for _ in range(20)))
    await until(lambda: len(server.messages) == client.sent and len(client.messages) == server.sent)
    assert client.sent > 1_000
    assert server.messages == [b"%d" % number for number in range(client.sent)]
    assert client.messages == [b"%d" % number for number in range(server.sent)]
    connection.close()
    await connection.wait_closed()
    await listener.close()


PEER = """
const socket = new WebSocket(process.argv[1], process.argv.slice(2));
socket.onopen = () => { console.log(`open ${socket.protocol}`); socket.close(1000, "bye"); };
socket.onerror = () => { console.log("refused"); };
"""


async def dial_as_a_browser(url: str, *protocols: str) -> str:
    """Connect with the WebSocket class of browsers, which cannot set headers; return what the client prints."""
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
    # A browser that offers only its token gets no sub-protocol and closes the connection: the token is not echoed.
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
    connection.close()
    await connection.wait_closed()
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


class Peer:
    """A raw WebSocket: it can write several or invalid frames at once, and read nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, port: int) -> Peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = base64.b64encode(bytes(16))
        upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n%b\r\nSec-WebSocket-Key: %b\r\n\r\n" % (upgrade, key))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        return cls(reader, writer)

    def write(self, *frames: tuple[int, bytes], final: int = 0x80) -> None:
        """Frames, each an opcode and less than 64 KiB, in one write."""
        written = []
        for opcode, payload in frames:
            size = len(payload)
            length = bytes([0x80 | size]) if size < 126 else struct.pack(">BH", 0xFE, size)
            written.append(bytes([final | opcode]) + length + bytes(4) + payload)
        self.writer.write(b"".join(written))

    async def read(self) -> bytes:
        """The payload of the next frame, of less than 64 KiB."""
        _, size = await self.reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self.reader.readexactly(2), "big")
        return await self.reader.readexactly(size)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


CONTINUED, TEXT, BINARY, PING = 0, 1, 2, 9


class Overtaking(Recorder):
    """Sends a response while it handles a message, and a second one in a callback that it scheduled before."""

    def received(self, message: bytes, connection: Link) -> None:
        super().received(message, connection)
        asyncio.get_running_loop().call_soon(connection.send, b"second")
        connection.send(b"first")


async def test_buffered_messages_are_sent_in_order() -> None:
    server = Overtaking()
    listener = await serve(lambda token: server)
    peer = await Peer.dial(listener.port)
    peer.write((TEXT, b"{}"), (PING, b"ping"))
    frames = [await peer.read() for _ in range(3)]
    frames.remove(b"ping")
    assert frames == [b"first", b"second"]
    await peer.close()
    await listener.close()


async def test_malformed_frames_are_counted_and_the_next_one_is_read() -> None:
    server = Recorder()
    listener = await serve(lambda token: server)
    peer = await Peer.dial(listener.port)
    hostile = [b"\0", b"\0" * 5, b"\0\xff\xff\xff\xff", b"\0\0\0\0\1\0\0\0\5ab", b"\0\0\0\x10\0" + bytes(60_000)]
    peer.write(*((BINARY, frame) for frame in hostile[:4]), (TEXT, b"{1}"))
    await until(lambda: len(server.messages) == 5)
    assert server.messages == [b"\0"] * 4 + [b"{1}"]
    peer.write((BINARY, hostile[4]))
    peer.write((BINARY, b"\0\0\0\0\2\0\0\0\3\0\0\0\1{2}}"))
    await until(lambda: server.messages[-1] == b"}")
    assert server.messages[5:] == [b""] * 4_096 + [b"\0", b"{2}", b"}"]
    assert server.connection is not None
    assert server.connection.received == len(server.messages)
    await peer.close()
    await listener.close()


async def test_a_message_in_fragments_is_put_together_and_has_the_same_limit() -> None:
    server = Recorder()
    listener = await serve(lambda token: server, max_payload=100_000)
    peer = await Peer.dial(listener.port)
    peer.write((TEXT, b""), (CONTINUED, b"{"), (CONTINUED, b""), final=0)
    peer.write((PING, b"between"))
    peer.write((CONTINUED, b"}"))
    await until(lambda: server.messages == [b"{}"])
    peer.write((BINARY, bytes(60_000)), final=0)
    peer.write((CONTINUED, bytes(60_000)), final=0)
    await until(lambda: server.reason is not None)
    assert server.reason == "a message in fragments exceeds the size limit"
    assert server.messages == [b"{}"]
    await peer.close()
    await listener.close()


class Generous(Recorder):
    """Answers each message with a megabyte."""

    def received(self, message: bytes, connection: Link) -> None:
        super().received(message, connection)
        connection.send(bytes(1 << 20))


async def test_a_peer_that_sends_one_by_one_and_never_reads_is_disconnected() -> None:
    server = Generous()
    listener = await serve(lambda token: server)
    peer = await Peer.dial(listener.port)
    for number in range(200):
        if server.reason is not None:
            break
        peer.write((TEXT, b"{}"))
        await until(lambda number=number: len(server.messages) > number or server.reason is not None)  # type: ignore[misc]
    await until(lambda: server.reason is not None)
    assert server.reason == "the peer reads too slowly"
    assert len(server.messages) < 100
    peer.writer.transport.abort()
    await listener.close()


async def test_a_peer_that_reads_slowly_gets_everything_in_order() -> None:
    server = Numbered(answers=False)
    listener = await serve(lambda token: server)
    client = Recorder()
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", client)
    await until(lambda: server.connection is not None)
    assert server.connection is not None
    connection._transport.underlying_transport.pause_reading()
    for number in range(2_000):
        server.connection.send(b"%d:" % number + bytes(10_000))
        if number % 3 == 0:
            connection.send(b"{}")
            await until(lambda number=number: len(server.messages) == number // 3 + 1)  # type: ignore[misc]
    connection._transport.underlying_transport.resume_reading()
    await until(lambda: len(client.messages) == 2_000)
    assert [int(message.partition(b":")[0]) for message in client.messages] == list(range(2_000))
    server.connection.send(b"quick")
    await until(lambda: client.messages[-1] == b"quick")
    connection.close()
    await connection.wait_closed()
    await listener.close()


async def send_and_be_answered() -> int:
    """A message there and back through a server in the same loop."""
    client, server = Recorder(), Numbered(answers=True)
    listener = await serve(lambda token: server)
    connection = await connect(f"ws://127.0.0.1:{listener.port}/", client)
    connection.send(b"0:")
    await until(lambda: len(client.messages) == 1)
    connection.close()
    await connection.wait_closed()
    await listener.close()
    return len(client.messages)


class Blocking(Recorder):
    """While it handles a message, the event loop of another thread sends messages."""

    def __init__(self, other: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._other = other
        self.answers: list[int] = []

    def received(self, message: bytes, connection: Link) -> None:
        super().received(message, connection)
        self.answers.append(asyncio.run_coroutine_threadsafe(send_and_be_answered(), self._other).result(3))


async def test_loops_of_two_threads_do_not_wait_for_each_other() -> None:
    begun: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = concurrent.futures.Future()

    async def stay() -> None:
        leave = asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), leave))
        await leave.wait()

    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, stay()))
    other, leave = await asyncio.wrap_future(begun)
    server = Blocking(other)
    listener = await serve(lambda token: server)
    peer = await Peer.dial(listener.port)
    peer.write((BINARY, b"\0\0\0\0\2\0\0\0\1\0\0\0\1{}"))
    try:
        await until(lambda: len(server.messages) == 2)
    finally:
        other.call_soon_threadsafe(leave.set)
        await thread
    assert server.answers == [1, 1]
    await peer.close()
    await listener.close()


def test_a_missing_library_names_the_extra() -> None:
    code = "import sys; sys.modules['picows'] = None; import operations.pubsub.websocket"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1] == "ImportError: picows is not installed: pip install 'operations[ws]'"
