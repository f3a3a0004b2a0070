"""Guarantee: frames of any size and number, and messages in any format, cost a hub little time and memory."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
import pytest

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub, server
from operations.calls.hub.asgi import ASGILink
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.pubsub.link import LARGE_MESSAGE, LargeMessages, Link, Turn
from operations.pubsub.websocket import WebSocketLink
from operations.pubsub.websocket_server import serve
from operations.serving import app, http_protocol
from operations.serving.server import HTTPServer
from operations.serving.websocket_reader import WebSocketReader
from operations.testing import error_of, stub_operation
from operations.wire import has_more_values
from tests.security.fuzzing_peer import discard
from tests.security.raw_websocket import BINARY, TEXT, RawPeer
from tests.security.test_refused_before_parsed import Notes, announcement
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "mallory": Principal(Identity("mallory")),
        "ada": Principal(Identity("ada", ("shop",))),
        "shop": Principal(Identity("shop"), ("shop",)),
    }
)
NAME = "w" * 32
MOST_READ = 32 << 10
EMPTY_FRAME = b"\x81\x80" + bytes(4)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub(TOKENS) as hub:
        yield hub


def only_link(notes: Notes) -> WebSocketLink:
    (link,) = notes.links
    assert isinstance(link, WebSocketLink)
    return link


async def test_one_read_returns_few_frames_however_large_the_buffer_is() -> None:
    notes = Notes()
    listener = await serve(lambda token: notes)
    peer = await RawPeer.connect(listener.port)
    peer.send(BINARY, b"x" * (8 << 20))  # the buffer grows, and stays so large
    await until(lambda: len(notes.handled) == 1)
    link = only_link(notes)
    protocol = link._transport.underlying_transport.get_protocol()
    assert len(protocol.get_buffer(-1)) <= MOST_READ
    link.turn.begin()
    link.turn.end = 0.0
    assert len(protocol.get_buffer(-1)) <= MOST_READ // 64, "the turn of its identity is over"
    protocol.buffer_updated(0)
    assert not link._transport.underlying_transport.is_reading(), "until the next iteration"
    await until(link._transport.underlying_transport.is_reading)
    await peer.close()
    await listener.close()


async def test_empty_frames_count_as_unhandled_data() -> None:
    notes, most = Notes(), 0
    listener = await serve(lambda token: notes)
    peer = await RawPeer.connect(listener.port)
    peer.writer.write(EMPTY_FRAME * 200_000)
    await notes.first.wait()
    link = only_link(notes)
    while len(notes.handled) < 200_000:
        most = max(most, len(link._backlog))
        await asyncio.sleep(0)
    assert most < 50_000
    await peer.close()
    await listener.close()


async def test_a_closed_connection_frees_its_buffers_without_the_collector() -> None:
    notes = Notes()
    listener = await serve(lambda token: notes)
    gc.disable()
    try:
        peer = await RawPeer.connect(listener.port)
        peer.send(BINARY, b"x" * (1 << 20))
        await until(lambda: len(notes.handled) == 1)
        reader = only_link(notes)._reader
        assert reader is not None
        protocol = reader._inner
        await peer.close()
        await until(lambda: notes.ended == [0])
        await until(lambda: sys.getrefcount(protocol) == 2)  # of this test and of getrefcount
    finally:
        gc.enable()
    await listener.close()


async def test_a_peer_without_rights_sends_smaller_messages(hub: Hub) -> None:
    for token, most in (("mallory", 4 << 20), ("ada", 16 << 20), ("shop", 16 << 20)):
        async with Spoke(hub.url, token=token) as spoke:
            assert spoke.capabilities.max_payload == most
    peer = await RawPeer.join(hub.port, "mallory", NAME)
    peer.send(TEXT, b'{"v":1,"type":"x","id":"","to":"","payload":"' + b"x" * (5 << 20) + b'"}')
    assert await peer.read_end() == b""
    await until(lambda: hub.connected == [])
    await peer.close()


async def test_receive_buffers_of_a_token_without_rights_are_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_RECEIVED", 4 << 20)
    unfinished = struct.pack(">BBQ", 0x81, 0xFF, 2 << 20) + bytes(1 << 20)
    honest = [await RawPeer.join(hub.port, "ada", os.urandom(16).hex()) for _ in range(8)]
    hostile = [await RawPeer.join(hub.port, "mallory", os.urandom(16).hex()) for _ in range(8)]
    for peer in (*honest, *hostile):
        peer.writer.write(unfinished)
    await until(lambda: hub.connected.count("mallory") <= 4)
    assert hub.connected.count("ada") == 8, "those with rights stay"
    for peer in (*honest, *hostile):
        await peer.close()


async def test_large_messages_over_asgi_are_handled_one_in_each_iteration() -> None:
    class Counting(Notes):
        def received(self, message: bytes, link: Link) -> None:
            iterations.append(iteration)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.receive", "bytes": bytes([1]) * (LARGE_MESSAGE + 1)}

    iteration, iterations, large = 0, list[int](), LargeMessages()
    links = [ASGILink(Counting(), 1 << 20) for _ in range(8)]
    for link in links:
        link.large = large
    tasks = [asyncio.create_task(link._read(receive)) for link in links]
    while len(iterations) < 40:
        iteration += 1
        await asyncio.sleep(0)
    assert len(set(iterations)) == len(iterations)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class NotingReader(WebSocketReader):
    """Notes how many bytes are parsed at once, and what is unsent."""

    parsed: ClassVar[list[int]] = []
    unsent: ClassVar[list[int]] = []

    def __init__(self, transport: asyncio.Transport, protocol: Any, turn: Turn) -> None:
        super().__init__(transport, protocol, turn)
        parse = protocol.data_received

        def note(data: bytes) -> None:
            self.parsed.append(len(data))
            parse(data)
            self.unsent.append(transport.get_write_buffer_size())

        protocol.data_received = note


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RawPeer]:
    """A peer of a served registry."""
    monkeypatch.setattr(http_protocol, "WebSocketReader", NotingReader)
    NotingReader.parsed.clear()
    NotingReader.unsent.clear()
    registry = OperationRegistry([stub_operation("shop.echo", returns=lambda input: input)])
    async with HTTPServer(app(registry), 0) as server:
        peer = await RawPeer.connect(int(server.url.rpartition(":")[2].strip("/")), path=b"/ws")
        assert peer.status == 101
        peer.send_event("hub.hello", {"peer": NAME, "generation": 1})
        await peer.read()
        yield peer
        await peer.close()


async def test_a_served_registry_parses_few_frames_at_once(served: RawPeer) -> None:
    served.writer.write(EMPTY_FRAME * 50_000)
    payload = {"requestId": "a", "operationId": "shop.echo", "input": {"text": "x" * (1 << 20)}}
    served.send_event("call.requested", payload, id="a", to="shop.echo")
    async with asyncio.timeout(30):
        while (event := await served.read_event())["id"] != "a":
            pass
    assert event["payload"]["output"]["data"] == payload["input"], "nothing is lost"
    assert max(NotingReader.parsed) <= 4 << 10
    assert sum(NotingReader.parsed) > 50_000 * len(EMPTY_FRAME)


async def test_a_served_registry_stops_reading_pings_of_one_that_does_not_read(served: RawPeer) -> None:
    served.reader._transport.pause_reading()  # type: ignore[attr-defined]
    ping = b"\x89\xfd" + bytes(4) + b"x" * 125
    sent = 0
    while not NotingReader.unsent or NotingReader.unsent[-1] <= 1 << 20:
        served.writer.write(ping * 1_000)
        sent += 1
        await asyncio.sleep(0)
        assert sent < 1_000
    served.writer.write(ping * 100_000)
    parsed = len(NotingReader.parsed)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(NotingReader.parsed) <= parsed + 1
    served.reader._transport.resume_reading()  # type: ignore[attr-defined]
    reading = asyncio.create_task(discard(served.reader))
    await until(lambda: len(NotingReader.parsed) > parsed + 1)
    reading.cancel()


# Conversions between formats.


def request(values: Any) -> bytes:
    payload = {"requestId": "a", "operationId": "shop.one0", "input": {"values": values}}
    return msgspec.msgpack.encode({"v": 1, "type": "call.requested", "id": "a", "to": "shop.one0", "payload": payload})


@pytest.mark.parametrize(
    "values", [[[]] * 25_000, [1] * 25_000, {str(n): 1.5 for n in range(13_000)}, b"x" * (5 << 20)]
)
async def test_many_values_are_not_converted(hub: Hub, values: Any) -> None:
    worker = await RawPeer.join(hub.port, "shop", NAME, codecs=["json"])
    worker.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"])
    await worker.read_event()
    caller = await RawPeer.join(hub.port, "ada", codecs=["json", "msgpack"])
    caller.send(BINARY, request(values))
    _, refused = await caller.read()
    details = msgspec.msgpack.decode(refused)["payload"]["details"]
    assert (details["reason"], details["executed"]) == ("NOT_CONVERTED", "no")
    # A caller gets no conversion of a response either by a request in a format that it does not support.
    other = await RawPeer.join(hub.port, "mallory", "o" * 32, codecs=["json"])
    other.send_event("call.requested", {"requestId": "a", "operationId": "shop.one0"}, id="a", to="shop.one0")
    given = (await worker.read_event())["id"]
    output = {"data": values, "meta": {"source": "local", "operationId": "shop.one0", "timestamp": 1}}
    payload = {"requestId": given, "output": output}
    response = {"v": 1, "type": "call.responded", "id": given, "to": "", "payload": payload}
    worker.send(BINARY, msgspec.msgpack.encode(response))
    details = (await other.read_event())["payload"]["details"]
    assert (details["reason"], details["executed"]) == ("NOT_CONVERTED", "yes")
    for each in (worker, caller, other):
        await each.close()


async def test_few_values_are_converted_and_the_library_sends_many_as_json(hub: Hub) -> None:
    worker = await RawPeer.join(hub.port, "shop", NAME, codecs=["json"])
    worker.send_event("worker.announced", announcement("shop", 1), namespaces=["shop"])
    await worker.read_event()
    async with Spoke(hub.url, token="mallory") as spoke:
        pending = PendingRequestMap(spoke)
        for values in ([1], [1] * 100_000):
            call = asyncio.create_task(pending.call("shop.one0", {"values": values}))
            event = await worker.read_event()
            assert event["payload"]["input"] == {"values": values}
            output = {"data": "ok", "meta": {"source": "local", "operationId": "shop.one0", "timestamp": 1}}
            worker.send_event("call.responded", {"requestId": event["id"], "output": output}, id=event["id"])
            assert (await call).data == "ok"
        error = await error_of(pending.call("shop.one0", {"values": [1 / 3] * 400_000}))
        assert error.details["reason"] == "NOT_CONVERTED", "as JSON it is over the limit of this peer"
    await worker.close()


async def test_every_peer_gets_json_unless_it_supports_both_formats(hub: Hub) -> None:
    async with Spoke(hub.url, token="shop") as spoke:
        worker = CallHandler(OperationRegistry([stub_operation("shop.echo")]), spoke)
        await worker.registered()
        peer = await RawPeer.join(hub.port, "mallory", codecs=["msgpack"])
        peer.send_event("worker.asked", {"peer": "x"})
        opcode, announced = await peer.read()
        assert opcode == TEXT
        assert msgspec.json.decode(announced)["type"] == "worker.announced", "it is not converted"
        await peer.close()
        await worker.close()


@pytest.mark.parametrize(
    "value",
    [
        [0, -1, 127, 128, 65_536, 2**40, -(2**40), 1.5, None, True],
        ["", "x" * 31, "x" * 32, "x" * 300, "x" * 70_000],
        [b"", b"x" * 300, b"x" * 70_000],
        [msgspec.msgpack.Ext(1, bytes(size)) for size in (1, 2, 4, 8, 16, 3, 300, 70_000)],
        {str(number): [{}] * 20 for number in range(70_000)},
    ],
    ids=["numbers", "strings", "bytes", "extensions", "containers"],
)
def test_values_are_counted_without_decoding_them(value: Any) -> None:
    def count(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + sum(1 + count(item) for item in value.values())
        return 1 + sum(map(count, value)) if isinstance(value, list) else 1

    encoded, values = msgspec.msgpack.encode(value), count(value)
    assert not has_more_values(encoded, values)
    assert has_more_values(encoded, values - 1)
    assert not has_more_values(encoded[: len(encoded) // 2], values)
