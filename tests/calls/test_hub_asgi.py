"""The hub as an ASGI application: admission, sub-protocols, limits, and the server's start and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from operations import CallError, ErrorCode, Identity, OperationRegistry
from operations.calls import PendingRequestMap, serve_registry
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.testing import stub_operation
from tests.asgi_server import serving_here
from tests.waiting import until

TOKENS = StaticTokens({"ada": Principal(Identity("ada")), "shop": Principal(Identity("shop"), ("shop",))})
PEER = "p" * 32
HELLO = msgspec.json.encode(
    {"v": 1, "type": "hub.hello", "id": "", "to": "", "payload": {"peer": PEER, "generation": 1}}
).decode()


class Socket:
    """One connection of an ASGI server, driven by the test."""

    def __init__(self, **scope: Any) -> None:
        self.scope: dict[str, Any] = {
            "type": "websocket",
            "headers": [(b"authorization", b"Bearer ada")],
            "extensions": {"websocket.http.response": {}},
            **scope,
        }
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events.put_nowait({"type": "websocket.connect"})
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, event: Any) -> None:
        await self.reads.wait()
        self.sent.append(event)

    @asynccontextmanager
    async def served_by(self, hub: Hub) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.ensure_future(hub.asgi_app()(self.scope, self.events.get, self.send))
        try:
            yield task
        finally:
            self.events.put_nowait({"type": "websocket.disconnect", "code": 1000})
            async with asyncio.timeout(5):
                await task

    def say(self, text: str) -> None:
        self.events.put_nowait({"type": "websocket.receive", "text": text})


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_token_that_is_refused_is_401_before_the_connection_is_accepted(token: str | None) -> None:
    hub = Hub(TOKENS)
    async with serving_here(hub.asgi_app()) as url:
        with pytest.raises(CallError) as caught:
            async with Spoke(url, token=token):
                pass
    assert caught.value.code is ErrorCode.ACCESS_DENIED
    assert caught.value.details["status"] == 401
    assert hub.connected == []


async def test_a_server_that_cannot_choose_the_status_closes_before_it_accepts() -> None:
    socket = Socket(headers=[], extensions={})
    async with socket.served_by(Hub(TOKENS)) as task:
        await task
    assert [event["type"] for event in socket.sent] == ["websocket.close"]
    assert "no token" in socket.sent[0]["reason"]


@pytest.mark.parametrize(
    ("headers", "chosen"),
    [
        ([(b"authorization", b"bearer ada")], None),
        ([(b"sec-websocket-protocol", b"operations.v1, bearer.ada")], "operations.v1"),
        ([(b"sec-websocket-protocol", b"operations.v1"), (b"sec-websocket-protocol", b"bearer.ada")], "operations.v1"),
        ([(b"sec-websocket-protocol", b"bearer.ada")], None),
    ],
)
async def test_the_token_comes_in_a_header_or_a_sub_protocol_and_is_never_sent_back(
    headers: list[tuple[bytes, bytes]], chosen: str | None
) -> None:
    hub, socket = Hub(TOKENS), Socket(headers=headers)
    async with socket.served_by(hub):
        socket.say(HELLO)
        await until(lambda: hub.connected == ["ada"])
        await until(lambda: len(socket.sent) == 2)
    assert socket.sent[0] == {"type": "websocket.accept", "subprotocol": chosen}
    welcome = msgspec.json.decode(socket.sent[1]["text"])
    assert (welcome["type"], welcome["to"]) == ("hub.welcome", PEER)
    assert hub.connected == []


async def test_calls_reach_the_hubs_own_process_and_spokes_are_notified_of_its_shutdown() -> None:
    hub, lost = Hub(TOKENS), list[str]()
    async with serving_here(hub.asgi_app()) as url:
        spoke = Spoke(url, token="ada")
        registry = OperationRegistry([stub_operation("shop.price", returns=5)])
        async with spoke, serve_registry(registry, hub.transport()):
            spoke.watch(lambda: None, lost.append)
            assert (await PendingRequestMap(spoke).call("shop.price")).data == 5
            await hub.close()
            await until(lambda: lost == ["closed by the peer: the hub is shutting down"])


@pytest.mark.parametrize("first", ["x", "{}", HELLO.replace("hello", "welcome"), HELLO.replace(PEER, "short")])
async def test_a_connection_whose_first_event_is_not_a_hello_is_closed(first: str) -> None:
    hub, socket = Hub(TOKENS), Socket()
    async with socket.served_by(hub) as task:
        socket.say(first)
        async with asyncio.timeout(5):
            await task
    assert hub.counters.malformed + hub.counters.foreign == 1


async def test_a_message_over_the_limit_ends_the_connection() -> None:
    hub, socket = Hub(TOKENS, max_payload=10_000), Socket()
    async with socket.served_by(hub) as task:
        socket.say(HELLO)
        await until(lambda: hub.connected == ["ada"])
        socket.events.put_nowait({"type": "websocket.receive", "bytes": bytes(20_000)})
        async with asyncio.timeout(5):
            await task
    assert hub.connected == []


async def test_a_peer_that_never_reads_is_disconnected() -> None:
    hub, socket = Hub(TOKENS), Socket()
    async with socket.served_by(hub) as task:
        socket.say(HELLO)
        await until(lambda: hub.connected == ["ada"])
        socket.reads.clear()
        (session,) = hub.router.sessions.values()
        for _ in range(70):
            session.deliver(bytes(1 << 20))
        async with asyncio.timeout(5):
            await task
    assert hub.connected == []
    assert hub.counters.unsent > 0


async def test_other_requests_get_a_hint() -> None:
    hub, sent = Hub(TOKENS), list[Any]()

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        raise AssertionError

    await hub.asgi_app()({"type": "http"}, receive, send)
    assert (sent[0]["status"], sent[1]["body"]) == (426, b"this is the WebSocket endpoint of a hub")
