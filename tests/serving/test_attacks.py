"""Hostile requests against a real server: bounded, typed, and without harm to others."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import tracemalloc

import httpx2
import pytest

from operations.serving import Limits, app, http_protocol
from operations.serving.app import ServedApp
from tests.serving.http_server import connected, post_bytes, running
from tests.serving.mcp import wire
from tests.serving.mcp.examples import legacy_session
from tests.serving.shop import Shop, tokens
from tests.waiting import until


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.fixture
def served(shop: Shop) -> ServedApp:
    return app(shop.registry, mcp=False, limits=Limits(body_bytes=100_000, body_seconds=0.2))


async def still_serves(place: tuple[str, int]) -> None:
    async with connected(place) as connection:
        connection.write(post_bytes())
        status, _, body = await connection.response()
        assert (status, b"tea" in body) == (200, True)


@pytest.mark.parametrize(
    ("name", "request_bytes", "statuses"),
    [
        (
            "both lengths",
            post_bytes("/shop/quote", b"0\r\n\r\n", "transfer-encoding: chunked", "content-length: 5"),
            {400},
        ),
        ("two lengths", post_bytes("/shop/quote", b"{}", "content-length: 2", "content-length: 20"), {400}),
        ("signed length", post_bytes("/shop/quote", b"{}", "content-length: +2"), {400}),
        ("negative length", post_bytes("/shop/quote", b"{}", "content-length: -2"), {400}),
        ("two encodings", post_bytes("/shop/quote", b"0\r\n\r\n", "transfer-encoding: chunked, identity"), {400}),
        ("odd encoding", post_bytes("/shop/quote", b"0\r\n\r\n", "transfer-encoding: xchunked"), {400}),
        ("space in a name", post_bytes("/shop/quote", b"{}", "content-length : 2", "content-length: 2"), {400}),
        ("folded header", post_bytes("/shop/quote", b"{}", "x-a: b\r\n c", "content-length: 2"), {400, 422}),
        ("bare line feeds", b"POST /shop/quote HTTP/1.1\nhost: 127.0.0.1\n\n", {400, 415, 422}),
        ("bad chunk", post_bytes("/shop/quote", b"zz\r\n{}\r\n0\r\n\r\n", "transfer-encoding: chunked"), {400}),
        ("two hosts", post_bytes("/shop/quote", b"{}", "host: evil.example"), {400}),
        ("no host", b"GET /shop/picture HTTP/1.1\r\n\r\n", {400, 403}),
        ("other host", b"GET /shop/picture HTTP/1.1\r\nhost: evil.example\r\n\r\n", {403}),
        ("absolute target", b"GET http://evil.example/shop/picture HTTP/1.1\r\nhost: evil.example\r\n\r\n", {400, 403}),
        ("fragment", b"GET /shop/picture#/vault/look HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {400}),
        ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, {400}),
        ("unknown method", b"BREW /shop/picture HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {400, 405}),
        ("null in the path", b"GET /shop/%00 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {404}),
        ("dots in the path", b"GET /shop/../vault/look HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {404}),
        ("bad percent", b"GET /shop/%zz%ff HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", {404}),
        ("deep JSON", post_bytes("/shop/quote", b"[" * 50_000), {400}),
        ("deep valid JSON", post_bytes("/shop/quote", b'{"item":' + b"[" * 900 + b"]" * 900 + b"}"), {400, 422}),
        ("not UTF-8", post_bytes("/shop/quote", b'{"item":"\xff\xfe"}'), {400}),
        ("lone surrogate", post_bytes("/shop/quote", b'{"item":"\\ud800"}'), {400, 422, 500}),
        ("huge number", post_bytes("/shop/quote", b'{"item":"a","count":' + b"9" * 90_000 + b"}"), {400, 422}),
        ("exponent", post_bytes("/shop/quote", b'{"item":"a","count":1e999999999}'), {400, 422}),
        ("many keys", post_bytes("/shop/quote", b"{" + b",".join(b'"k%d":1' % n for n in range(8_000)) + b"}"), {422}),
        ("form", post_bytes("/shop/quote", b"item=tea", "content-type: text/plain"), {400, 415}),
    ],
)
async def test_a_hostile_request(served: ServedApp, name: str, request_bytes: bytes, statuses: set[int]) -> None:
    async with running(served) as place:
        async with connected(place) as connection:
            connection.write(request_bytes)
            status, _, body = await connection.response()
            assert status in statuses
            assert b"Traceback" not in body
            assert len(body) < 40_000
        await still_serves(place)


async def test_a_smuggled_request_is_not_answered(served: ServedApp, shop: Shop) -> None:
    """Data after a request with ambiguous framing is never read as another request."""
    hidden = post_bytes("/shop/order", b'{"item":"smuggled"}')
    async with running(served) as place, connected(place) as connection:
        connection.write(
            post_bytes("/shop/quote", b"0\r\n\r\n" + hidden, "content-length: 5", "transfer-encoding: chunked")
        )
        answers = await connection.rest()
    assert answers.count(b"HTTP/1.1") == 1
    assert shop.sent == []


async def test_a_refused_body_is_not_read_as_a_request(served: ServedApp, shop: Shop) -> None:
    hidden = post_bytes("/shop/order", b'{"item":"smuggled"}')
    async with running(served) as place:
        for lines in (["content-length: 200000"], ["content-type: text/html"]):
            async with connected(place) as connection:
                connection.write(post_bytes("/shop/none", hidden, *lines))
                status, _, _ = await connection.response()
                assert status >= 400
        await still_serves(place)
    assert shop.sent == []


async def test_a_huge_body_is_refused_before_it_is_read(served: ServedApp) -> None:
    async with running(served) as place, connected(place) as connection:
        connection.write(post_bytes("/shop/quote", b"", "content-length: 10000000000"))
        status, headers, _ = await connection.response()
        assert (status, headers["connection"]) == (413, "close")
        assert await connection.rest() == b""


async def test_a_huge_chunked_body_is_bounded(served: ServedApp) -> None:
    async with running(served) as place, connected(place) as connection:
        connection.write(post_bytes("/shop/quote", b"", "transfer-encoding: chunked"))
        for _ in range(20):
            connection.write(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        status, _, _ = await connection.response()
        assert status == 413


async def test_a_slow_body_is_refused(served: ServedApp) -> None:
    async with running(served) as place, connected(place) as connection:
        connection.write(post_bytes("/shop/quote", b'{"it', "content-length: 100"))
        status, _, body = await connection.response()
        assert (status, b"SLOW_BODY" in body) == (408, True)
        assert await connection.rest() == b""


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
@pytest.mark.parametrize("part", [b"", b'{"jsonrpc"'])
async def test_a_slow_body_for_mcp_is_refused(shop: Shop, version: str, part: bytes) -> None:
    served = app(shop.registry, limits=Limits(body_seconds=0.2))
    lines = ["accept: application/json, text/event-stream", f"mcp-protocol-version: {version}", "content-length: 100"]
    async with running(served) as place, connected(place) as connection:
        connection.write(post_bytes("/mcp", part, *lines))
        assert (await connection.response())[0] == 408


@pytest.mark.parametrize("path", ["/shop/quote", "/mcp"])
async def test_the_bodies_that_one_caller_sends_at_the_same_time_are_bounded(shop: Shop, path: str) -> None:
    served = app(shop.registry, authenticator=tokens(), limits=Limits(incoming_bytes=200_000))
    body = b" " * 99_986 + b'{"item":"tea"}'

    def begun(token: str) -> bytes:
        lines = ["accept: application/json, text/event-stream", f"authorization: Bearer {token}"]
        return post_bytes(path, body[:90_000], *lines, f"content-length: {len(body)}")

    async with running(served) as place, contextlib.AsyncExitStack() as stack:
        senders = [await stack.enter_async_context(connected(place)) for _ in range(3)]
        answers = [asyncio.create_task(each.response()) for each in senders]
        for each in senders:
            each.write(begun("reader-token"))
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = (task for task in answers if task.done())
        status, _, text = refused.result()
        assert (status, b"bytes of request bodies at once: the limit is 200,000" in text) == (429, True)
        other = await stack.enter_async_context(connected(place))
        other.write(begun("writer-token") + body[90_000:])
        assert (await other.response())[0] != 429
        for each, task in zip(senders, answers, strict=True):
            if task is not refused:
                each.write(body[90_000:])
                assert (await task)[0] != 429
        again = await stack.enter_async_context(connected(place))
        again.write(begun("reader-token") + body[90_000:])
        assert (await again.response())[0] != 429


@pytest.mark.parametrize("kind", ["http", "mcp", "mcp, by the SDK", "mcp session"])
async def test_the_inputs_of_running_calls_of_a_caller_without_rights_are_bounded(shop: Shop, kind: str) -> None:
    """Previously, 256 calls of a caller kept 4 MiB each, as long as they ran."""
    served = app(shop.registry, authenticator=tokens(), limits=Limits(incoming_bytes=300_000))
    call = {"name": "shop.slow", "arguments": {"item": "x" * 90_000}}

    async with running(served) as (host, port), contextlib.AsyncExitStack() as stack, asyncio.timeout(30):
        url = f"http://{host}:{port}"

        async def ask(token: str, client: httpx2.AsyncClient) -> str:
            """Make a call with an input of 90,000 characters; return the response as text."""
            shown = {"authorization": f"Bearer {token}"}
            if kind == "http":
                return (await client.post(f"{url}/shop/slow", json=call["arguments"], headers=shown)).text
            sent = wire.message("tools/call", call, meta=wire.SDK_ONLY if "SDK" in kind else None)
            return (await client.post(f"{url}/mcp", json=sent, headers={**wire.headers(sent), **shown})).text

        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=30))

        async def call_as_nobody() -> str:
            if kind != "mcp session":
                return await ask("nobody-token", client)
            async with legacy_session(f"{url}/mcp", authorization="Bearer nobody-token") as session:
                return str(await session("tools/call", call))

        calls = []
        for number in range(3):
            calls.append(asyncio.create_task(call_as_nobody()))
            await until(lambda number=number: len(shop.sent) == number + 1)  # type: ignore[misc]
        refused = await call_as_nobody()
        assert "bytes of inputs at once: the limit is 300,000" in refused
        other = asyncio.create_task(ask("reader-token", client))
        await until(lambda: len(shop.sent) == 4)
        shop.go_on.set()
        assert all("done" in each for each in await asyncio.gather(*calls, other))
        assert "done" in await call_as_nobody()


@pytest.mark.parametrize("path", ["/shop/quote", "/mcp"])
async def test_a_compressed_body_is_not_unpacked(shop: Shop, path: str) -> None:
    bomb = gzip.compress(b'{"item":"' + b"a" * 10_000_000 + b'"}')
    async with running(app(shop.registry)) as place, connected(place) as connection:
        connection.write(post_bytes(path, bomb, "content-encoding: gzip"))
        assert (await connection.response())[0] == 415


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["sec-fetch-site: cross-site"], 403),
        (["sec-fetch-site: same-site"], 403),  # a page on another port of this machine
        (["sec-fetch-site: cross-site", "origin: https://page.example"], 200),
        (["sec-fetch-site: same-origin"], 200),
        (["sec-fetch-site: none"], 200),
    ],
)
async def test_an_image_on_another_page_calls_nothing(shop: Shop, lines: list[str], status: int) -> None:
    served = app(shop.registry, mcp=False, origins=["https://page.example"])
    async with running(served) as place, connected(place) as connection:
        head = "\r\n".join(["GET /shop/quote?item=a HTTP/1.1", "host: 127.0.0.1", *lines])
        connection.write(head.encode() + b"\r\n\r\n")
        assert (await connection.response())[0] == status


async def test_a_slow_head_is_refused(served: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.1)
    async with running(served) as place:
        async with connected(place) as silent, connected(place) as slow, connected(place) as second:
            slow.write(b"POST /shop/quote HTTP/1.1\r\nhost: 127")
            second.write(post_bytes() + b"POST /shop/quote HTTP/1.1\r\nhos")
            assert (await second.response())[0] == 200
            assert await silent.rest() == await slow.rest() == await second.rest() == b""
        await still_serves(place)


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"x-%d: a\r\n" % number for number in range(500)),
        b"x-a: " + b"a" * 200_000 + b"\r\n",
        b"x-" + b"a" * 200_000 + b": a\r\n",
    ],
    ids=["many", "long value", "long name"],
)
async def test_a_flood_of_headers_is_bounded(served: ServedApp, head: bytes) -> None:
    async with running(served) as place:
        async with connected(place) as connection:
            connection.write(b"POST /shop/quote HTTP/1.1\r\nhost: 127.0.0.1\r\n" + head + b"\r\n")
            status, _, _ = await connection.response()
            assert status in (400, 431)
        await still_serves(place)


async def test_a_head_without_an_end_does_not_fill_memory(served: ServedApp) -> None:
    async with running(served) as place:
        async with connected(place) as connection:
            tracemalloc.start()
            try:
                connection.write(b"POST /shop/quote HTTP/1.1\r\nx-a: ")
                for _ in range(200):
                    connection.write(b"a" * 50_000)
                    await asyncio.sleep(0)
                with contextlib.suppress(ConnectionError):  # the rest of what was written is not read
                    await connection.rest()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 15_000_000  # the client's own buffer is most of it
        await still_serves(place)


async def test_a_huge_query_is_bounded(served: ServedApp) -> None:
    async with running(served) as place:
        for query, statuses in (
            (b"a=1&" * 20_000, {400, 414, 431}),
            (b"a=1&" * 3_000, {400}),
            (b"item=" + b"%41" * 5_000, {200}),
            (b"item=a&count=" + b"9" * 5_000, {422}),
            (b"item=a&extra=" + b"[" * 5_000, {422}),
            (b"item=%ff", {400}),
        ):
            async with connected(place) as connection:
                connection.write(b"GET /shop/quote?" + query + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                assert (await connection.response())[0] in statuses
        await still_serves(place)


async def test_whitespace_around_header_values_is_stripped(served: ServedApp) -> None:
    async with running(served) as place, connected(place) as connection:
        connection.write(post_bytes("/shop/order", b'{"item":"a"}', "idempotency-key:   k \t "))
        assert (await connection.response())[0] == 200
        connection.write(post_bytes("/shop/order", b'{"item":"a"}', "idempotency-key: k"))
        assert (await connection.response())[1]["idempotency-replayed"] == "true"


async def test_many_idle_connections_delay_no_other(served: ServedApp) -> None:
    async with running(served) as place:
        idle = [await asyncio.open_connection(*place) for _ in range(200)]
        await still_serves(place)
        for _, writer in idle:
            writer.close()


async def test_pipelined_requests_are_answered_in_order(served: ServedApp) -> None:
    async with running(served) as place, connected(place) as connection:
        connection.write(b"".join(post_bytes("/shop/quote", b'{"item":"%d"}' % number) for number in range(50)))
        for number in range(50):
            status, _, body = await connection.response()
            assert (status, b'"%d"' % number in body) == (200, True)
