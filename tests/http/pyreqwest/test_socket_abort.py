"""If sockets cannot be marked, requests can be made and cancelled anyway."""

import asyncio

import pytest

from operations import CallError
from operations.http import ClientOptions, HTTPRequest, read_body
from operations.http.pyreqwest import PyreqwestClient, socket_abort
from tests.http.servers import Exchange, raw_server, response


async def _get(client: PyreqwestClient, url: str, timeout: float) -> bytes:
    async with client.send(HTTPRequest(method="GET", url=url, timeout=timeout)) as answer:
        return await read_body(answer, limit=1 << 20)


@pytest.fixture
def unmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_abort, "CAN_ABORT", False)


@pytest.mark.usefixtures("unmarked")
async def test_a_cancelled_call_ends_immediately_and_its_connection_at_its_timeout() -> None:
    reached = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        if (await exchange.head()).startswith(b"GET /held"):
            reached.set()
            await exchange.gone()
        else:
            await exchange.write(response(b"ok"))

    async with raw_server(behaviour) as server, PyreqwestClient(ClientOptions(read_timeout=300)) as client:
        task = asyncio.create_task(_get(client, f"{server.url}/held", timeout=1))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await _get(client, f"{server.url}/free", timeout=30) == b"ok"
        await client.close()
        await server.until_open(0)


@pytest.mark.usefixtures("unmarked")
async def test_closing_the_client_fails_pending_requests() -> None:
    reached = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        reached.set()
        await exchange.gone()

    client = PyreqwestClient(ClientOptions())
    async with raw_server(behaviour) as server:
        task = asyncio.create_task(_get(client, server.url, timeout=2))
        await reached.wait()
        await client.close()
        with pytest.raises(CallError, match="closed"):
            await task


def test_no_socket_is_searched_for_without_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_abort, "CAN_ABORT", False)
    socket_abort.SocketAborter().abort(
        socket_abort.new_mark(), abort_seconds=1
    )  # no event loop runs here, and none is asked for
