"""A peer that does not read makes the hub keep little, and all such peers together are bounded as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import ErrorCode, Identity
from operations.calls import PendingRequestMap, streams
from operations.calls.hub import Hub, server, session
from operations.calls.hub.session import SlowReaderCheck
from operations.identity import Principal, StaticTokens
from operations.pubsub import Arrival
from operations.pubsub.link import Link
from operations.pubsub.memory import MemoryTransport
from operations.testing import error_of
from tests.security.raw_websocket import RawPeer
from tests.security.test_refused_before_parsed import NAME, announcement
from tests.waiting import until

TOKENS = StaticTokens(
    {name: Principal(Identity(name)) for name in ("ada", "bob", "mallory")}
    | {"shop": Principal(Identity("shop"), ("shop",))}
)


def link_of(hub: Hub, name: str) -> Link:
    (found,) = [each.link for each in hub.router.sessions.values() if each.principal.identity.id == name]
    assert found is not None
    return found


async def fill(link: Link, size: int) -> None:
    """Send until so much waits for the peer."""
    while link.unsent_bytes < size:
        link.send(bytes(1 << 16))
        await asyncio.sleep(0)


async def join(hub: Hub, name: str) -> RawPeer:
    peer = await RawPeer.join(hub.port, name, f"{name}-{0:016}")
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    return peer


async def test_a_peer_that_never_reads_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_READING_SECONDS", 0.05)
    async with Hub(TOKENS) as hub, asyncio.timeout(30):
        mallory, ada = await join(hub, "mallory"), await join(hub, "ada")
        few = link_of(hub, "ada")
        await fill(few, session._SLOW_UNSENT // 2)
        await fill(link_of(hub, "mallory"), session._SLOW_UNSENT + 1)
        await until(lambda: hub.connected == ["ada"])
        assert few.unsent_bytes >= session._SLOW_UNSENT // 2
        for peer in (mallory, ada):
            await peer.close()


class Unread:
    """A link with a given number of unread bytes."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.aborted = False

    def abort(self, reason: str) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("written", "read", "aborted"),
    [(0, 0, True), (0, 10_000, True), (40 << 20, 10_000, True), (0, 1 << 20, False), (40 << 20, 2 << 20, False)],
)
async def test_a_peer_with_many_unread_bytes_must_keep_reading(written: int, read: int, aborted: bool) -> None:
    unread = Unread()
    check = SlowReaderCheck(unread)  # type: ignore[arg-type]
    unread.unsent_bytes = session._SLOW_UNSENT + (3 << 20)
    check.wrote(session._SLOW_UNSENT + (3 << 20))
    for _ in range(2):  # each time, not only at first
        unread.unsent_bytes += written
        check.wrote(written)
        unread.unsent_bytes -= read
        assert not unread.aborted
        assert check._timer is not None
        check._timer.cancel()
        check._check()
        if aborted:
            break
    assert unread.aborted is aborted
    unread.aborted, unread.unsent_bytes = False, session._SLOW_UNSENT
    check.close()
    check._check()
    assert not unread.aborted, "what is no more than that may wait"


async def test_unread_data_of_all_peers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_UNSENT", 8 << 20)
    monkeypatch.setattr(server, "_UNSENT_SECONDS", 0.0)
    monkeypatch.setattr(session, "_SLOW_UNSENT", 1 << 30)
    async with Hub(TOKENS) as hub, asyncio.timeout(30):
        peers = [await join(hub, name) for name in ("ada", "bob", "mallory")]
        await fill(link_of(hub, "ada"), 1 << 20)
        await fill(link_of(hub, "mallory"), 5 << 20)
        bob = link_of(hub, "bob")
        while "mallory" in hub.connected:
            assert bob.unsent_bytes < 3 << 20
            bob.send(bytes(1 << 16))
            await asyncio.sleep(0)
        # The peer with the most unread data was disconnected, not the one that was sent something last.
        assert hub.connected == ["ada", "bob"]
        for peer in peers:
            await peer.close()


