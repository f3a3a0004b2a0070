"""A peer that sends invalid frames does not fill the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from operations import Identity
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens
from operations.pubsub import websocket
from operations.pubsub.websocket import LimitedLog
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
    assert 0 < len(caplog.records) <= 2 * websocket._LINES_A_MINUTE  # the clock may change minutes meanwhile
    assert {record.name for record in caplog.records} == {"operations.websocket"}


def test_lines_that_are_left_out_are_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 6_000.0
    monkeypatch.setattr(websocket, "monotonic", lambda: now)
    log = LimitedLog(logging.getLogger("operations.websocket"))
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
