"""Connections are reused, counted and released, whatever happens to the task that uses them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from operations import CallError
from operations.http import ClientOptions, HTTPClient, HTTPRequest, read_body
from tests.http.conftest import BACKENDS, MakeClient
from tests.http.servers import Exchange, answering, raw_server, response

both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def _get(client: HTTPClient, url: str, *, stream: bool = False, timeout: float = 30) -> bytes:
    async with client.send(HTTPRequest(method="GET", url=url, stream=stream, timeout=timeout)) as answer:
        return await read_body(answer, limit=1 << 24)


@both
async def test_a_connection_is_reused_after_its_body_was_read(client: HTTPClient, stream: bool) -> None:
    async with raw_server(answering(response(b"ok"), keep=True)) as server:
        for _ in range(5):
            assert await _get(client, server.url, stream=stream) == b"ok"
        assert server.accepted == server.open == 1
        await client.close()
        await server.until_open(0)


@both
async def test_a_connection_is_reused_after_an_empty_or_refused_answer(client: HTTPClient, stream: bool) -> None:
    async with raw_server(answering(response(b"", status="500 No"), keep=True)) as server:
        for _ in range(3):
            assert await _get(client, server.url, stream=stream) == b""
        assert server.accepted == 1


@both
async def test_a_connection_is_dropped_when_its_body_was_not_read(client: HTTPClient, stream: bool) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(100_000))
        await exchange.gone()

    async with raw_server(behaviour) as server:
        for count in (1, 2):
            async with client.send(HTTPRequest(method="GET", url=server.url, stream=stream)) as answer:
                assert answer.status == 200
            await server.until_open(0)
            assert server.accepted == count


async def test_no_keep_alive(make_client: MakeClient) -> None:
    client = make_client(ClientOptions(max_idle=0))
    async with raw_server(answering(response(b"ok"), keep=True)) as server:
        for count in (1, 2):
            await _get(client, server.url)
            await server.until_open(0)
            assert server.accepted == count


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used_again(client: HTTPClient) -> None:
    async with raw_server(answering(response(b"ok"))) as server:
        for _ in range(20):
            assert await _get(client, server.url) == b"ok"
            await server.until_open(0)


async def test_requests_beyond_the_limit_wait_their_turn(make_client: MakeClient) -> None:
    max_requests = 0

    async def behaviour(exchange: Exchange) -> None:
        nonlocal max_requests
        while True:
            await exchange.head()
            max_requests = max(max_requests, server.open)
            await exchange.write(response(b"ok"))

    client = make_client(ClientOptions(max_connections=5))
    async with raw_server(behaviour) as server:
        assert await asyncio.gather(*(_get(client, server.url) for _ in range(100))) == [b"ok"] * 100
    assert 0 < max_requests <= 5


@pytest.mark.slow
async def test_a_thousand_concurrently(client: HTTPClient, api: str) -> None:
    bodies = await asyncio.gather(*(_get(client, f"{api}/echo/{number}?n={number}") for number in range(1000)))
    for number, body in enumerate(bodies):
        assert f'"path":"/echo/{number}"'.encode() in body
        assert f'"query":"n={number}"'.encode() in body


@pytest.mark.usefixtures("aborted")
@pytest.mark.slow
async def test_half_of_a_thousand_cancelled(make_client: MakeClient) -> None:
    """The connections of the cancelled half close long before its timeout, and before the other half gets responses."""
    release = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        while True:
            head = await exchange.head()
            if head.startswith(b"GET /held"):
                await exchange.gone()
                return
            await release.wait()
            await exchange.write(response(b"ok"))

    client = make_client(ClientOptions(max_connections=None))
    async with raw_server(behaviour) as server:
        kept = [asyncio.create_task(_get(client, f"{server.url}/kept", timeout=300)) for _ in range(500)]
        blocked = [asyncio.create_task(_get(client, f"{server.url}/held", timeout=300)) for _ in range(500)]
        await server.until_open(1000)
        for task in blocked:
            task.cancel()
        assert {type(end) for end in await asyncio.gather(*blocked, return_exceptions=True)} == {asyncio.CancelledError}
        await server.until_open(500)
        release.set()
        assert await asyncio.gather(*kept) == [b"ok"] * 500
        await client.close()
        await server.until_open(0)


@pytest.mark.usefixtures("aborted")
@both
@pytest.mark.parametrize("phase", ["handshake", "head", "body"])
async def test_cancelling_releases_the_connection(
    make_client: MakeClient, backend: str, phase: str, stream: bool
) -> None:
    """The connection closes immediately, long before the request's timeout."""
    if backend == "httpx2" and phase == "handshake":
        pytest.skip("httpx2 leaves a connection behind whose handshake is cancelled, until the server closes it")
    reached = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        if phase == "handshake":
            await exchange.reader.read(1)
        else:
            await exchange.head()
        if phase == "body":
            await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(100_000))
        reached.set()
        await exchange.gone()

    async def get() -> None:
        scheme = "https" if phase == "handshake" else "http"
        url = f"{scheme}://127.0.0.1:{server.port}"
        async with client.send(HTTPRequest(method="GET", url=url, stream=stream, timeout=300)) as answer:
            await read_body(answer, limit=1 << 24)

    client = make_client(ClientOptions(read_timeout=300, connect_timeout=300))
    async with raw_server(behaviour) as server:
        task = asyncio.create_task(get())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_open(0)


