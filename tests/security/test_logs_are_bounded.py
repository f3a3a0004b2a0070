"""A peer that sends invalid frames does not fill the log."""

from __future__ import annotations

import asyncio
import logging
import os

import msgspec
import pytest

from operations import Identity, OperationRegistry
from operations.calls import CallHandler, PendingRequestMap
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens
from operations.pubsub import limited_log, nats
from operations.pubsub.limited_log import LINES_A_MINUTE, LimitedLog
from operations.pubsub.nats import transport
from operations.testing import stub_operation
from tests.nats_server import shared_server
from tests.security.raw_websocket import RawPeer

TOKENS = StaticTokens({"mallory": Principal(Identity("mallory"))})


async def test_invalid_frames_write_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Hub(TOKENS) as hub, asyncio.timeout(30):
        for number in range(100):
            peer = await RawPeer.join(hub.port, "mallory", f"mallory-{number:010}")
            peer.writer.write(b"\xf7\xff" + bytes(20))  # reserved bits, and an undefined opcode
            await peer.reader.read()
            await peer.close()
    assert 0 < len(caplog.records) <= 2 * LINES_A_MINUTE  # the clock may change minutes meanwhile
    assert {record.name for record in caplog.records} == {"operations.websocket"}


def test_lines_that_are_left_out_are_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 6_000.0
    monkeypatch.setattr(limited_log, "monotonic", lambda: now)
    log = LimitedLog(logging.getLogger("operations.websocket"), "WebSocket connections")
    for number in range(25):
        log.error("line %d", number)
    assert [record.getMessage() for record in caplog.records] == [f"line {number}" for number in range(20)]
    caplog.clear()
    now += 60
    log.error("another")
    assert [record.getMessage() for record in caplog.records] == [
        "5 log lines about WebSocket connections were dropped",
        "another",
    ]


@pytest.mark.parametrize("kind", ["requests", "asks"])
async def test_peers_that_cannot_get_a_response_write_a_bounded_number_of_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = LimitedLog(logging.getLogger("operations"), "messages to NATS")
    monkeypatch.setattr(transport, "_limited_log", log)  # the other log may have used up its lines of this minute
    prefix = f"t{os.urandom(8).hex()}"
    async with (
        nats.connect(shared_server().url, prefix=prefix) as worker,
        nats.connect(shared_server().url, prefix=prefix, name="mallory") as mallory,
        asyncio.timeout(30),
    ):
        handler = CallHandler(OperationRegistry([stub_operation("shop.price")]), worker)
        pending = PendingRequestMap(mallory)
        await pending.call("shop.price", wait=True)
        for number in range(200):
            id = f"mallory.> {number}-1"
            asked = {"v": 1, "type": "worker.asked", "id": "", "to": "", "payload": {"peer": id}}
            payload = {"requestId": id, "operationId": "shop.price", "input": {}}
            requested = {"v": 1, "type": "call.requested", "id": id, "to": "shop.price", "payload": payload}
            if kind == "asks":
                mallory.send("asks", msgspec.json.encode(asked))
            else:
                mallory.send("work.shop/price", msgspec.json.encode(requested))
        await pending.call("shop.price")
        await mallory.flush()
        await worker.flush()
        await handler.close()
    assert 0 < len(caplog.records) <= 2 * LINES_A_MINUTE + 1
