"""Guarantee: an anonymous caller has no identity, whichever endpoint it uses; its calls wait in one queue.

Callers at one address leave room for those at others.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from operations import Identity, OperationContext, OperationRegistry, operation
from operations.identity import Principal, StaticTokens
from operations.serving import app
from operations.serving.app import ServedApp
from operations.serving.suspended_calls import MAX_PER_IDENTITY
from tests.security.raw_websocket import RawPeer
from tests.serving.asgi_client import post, request
from tests.serving.http_server import running
from tests.serving.mcp.examples import ELICITS
from tests.serving.mcp.wire import headers, message
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


async def test_questions_to_one_address_leave_room_for_others() -> None:
    @operation(id="shop.greet", type="query")
    async def greet(context: OperationContext, number: int = 0) -> str:
        answer = await context.ask("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return str(answer.content)

    served = app(OperationRegistry([greet]), websocket=False)

    async def ask(number: int, address: str) -> str:
        sent = message("tools/call", {"name": "shop.greet", "arguments": {"number": number}}, meta=ELICITS)
        body = json.dumps(sent).encode()
        answer = await request(served, "POST", "/mcp", body=body, headers=headers(sent), address=address)
        return str(answer.json["result"]["resultType"])

    asked = [await ask(number, "10.0.0.1") for number in range(MAX_PER_IDENTITY + 1)]
    assert asked == ["input_required"] * MAX_PER_IDENTITY + ["complete"]
    assert await ask(0, "10.0.0.2") == "input_required"


def waiting(served: ServedApp) -> list[str]:
    """Return the queues of the calls that run."""
    return [request.caller for each in served.dispatchers for request in each.active]  # type: ignore[attr-defined]