async def test_credit_for_a_worker_that_reads_nothing_becomes_one_message() -> None:
    async with Hub(TOKENS) as hub, asyncio.timeout(30):
        worker = await RawPeer.join(hub.port, "shop", NAME)
        worker.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"])
        await worker.read_event()
        caller = await RawPeer.join(hub.port, "mallory")
        for each in ("a", "b"):
            payload = {"requestId": each, "operationId": "shop.one0"}
            caller.send_event("call.requested", payload, id=each, to="shop.one0", stream=True)
        ids = [(await worker.read_event())["id"] for _ in range(2)]
        worker.reader._transport.pause_reading()  # type: ignore[attr-defined]
        link = link_of(hub, "shop")
        while not link.is_slow:
            link.send(b"x" * (1 << 16))
            await asyncio.sleep(0)
        unsent = link.unsent_bytes
        for number in range(2_000):
            given = {"requestId": "a", "items": 1, "bytes": 2, "more": "x" * 3_000}
            caller.send_event("call.credit", given, id="a")
            caller.send_event("call.credit", {"requestId": "b", "items": -number}, id="b")
        caller.send_event("call.aborted", {"requestId": "b"}, id="b")
        (owner,) = [each for each in hub.router.sessions.values() if each.link is link]
        await until(lambda: len(owner.running) == 1)
        assert link.unsent_bytes - unsent < 1_000
        worker.reader._transport.resume_reading()  # type: ignore[attr-defined]
        events: list[Any] = []
        while len(events) < 2:
            _, message = await worker.read()
            events += [msgspec.json.decode(message)] if message[:1] == b"{" else []
        assert [(event["type"], event["id"]) for event in events] == [("call.aborted", ids[1]), ("call.credit", ids[0])]
        assert events[1]["payload"] == {"requestId": ids[0], "items": 2_000, "bytes": 4_000}
        for peer in (caller, worker):
            await peer.close()


async def test_a_worker_that_reads_nothing_for_some_seconds_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler may block the event loop: a caller without rights must not make use of that."""
    monkeypatch.setattr(session, "_READING_SECONDS", 0.05)
    async with Hub(TOKENS) as hub, asyncio.timeout(30):
        worker = await RawPeer.join(hub.port, "shop", NAME)
        worker.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"])
        await worker.read_event()
        worker.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await fill(link_of(hub, "shop"), session._SLOW_UNSENT + 1)
        await asyncio.sleep(0.2)
        assert hub.connected == ["shop"]
        await worker.close()


async def collect(stream: AsyncIterator[Any], items: list[Any]) -> None:
    async for item in stream:
        items.append(item)


@pytest.mark.parametrize(("size", "most"), [(10, streams._MOST_ITEMS), (100_000, streams._MOST_BYTES // 100_000 + 1)])
async def test_a_worker_that_ignores_credit_does_not_fill_the_memory_of_a_caller(size: int, most: int) -> None:
    bus = MemoryTransport(direct=False)
    sent, aborts = 0, list[bytes]()

    def flood(message: bytes, arrival: Arrival) -> None:
        nonlocal sent
        request: Any = msgspec.json.decode(message) if message[:1] == b"{" else msgspec.msgpack.decode(message)
        id = request["id"]
        for number in range(2 * most):
            output = {"data": "x" * size, "meta": {"source": "local", "operationId": "shop.watch", "timestamp": 0}}
            payload = {"requestId": id, "output": output, "sequence": number, "workerId": "w.1"}
            event = {"v": 1, "type": "call.responded", "id": id, "to": "", "payload": payload}
            bus.send(f"inbox.{id.rpartition('-')[0]}", msgspec.json.encode(event))
            sent += 1

    bus.listen("work.shop", flood)
    bus.listen("peer.w", lambda message, arrival: aborts.append(message))
    stream = PendingRequestMap(bus.join()).subscribe("shop.watch", {})
    first = await anext(stream)
    assert sent == 2 * most, "everything has arrived before the first item is read"
    items = [first]
    error = await error_of(collect(stream, items))
    assert (len(items), error.code) == (most, ErrorCode.UNAVAILABLE)
    assert "sends more than its credit allows" in error.message
    await until(lambda: any(b"call.aborted" in message for message in aborts))
