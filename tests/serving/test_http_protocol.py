"""HTTPProtocol: its responses equal uvicorn's, and the data that a client can make it keep is bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from operations.serving import app, http_protocol
from operations.serving.http_protocol import HTTPProtocol
from tests.serving.http_server import Connection, connected, post_bytes, running
from tests.serving.shop import Shop
from tests.waiting import until

HEAD = b"host: 127.0.0.1\r\n\r\n"
LARGE = 20_000_000
START = {"type": "http.response.start", "status": 200, "headers": []}


@asynccontextmanager
async def serving(application: Any, protocol: Any = HTTPProtocol, **options: Any) -> AsyncIterator[tuple[str, int]]:
    """Serve an ASGI application on a free port of the loopback."""
    config = uvicorn.Config(application, lifespan="off", log_config=None, **{"limit_concurrency": 1_000, **options})
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await until(lambda: not state.connections and not state.tasks)


def watched(paused: asyncio.Event) -> type[HTTPProtocol]:
    """A protocol that records when it stops reading, or when its application has to wait."""

    class Watched(HTTPProtocol):
        def pause_reading(self) -> None:
            super().pause_reading()
            paused.set()

        def pause_writing(self) -> None:
            super().pause_writing()
            paused.set()

    return Watched


def write_all(connection: Connection, data: bytes) -> asyncio.Task[None]:
    """Write data through small buffers; the task ends when the server has read most of it."""
    connection.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    connection.writer.transport.set_write_buffer_limits(high=0)
    connection.write(data)
    return asyncio.create_task(connection.writer.drain())


async def read_all(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        assert event["type"] == "http.request"
        body, more = body + event["body"], event["more_body"]
    return body


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the method, the path and the body, in the form that the query names."""
    body = b"|".join((scope["method"].encode(), scope["raw_path"], scope["query_string"], await read_all(receive)))
    kind = scope["query_string"].decode()
    if kind in ("204", "304"):
        await send({"type": "http.response.start", "status": int(kind), "headers": []})
        await send({"type": "http.response.body"})
    elif kind == "length":
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": body[:3], "more_body": True})
        await send({"type": "http.response.body", "body": body[3:]})
    elif kind == "chunks":
        await send(START)
        for start in range(0, len(body), 4):
            await send({"type": "http.response.body", "body": body[start : start + 4], "more_body": True})
        await send({"type": "http.response.body"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})


async def talk(place: tuple[str, int], request: bytes) -> tuple[str, bytes, bool]:
    """Return the status line and body of an answer, and whether the connection stays open."""
    async with connected(place) as connection, asyncio.timeout(10):
        connection.write(request)
        head = b"http/1.1 100"
        while head.startswith(b"http/1.1 100"):
            head = (await connection.reader.readuntil(b"\r\n\r\n")).lower()
        status = head.partition(b"\r\n")[0].decode()
        body = await _body(connection, head, is_head=request.startswith(b"HEAD"))
        if b"connection: close" in head:
            assert await connection.rest() == b""
        return status, body, b"connection: close" not in head


async def _body(connection: Connection, head: bytes, *, is_head: bool) -> bytes:
    if is_head or b" 204 " in head or b" 304 " in head:
        return b""
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await connection.reader.readuntil(b"\r\n"), 16):
            body += await connection.reader.readexactly(size)
            assert await connection.reader.readexactly(2) == b"\r\n"
        assert await connection.reader.readexactly(2) == b"\r\n"
        return body
    if b"content-length: " not in head:
        return await connection.rest()
    return await connection.reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))


@pytest.mark.parametrize("kind", ["length", "chunks", "whole", "204", "304"])
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /a?%b HTTP/1.1\r\n" + HEAD,
        b"GET /%%41/b?%b HTTP/1.1\r\n" + HEAD,
        b"HEAD /a?%b HTTP/1.1\r\n" + HEAD,
        b"POST /a?%b HTTP/1.1\r\ncontent-length: 5\r\n" + HEAD + b"hello",
        b"POST /a?%b HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 5\r\n" + HEAD + b"hello",
        b"POST /a?%b HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + HEAD + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"GET /a?%b HTTP/1.1\r\nconnection: close\r\n" + HEAD,
    ],
    ids=["get", "encoded path", "head", "post", "expect", "chunked", "close"],
)
async def test_answers_equal_those_of_uvicorn(kind: str, request_bytes: bytes) -> None:
    request = request_bytes % kind.encode()
    async with serving(echo) as own, serving(echo, HttpToolsProtocol) as other:
        assert await talk(own, request) == await talk(other, request)


