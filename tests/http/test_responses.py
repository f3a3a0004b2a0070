"""Responses: status, every header, and the decoded body up to its limit."""

from __future__ import annotations

import asyncio
import base64
import gzip
import resource
import sys
import zlib
from collections.abc import Callable

import pytest

from operations import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, read_body
from tests.http.servers import Exchange, answering, raw_server, response

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

# "hello " a thousand times
BROTLI = base64.b64decode("G28X+I2Ubt5EVYaWbCBvcVscgOQBIA4=")


async def _get(client: HTTPClient, data: bytes, *, stream: bool = False, method: str = "GET") -> tuple[int, bytes]:
    """The status and body that the client reads from these bytes."""
    async with (
        raw_server(answering(data)) as server,
        client.send(HTTPRequest(method=method, url=server.url, stream=stream)) as answer,
    ):
        return answer.status, await read_body(answer, limit=1 << 20)


async def test_every_header_is_kept(client: HTTPClient) -> None:
    lines = b"Set-Cookie: a=1; Path=/\r\nX-One: 1\r\nSet-Cookie: b=2\r\nset-cookie: c=3\r\nX-Empty:\r\nX-One: 2\r\n"
    async with (
        raw_server(answering(response(b"ok", headers=lines))) as server,
        client.send(HTTPRequest(method="GET", url=server.url + "/a?b=c")) as answer,
    ):
        headers = [(name.lower(), value) for name, value in answer.headers]
        assert answer.url == server.url + "/a?b=c"
    assert [value for name, value in headers if name == "set-cookie"] == ["a=1; Path=/", "b=2", "c=3"]
    assert [value for name, value in headers if name == "x-one"] == ["1", "2"]
    assert ("x-empty", "") in headers
    assert len(headers) == 8


async def test_a_header_that_is_not_ascii_does_not_hide_the_others(client: HTTPClient, backend: str) -> None:
    lines = "X-A: 1\r\nX-B: 2\r\nX-B: \N{EURO SIGN}\r\nX-B: 3\r\n".encode() + b"X-C: \xe9\r\n"
    async with (
        raw_server(answering(response(b"ok", headers=lines))) as server,
        client.send(HTTPRequest(method="GET", url=server.url)) as answer,
    ):
        headers = [(name.lower(), value) for name, value in answer.headers]
        assert await read_body(answer, limit=10) == b"ok"
    euro, accent = ("\N{EURO SIGN}", "\xe9") if backend == "httpx2" else ("\ufffd", "\ufffd")
    assert [pair for pair in headers if pair[0].startswith("x-")] == [
        ("x-a", "1"),
        ("x-b", "2"),
        ("x-b", euro),
        ("x-b", "3"),
        ("x-c", accent),
    ]


async def test_cookies_are_not_kept(client: HTTPClient, api: str) -> None:
    async with client.send(HTTPRequest(method="GET", url=f"{api}/cookies")) as answer:
        assert len([name for name, _ in answer.headers if name.lower() == "set-cookie"]) == 2
    async with client.send(HTTPRequest(method="GET", url=f"{api}/echo")) as answer:
        assert b'"cookie"' not in await read_body(answer, limit=10_000)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_ordinary_responses(client: HTTPClient, api: str, status: int) -> None:
    async with client.send(HTTPRequest(method="POST", url=f"{api}/redirect/{status}", body=b"x")) as answer:
        assert answer.status == status
        assert ("location", "/echo?redirected=1") in [(name.lower(), value) for name, value in answer.headers]


@pytest.mark.parametrize("status", ["200 OK", "203", "299 x", "404 Not Found", "418 I'm a teapot", "503 Busy", "599"])
async def test_every_status_is_an_ordinary_response(client: HTTPClient, status: str) -> None:
    assert await _get(client, response(b"body", status=status)) == (int(status[:3]), b"body")


@both
async def test_statuses_without_a_body(client: HTTPClient, stream: bool) -> None:
    assert await _get(client, b"HTTP/1.1 204 No Content\r\n\r\n", stream=stream) == (204, b"")
    unchanged = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: x\r\n\r\n"
    assert await _get(client, unchanged, stream=stream) == (304, b"")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    assert await _get(client, head, stream=stream, method="HEAD") == (200, b"")


@both
async def test_interim_responses_are_passed_over(client: HTTPClient, stream: bool) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    assert await _get(client, interim + response(b"ok"), stream=stream) == (200, b"ok")


@both
async def test_bodies_of_every_framing(client: HTTPClient, stream: bool) -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0a\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n"
    )
    assert await _get(client, chunked, stream=stream) == (200, b"abc0123456789")
    until_end = b"HTTP/1.0 200 OK\r\n\r\nuntil the end"
    assert await _get(client, until_end, stream=stream) == (200, b"until the end")


def _deflate(data: bytes) -> bytes:
    return zlib.compress(data)


@both
@pytest.mark.parametrize(
    ("name", "compress"), [("gzip", gzip.compress), ("deflate", _deflate)], ids=["gzip", "deflate"]
)
async def test_bodies_are_decoded(
    client: HTTPClient, name: str, compress: Callable[[bytes], bytes], stream: bool
) -> None:
    coded = response(compress(b"hello " * 1000), headers=f"Content-Encoding: {name}\r\n".encode())
    assert await _get(client, coded, stream=stream) == (200, b"hello " * 1000)


