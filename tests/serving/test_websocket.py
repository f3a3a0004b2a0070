"""The WebSocket endpoint of a served registry, on a hub of the program and on its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from operations import CallError, Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity.api_keys import APIKeys
from operations.identity.tokens import Principal, StaticTokens
from operations.serving import app
from operations.serving.audit import AuditRecord, AuditWriter
from operations.serving.exposure import Exposure
from operations.serving.limits import Limits
from operations.serving.websocket import WebSocketEndpoint
from tests.serving.asgi_client import exchange, post
from tests.serving.http_server import running
from tests.serving.shop import Shop
from tests.waiting import until


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_a_closed_endpoint_no_longer_observes_a_hub_that_stays_open() -> None:
    async with Hub(StaticTokens({"ann-token": Principal(Identity("ann"))})) as hub:
        endpoint = WebSocketEndpoint(Exposure(OperationRegistry()), Limits(), hub, AuditWriter())
        assert endpoint in hub.router.observers
        await endpoint.close()
        assert endpoint not in hub.router.observers


@pytest.mark.parametrize("own_hub", [True, False])
async def test_a_revoked_key_closes_its_connection_and_later_calls_are_still_recorded(
    shop: Shop, tmp_path: Path, own_hub: bool
) -> None:
    keys, records = APIKeys(tmp_path / "keys.json"), list[AuditRecord]()
    revoked, kept = keys.create("robot", scopes=["read"])
    valid, _ = keys.create("person", scopes=["read"])
    async with Hub(StaticTokens({})) as hub:
        if not own_hub:
            CallHandler(shop.registry, hub.transport())
        served = app(shop.registry, mcp=False, authenticator=keys, audit=records.append, hub=None if own_hub else hub)
        async with running(served) as (host, port), asyncio.timeout(20):
            url = f"ws://{host}:{port}/ws"
            async with Spoke(url, token=revoked) as spoke, Spoke(url, token=valid) as other:
                calls, others = PendingRequestMap(spoke), PendingRequestMap(other)
                assert (await calls.call("vault.look")).data == "gold"
                assert APIKeys(tmp_path / "keys.json").revoke(kept.id)
                await until(lambda: not spoke.is_up)
                with pytest.raises(CallError):
                    await calls.call("vault.look", timeout=0.5)
                assert (await others.call("vault.look", retry=True, wait=True)).data == "gold"
        assert [(each.caller, each.code) for each in records] == [("robot", "OK"), ("person", "OK")]
        assert hub.connected == []


async def test_the_rate_limit_counts_the_calls_of_a_connection(shop: Shop) -> None:
    """Previously, only the handshake counted: one connection made any number of calls."""
    tokens = StaticTokens({"ann-token": Principal(Identity("ann")), "bob-token": Principal(Identity("bob"))})
    records = list[AuditRecord]()
    limits = Limits(rate=0.01, burst=5)
    served = app(shop.registry, mcp=False, authenticator=tokens, limits=limits, audit=records.append)
    async with running(served) as (host, port), asyncio.timeout(20):
        url = f"ws://{host}:{port}/ws"
        async with Spoke(url, token="ann-token") as ann, Spoke(url, token="bob-token") as bob:
            calls = PendingRequestMap(ann)
            outcomes = []
            for _ in range(8):
                try:
                    outcomes.append((await calls.call("shop.quote", {"item": "tea"})).data["item"])
                except CallError as error:
                    outcomes.append(error.details["reason"])
            assert outcomes == ["tea"] * 4 + ["RATE_LIMITED"] * 4
            assert (await PendingRequestMap(bob).call("shop.quote", {"item": "tea"})).data["item"] == "tea"
            answer = await post(served, "/shop/quote", {"item": "tea"}, token="ann-token")
            assert answer.status == 429
    assert [each.code for each in records if each.caller == "ann"] == ["OK"] * 4 + ["UNAVAILABLE"] * 4


async def test_draining_waits_for_http_calls_and_websocket_calls_at_the_same_time(shop: Shop) -> None:
    """Previously, one call over each protocol delayed the end by twice `drain_seconds`."""
    served = app(shop.registry, mcp=False, limits=Limits(drain_seconds=60))
    async with running(served) as (host, port), asyncio.timeout(20), exchange(served, "POST", "/shop/slow") as call:
        await shop.started.wait()
        shop.started.clear()
        async with Spoke(f"ws://{host}:{port}/ws") as spoke:
            other = asyncio.create_task(PendingRequestMap(spoke).call("shop.slow"))
            await shop.started.wait()
            draining = asyncio.create_task(served.drain())
            http, _, websocket = served.dispatchers
            await until(lambda: http.idle is not None and websocket.idle is not None, seconds=10)
            assert not draining.done()
            shop.go_on.set()
            assert ((await other).data, (await call.complete()).json) == ("done", "done")
            await draining
