"""Guarantee: messages that a peer may not send are refused before they are parsed, and no message delays others for
long.
"""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.codec import Codec
from operations.calls.hub import Hub, directory, router
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.pubsub import link
from operations.pubsub.link import Link
from operations.pubsub.websocket import WebSocketLink
from operations.pubsub.websocket_server import serve
from operations.spec import OperationSpec
from operations.testing import error_of, stub_operation
from tests.asgi_server import serving_here
from tests.contracts.operations_under_test import Sleeper
from tests.security.raw_websocket import BINARY, TEXT, RawPeer
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "mallory": Principal(Identity("mallory")),
        "shop": Principal(Identity("shop"), ("shop",)),
        "two": Principal(Identity("two"), ("two.a", "two.b")),
    }
)
NAME = "w" * 32


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub(TOKENS) as hub:
        yield hub


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts of the decoded parts of announcements: whole announcements, names of specs, whole specs."""
    steps: list[str] = []
    from_dict = OperationSpec.from_dict
    readers = directory._read_announcement, directory._read_spec_name

    def read_spec(data: Any) -> OperationSpec:
        steps.append("spec")
        return from_dict(data)

    def note(step: str, read: Any) -> Any:
        def noted(part: Any, codec: Codec) -> Any:
            steps.append(step)
            return read(part, codec)

        return noted

    monkeypatch.setattr(OperationSpec, "from_dict", read_spec)
    monkeypatch.setattr(directory, "_read_announcement", note("announcement", readers[0]))
    monkeypatch.setattr(directory, "_read_spec_name", note("name", readers[1]))
    return steps


def announcement(namespace: str, count: int) -> dict[str, Any]:
    spec = stub_operation(f"{namespace}.one").spec.to_dict()
    operations = [{**spec, "name": f"one{number}"} for number in range(count)]
    return {"workerId": f"{NAME}.1", "generation": 1, "operations": operations}


@pytest.mark.parametrize(
    "namespaces", [[], ["bank"], ["*"], ["bank", "shop"], [f"bank{n}" for n in range(64)]], ids=len
)
async def test_an_announcement_without_any_right_is_not_read(
    hub: Hub, parsed: list[str], namespaces: list[str]
) -> None:
    peer = await RawPeer.join(hub.port, "mallory", NAME)
    peer.send_event("worker.announced", announcement("bank", 5_000), namespaces=namespaces, id=f"{NAME}.1")
    answer = await peer.read_event()
    assert answer["to"] == f"{NAME}.1"
    assert answer["payload"]["refused"].keys() == set(namespaces or ["*"])
    assert parsed == []
    assert hub.router.directory._workers == {}
    await peer.close()


async def test_too_many_namespaces_are_not_an_announcement(hub: Hub, parsed: list[str]) -> None:
    peer = await RawPeer.join(hub.port, "shop", NAME)
    peer.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"] * 65)
    await until(lambda: hub.counters.malformed == 1)
    assert parsed == []
    await peer.close()


async def test_of_other_namespaces_only_the_name_is_read(hub: Hub, parsed: list[str]) -> None:
    peer = await RawPeer.join(hub.port, "shop", NAME)
    announced = announcement("bank", 10)
    announced["operations"] += announcement("shop", 1)["operations"] + announcement("store", 1)["operations"]
    peer.send_event("worker.announced", announced, namespaces=["shop", "bank"])
    answer = (await peer.read_event())["payload"]
    assert answer["accepted"] == ["shop.one0"]
    assert answer["refused"].keys() == {"bank"}
    assert answer["rejected"].keys() == {"store.one0"}
    assert [parsed.count(step) for step in ("announcement", "name", "spec")] == [1, 12, 1]
    await peer.close()


async def test_only_listed_namespaces_can_be_registered(hub: Hub, parsed: list[str]) -> None:
    peer = await RawPeer.join(hub.port, "two", NAME)
    announced = announcement("two.a", 1)
    announced["operations"] += announcement("two.b", 1)["operations"] + announcement("two.c", 1)["operations"]
    peer.send_event("worker.announced", announced, namespaces=["two.a"])
    answer = (await peer.read_event())["payload"]
    assert answer["accepted"] == ["two.a.one0"]
    assert "does not list" in answer["rejected"]["two.b.one0"]
    peer.send_event("worker.announced", announced, namespaces=["two"])
    answer = (await peer.read_event())["payload"]
    assert sorted(answer["accepted"]) == ["two.a.one0", "two.b.one0"]
    assert "may not register" in answer["rejected"]["two.c.one0"]
    await peer.close()


async def test_a_worker_with_very_many_namespaces_registers_all_it_may(hub: Hub) -> None:
    names = [f"shop.part{number}" for number in range(100)] + [f"other{number}" for number in range(5)]
    registry = OperationRegistry([stub_operation(f"{name}.one") for name in names])
    async with Spoke(hub.url, token="shop") as spoke:
        worker = CallHandler(registry, spoke)
        await until(lambda: len(hub.operations) == 100 and bool(worker.rejected))
        assert worker.rejected.keys() == {f"other{number}.one" for number in range(5)}
        await worker.close()


class Notes:
    """Messages of several links in the order in which they were handled."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.handled: list[tuple[int, bytes]] = []
        self.ended: list[int] = []
        self.first = asyncio.Event()

    def opened(self, link: Link) -> None:
        self.links.append(link)

    def received(self, message: bytes, link: Link) -> None:
        self.handled.append((self.links.index(link), message))
        self.first.set()

    def drained(self, link: Link) -> None:
        pass

    def receiving(self, link: Link) -> None:
        pass

    def backlogged(self, link: Link, size: int) -> None:
        """Nothing is sent."""

    def closed(self, link: Link, reason: str) -> None:
        self.ended.append(self.links.index(link))