async def test_a_client_decodes_every_accepted_encoding(client: HTTPClient, backend: str) -> None:
    heads: list[bytes] = []
    async with (
        raw_server(answering(response(b""), heads=heads)) as server,
        client.send(HTTPRequest(method="GET", url=server.url)) as answer,
    ):
        await read_body(answer, limit=0)
    accepted = heads[0].lower().partition(b"accept-encoding:")[2].partition(b"\r\n")[0].replace(b" ", b"").split(b",")
    assert {b"gzip", b"deflate"} <= set(accepted)
    if b"br" in accepted:
        coded = response(BROTLI, headers=b"Content-Encoding: br\r\n")
        assert (await _get(client, coded))[1] == b"hello " * 1000
    else:
        assert backend == "httpx2"


@both
async def test_a_large_body_is_whole(client: HTTPClient, api: str, stream: bool) -> None:
    async with client.send(HTTPRequest(method="GET", url=f"{api}/large", stream=stream)) as answer:
        assert await read_body(answer, limit=2_000_000) == b"0123456789" * 200_000
    async with client.send(HTTPRequest(method="GET", url=f"{api}/pieces/300", stream=stream)) as answer:
        body = b"".join([chunk async for chunk in answer.chunks()])
    assert body == b"".join(b"%08d" % number * 1024 for number in range(300))


@both
async def test_a_body_up_to_the_limit_is_read_and_one_byte_more_is_not(client: HTTPClient, stream: bool) -> None:
    for size in (0, 1, 65535, 65536, 65537, 200_000):
        async with raw_server(answering(response(bytes(size)))) as server:
            async with client.send(HTTPRequest(method="GET", url=server.url, stream=stream)) as answer:
                assert len(await read_body(answer, limit=size)) == size
            if size:
                async with client.send(HTTPRequest(method="GET", url=server.url, stream=stream)) as answer:
                    with pytest.raises(CallError, match=f"limit of {size - 1} bytes") as caught:
                        await read_body(answer, limit=size - 1)
                    assert caught.value.code is ErrorCode.EXECUTION_ERROR


def _bomb(megabytes: int) -> bytes:
    """A gzip file that expands to that many megabytes of zeros; its last block is missing, because no test reads it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * (megabytes - 1)


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1 << 20)


@both
async def test_a_decompression_bomb_is_stopped(client: HTTPClient, stream: bool) -> None:
    bomb = _bomb(1024)
    before = _peak_megabytes()
    async with raw_server(answering(response(bomb, headers=b"Content-Encoding: gzip\r\n"))) as server:
        async with client.send(HTTPRequest(method="GET", url=server.url, stream=stream)) as answer:
            with pytest.raises(CallError, match="limit of 1000000 bytes"):
                await read_body(answer, limit=1_000_000)
        await server.until_open(0)
    assert _peak_megabytes() - before < 64


@both
async def test_an_endless_body_is_stopped(client: HTTPClient, stream: bool) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await exchange.write(bytes(65536))

    async with (
        raw_server(behaviour) as server,
        client.send(HTTPRequest(method="GET", url=server.url, stream=stream)) as answer,
    ):
        with pytest.raises(CallError, match="limit of 500000 bytes"):
            await read_body(answer, limit=500_000)
        await server.until_open(0)


async def test_pieces_arrive_as_they_are_sent(client: HTTPClient) -> None:
    """The head is there before the body, and each piece before the next is sent."""
    go_on = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"one", b"two"):
            await go_on.wait()
            go_on.clear()
            await exchange.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await exchange.write(b"0\r\n\r\n")

    async with (
        raw_server(behaviour) as server,
        client.send(HTTPRequest(method="GET", url=server.url, stream=True)) as answer,
    ):
        chunks = answer.chunks()
        for piece in (b"one", b"two"):
            go_on.set()
            assert await anext(chunks) == piece
        assert [chunk async for chunk in chunks] == []


@both
async def test_a_reader_that_stops_holds_the_server_back(client: HTTPClient, stream: bool) -> None:
    sent = 0
    blocked = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.head()
        exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n")
        while sent < 1 << 28:
            exchange.writer.write(bytes(1 << 16))
            sent += 1 << 16
            draining = asyncio.ensure_future(exchange.writer.drain())
            done, _ = await asyncio.wait([draining], timeout=0.5)
            if not done:  # the client has not read for a while: the server is blocked
                blocked.set()
            await draining

    async with (
        raw_server(behaviour) as server,
        client.send(HTTPRequest(method="GET", url=server.url, stream=stream)) as answer,
    ):
        chunks = answer.chunks()
        size = len(await anext(chunks))
        async with asyncio.timeout(20):
            await blocked.wait()
        assert sent < 1 << 26
        async for chunk in chunks:
            size += len(chunk)
        assert size == 1 << 28


async def test_a_closed_response_has_no_body(client: HTTPClient, api: str) -> None:
    for stream in (False, True):
        async with client.send(HTTPRequest(method="GET", url=f"{api}/pieces/50", stream=stream)) as answer:
            assert await anext(answer.chunks())
            await answer.close()
            await answer.close()
            with pytest.raises(CallError, match="closed"):
                await anext(answer.chunks())
