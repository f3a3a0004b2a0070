"""Guarantee: for a peer that pings and never reads, one reply is buffered, not one for each ping."""

from __future__ import annotations

import asyncio
from typing import Any

from operations import Identity
from operations.calls.hub import Hub
from operations.identity import Principal, StaticTokens
from operations.pubsub.websocket import WebSocketLink
from tests.security.raw_websocket import PING, PONG, RawPeer
from tests.waiting import until

TOKENS = StaticTokens({"mallory": Principal(Identity("mallory"))})


def link_of(hub: Hub) -> WebSocketLink:
    (session,) = hub.router.sessions.values()
    assert isinstance(session.link, WebSocketLink)
    return session.link


async def test_a_flood_of_pings_is_answered_once_for_many() -> None:
    async with Hub(TOKENS) as hub:
        peer = await RawPeer.join(hub.port, "mallory")
        for number in range(10_000):
            peer.send(PING, b"%d" % number)
        pongs: list[bytes] = []
        while pongs[-1:] != [b"9999"]:
            opcode, payload = await peer.read()
            if opcode == PONG:
                pongs.append(payload)
        assert len(pongs) < 5_000
        assert pongs == sorted(pongs, key=int)
        await peer.close()


async def test_pings_of_a_peer_that_does_not_read_buffer_nothing(monkeypatch: Any) -> None:
    async with Hub(TOKENS) as hub:
        peer = await RawPeer.join(hub.port, "mallory")
        link = link_of(hub)
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        # What the hub has to send fills the sockets' own buffers.
        while not link.is_slow:
            link.send(bytes(1 << 18))
            await asyncio.sleep(0)
        unsent = link.unsent_bytes
        handled = 0
        control = WebSocketLink._control

        def count(self: WebSocketLink, kind: Any, frame: Any) -> None:
            nonlocal handled
            handled += 1
            control(self, kind, frame)

        monkeypatch.setattr(WebSocketLink, "_control", count)
        for _ in range(100):
            for _ in range(1_000):
                peer.send(PING, bytes(125))
            await peer.writer.drain()
        await until(lambda: handled >= 100_000)
        assert unsent < link.unsent_bytes + 1 <= unsent + 126 + 1, "one pong, counted as unsent"
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        while (await peer.read())[0] != PONG:
            pass
        await peer.close()