@pytest.mark.usefixtures("aborted")
async def test_a_stream_whose_head_is_late_releases_its_connection(make_client: MakeClient) -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.gone()

    client = make_client(ClientOptions(read_timeout=300))
    async with raw_server(behaviour) as server:
        with pytest.raises(CallError, match="in time"):
            await _get(client, server.url, stream=True, timeout=0.2)
        await server.until_open(0)


@pytest.mark.usefixtures("aborted")
@both
async def test_closing_the_client_closes_pending_requests(client: HTTPClient, backend: str, stream: bool) -> None:
    if backend == "httpx2":
        pytest.skip("httpx2 closes idle connections only; what is under way ends by itself")
    reached = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        reached.set()
        await exchange.gone()

    async with raw_server(behaviour) as server:
        task = asyncio.create_task(_get(client, server.url, stream=stream, timeout=300))
        await reached.wait()
        await client.close()
        with pytest.raises(CallError, match="closed"):
            await task
        await server.until_open(0)


async def test_a_cancelled_queued_request_does_not_take_a_slot(make_client: MakeClient) -> None:
    release = asyncio.Event()
    reached = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        while True:
            await exchange.head()
            reached.set()
            await release.wait()
            await exchange.write(response(b"ok"))

    client = make_client(ClientOptions(max_connections=1))
    async with raw_server(behaviour) as server:
        first = asyncio.create_task(_get(client, server.url))
        await reached.wait()
        waiting = [asyncio.create_task(_get(client, server.url)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(CallError, match="in time"):
            await _get(client, server.url, timeout=0.05)
        waiting[0].cancel()
        waiting[2].cancel()
        release.set()
        ends = await asyncio.gather(first, *waiting, return_exceptions=True)
        assert [end for end in ends if isinstance(end, bytes)] == [b"ok"] * 3
        assert server.accepted == 1


async def test_a_response_can_be_read_by_another_task(client: HTTPClient, api: str) -> None:
    async with client.send(HTTPRequest(method="GET", url=f"{api}/pieces/100", stream=True)) as answer:
        body = await asyncio.create_task(read_body(answer, limit=1 << 20))
    assert len(body) == 100 * 8192


def test_each_event_loop_can_have_its_client(backend: str, api: str) -> None:
    async def once() -> bytes:
        client = BACKENDS[backend](ClientOptions())
        try:
            return await _get(client, f"{api}/echo")
        finally:
            await client.close()

    for _ in range(2):
        assert b'"path":"/echo"' in asyncio.run(once())
    ends: list[bytes] = []
    threads = [threading.Thread(target=lambda: ends.append(asyncio.run(once()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 4


def test_a_client_in_another_event_loop_works_or_explains_the_failure(backend: str, api: str) -> None:
    client = BACKENDS[backend](ClientOptions(max_idle=0))
    assert b'"path":"/echo"' in asyncio.run(_get(client, f"{api}/echo"))

    async def again() -> None:
        if backend == "pyreqwest":
            assert b'"path":"/echo"' in await _get(client, f"{api}/echo")
        else:
            with pytest.raises(CallError, match="another event loop"):
                await _get(client, f"{api}/echo")
        await client.close()

    asyncio.run(again())