def batch(messages: list[bytes]) -> bytes:
    return b"".join([struct.pack(f">B{len(messages) + 1}I", 0, len(messages), *map(len, messages)), *messages])


async def test_a_frame_of_very_many_messages_is_handled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TURN_SECONDS", 60.0)  # a busy machine ends turns earlier, as the next test shows
    notes = Notes()
    listener = await serve(lambda token: notes)
    flood, honest = await RawPeer.connect(listener.port), await RawPeer.connect(listener.port)
    for _ in range(16):
        flood.send(BINARY, batch([b"x"] * 4_096))
    await notes.first.wait()
    honest.send(TEXT, b"{}")
    await until(lambda: len(notes.handled) == 65_537)
    place = notes.handled.index((1, b"{}"))
    assert place % link.TURN_MESSAGES == 0, "between two turns"
    assert place < 60_000, "before most of the flood"
    # A peer that closes directly after its messages loses none of them.
    flood.send(BINARY, batch([b"y"] * 1_000))
    flood.send(8, b"\x03\xe8")
    await until(lambda: notes.ended == [0])
    assert notes.handled.count((0, b"y")) == 1_000
    for peer in (flood, honest):
        await peer.close()
    await listener.close()


async def test_a_message_that_takes_long_ends_the_turn() -> None:
    class Slow(Notes):
        def received(self, message: bytes, link: Link) -> None:
            super().received(message, link)
            iterations.append(iteration)
            end = loop.time() + 2 * link_turn
            while loop.time() < end:
                pass

    link_turn, loop, iteration, iterations = link.TURN_SECONDS, asyncio.get_running_loop(), 0, list[int]()
    slow = Slow()
    listener = await serve(lambda token: slow)
    peer = await RawPeer.connect(listener.port)
    peer.send(BINARY, batch([b"x"] * 5))
    while len(slow.handled) < 5:
        iteration += 1
        await asyncio.sleep(0)
    assert len(set(iterations)) == 5
    await peer.close()
    await listener.close()


async def test_large_messages_are_handled_one_in_each_iteration() -> None:
    class Counting(Notes):
        def received(self, message: bytes, link: Link) -> None:
            super().received(message[:1], link)
            iterations.append(iteration)

    iteration, iterations, notes = 0, list[int](), Counting()
    listener = await serve(lambda token: notes)
    peers = [await RawPeer.connect(listener.port) for _ in range(8)]
    large = bytes([1]) * (link.LARGE_MESSAGE + 1)
    for peer in peers:
        peer.send(BINARY, large)
        peer.send(BINARY, large)
    while len(notes.handled) < 16:
        iteration += 1
        await asyncio.sleep(0)
    assert len(set(iterations)) == 16
    for peer in peers:
        await peer.close()
    await listener.close()


