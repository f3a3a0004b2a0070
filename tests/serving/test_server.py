"""HTTPServer: its addresses, what it refuses to expose, its shutdown, and its WebSocket."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from operations import OperationRegistry, operation
from operations.calls import PendingRequestMap
from operations.calls.hub.spoke import Spoke
from operations.errors import CallError
from operations.serving import HTTPServer, Limits, app, server
from operations.serving.audit import AuditRecord
from operations.serving.server import split_address
from tests.certificates import make_certificate
from tests.serving.http_server import Connection, connected, post_bytes, running
from tests.serving.shop import Shop, tokens
from tests.waiting import until


@pytest.fixture
async def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (8000, ("127.0.0.1", 8000)),
        ("8000", ("127.0.0.1", 8000)),
        (":9000", ("0.0.0.0", 9000)),
        ("[::1]:80", ("::1", 80)),
        ("localhost", ("localhost", 8000)),
    ],
)
def test_addresses(address: str | int, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["a:b", "127.0.0.1:99999", "1:2:x"])
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="invalid address"):
        split_address(address)


async def test_serving_elsewhere_needs_credentials_and_hosts(shop: Shop) -> None:
    with pytest.raises(ValueError, match="insecure"):
        HTTPServer(app(shop.registry, mcp=False), ":0")
    with pytest.raises(ValueError, match="hosts"):
        HTTPServer(app(shop.registry, mcp=False, authenticator=tokens()), ":0")
    with pytest.raises(ValueError, match="hosts"):
        HTTPServer(app(shop.registry, mcp=False), ":0", insecure=True)
    HTTPServer(app(shop.registry, mcp=False, authenticator=tokens(), public_url="https://a.example"), ":0")
    HTTPServer(app(shop.registry, mcp=False, hosts=["a.example"]), ":0", insecure=True)
    HTTPServer(app(shop.registry, mcp=False), "[::1]:0")


async def test_the_end_of_the_server_waits_for_calls_and_ends_streams(shop: Shop) -> None:
    served = app(shop.registry, mcp=False)
    server = running(served)
    place = await server.__aenter__()
    async with connected(place) as call, connected(place) as stream:
        call.write(post_bytes("/shop/slow", b"{}"))
        await shop.started.wait()
        stream.write(b"GET /shop/watch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        await stream.reader.readuntil(b"retry: 2000")
        ending = asyncio.create_task(server.__aexit__(None, None, None))
        assert b"operations.problem" in await stream.reader.readuntil(b"\r\n0\r\n\r\n")
        assert not ending.done()
        shop.go_on.set()
        status, _, body = await call.response()
        assert (status, body) == (200, b'"done"')
        await ending
    with pytest.raises(OSError, match="Connect"):
        await asyncio.open_connection(*place)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", 0.1)
    async with running(app(shop.registry, mcp=False)) as place, connected(place) as idle, connected(place) as busy:
        busy.write(post_bytes())
        await busy.response()
        busy.write(post_bytes("/shop/slow", b"{}"))
        await shop.started.wait()
        idle.write(post_bytes())
        assert (await idle.response())[0] == 200
        assert await idle.rest() == b""
        shop.go_on.set()
        assert (await busy.response())[0] == 200


async def test_requests_over_tls(shop: Shop, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=certificate)
    async with HTTPServer(app(shop.registry), 0, certificate=str(certificate), key=str(key)) as served:
        assert served.url.startswith("https://")
        port = int(served.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        connection = Connection(reader, writer)
        for _ in range(2):
            connection.write(post_bytes())
            assert (await connection.response())[0] == 200
        connection.write(post_bytes("/shop/quote", b"x", "content-length: 99999999"))
        assert (await connection.response())[0] == 413
        assert await connection.rest() == b""
        writer.close()
        writer.transport.abort()
        await asyncio.sleep(0)


async def test_a_client_that_closes_its_connection_stops_its_call(shop: Shop) -> None:
    async with running(app(shop.registry, mcp=False)) as place:
        async with connected(place) as connection:
            connection.write(post_bytes("/shop/slow", b"{}"))
            await shop.started.wait()
        async with asyncio.timeout(5):
            await shop.cancelled.wait()


async def test_a_spoke_calls_and_registers_on_the_same_port(shop: Shop) -> None:
    from operations.context import Identity
    from operations.identity import Principal, StaticTokens

    principals = {
        "reader-token": Principal(Identity("reader", ("read",))),
        "worker-token": Principal(Identity("worker"), ("extra",)),
    }
    served = app(shop.registry, mcp=False, authenticator=StaticTokens(principals), deny=["shop.order"])
    async with running(served) as (host, port):
        url = f"ws://{host}:{port}/ws"
        async with Spoke(url, token="reader-token") as spoke:
            calls = PendingRequestMap(spoke)
            assert (await calls.call("vault.look", {})).data == "gold"
            with pytest.raises(CallError, match=r"vault\.put"):
                await calls.call("vault.put", {})
            for hidden in ("shop.order", "shop.nothing"):
                with pytest.raises(CallError) as refused:
                    await calls.call(hidden, {"item": "a"})
                assert refused.value.code in ("OPERATION_NOT_FOUND", "UNAVAILABLE")
            assert shop.sent == []

            @operation(namespace="extra", type="query")
            async def hello() -> str:
                """Say hello."""
                return "hello"

            from operations.calls import serve_registry

            async with (
                Spoke(url, token="worker-token") as worker,
                serve_registry(OperationRegistry([hello]), worker) as handler,
            ):
                await handler.registered()
                assert (await calls.call("extra.hello", {})).data == "hello"


async def test_a_websocket_sends_no_text_of_an_exception(shop: Shop) -> None:
    async with running(app(shop.registry, mcp=False)) as (host, port), Spoke(f"ws://{host}:{port}/ws") as spoke:
        calls = PendingRequestMap(spoke)
        with pytest.raises(CallError) as failed:
            await calls.call("shop.fail", {"how": "text"})
        assert "hunter2" not in f"{failed.value} {failed.value.details}"
        shop.items.put_nowait(ValueError("the password is hunter2"))
        with pytest.raises(CallError) as ended:
            [each async for each in calls.subscribe("shop.watch")]
        assert "hunter2" not in f"{ended.value} {ended.value.details}"
        with pytest.raises(CallError, match="no tea left"):
            await calls.call("shop.fail", {"how": "domain"})


async def test_each_call_over_a_websocket_leaves_one_record(shop: Shop) -> None:
    records: list[AuditRecord] = []
    served = app(shop.registry, mcp=False, authenticator=tokens(), audit=records.append)
    async with running(served) as (host, port), Spoke(f"ws://{host}:{port}/ws", token="reader-token") as spoke:
        calls = PendingRequestMap(spoke)
        await calls.call("shop.quote", {"item": "secret"})
        for refused in ("vault.put", "none.none"):
            with pytest.raises(CallError):
                await calls.call(refused)
        with pytest.raises(CallError):
            await calls.call("shop.quote", {"itm": "tea"})
        shop.items.put_nowait("first")
        shop.items.put_nowait(None)
        assert [each.data async for each in calls.subscribe("shop.watch")] == ["first"]
        shop.started.clear()
        slow = asyncio.create_task(calls.call("shop.slow"))
        await shop.started.wait()
        slow.cancel()
        await until(lambda: len(records) == 5)
    assert [(each.operation_id, each.code) for each in records] == [
        ("shop.quote", "OK"),
        ("vault.put", "ACCESS_DENIED"),
        ("shop.quote", "VALIDATION_ERROR"),
        ("shop.watch", "OK"),
        ("shop.slow", "ABORTED"),
    ]
    assert {(each.protocol, each.caller, each.address) for each in records} == {("websocket", "reader", "127.0.0.1")}
    assert all(each.request_id and each.milliseconds >= 0 for each in records)
    assert "secret" not in str(records)


@pytest.mark.parametrize(
    ("path", "token", "origin"),
    [
        ("/ws", "wrong", None),
        ("/ws", None, None),
        ("/ws", "reader-token", "https://evil.example"),
        ("/elsewhere", "reader-token", None),
    ],
)
async def test_a_websocket_that_is_not_admitted(shop: Shop, path: str, token: str | None, origin: str | None) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens(), limits=Limits())
    lines = ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"]
    lines += ["sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-protocol: operations.v1"]
    lines += [f"authorization: Bearer {token}"] * (token is not None) + [f"origin: {origin}"] * (origin is not None)
    async with running(served) as place, connected(place) as connection:
        head = "\r\n".join([f"GET {path} HTTP/1.1", "host: 127.0.0.1", *lines])
        connection.write(head.encode() + b"\r\n\r\n")
        status, _, _ = await connection.response()
        assert status == 403


def test_an_application_that_is_not_of_a_registry_is_refused() -> None:
    with pytest.raises(CallError, match="invalid application str: expected the result of app"):
        HTTPServer("parent")  # type: ignore[arg-type]