async def test_a_body_is_requested_when_the_application_reads_it() -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(b"POST /a?length HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n" + HEAD)
        assert (await connection.response())[0] == 100
        connection.write(b"ok")
        assert (await connection.response())[2] == b"POST|/a|length|ok"


async def test_a_body_is_not_requested_after_the_response_began() -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"early ", "more_body": True})
        body = await read_all(receive)
        await send({"type": "http.response.body", "body": body})

    async with serving(early) as place, connected(place) as connection:
        connection.write(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n" + HEAD)
        await connection.reader.readuntil(b"early \r\n")
        connection.write(b"ok")
        assert await connection.reader.readuntil(b"0\r\n\r\n") == b"2\r\nok\r\n0\r\n\r\n"


async def test_http_1_0_ends_a_body_by_closing() -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(b"GET /a?chunks HTTP/1.0\r\n" + HEAD)
        answer = await connection.rest()
        assert b"chunked\r\n" not in answer
        assert answer.endswith(b"\r\n\r\nGET|/a|chunks|")


UPGRADE = b"connection: upgrade\r\nupgrade: %b\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"GET /a?length HTTP/1.1\r\n" + UPGRADE % b"h2c" + HEAD, b"GET|/a|length|"),
        (b"GET /a?length HTTP/1.0\r\n" + UPGRADE % b"h2c" + HEAD, b"GET|/a|length|"),
        (b"POST /a?length HTTP/1.1\r\ncontent-length: 2\r\n" + UPGRADE % b"h2c" + HEAD + b"ok", b"POST|/a|length|ok"),
        (
            b"POST /a?length HTTP/1.1\r\ntransfer-encoding: chunked\r\n"
            + UPGRADE % b"websocket"
            + HEAD
            + b"2\r\nok\r\n0\r\n\r\n",
            b"POST|/a|length|ok",
        ),
        (
            b"GET /a?length HTTP/1.1\r\ncontent-length: 2\r\n" + UPGRADE % b"websocket" + HEAD + b"ok",
            b"GET|/a|length|ok",
        ),
    ],
)
async def test_an_upgrade_that_is_not_served_is_ignored(request_bytes: bytes, answer: bytes) -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(request_bytes + b"GET /next?length HTTP/1.1\r\nconnection: close\r\n" + HEAD)
        answers = await connection.rest()
        assert answer in answers
        assert answers.endswith(b"GET|/next|length|") is (b"HTTP/1.0" not in request_bytes)


async def test_trailers_are_not_headers() -> None:
    seen: list[Any] = []

    async def keep(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        seen.extend(name for name, _ in scope["headers"])

    async with serving(keep) as place, connected(place) as connection:
        trailers = b"0\r\nauthorization: Bearer a\r\nhost: evil.example\r\n\r\n"
        connection.write(b"POST /?204 HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + HEAD + b"2\r\nok\r\n" + trailers)
        assert (await connection.response())[0] == 204
    assert seen == [b"transfer-encoding", b"host"]


@pytest.mark.parametrize("start", [b"2;", b"0\r\nx-large: "])
async def test_the_framing_of_a_body_is_bounded(start: bytes) -> None:
    seen: list[str] = []

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["type"])

    async with serving(listening) as place, connected(place) as connection:
        connection.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + HEAD)
        written = write_all(connection, start + b"x" * 5_000_000)
        await until(lambda: seen == ["http.disconnect"])
        with suppress(ConnectionError):
            await written


async def test_a_body_of_small_chunks_is_read() -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(b"POST /?length HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + HEAD)
        connection.write(b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert (await connection.response())[2].count(b"x") == 50_000


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /?length HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n" + HEAD + b"2\r\nok\r\n0\r\n\r\n",
        b"GET /?length HTTP/2.0\r\n" + HEAD,
        b"GET /?length\r\n" + HEAD,
        b"CONNECT /?length HTTP/1.1\r\n" + HEAD,
        b"CONNECT example.com:80 HTTP/1.1\r\n" + HEAD,
        b"GET http://evil.example/?length HTTP/1.1\r\n" + HEAD,
        b"GET http://a@127.0.0.1/?length HTTP/1.1\r\n" + HEAD,
        b"GET 127.0.0.1:80 HTTP/1.1\r\n" + HEAD,
    ],
)
async def test_a_request_that_others_could_read_differently_is_refused(request_bytes: bytes) -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(request_bytes)
        assert (await connection.rest()).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://127.0.0.1/a?length", b"/a"),
        (b"http://127.0.0.1?length", b"/"),
        (b"//a?length", b"//a"),
        (b"*?length", b"*"),
    ],
)
async def test_the_path_of_a_target(target: bytes, path: bytes) -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(b"GET %b HTTP/1.1\r\n" % target + HEAD)
        assert (await connection.response())[2] == b"GET|%b|length|" % path