async def test_reading_pauses_while_many_bytes_wait_to_be_handled() -> None:
    notes = Notes()
    listener = await serve(lambda token: notes)
    peer = await RawPeer.connect(listener.port)
    for _ in range(40):
        peer.send(BINARY, batch([bytes(1_000)] * 200))
    (websocket,) = [each for each in notes.links if isinstance(each, WebSocketLink)]
    most = 0
    while len(notes.handled) < 8_000:
        most = max(most, websocket._backlog_bytes)
        await asyncio.sleep(0)
    assert most < 4 << 20, "of 8 MB that were sent"
    assert websocket._backlog_bytes == 0
    await peer.close()
    await listener.close()


async def test_repeated_requests_for_announcements_are_answered_in_turns(hub: Hub) -> None:
    async with Spoke(hub.url, token="shop") as spoke:
        registry = OperationRegistry([stub_operation(f"shop.one{number}") for number in range(50)])
        worker = CallHandler(registry, spoke)
        await worker.registered()
        peer = await RawPeer.join(hub.port, "mallory", batch=True)
        asked = msgspec.json.encode({"v": 1, "type": "worker.asked", "id": "", "to": "", "payload": {"peer": "x"}})
        peer.send(BINARY, batch([asked] * 10_000))
        other = await RawPeer.join(hub.port, "mallory", "o" * 32)
        other.send_event("call.requested", {"requestId": "a"}, id="a", to="no.where")
        assert (await other.read_event())["payload"]["code"] == "UNAVAILABLE"
        for each in (peer, other):
            await each.close()
        await worker.close()


async def test_a_worker_that_does_not_read_gets_no_more_requests_and_stays(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "_MOST_UNREAD", 1 << 20)
    worker = await RawPeer.join(hub.port, "shop", NAME)
    worker.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"])
    await worker.read_event()
    worker.reader._transport.pause_reading()  # type: ignore[attr-defined]
    async with Spoke(hub.url, token="two") as spoke:  # requests of a caller without rights would wait at the hub
        pending = PendingRequestMap(spoke)
        calls: list[asyncio.Task[Any]] = []
        while not any(call.done() for call in calls):
            calls.append(asyncio.create_task(pending.call("shop.one0", {"text": "x" * (1 << 18)})))
            await asyncio.sleep(0.001)
            assert len(calls) < 1_000
        refused = next(call for call in calls if call.done())
        error = await error_of(refused)
        assert error.details == {"operationId": "shop.one0", "executed": "no"}
        assert "too slowly" in error.message
        assert hub.connected == ["shop", "two"]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    await worker.close()


async def test_the_calls_of_a_lost_peer_are_ended_in_turns(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "_ENDS_PER_TURN", 10)
    sleeper = Sleeper("shop.sleep")
    async with Spoke(hub.url, token="shop") as spoke:
        worker = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await worker.registered()
        caller = await RawPeer.join(hub.port, "mallory")
        for number in range(100):
            payload = {"requestId": f"{number}", "operationId": "shop.sleep"}
            caller.send_event("call.requested", payload, id=f"{number}", to="shop.sleep")
        await until(lambda: sleeper.runs == 100)
        (session,) = [each for each in hub.router.sessions.values() if each.peer == spoke.peer]
        left: list[int] = []
        await caller.close()
        while session.running:
            left.append(len(session.running))
            await asyncio.sleep(0)
        assert len(set(left)) >= 9
        await until(lambda: worker.in_flight == 0)
        await until(lambda: len(session.grants) == 0)
        await worker.close()


async def test_worker_events_of_a_peer_without_workers_are_not_parsed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(part: Any, codec: Codec) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr(directory, "_read_worker_name", refuse)
    peer = await RawPeer.join(hub.port, "mallory")
    peer.send_event("worker.gone", {"workerId": "x", "behind": ["x"] * 100_000})
    await until(lambda: hub.counters.dropped == 1)
    await peer.close()


