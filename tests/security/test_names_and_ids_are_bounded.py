"""Guarantee: what a peer makes the hub keep is bounded in bytes: names, request ids, operations, calls."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub, directory, router
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.testing import error_of, stub_operation
from tests.contracts.operations_under_test import Sleeper
from tests.security.raw_websocket import RawPeer
from tests.waiting import until

TOKENS = StaticTokens({"mallory": Principal(Identity("mallory")), "shop": Principal(Identity("shop"), ("shop",))})
MALLORY = b"Authorization: Bearer mallory"
NAME = "w" * 32


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub(TOKENS) as hub:
        yield hub


def kept() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture
async def memory(hub: Hub) -> AsyncIterator[int]:
    """The allocated memory after a connection was opened and closed."""
    await (await RawPeer.join(hub.port, "mallory")).close()
    await until(lambda: hub.connected == [])
    tracemalloc.start()
    yield kept()
    tracemalloc.stop()


async def test_long_names_and_other_long_hellos_are_not_kept(hub: Hub, memory: int) -> None:
    for number in range(20):
        peer = await RawPeer.connect(hub.port, MALLORY)
        name = f"{number}" + "x" * (1 << 20)
        peer.send_event("hub.hello", {"peer": name, "generation": 1})
        assert await peer.read_end() == b""
        await peer.close()
    del peer, name
    await until(lambda: hub._accounts == {})
    await until(lambda: kept() - memory < 1 << 20)  # buffers of a closed connection go a little later


@pytest.mark.parametrize("size", [4_097, 100_000])
async def test_the_first_frame_is_small(hub: Hub, size: int) -> None:
    peer = await RawPeer.connect(hub.port, MALLORY)
    peer.send_event("hub.hello", {"peer": NAME, "generation": 1, "more": "x" * size})
    assert await peer.read_end() == b""
    assert hub.connected == []
    await peer.close()


LONG = "x" * (1 << 20)


@pytest.mark.parametrize(
    ("field", "value"),
    [*((name, LONG) for name in ("id", "to", "grant", "parent", "type")), ("id", "x" * 161), ("grant", "x" * 65)],
    ids=lambda value: value if len(value) < 10 else str(len(value)),
)
async def test_long_ids_are_refused_and_not_kept(hub: Hub, memory: int, field: str, value: str) -> None:
    peer = await RawPeer.join(hub.port, "mallory")
    event = {"id": "request", "to": "no.where", field: value}
    kind = event.pop("type", "call.requested")
    for _ in range(20):
        peer.send_event(kind, {"requestId": "request", "operationId": "no.where"}, **event)
    await until(lambda: hub.counters.malformed == 20)
    if len(event["id"]) < 100 and kind == "call.requested":
        assert (await peer.read_event())["payload"]["code"] == "VALIDATION_ERROR"
    await peer.close()
    del peer
    await until(lambda: hub.connected == [])
    await until(lambda: kept() - memory < 1 << 20)  # buffers of a closed connection go a little later


async def test_an_identity_that_a_spoke_claims_is_not_read(hub: Hub) -> None:
    peer = await RawPeer.join(hub.port, "mallory")
    claims = {"id": "root", "scopes": ["all"], "claims": {str(number): {} for number in range(10_000)}}
    peer.send_event("call.requested", {"requestId": "a"}, id="a", to="no.where", identity=claims)
    assert (await peer.read_event())["payload"]["code"] == "UNAVAILABLE"
    assert hub.counters.forged in (0, 1)
    await peer.close()


def announcement(count: int, size: int = 0, worker: str = "1") -> dict[str, Any]:
    spec = stub_operation("shop.one", description="x" * size).spec.to_dict()
    operations = [{**spec, "name": f"one{worker}-{number}"} for number in range(count)]
    return {"workerId": f"{NAME}.{worker}", "generation": 1, "operations": operations}


@pytest.mark.parametrize(("count", "size"), [(10_001, 0), (9, 1 << 20)])
async def test_a_session_claims_a_bounded_number_and_size_of_operations(hub: Hub, count: int, size: int) -> None:
    peer = await RawPeer.join(hub.port, "shop", NAME)
    peer.send_event("worker.announced", announcement(1), namespaces=["shop"])
    assert (await peer.read_event())["payload"]["accepted"] == ["shop.one1-0"]
    peer.send_event("worker.announced", announcement(count, size, "2"), namespaces=["shop"], id=f"{NAME}.2")
    refused = await peer.read_event()
    assert refused["to"] == f"{NAME}.2"
    assert refused["payload"]["accepted"] == []
    assert "too many operations: expected at most 10,000" in refused["payload"]["refused"]["shop"]
    assert hub.operations == ["shop.one1-0"]
    await peer.close()


async def test_the_limits_hold_for_all_workers_of_a_session_together(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_MOST_OPERATIONS", 10)
    peer = await RawPeer.join(hub.port, "shop", NAME)
    accepted = []
    for number in range(4):
        peer.send_event("worker.announced", announcement(4, worker=str(number)), namespaces=["shop"])
        accepted.append(len((await peer.read_event())["payload"]["accepted"]))
    assert accepted == [4, 4, 0, 0]
    peer.send_event("worker.gone", {"workerId": f"{NAME}.0"})
    await peer.read_event()
    peer.send_event("worker.announced", announcement(4, worker="3"), namespaces=["shop"])
    assert len((await peer.read_event())["payload"]["accepted"]) == 4
    await peer.close()


async def test_operations_that_are_refused_are_not_kept(hub: Hub) -> None:
    peer = await RawPeer.join(hub.port, "shop", NAME)
    spec = stub_operation("bank.pay").spec.to_dict()
    broken = {"namespace": "shop", "name": "broken", "type": "none"}
    announced = {"workerId": f"{NAME}.1", "generation": 1, "operations": [spec, broken]}
    peer.send_event("worker.announced", announced, namespaces=["shop", "bank"])
    answer = (await peer.read_event())["payload"]
    assert answer["accepted"] == []
    assert answer["rejected"].keys() == {"shop.broken"}
    assert answer["refused"].keys() == {"bank"}
    ((registration,),) = [workers.values() for workers in hub.router.directory._workers.values()]
    assert registration.operations == {}
    await peer.close()


async def test_calls_in_flight_are_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "_MOST_CALLS", 3)
    monkeypatch.setattr(hub.router, "_calls_per_caller", 3)
    sleeper = Sleeper("shop.sleep")
    async with Spoke(hub.url, token="shop") as spoke, Spoke(hub.url, token="mallory") as caller:
        worker = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await worker.registered()
        pending = PendingRequestMap(caller)
        calls = [asyncio.create_task(pending.call("shop.sleep")) for _ in range(3)]
        await until(lambda: sleeper.runs == 3)
        error = await error_of(pending.call("shop.sleep"))
        assert error.details == {"operationId": "shop.sleep", "executed": "no"}
        assert "too many calls" in error.message
        sleeper.let_go.set()
        assert {(await call).data for call in calls} == {"awake"}
        await worker.close()


async def test_a_call_that_neither_side_ends_expires(hub: Hub) -> None:
    caller, worker = await RawPeer.join(hub.port, "mallory"), await RawPeer.join(hub.port, "shop", NAME)
    worker.send_event("worker.announced", announcement(1), namespaces=["shop"])
    await worker.read_event()
    deadline = int(time.time() * 1000) + 50
    caller.send_event("call.requested", {"requestId": "a"}, id="a", to="shop.one1-0", deadline=deadline)
    request = await worker.read_event()
    error = await caller.read_event()
    assert (error["id"], error["payload"]["code"]) == ("a", "TIMEOUT")
    aborted = await worker.read_event()
    assert (aborted["type"], aborted["id"]) == ("call.aborted", request["id"])
    assert hub.counters.in_flight == 0
    assert hub.router._expiring == {}
    assert all(not session.running and not session.calls for session in hub.router.sessions.values())
    await caller.close()
    await worker.close()
