"""Guarantee: one token has at most 64 connections, and their unread data has one common limit."""

from __future__ import annotations

import asyncio
import base64
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from operations import CallError, ErrorCode, Identity, OperationRegistry
from operations.calls.hub import Hub, server
from operations.calls.hub.spoke import Spoke
from operations.identity import JWTTokens, Principal, StaticTokens
from operations.pubsub.websocket_client import connect
from operations.serving import app
from operations.testing import stub_operation
from tests.asgi_server import serving_here
from tests.security.raw_websocket import RawPeer
from tests.serving.http_server import running
from tests.waiting import until

TOKENS = StaticTokens(
    {
        "mallory": Principal(Identity("mallory")),
        "trudy": Principal(Identity("mallory", ("shop",))),
        "ada": Principal(Identity("ada")),
        "bob": Principal(Identity("ada")),
    }
)
MALLORY = b"Authorization: Bearer mallory"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


async def test_the_65th_connection_is_429_before_it_is_accepted() -> None:
    async with Hub(TOKENS) as hub:
        peers = [await RawPeer.connect(hub.port, MALLORY) for _ in range(64)]
        assert {peer.status for peer in peers} == {101}
        refused = await RawPeer.connect(hub.port, MALLORY)
        assert refused.status == 429
        spoke = Spoke(hub.url, token="mallory")
        with pytest.raises(CallError, match="too many connections") as caught:
            await connect(hub.url, spoke, token="mallory")
        assert caught.value.code is ErrorCode.UNAVAILABLE
        # Others are not affected, also with another token of one identity.
        for token in ("ada", "bob"):
            await (await RawPeer.join(hub.port, token, token * 8)).close()
        await peers.pop().close()
        await until(lambda: sum(len(account.links) for account in hub._accounts.values()) <= 63)
        peers.append(await RawPeer.connect(hub.port, MALLORY))
        assert peers[-1].status == 101
        for peer in (*peers, refused):
            await peer.close()
        await until(lambda: hub._accounts == {})


async def test_the_65th_connection_is_refused_on_an_asgi_server() -> None:
    hub = Hub(TOKENS)
    async with serving_here(hub.asgi_app()) as url:
        port = int(url.rpartition(":")[2].rstrip("/"))
        peers = [await RawPeer.connect(port, MALLORY) for _ in range(64)]
        assert {peer.status for peer in peers} == {101}
        refused = await RawPeer.connect(port, MALLORY)
        assert refused.status == 429
        for peer in (*peers, refused):
            await peer.close()
        await until(lambda: hub._accounts == {})


@pytest.mark.parametrize("header", [b"Authorization: Bearer %b", b"X-API-Key: %b"], ids=["bearer", "key"])
async def test_the_65th_connection_is_refused_at_a_served_registry_for_a_token_in_any_header(header: bytes) -> None:
    """A handshake may name another token in its sub-protocols, which nobody verifies and which counts for nothing."""
    served = app(OperationRegistry([stub_operation("shop.left")]), mcp=False, authenticator=TOKENS)
    async with running(served) as (_, port):

        async def open_socket(token: bytes, number: int) -> RawPeer:
            protocols = b"Sec-WebSocket-Protocol: operations, bearer.%d" % number
            return await RawPeer.connect(port, header % token, protocols, path=b"/ws")

        peers = [await open_socket(b"mallory", number) for number in range(65)]
        assert [peer.status for peer in peers] == [101] * 64 + [429]
        peers.append(await open_socket(b"ada", 0))
        assert peers[-1].status == 101
        for peer in peers:
            await peer.close()


async def test_a_token_has_one_spelling() -> None:
    signer = JWTTokens("k" * 32, algorithms=["HS256"])
    token = jwt.encode({"sub": "mallory", "exp": time.time() + 60}, "k" * 32, "HS256")
    assert signer.authenticate(token).identity.id == "mallory"
    for other in (f"{token}=", f"{token}==", f"{token}!", f"{token[:-5]}!{token[-5:]}"):
        with pytest.raises(CallError, match="authentication failed"):
            signer.authenticate(other)


def digest_of(hub: Hub, token: str) -> bytes:
    connection = hub.admit(token)
    assert isinstance(connection, server.HubConnection)
    return connection.account.digest


def test_both_signatures_of_an_ecdsa_token_count_as_one_token() -> None:
    """From one ECDSA signature, anybody can compute a second valid one."""
    key = ec.generate_private_key(ec.SECP256R1())
    token = jwt.encode({"sub": "mallory", "exp": time.time() + 60}, key, "ES256")
    signed, _, encoded = token.rpartition(".")
    signature = base64.urlsafe_b64decode(encoded + "==")
    second = P256_ORDER - int.from_bytes(signature[32:], "big")
    other = base64.urlsafe_b64encode(signature[:32] + second.to_bytes(32, "big")).decode().rstrip("=")
    hub = Hub(JWTTokens(key.public_key(), algorithms=["ES256"]))
    accounts = {digest_of(hub, each) for each in (token, f"{signed}.{other}")}
    assert len(accounts) == 1
    third = jwt.encode({"sub": "mallory", "exp": time.time() + 61}, key, "ES256")
    assert digest_of(hub, third) not in accounts


async def test_a_handshake_that_fails_is_not_counted() -> None:
    async with Hub(TOKENS) as hub:
        for _ in range(70):
            reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + MALLORY + b"\r\n\r\n")
            assert b" 400 " in await reader.readuntil(b"\r\n")
            writer.transport.abort()
        peer = await RawPeer.connect(hub.port, MALLORY)
        assert peer.status == 101
        await peer.close()


@pytest.mark.parametrize(("token", "limit"), [("mallory", "_MAX_HELD"), ("trudy", "_MAX_UNSENT_OF_TOKEN")])
async def test_unread_data_of_all_connections_of_a_token_is_bounded(
    monkeypatch: pytest.MonkeyPatch, token: str, limit: str
) -> None:
    monkeypatch.setattr(server, limit, 8 << 20)
    async with Hub(TOKENS) as hub:
        peers = [await RawPeer.join(hub.port, token, f"mallory-{number:010}") for number in range(4)]
        other = await RawPeer.join(hub.port, "ada", "a" * 16)
        for peer in (*peers, other):
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sessions = list(hub.router.sessions.values())
        (honest,) = [each.link for each in sessions if each.principal.identity.id == "ada"]
        links = [each.link for each in sessions if each.link is not None and each.link is not honest]
        assert honest is not None
        most = 0
        for _ in range(400):
            honest.send(bytes(1 << 14))
            for link in links:
                link.send(bytes(1 << 16))
            await asyncio.sleep(0)
            most = max(most, sum(link.unsent_bytes for link in links))
        await until(lambda: hub.connected.count("mallory") < 4)
        assert "ada" in hub.connected
        assert (4 << 20) < most < (9 << 20)
        for peer in (*peers, other):
            await peer.close()
