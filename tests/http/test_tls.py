"""Server certificates that a client trusts, and its own certificate."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from operations import CallError, ErrorCode
from operations.http import ClientOptions, HTTPClient, HTTPRequest, read_body
from tests.http.certificates import Authority
from tests.http.conftest import MakeClient
from tests.http.servers import Exchange, answering, raw_server, response


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server"))
    return context


async def _get(client: HTTPClient, port: int, host: str = "127.0.0.1") -> bytes:
    async with client.send(HTTPRequest(method="GET", url=f"https://{host}:{port}/a?b=c", timeout=20)) as answer:
        return await read_body(answer, limit=100)


async def test_an_untrusted_certificate_is_refused(client: HTTPClient, context: ssl.SSLContext) -> None:
    async with raw_server(answering(response(b"ok")), tls=context) as server:
        with pytest.raises(CallError) as caught:
            await _get(client, server.port)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.details == {"executed": "no"}
    assert caught.value.message.startswith(f"GET https://127.0.0.1:{server.port}/a: cannot connect: ")
    assert "certificate" in caught.value.message


async def test_an_authority_can_be_named(
    make_client: MakeClient, context: ssl.SSLContext, authority: Authority, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(Authority(tmp_path).path.read_bytes() + b"\n# another\n" + authority.path.read_bytes())
    async with raw_server(answering(response(b"ok"), keep=True), tls=context) as server:
        for path in (authority.path, bundle):
            client = make_client(ClientOptions(verify=str(path)))
            assert await _get(client, server.port) == b"ok"
            assert await _get(client, server.port, "localhost") == b"ok"


async def test_verification_can_be_turned_off(make_client: MakeClient, context: ssl.SSLContext) -> None:
    client = make_client(ClientOptions(verify=False))
    async with raw_server(answering(response(b"ok"), keep=True), tls=context) as server:
        assert await _get(client, server.port) == b"ok"


@pytest.mark.parametrize("verified", [True, False])
async def test_a_client_shows_its_certificate(make_client: MakeClient, authority: Authority, verified: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server"))
    context.load_verify_locations(authority.path)
    context.verify_mode = ssl.CERT_REQUIRED
    verify = str(authority.path) if verified else False
    async with raw_server(answering(response(b"ok"), keep=True), tls=context) as server:
        known = make_client(ClientOptions(verify=verify, certificate=str(authority.issue("client"))))
        assert await _get(known, server.port) == b"ok"
        with pytest.raises(CallError) as caught:
            await _get(make_client(ClientOptions(verify=verify)), server.port)
    assert caught.value.code is ErrorCode.UNAVAILABLE


async def test_cancelled_calls_over_tls_leave_no_connection(make_client: MakeClient, context: ssl.SSLContext) -> None:
    """Connections that calls share are closed once the other calls on them have responses."""
    release = asyncio.Event()

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await release.wait()
        await exchange.write(response(b"ok"))
        await exchange.gone()

    client = make_client(ClientOptions(verify=False, max_idle=0))
    async with raw_server(behaviour, tls=context) as server:
        calls = [asyncio.create_task(_get(client, server.port)) for _ in range(40)]
        await server.until_open(40)
        for call in calls[::2]:
            call.cancel()
        release.set()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError, bytes] * 20
        await server.until_open(0)