async def test_a_stream_ends_with_its_connection_although_a_request_waits_behind_it() -> None:
    shop = Shop()
    served = app(shop.registry, mcp=False)
    async with running(served) as place:
        async with connected(place) as connection:
            connection.write(b"GET /shop/watch HTTP/1.1\r\n" + HEAD + b"GET /healthz HTTP/1.1\r\n" + HEAD)
            await connection.reader.readuntil(b"retry: 2000")
            assert served.streams.in_flight == 1
        await until(lambda: served.streams.in_flight == 0)


async def test_requests_that_wait_are_bounded() -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write((b"GET /a?length HTTP/1.1\r\n" + HEAD) * 1_000)
        answers = await connection.rest()
        assert answers.count(b"HTTP/1.1 201") == 64
        assert answers.rpartition(b"HTTP/1.1 ")[2].startswith(b"400 ")


async def test_read_ahead_is_bounded() -> None:
    paused, release = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await echo(scope, receive, send)

    async with serving(slow, watched(paused)) as place, connected(place) as connection, asyncio.timeout(20):
        large = b"GET /a?length HTTP/1.1\r\nx-large: %b\r\n" % (b"a" * 50_000) + HEAD
        written = write_all(connection, large * 60)
        await paused.wait()
        assert not written.done()
        release.set()
        for _ in range(60):
            assert (await connection.response())[0] == 201
        await written


async def test_a_request_before_an_unreadable_one_is_answered() -> None:
    async with serving(echo) as place, connected(place) as connection:
        connection.write(b"GET /a?length HTTP/1.1\r\n" + HEAD + b"no request\r\n\r\n")
        answers = await connection.rest()
        assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"201", b"400"]


async def test_a_body_that_becomes_unreadable_is_a_disconnect_for_the_application() -> None:
    seen: list[str] = []

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        while not seen or seen[-1] != "http.disconnect":
            seen.append((await receive())["type"])

    async with serving(reading) as place, connected(place) as connection:
        connection.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + HEAD + b"2\r\nhe\r\n")
        await until(lambda: bool(seen))
        connection.write(b"zz\r\n")
        assert (await connection.rest()).startswith(b"HTTP/1.1 400 ")
        await until(lambda: seen[-1] == "http.disconnect")


async def test_the_rest_of_an_unread_body_is_not_a_request() -> None:
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": scope["raw_path"]})

    async with serving(hasty) as place, connected(place) as connection:
        hidden = b"GET /hidden HTTP/1.1\r\n" + HEAD
        connection.write(b"POST /first HTTP/1.1\r\ncontent-length: %d\r\n" % len(hidden) + HEAD)
        assert (await connection.response())[2] == b"/first"
        connection.write(hidden + b"GET /second HTTP/1.1\r\n" + HEAD)
        assert (await connection.response())[2] == b"/second"


async def test_a_client_that_still_sends_can_read_the_refusal() -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"too large"})

    async with serving(refusing) as place, connected(place) as connection, asyncio.timeout(20):
        written = write_all(connection, post_bytes("/", b"x" * 5_000_000))
        assert (await connection.response())[2] == b"too large"
        await written
        assert await connection.rest() == b""


