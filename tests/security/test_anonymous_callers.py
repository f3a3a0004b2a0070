"""Guarantee: an anonymous caller has no identity, whichever endpoint it uses; its calls wait in one queue."""

from __future__ import annotations

import asyncio

import pytest

from operations import Identity, OperationContext, OperationRegistry, operation
from operations.identity import Principal, StaticTokens
from operations.serving import app
from operations.serving.app import ServedApp
from tests.security.raw_websocket import RawPeer
from tests.serving.asgi_client import post
from tests.serving.http_server import running
from tests.waiting import until

TOKENS = StaticTokens({"ada": Principal(Identity("ada"))})


@operation(id="shop.who", type="query")
async def who(context: OperationContext) -> str | None:
    return None if context.identity is None else context.identity.id


async def join(port: int, name: str, *headers: bytes) -> RawPeer:
    """Connect to `/ws` and complete the handshake."""
    peer = await RawPeer.connect(port, *headers, path=b"/ws")
    assert peer.status == 101
    peer.send_event("hub.hello", {"peer": name, "generation": 1})
    assert "identity" in (await peer.read_event())["payload"] or not headers
    return peer


def call(peer: RawPeer, request_id: str, operation_id: str) -> None:
    payload = {"requestId": request_id, "operationId": operation_id, "input": {}}
    peer.send_event("call.requested", payload, id=request_id, to=operation_id)


@pytest.mark.parametrize("with_tokens", [False, True])
async def test_anonymous_callers_have_no_identity(with_tokens: bool) -> None:
    served = app(
        OperationRegistry([who]), mcp=False, authenticator=TOKENS if with_tokens else None, allow_anonymous=True
    )
    answer = await post(served, "/shop/who")
    assert (answer.status, answer.json) == (200, None)
    async with running(served) as (_, port):
        peer = await join(port, "a" * 32)
        call(peer, "a-1", "shop.who")
        assert (await peer.read_event())["payload"]["output"]["data"] is None
        await peer.close()
        if with_tokens:
            peer = await join(port, "b" * 32, b"Authorization: Bearer ada")
            call(peer, "b-1", "shop.who")
            assert (await peer.read_event())["payload"]["output"]["data"] == "ada"
            await peer.close()


async def test_the_calls_of_one_address_wait_in_one_queue() -> None:
    go = asyncio.Event()

    @operation(id="shop.wait")
    async def wait() -> None:
        await go.wait()

    served = app(OperationRegistry([wait]), mcp=False)
    async with running(served) as (_, port):
        peers = [await join(port, letter * 32) for letter in "abc"]
        for peer in peers:
            call(peer, "x-1", "shop.wait")
        await until(lambda: len(waiting(served)) == 3)
        assert len(set(waiting(served))) == 1
        go.set()
        for peer in peers:
            assert (await peer.read_event())["type"] == "call.responded"
            await peer.close()


def waiting(served: ServedApp) -> list[str]:
    """Return the queues of the calls that run."""
    return [request.caller for each in served.dispatchers for request in each.active]  # type: ignore[attr-defined]