async def test_no_peer_is_sent_more_than_it_accepts(hub: Hub) -> None:
    worker = await RawPeer.join(hub.port, "shop", NAME, maxPayload=5_000)
    worker.send_event("worker.announced", announcement("shop", 500), namespaces=["shop"])
    registered = await worker.read_event()
    assert registered["payload"] == {"accepted": [], "rejected": {}, "refused": {}}
    # Announcements come in parts.
    caller = await RawPeer.join(hub.port, "mallory", maxPayload=20_000)
    caller.send_event("worker.asked", {"peer": "n" * 32})
    first = (await caller.read_event())["payload"]
    others = [(await caller.read_event())["payload"] for _ in range(first["parts"] - 1)]
    assert [part["part"] for part in others] == list(range(1, first["parts"]))
    assert sum(len(part["operations"]) for part in (first, *others)) == 500
    # Control messages of a caller cannot disconnect the worker of its request.
    payload = {"requestId": "a", "operationId": "shop.one0"}
    caller.send_event("call.requested", payload, id="a", to="shop.one0")
    request = await worker.read_event()
    caller.send_event("call.credit", {"requestId": "a", "items": 1, "more": "x" * 100_000}, id="a")
    assert (await worker.read_event())["payload"] == {"requestId": request["id"]}
    caller.send_event("call.aborted", {"requestId": "a", "reason": "x" * 100_000}, id="a")
    aborted = await worker.read_event()
    assert (aborted["type"], aborted["id"]) == ("call.aborted", request["id"])
    assert hub.connected == ["mallory", "shop"]
    for each in (caller, worker):
        await each.close()


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc3"], ids=repr)
async def test_a_payload_that_is_not_utf8_is_not_forwarded(hub: Hub, text: bytes) -> None:
    """An ASGI server closes the connection of the peer that such a message is sent to."""
    async with serving_here(hub.asgi_app()) as url, Spoke(url, token="shop") as spoke, asyncio.timeout(20):
        sleeper = Sleeper("shop.one0")
        worker = CallHandler(OperationRegistry([sleeper.operation]), spoke)
        await worker.registered()
        caller = await RawPeer.join(hub.port, "mallory")
        payload = b'{"requestId":"a","operationId":"shop.one0","input":{"text":"' + text + b'"}}'
        caller.send(BINARY, b'{"v":1,"type":"call.requested","id":"a","to":"shop.one0","payload":' + payload + b"}")
        refused = await caller.read_event()
        assert (refused["id"], refused["payload"]["code"]) == ("a", "VALIDATION_ERROR")
        caller.send_event("call.requested", {"requestId": "b", "operationId": "shop.one0"}, id="b", to="shop.one0")
        await until(lambda: sleeper.runs == 1)
        for kind in (b"call.credit", b"call.aborted"):
            payload = b'{"requestId":"b","reason":"' + text + b'"}'
            caller.send(BINARY, b'{"v":1,"type":"' + kind + b'","id":"b","to":"","payload":' + payload + b"}")
        await until(lambda: hub.counters.malformed == 3)
        sleeper.let_go.set()
        assert (await caller.read_event())["payload"]["output"]["data"] == "awake"
        assert spoke.reconnects == 0
        await caller.close()
        await worker.close()


async def test_an_identity_in_other_events_than_requests_is_not_forwarded(hub: Hub) -> None:
    """It may be as large as a message, and the limits of control messages and progress are those of their payload."""
    worker = await RawPeer.join(hub.port, "shop", NAME)
    worker.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"])
    await worker.read_event()
    caller = await RawPeer.join(hub.port, "mallory")
    large = {"id": "x", "claims": {"text": "x" * 1_000_000}}
    for number, kind in enumerate(("call.credit", "call.aborted")):
        payload = {"requestId": f"{number}", "operationId": "shop.one0"}
        caller.send_event("call.requested", payload, id=f"{number}", to="shop.one0")
        request = await worker.read_event()
        for each in ("call.accepted", "call.progress"):
            interim = {"requestId": f"{number}", "workerId": f"{NAME}.1", "progress": 1}
            worker.send_event(each, interim, id=request["id"], identity=large)
            assert len((await caller.read())[1]) < 500
        caller.send_event(kind, {"requestId": f"{number}"}, id=f"{number}", identity=large)
        assert len((await worker.read())[1]) < 500
    for peer in (caller, worker):
        await peer.close()


@pytest.mark.parametrize("field", ["to", "v", "identity", "payload", "unknown"])
async def test_invalid_fields_of_a_request_are_not_decoded(hub: Hub, field: str) -> None:
    """Many small objects in a message cost forty times its size."""
    large = b"[" + b"{}," * 500_000 + b"{}]"
    fields = {"v": b"1", "type": b'"call.requested"', "id": b'"a"', "to": b'"no.where"', "payload": b"{}", field: large}
    message = b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in fields.items()) + b"}"
    peer = await RawPeer.join(hub.port, "mallory", NAME)
    tracemalloc.start()
    try:
        peer.send(TEXT, message)
        assert (await peer.read_event())["type"] == "call.error"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(message)
    await peer.close()
