"""Proxies are used if configured; those of the environment only if it is trusted."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from operations import CallError, ErrorCode
from operations.http import ClientOptions, HTTPClient, HTTPRequest, read_body
from tests.http.certificates import Authority
from tests.http.conftest import MakeClient
from tests.http.servers import Behaviour, Exchange, answering, raw_server, response


def _forwarding(heads: list[bytes]) -> Behaviour:
    """A proxy that opens tunnels, and answers plain requests itself."""

    async def behaviour(exchange: Exchange) -> None:
        head = await exchange.head()
        heads.append(head)
        if not head.startswith(b"CONNECT "):
            await exchange.write(response(b"from the proxy"))
            return
        host, _, port = head.split()[1].partition(b":")
        reader, writer = await asyncio.open_connection(host.decode(), int(port))
        try:
            await exchange.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pump(exchange.reader, writer), _pump(reader, exchange.writer))
        finally:
            writer.close()

    return behaviour


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _get(client: HTTPClient, url: str) -> bytes:
    async with client.send(HTTPRequest(method="GET", url=url, timeout=20)) as answer:
        return await read_body(answer, limit=100)


async def test_plain_requests_go_to_the_proxy_with_their_whole_url(make_client: MakeClient) -> None:
    heads: list[bytes] = []
    async with raw_server(_forwarding(heads)) as proxy:
        client = make_client(ClientOptions(proxy=proxy.url))
        assert await _get(client, "http://nowhere.invalid/a%2Fb?c=d+e") == b"from the proxy"
    assert heads[0].startswith(b"GET http://nowhere.invalid/a%2Fb?c=d+e HTTP/1.1\r\n")
    assert b"authorization" not in heads[0].lower()


async def test_the_proxy_gets_its_own_credentials(make_client: MakeClient) -> None:
    heads: list[bytes] = []
    async with raw_server(_forwarding(heads)) as proxy:
        client = make_client(ClientOptions(proxy=proxy.url.replace("//", "//user:pass@")))
        assert await _get(client, "http://nowhere.invalid/") == b"from the proxy"
    assert b"proxy-authorization: basic dxnlcjpwyxnz\r\n" in heads[0].lower()


async def test_tls_goes_through_a_tunnel(make_client: MakeClient, tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server"))
    heads: list[bytes] = []
    seen: list[bytes] = []
    async with (
        raw_server(answering(response(b"from the server"), heads=seen), tls=context) as server,
        raw_server(_forwarding(heads)) as proxy,
    ):
        client = make_client(ClientOptions(proxy=proxy.url, verify=str(authority.path)))
        assert await _get(client, f"https://127.0.0.1:{server.port}/a?b") == b"from the server"
        await client.close()
    assert heads[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n".encode())
    assert seen[0].startswith(b"GET /a?b HTTP/1.1\r\n")


async def test_a_proxy_that_refuses(make_client: MakeClient) -> None:
    async with raw_server(answering(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")) as proxy:
        client = make_client(ClientOptions(proxy=proxy.url.replace("//", "//user:pass@")))
        with pytest.raises(CallError) as caught:
            await _get(client, "https://nowhere.invalid/a?b")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.details == {"executed": "no"}
    assert "user:pass" not in str(caught.value)


@pytest.mark.parametrize("trusted", [False, True])
async def test_the_environment(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, trusted: bool) -> None:
    heads: list[bytes] = []
    async with (
        raw_server(_forwarding(heads)) as proxy,
        raw_server(answering(response(b"from the server"))) as server,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        client = make_client(ClientOptions(trust_env=trusted))
        expected = b"from the proxy" if trusted else b"from the server"
        assert await _get(client, f"http://127.0.0.1:{server.port}/") == expected
    assert len(heads) == int(trusted)


async def test_credentials_in_the_environment_are_not_sent(
    client: HTTPClient, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    netrc = tmp_path_factory.mktemp("home") / ".netrc"
    netrc.write_text("machine 127.0.0.1 login user password secret\ndefault login user password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(netrc.parent))
    heads: list[bytes] = []
    async with raw_server(answering(response(b"ok"), heads=heads)) as server:
        assert await _get(client, server.url) == b"ok"
    assert b"authorization" not in heads[0].lower()
