"""Requests are sent unchanged: target, method, headers, body."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, read_body
from operations.http.client import user_agent
from tests.http.servers import Exchange, answering, raw_server, response


async def _fetch(client: HTTPClient, request: HTTPRequest) -> bytes:
    async with client.send(request) as answer:
        return await read_body(answer, limit=1 << 24)


async def _fetch_json(client: HTTPClient, request: HTTPRequest) -> Any:
    return json.loads(await _fetch(client, request))


async def _seen(client: HTTPClient, path: str = "/", **fields: Any) -> bytes:
    """The head of the request as the server got it."""
    heads: list[bytes] = []
    async with raw_server(answering(response(b"ok"), heads=heads)) as server:
        assert await _fetch(client, HTTPRequest(**{"method": "GET", "url": server.url + path, **fields})) == b"ok"
    return heads[0]


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/a%2Fb/c%2fd",
        "/a%2eb/..c/d..",
        "/a+b?c=d+e&f=%20&g=%2B",
        "/?",
        "/a//b///",
        "/a;b=c/d,e:@!$&()*",
        "/%C3%A9?%ff=%00",
        "/?a=1&a=2&&b",
        "/a?b=../c/%2e%2e/d",
        "/a?b=/c?d=[e]|~",
    ],
)
async def test_the_target_is_sent_unchanged(client: HTTPClient, target: str) -> None:
    assert (await _seen(client, target)).startswith(f"GET {target} HTTP/1.1\r\n".encode())


async def test_an_empty_path_is_the_root_and_a_fragment_is_not_sent(client: HTTPClient) -> None:
    assert (await _seen(client, "")).startswith(b"GET / HTTP/1.1\r\n")
    assert (await _seen(client, "?a=1")).startswith(b"GET /?a=1 HTTP/1.1\r\n")
    assert (await _seen(client, "/a#b?c")).startswith(b"GET /a HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "target",
    [
        "/a/../b",
        "/a/./b",
        "/a/%2e%2e/b",
        "/a/%2E./b",
        "/..",
        "/a\\b",
        "/a b",
        "/a\tb",
        "/a\r\nX: y",
        "/\N{PILE OF POO}",
    ],
)
async def test_a_target_that_a_client_would_rewrite_is_refused(client: HTTPClient, target: str) -> None:
    async with raw_server(answering(response())) as server:
        with pytest.raises(CallError) as caught:
            await _fetch(client, HTTPRequest(method="GET", url=server.url + target))
        assert server.accepted == 0
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert caught.value.details == {"executed": "no"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/a",
        "ftp://127.0.0.1/a",
        "http://",
        "http:///a",
        "http://[::1/a",
        "http://127.0.0.1:99999/",
        f"http://127.0.0.1:{'9' * 5000}/",
        "file:///etc/passwd",
        "httpx://127.0.0.1/a",
    ],
)
async def test_a_url_that_is_not_http_is_refused(client: HTTPClient, url: str) -> None:
    with pytest.raises(CallError) as caught:
        await _fetch(client, HTTPRequest(method="GET", url=url))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_credentials_in_the_url_are_refused_and_not_shown(client: HTTPClient) -> None:
    with pytest.raises(CallError) as caught:
        await _fetch(client, HTTPRequest(method="GET", url="http://user:secret@127.0.0.1:9/a?token=hidden"))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "GET http://127.0.0.1:9/a: " in caught.value.message
    assert not {"user", "secret", "hidden"} & set(caught.value.message.replace(":", " ").replace("@", " ").split())


@pytest.mark.parametrize("method", ["GET", "QUERY", "PURGE", "M-SEARCH", "patch", "x!#$%&'*+.^_`|~9"])
async def test_any_token_is_a_method(client: HTTPClient, method: str) -> None:
    assert (await _seen(client, method=method)).startswith(f"{method} / HTTP/1.1\r\n".encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "GET /a HTTP/1.1\r\nX:"},
        {"method": ""},
        {"headers": [("X-A", "secret\r\nX-B: c")]},
        {"headers": [("X-A", "secret\nb")]},
        {"headers": [("X-A", "secret\x00b")]},
        {"headers": [("X A", "secret")]},
        {"headers": [("X-A:", "secret")]},
        {"headers": [("", "secret")]},
    ],
)
async def test_header_injection_is_rejected(client: HTTPClient, fields: dict[str, Any]) -> None:
    async with raw_server(answering(response())) as server:
        with pytest.raises(CallError) as caught:
            await _fetch(client, HTTPRequest(**{"method": "GET", "url": server.url, **fields}))
        assert server.accepted == 0
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "secret" not in str(caught.value)


async def test_headers_are_sent_unchanged(client: HTTPClient) -> None:
    given = [
        ("X-Twice", "1"),
        ("X-Twice", "2"),
        ("X-Empty", ""),
        ("X-Tab", "a\tb"),
        ("X-Text", "\N{EURO SIGN}"),
        ("Host", "other"),
    ]
    lines = (await _seen(client, headers=given)).split(b"\r\n")
    values = [line.partition(b":")[2].strip() for line in lines if line.lower().startswith(b"x-twice:")]
    assert values == [b"1", b"2"]
    named = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in lines[1:]}
    assert named[b"x-empty"] == b""
    assert named[b"x-tab"] == b"a\tb"
    assert named[b"x-text"] == "\N{EURO SIGN}".encode()
    assert named[b"host"] == b"other"


async def test_only_user_agent_and_accept_headers_are_added(client: HTTPClient) -> None:
    names = [line.partition(b":")[0].lower() for line in (await _seen(client)).split(b"\r\n")[1:] if line]
    assert sorted(set(names) - {b"connection"}) == [b"accept", b"accept-encoding", b"host", b"user-agent"]


async def test_the_client_names_itself_unless_the_request_does(client: HTTPClient) -> None:
    assert user_agent().startswith("operations/")
    assert f"user-agent: {user_agent()}\r\n".encode() in (await _seen(client)).lower()
    head = (await _seen(client, headers=[("User-Agent", "me")])).lower()
    assert head.count(b"user-agent: me\r\n") == head.count(b"user-agent:") == 1


async def test_a_body_of_bytes_has_its_length_despite_the_headers(client: HTTPClient) -> None:
    bodies: list[bytes] = []

    async def behaviour(exchange: Exchange) -> None:
        for _ in range(3):
            head = (await exchange.head()).lower()
            assert b"transfer-encoding" not in head
            assert head.count(b"content-length:") == 1
            bodies.append(await exchange.reader.readexactly(int(head.partition(b"content-length:")[2].split()[0])))
            await exchange.write(response(b"ok"))

    lies = [("content-length", "3"), ("Transfer-Encoding", "chunked")]
    async with raw_server(behaviour) as server:
        for body in (b"hello", b"", None):
            await _fetch(client, HTTPRequest(method="POST", url=server.url, body=body, headers=lies))
        assert server.accepted == 1
    assert bodies == [b"hello", b"", b""]


async def test_a_request_without_a_body_announces_none(client: HTTPClient) -> None:
    head = await _seen(client, headers=[("Content-Length", "5"), ("Transfer-Encoding", "chunked")])
    assert b"content-length" not in head.lower()
    assert b"transfer-encoding" not in head.lower()


async def _megabytes(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number]) * (1 << 20)


@pytest.mark.parametrize("length", [None, 20 << 20], ids=["chunked", "announced"])
async def test_an_upload_in_pieces_arrives_byte_for_byte(client: HTTPClient, api: str, length: int | None) -> None:
    headers = [] if length is None else [("Content-Length", str(length))]
    seen = await _fetch_json(
        client, HTTPRequest(method="PUT", url=f"{api}/digest", headers=headers, body=_megabytes(20), timeout=60)
    )
    digest = hashlib.sha256()
    async for chunk in _megabytes(20):
        digest.update(chunk)
    assert seen["sha256"] == digest.hexdigest()
    assert seen["size"] == 20 << 20
    assert seen["length"] == (None if length is None else str(length))
    assert seen["encoding"] == ("chunked" if length is None else None)


@pytest.mark.parametrize("length", ["1048575", "1048577", "3000000", "-1", "1e3"])
async def test_an_upload_that_is_not_as_long_as_announced_fails(client: HTTPClient, api: str, length: str) -> None:
    request = HTTPRequest(
        method="PUT", url=f"{api}/digest", headers=[("Content-Length", length)], body=_megabytes(1), timeout=20
    )
    with pytest.raises(CallError) as caught:
        await _fetch(client, request)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert "Content-Length" in caught.value.message
    assert (await _fetch_json(client, HTTPRequest(method="GET", url=f"{api}/echo")))["method"] == "GET"


@pytest.mark.parametrize("raised", [ValueError("of the body"), TimeoutError("of the body")], ids=["value", "timeout"])
async def test_an_error_of_the_body_iterator_is_raised(client: HTTPClient, api: str, raised: Exception) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"first"
        raise raised

    with pytest.raises(type(raised), match="of the body"):
        await _fetch(client, HTTPRequest(method="PUT", url=f"{api}/digest", body=body()))


async def test_an_endless_upload_ends_with_its_task(client: HTTPClient) -> None:
    arriving = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 16)
            await asyncio.sleep(0)

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.reader.readexactly(1 << 20)
        arriving.set()
        await exchange.gone()

    async with raw_server(behaviour) as server:
        task = asyncio.create_task(_fetch(client, HTTPRequest(method="PUT", url=server.url, body=body())))
        await arriving.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_open(0)
