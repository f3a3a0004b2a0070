"""Failures: their code, whether the server may have executed the request, and no secrets."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator

import pytest

from operations import CallError, ErrorCode
from operations.http import ClientOptions, HTTPClient, HTTPRequest, read_body
from tests.http.conftest import MakeClient
from tests.http.servers import Behaviour, Exchange, answering, raw_server, response

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def _failure(client: HTTPClient, url: str, *, stream: bool = False, timeout: float | None = 20) -> CallError:
    """The error of a request whose query is secret."""
    request = HTTPRequest(method="GET", url=f"{url}/a/b?token=secret", stream=stream, timeout=timeout)
    with pytest.raises(CallError) as caught:
        async with client.send(request) as answer:
            await read_body(answer, limit=1 << 20)
    assert caught.value.message.startswith(f"GET {url}/a/b: ")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return caught.value


async def _failure_of(client: HTTPClient, behaviour: Behaviour, *, stream: bool, timeout: float = 20) -> CallError:
    async with raw_server(behaviour) as server:
        return await _failure(client, server.url, stream=stream, timeout=timeout)


@both
async def test_a_refused_connection(client: HTTPClient, stream: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = await _failure(client, f"http://127.0.0.1:{port}", stream=stream)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details == {"executed": "no"}
    assert "cannot connect" in error.message


async def test_a_host_without_an_address(client: HTTPClient) -> None:
    error = await _failure(client, "http://nowhere.invalid")
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details == {"executed": "no"}


async def test_a_connection_that_takes_too_long(make_client: MakeClient) -> None:
    """A TLS handshake that gets no answer is a connection that is never made."""
    client = make_client(ClientOptions(connect_timeout=0.2))
    async with raw_server(Exchange.gone) as server:
        error = await _failure(client, server.url.replace("http", "https"))
        await server.until_open(0)
    assert error.code is ErrorCode.TIMEOUT
    assert error.details == {"executed": "no"}


GARBAGE = {
    "nothing": b"",
    "not HTTP": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    "a bad status": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nX-A: b",
    "a bad header": b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n"
    + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 50) for n in range(100_000))
    + b"\r\n",
    "a large header": b"HTTP/1.1 200 OK\r\nX-A: " + b"y" * (1 << 22) + b"\r\n\r\n",
    "a short body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "a cut chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "a bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n",
    "bad gzip": response(b"this is not gzip", headers=b"Content-Encoding: gzip\r\n"),
}


@both
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_unavailable(client: HTTPClient, data: bytes, stream: bool) -> None:
    error = await _failure_of(client, answering(data), stream=stream)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details == {"executed": "unknown"}
    assert len(error.message) < 300


@both
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"], ids=["head", "body"])
async def test_a_reset_connection(client: HTTPClient, before: bytes, stream: bool) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(before)
        exchange.reset()

    error = await _failure_of(client, behaviour, stream=stream)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.details == {"executed": "unknown"}


def _silent_after(data: bytes) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(data)
        await exchange.gone()

    return behaviour


@both
async def test_a_server_that_never_answers(make_client: MakeClient, stream: bool) -> None:
    client = make_client(ClientOptions(read_timeout=1))
    async with raw_server(_silent_after(b"")) as server:
        error = await _failure(client, server.url, stream=stream, timeout=0.2)
        await server.until_open(0)
    assert error.code is ErrorCode.TIMEOUT
    assert error.details == {"executed": "unknown"}


async def test_the_timeout_of_the_client_applies_to_requests_without_one(make_client: MakeClient) -> None:
    client = make_client(ClientOptions(timeout=0.2))
    async with raw_server(_silent_after(b"")) as server:
        assert (await _failure(client, server.url, timeout=None)).code is ErrorCode.TIMEOUT


@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"], ids=["head", "body"])
async def test_silence_in_a_stream(make_client: MakeClient, before: bytes) -> None:
    client = make_client(ClientOptions(read_timeout=0.2))
    async with raw_server(_silent_after(before)) as server:
        error = await _failure(client, server.url, stream=True, timeout=math.inf)
        await server.until_open(0)
    assert error.code is ErrorCode.TIMEOUT
    assert error.details == {"executed": "unknown"}


async def test_a_body_that_trickles_past_the_timeout(client: HTTPClient) -> None:
    """Each pause is short, but the whole exchange takes too long."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not exchange.reader.at_eof():
            await exchange.write(b"x")
            await asyncio.sleep(0.01)

    error = await _failure_of(client, behaviour, stream=False, timeout=0.3)
    assert error.code is ErrorCode.TIMEOUT


async def test_a_stream_may_take_longer_than_the_timeout(client: HTTPClient) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(40):
            await exchange.write(b"x")
            await asyncio.sleep(0.01)

    async with raw_server(behaviour) as server:
        request = HTTPRequest(method="GET", url=server.url, stream=True, timeout=0.3)
        async with client.send(request) as answer:
            assert await read_body(answer, limit=40) == b"x" * 40


async def test_an_upload_to_a_server_that_closes_the_connection(client: HTTPClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield bytes(1 << 16)

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        exchange.reset()

    async with raw_server(behaviour) as server:
        with pytest.raises(CallError) as caught:
            async with client.send(HTTPRequest(method="PUT", url=server.url, body=body())):
                pass
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.details == {"executed": "unknown"}


async def test_a_closed_client_reports_that_it_is_closed(client: HTTPClient) -> None:
    await client.close()
    await client.close()
    error = await _failure(client, "http://127.0.0.1:9")
    assert "closed" in error.message
    assert error.details == {"executed": "no"}


async def test_closing_fails_pending_requests(client: HTTPClient) -> None:
    async with raw_server(_silent_after(b"")) as server:
        task = asyncio.create_task(_failure(client, server.url, timeout=1))
        await server.until_open(1)
        await client.close()
        assert (await task).code in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)
        await server.until_open(0)