async def test_an_unread_body_is_not_kept_whole() -> None:
    paused, release = asyncio.Event(), asyncio.Event()

    async def idle(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()

    async with serving(idle, watched(paused)) as place, connected(place) as connection, asyncio.timeout(20):
        written = write_all(connection, post_bytes("/", b"x" * 5_000_000))
        await paused.wait()
        assert not written.done()
        written.cancel()
        release.set()


async def test_an_application_waits_for_a_client_that_does_not_read() -> None:
    paused, sent = asyncio.Event(), 0

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send(START)
        for _ in range(1_000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            sent += 1

    async with serving(endless, watched(paused)) as place, connected(place) as connection, asyncio.timeout(20):
        connection.write(b"GET / HTTP/1.1\r\n" + HEAD)
        await paused.wait()
        before = sent
        for _ in range(20):
            await asyncio.sleep(0)
        assert sent <= before + 1


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answer with more than the buffers of a connection hold."""
    await send(START)
    await send({"type": "http.response.body", "body": b"x" * LARGE})


@pytest.mark.parametrize("lines", [b"", b"connection: close\r\n"])
async def test_a_client_that_reads_nothing_is_dropped(lines: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_UNREAD_SECONDS", 0.2)
    lost = asyncio.Event()

    class Watched(HTTPProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async with serving(large, Watched) as place, connected(place) as connection, asyncio.timeout(20):
        connection.write(b"GET / HTTP/1.1\r\n" + lines + HEAD)
        await lost.wait()


async def test_a_client_that_reads_slowly_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_UNREAD_SECONDS", 0.5)
    async with serving(large) as place, connected(place) as connection, asyncio.timeout(20):
        connection.write(b"GET / HTTP/1.1\r\nconnection: close\r\n" + HEAD)
        await connection.reader.readuntil(b"\r\n\r\n")
        for _ in range(20):
            await connection.reader.readexactly(LARGE // 20)
            await asyncio.sleep(0.05)
        assert await connection.rest() == b""


def connect_from(address: str, place: tuple[str, int]) -> socket.socket:
    """Connect from an address of the loopback, and send a request whose response is not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.bind((address, 0))
    client.connect(place)
    client.send(b"GET / HTTP/1.1\r\n" + HEAD)
    client.setblocking(False)
    return client


async def test_the_unread_responses_of_all_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address with the most unread data loses connections; previously, nothing limited their sum."""
    monkeypatch.setattr(http_protocol, "_MAX_UNREAD_BYTES", 3 * LARGE)
    connections: list[HTTPProtocol] = []

    class Counted(HTTPProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.append(self)

    def unread() -> list[int]:
        return [each.transport.get_write_buffer_size() for each in connections]

    def is_answered(number: int) -> bool:
        if len(connections) < number:
            return False
        newest = connections[number - 1]
        return newest.drained is not None or newest.transport.is_closing()

    async with serving(large, Counted) as place, asyncio.timeout(20), AsyncExitStack() as clients:
        for number in range(1, 10):
            clients.enter_context(connect_from("127.0.0.2" if number == 1 else "127.0.0.3", place))
            await until(lambda number=number: is_answered(number))  # type: ignore[misc]
            assert sum(unread()) <= 3 * LARGE
        assert not connections[0].transport.is_closing()
        assert sum(each.transport.is_closing() for each in connections) >= 4
        counted = connections[0].state.unread_responses
        assert counted._bytes <= 3 * LARGE
    await until(lambda: counted._bytes == 0)


async def test_a_request_waits_until_the_response_before_it_was_read() -> None:
    """Previously, the response to a second request was computed and kept meanwhile."""
    served: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])
        await large(scope, receive, send)

    async with serving(application) as place, connected(place) as connection, asyncio.timeout(20):
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection.write(b"GET /1 HTTP/1.1\r\n" + HEAD + b"GET /2 HTTP/1.1\r\n" + HEAD)
        await until(lambda: served == ["/1"])
        for _ in range(20):
            await asyncio.sleep(0)
        assert served == ["/1"]
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2):
            await connection.reader.readuntil(b"\r\n\r\n")
            await connection.reader.readexactly(LARGE)
    assert served == ["/1", "/2"]


@pytest.mark.parametrize("header", [(b"x-a", b"b\r\nset-cookie: c"), (b"x-a\n", b"b"), (b"x-a", b"\0"), (b"x", b"\r")])
async def test_a_header_cannot_start_another_one(header: tuple[bytes, bytes]) -> None:
    async def splitting(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [header]})
        await send({"type": "http.response.body", "body": b"secret"})

    async with serving(splitting) as place, connected(place) as connection:
        connection.write(b"GET / HTTP/1.1\r\n" + HEAD)
        answer = await connection.rest()
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"set-cookie" not in answer
        assert b"secret" not in answer


@pytest.mark.parametrize("length", [b"2", b"20"])
async def test_a_wrong_length_closes_the_connection(length: bytes) -> None:
    async def wrong(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": b"12345"})

    async with serving(wrong) as place, connected(place) as connection:
        connection.write((b"GET / HTTP/1.1\r\n" + HEAD) * 2)
        assert (await connection.rest()).count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("begins", [True, False])
async def test_a_failing_application_is_not_described(begins: bool) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        if begins:
            await send(START)
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise ValueError("secret")

    async with serving(failing) as place, connected(place) as connection:
        connection.write(b"GET / HTTP/1.1\r\n" + HEAD)
        answer = await connection.rest()
        assert b"secret" not in answer
        assert (b"part" in answer, b"500" in answer[:15], answer.endswith(b"0\r\n\r\n")) == (begins, not begins, False)


async def test_connections_above_the_limit_are_refused() -> None:
    async with serving(echo, limit_concurrency=2) as place:
        async with connected(place), connected(place), connected(place) as third:
            third.write(b"GET /a?length HTTP/1.1\r\n" + HEAD)
            assert (await third.rest()).startswith(b"HTTP/1.1 503 ")
        async with connected(place) as later:
            later.write(b"GET /a?length HTTP/1.1\r\n" + HEAD)
            assert (await later.response())[0] == 201
