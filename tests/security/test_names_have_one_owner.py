"""Guarantee: a peer's name has one owner, also that of the hub's own peer, and no peer can respond for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.session import PeerNames
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.testing import stub_operation
from tests.contracts.operations_under_test import Sleeper
from tests.security.raw_websocket import RawPeer
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "mallory": Principal(Identity("mallory")),
        "hub": Principal(Identity("hub")),
        "shop": Principal(Identity("shop"), ("shop",)),
        "other": Principal(Identity("other"), ("shop",)),
    }
)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub(TOKENS) as hub:
        yield hub


async def is_refused(hub: Hub, token: str, name: Any) -> bool:
    """Whether a hello under this name is answered with the end of the connection."""
    peer = await RawPeer.connect(hub.port, b"Authorization: Bearer " + token.encode())
    before = hub.counters.foreign + hub.counters.malformed
    peer.send_event("hub.hello", {"peer": name, "generation": 1_000_000})
    answer = await peer.read_end()
    await peer.close()
    return b"hub.welcome" not in answer and hub.counters.foreign + hub.counters.malformed == before + 1


@pytest.mark.parametrize("token", ["mallory", "hub"])
async def test_the_name_of_the_hubs_own_peer_is_reserved(hub: Hub, token: str) -> None:
    own = hub.transport()
    assert await is_refused(hub, token, own.peer)
    await own.close()
    assert await is_refused(hub, token, own.peer)


async def test_calls_of_the_hubs_own_process_are_answered_by_their_worker_alone(hub: Hub) -> None:
    sleeper = Sleeper("shop.sleep")
    async with Spoke(hub.url, token="shop") as spoke, Spoke(hub.url, token="mallory") as mallory:
        worker = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await worker.registered()
        own = hub.transport()
        call = asyncio.create_task(PendingRequestMap(own).call("shop.sleep"))
        await sleeper.started.wait()
        (session,) = [each for each in hub.router.sessions.values() if each.peer == own.peer]
        (route,) = session.calls.values()
        for request_id in (route.caller_id, route.id):
            pending = PendingRequestMap(mallory)
            pending.respond(request_id, {"data": "evil", "meta": _META})
            pending.abort(request_id)
        await until(lambda: hub.counters.foreign == 2)
        sleeper.let_go.set()
        assert (await call).data == "awake"
        await worker.close()


_META = {"source": "local", "operationId": "shop.sleep", "timestamp": 1}


async def test_announcements_contain_no_peer_names(hub: Hub) -> None:
    own = hub.transport()
    inside = CallHandler(OperationRegistry([stub_operation("inside.one")]), own)
    async with Spoke(hub.url, token="shop") as spoke:
        outside = CallHandler(OperationRegistry([stub_operation("shop.one")]), spoke)
        await outside.registered()
        peer = await RawPeer.join(hub.port, "mallory")
        peer.send_event("worker.asked", {"peer": "n" * 32})
        seen = [await peer.read_event(), await peer.read_event()]
        assert {event["type"] for event in seen} == {"worker.announced"}
        assert {each["name"] for event in seen for each in event["payload"]["operations"]} == {"one"}
        told = str(seen)
        for secret in (own.peer, spoke.peer, inside.worker_id, outside.worker_id):
            assert secret not in told
        await outside.close()
        gone = await peer.read_event()
        assert (gone["type"], gone["payload"]["workerId"]) in [
            ("worker.gone", event["payload"]["workerId"]) for event in seen
        ]
        await peer.close()
    await inside.close()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "short",
        "x" * 15,
        "x" * 65,
        "x" * 2_000,
        "dots.are.separators",
        "spaces are too",
        "n" * 31 + "\u00fc",
        5,
        None,
    ],
)
async def test_names_are_of_one_alphabet_and_bounded(hub: Hub, name: Any) -> None:
    assert await is_refused(hub, "mallory", name)


async def test_a_name_in_use_is_its_identitys_even_if_that_has_had_very_many() -> None:
    names = PeerNames()
    assert names.claim("a" * 16, "ada")
    for number in range(5_000):
        assert names.claim(f"mallory-{number:012}", "mallory")
    assert not names.claim("a" * 16, "mallory")
    assert names.claim("a" * 16, "ada")
    assert len(names._owners) <= 1_001


async def test_a_request_that_its_worker_has_already_is_not_overwritten(hub: Hub) -> None:
    sleeper = Sleeper("shop.sleep")
    async with Spoke(hub.url, token="shop") as spoke:
        worker = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await worker.registered()
        peer = await RawPeer.join(hub.port, "mallory")
        for _ in range(3):
            payload = {"requestId": "request", "operationId": "shop.sleep"}
            peer.send_event("call.requested", payload, id="request", to="shop.sleep")
        await until(lambda: hub.counters.duplicate == 2)
        sleeper.let_go.set()
        assert (await peer.read_event())["payload"]["output"]["data"] == "awake"
        assert sleeper.runs == 1
        await peer.close()
        await worker.close()
