"""URLs whose TLS setting does not match the server: entering the transport raises an error, with real servers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from operations import ErrorCode
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.pubsub import connect
from operations.pubsub.connection_errors import UNTRUSTED, WRONG_PROTOCOL, plain_reply, uses_tls
from operations.pubsub.redis import RedisTransport
from operations.testing import error_of
from tests.contracts.buses import TOKENS
from tests.nats_server import nats_server, shared_server
from tests.ports import free_ports
from tests.pubsub.nats.security import Certificates
from tests.pubsub.test_redis import tls_proxy
from tests.redis_servers import shared_server as shared_redis
from tests.waiting import until


async def told(transport: Any) -> str:
    """Return what the error says about the server, when the transport is entered."""
    async with asyncio.timeout(20):
        error = await error_of(transport.__aenter__())
    assert (error.code, error.details) == (ErrorCode.UNAVAILABLE, {"executed": "no", "reason": WRONG_PROTOCOL})
    assert "no connection to " in error.message
    return error.message.rpartition("the server ")[2]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("engine", ["redis", "valkey"])
async def test_redis(engine: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operations.pubsub.redis.servers.CONNECT_SECONDS", 0.5)
    plain = shared_redis(engine).port
    no_tls = "does not use TLS: use a redis:// address instead of rediss://"
    assert await told(RedisTransport(f"rediss://127.0.0.1:{plain}")) == no_tls
    assert await told(RedisTransport(f"rediss+cluster://127.0.0.1:{plain}")) == no_tls
    async with tls_proxy(plain, certificates.certificate, certificates.key) as port:
        has_tls = "uses TLS: use a rediss:// address instead of redis://"
        assert await told(RedisTransport(f"redis://127.0.0.1:{port}")) == has_tls
        assert await told(RedisTransport(f"redis+sentinel://127.0.0.1:{port}/main")) == has_tls


async def test_nats_without_tls() -> None:
    port = shared_server().port
    no_tls = "does not use TLS: use a nats:// address instead of tls://"
    assert await told(connect(f"tls://127.0.0.1:{port}")) == no_tls
    assert await told(connect(f"tls://127.0.0.1:{port}", tls_first=True)) == no_tls


async def test_nats_with_tls(certificates: Certificates) -> None:
    with nats_server(f"tls {{ {certificates.config} }}") as server:
        url = f"nats://127.0.0.1:{server.port}"
        error = await error_of(connect(url).__aenter__())  # the server requires TLS, so the client uses it
        assert error.details["reason"] == UNTRUSTED
        later = "starts TLS after its first message: remove tls_first"
        assert await told(connect(url, tls=certificates.context, tls_first=True)) == later
    with nats_server(f"tls {{ {certificates.config}, handshake_first: true }}") as server:
        sooner = "expects TLS before its first message: pass tls_first=True"
        assert await told(connect(f"nats://127.0.0.1:{server.port}", tls=certificates.context)) == sooner


async def test_a_hub(certificates: Certificates) -> None:
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(certificates.certificate, certificates.key)
    async with Hub(TOKENS) as hub:
        url = f"wss{hub.url[2:]}"
        assert await told(Spoke(url, token="caller")) == f"does not use TLS: change its address to {hub.url}"
    async with Hub(TOKENS, tls=identity) as hub:
        url = f"ws{hub.url[3:]}"
        assert await told(Spoke(url, token="caller")) == f"uses TLS: change its address to {hub.url}"


async def test_a_tls_server_that_refuses_the_handshake_is_not_reported_as_plain(
    certificates: Certificates,
) -> None:
    identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.load_cert_chain(certificates.certificate, certificates.key)
    old = certificates.context
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    identity.minimum_version = ssl.TLSVersion.TLSv1_3
    async with Hub(TOKENS, tls=identity) as hub:
        spoke = Spoke(hub.url, token="caller", tls=old, shortest_delay=0.01)
        entering = asyncio.create_task(spoke.__aenter__())
        await until(lambda: spoke.failures > 0)
        assert not entering.done()
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)


async def test_a_closed_port_gives_no_diagnosis() -> None:
    (port,) = free_ports(1)
    assert not await uses_tls("127.0.0.1", port)
    assert await plain_reply("127.0.0.1", port) == b""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3), RedisTransport(f"rediss://127.0.0.1:{port}"):
            raise AssertionError("nobody listens there")


async def test_an_address_that_worked_once_is_retried(certificates: Certificates) -> None:
    """A server that changes to TLS may change back: only a first connection fails permanently."""
    async with tls_proxy(shared_redis("redis").port, certificates.certificate, certificates.key) as port:
        transport = RedisTransport(shared_redis("redis").url, shortest_delay=0.01)
        async with transport:
            transport.address = RedisTransport(f"redis://127.0.0.1:{port}").address
            transport._servers._address = transport.address
            transport.drop_connection()
            await until(lambda: transport.failures >= 3)
            assert transport._keeper is not None
            assert not transport._keeper.done()
