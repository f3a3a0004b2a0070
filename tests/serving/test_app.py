"""The application: health, metadata, hosts, origins, mounting, draining, revocation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from operations import OperationRegistry, operation
from operations.context import Identity
from operations.errors import CallError
from operations.identity import Principal
from operations.identity.api_keys import APIKeys
from operations.serving import HTTPServer, Limits, app, mcp_server
from operations.serving.audit import AuditRecord
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from tests.serving.asgi_client import events_of, exchange, following, post, request
from tests.serving.shop import Shop, tokens

JSON = {"content-type": "application/json"}


@pytest.fixture
async def shop() -> Shop:
    return Shop()


async def test_health_needs_no_credentials_and_no_host(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens())
    for path in ("/healthz", "/readyz"):
        answer = await request(served, "GET", path, headers={"host": "10.1.2.3"})
        assert answer.status == 200
    await served.drain()
    assert (await request(served, "GET", "/healthz")).status == 200
    stopping = await request(served, "GET", "/readyz")
    assert (stopping.status, stopping.body) == (503, b"stopping\n")


async def test_refused_and_expired_requests_are_in_the_metrics() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @operation("slow.wait", type="query")
    async def wait() -> None:
        entered.set()
        await leave.wait()

    limits = Limits(concurrency=1, queue=0)
    served = app(OperationRegistry([wait]), mcp=False, metrics=True, allow_anonymous=True, limits=limits)
    first = asyncio.create_task(post(served, "/slow/wait", {}))
    await entered.wait()
    assert (await post(served, "/slow/wait", {})).status == 503
    leave.set()
    assert (await first).status == 200
    text = (await request(served, "GET", "/metrics")).body
    assert b"operations_bus_rejected_total 1" in text
    assert b"operations_bus_expired_total 0" in text


async def test_metadata_of_the_protected_resource(shop: Shop) -> None:
    served = app(
        shop.registry,
        mcp=False,
        authenticator=tokens(),
        public_url="https://api.example.com",
        authorization_servers=["https://login.example.com"],
    )
    path = "/.well-known/oauth-protected-resource"
    assert (await request(served, "GET", path)).json["resource"] == "https://api.example.com"
    metadata = (await request(served, "GET", f"{path}/mcp")).json
    assert metadata["resource"] == "https://api.example.com/mcp"
    assert metadata["authorization_servers"] == ["https://login.example.com"]
    refused = await post(served, "/shop/quote")
    assert refused.status == 401
    assert f'resource_metadata="https://api.example.com{path}"' in refused.headers["www-authenticate"]
    with_mcp = app(
        shop.registry,
        authenticator=tokens(),
        public_url="https://api.example.com",
        authorization_servers=["https://login.example.com"],
    )
    refused = await post(with_mcp, "/mcp")
    assert f'resource_metadata="https://api.example.com{path}/mcp"' in refused.headers["www-authenticate"]
    without = app(shop.registry, mcp=False, authenticator=tokens())
    assert (await request(without, "GET", path)).status == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("evil.example:127.0.0.1", 403),
        ("localhost:evil.example", 403),
        ("localhost:80:80", 403),
        ("", 403),
    ],
)
async def test_hosts(shop: Shop, host: str, status: int) -> None:
    served = app(shop.registry, mcp=False)
    assert (await post(served, "/shop/quote", {"item": "a"}, headers={"host": host})).status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8000", 200),
        ("https://127.0.0.1:8000", 200),
        ("https://shop.example", 200),
        ("https://evil.example", 403),
        ("http://127.0.0.1:9000", 403),
        ("null", 403),
        ("", 403),
        ("https://shop.example.evil.example", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_origins(shop: Shop, method: str, origin: str, status: int) -> None:
    served = app(shop.registry, mcp=False, origins=["https://shop.example"])
    answer = await request(served, method, "/shop/picture", headers={"origin": origin})
    assert answer.status == status
    if origin == "https://shop.example":
        assert answer.headers["access-control-allow-origin"] == origin
    else:
        assert "access-control-allow-origin" not in answer.headers


async def test_a_page_of_a_configured_origin_can_read_the_headers_of_a_response(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, origins=["https://shop.example"])
    headers = {"origin": "https://shop.example", "idempotency-key": "a"}
    for _ in range(2):
        answer = await post(served, "/shop/order", {"item": "a"}, headers=headers)
    readable = answer.headers["access-control-expose-headers"].lower().split(", ")
    always = {"content-type", "content-length", "cache-control", "x-content-type-options"}  # of every response
    shown = {name for name in answer.headers if not name.startswith("access-control-")} - always
    assert "idempotency-replayed" in shown
    assert shown - {"vary", "date"} <= set(readable)


async def test_a_preflight_is_answered_for_configured_pages_only(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens(), origins=["https://shop.example"])
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    allowed = await request(served, "OPTIONS", "/vault/put", headers={"origin": "https://shop.example", **asked})
    assert (allowed.status, allowed.headers["access-control-allow-headers"]) == (204, "authorization")
    refused = await request(served, "OPTIONS", "/vault/put", headers={"origin": "https://evil.example", **asked})
    assert refused.status == 403
    assert "access-control-allow-origin" not in refused.headers


async def test_repeated_headers_are_refused(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens())
    for name, value in (("host", "127.0.0.1:8000"), ("authorization", "Bearer writer-token"), ("content-length", "1")):
        headers = [("authorization", "Bearer reader-token"), ("host", "127.0.0.1:8000"), ("content-length", "0")]
        assert (await request(served, "POST", "/vault/put", headers=[*headers, (name, value)])).status == 400
    both = {"authorization": "Bearer reader-token", "x-api-key": "writer-token"}
    assert (await request(served, "POST", "/vault/put", headers=both)).status == 400


async def test_credentials_that_fail_too_often_have_to_wait(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens(), limits=Limits(failures=3))
    codes = [(await post(served, "/shop/quote", {"item": "a"}, token=f"guess{n}")).status for n in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    assert (await post(served, "/shop/quote", {"item": "a"}, token="guess", address="10.0.0.2")).status == 401
    # Tokens that were verified before go on.
    assert (await post(served, "/shop/quote", {"item": "a"}, token="reader-token", address="10.0.0.3")).status == 200
    assert (await post(served, "/shop/quote", {"item": "a"}, token="reader-token")).status == 200


async def test_an_authenticator_may_be_asynchronous_and_may_fail(shop: Shop) -> None:
    class Asks:
        asked = 0

        async def authenticate(self, token: str | None) -> Principal:
            self.asked += 1
            await asyncio.sleep(0)
            if token == "down":
                raise CallError("UNAVAILABLE", "secret host is down")
            if token != "good":
                raise CallError("ACCESS_DENIED", "no")
            return Principal(Identity("asked"))

    authenticator = Asks()
    served = app(shop.registry, mcp=False, authenticator=authenticator)
    answers = await asyncio.gather(*(post(served, "/shop/whoami", token="good") for _ in range(20)))
    assert {answer.json["id"] for answer in answers} == {"asked"}
    assert authenticator.asked == 1
    assert (await post(served, "/shop/whoami", token="bad")).status == 401
    down = await post(served, "/shop/whoami", token="down")
    assert down.status == 503
    assert b"secret" not in down.body
    # The outage of an authenticator is no guess of a token: an address with many callers is not locked out.
    outage = [await post(served, "/shop/whoami", token="down") for _ in range(40)]
    assert {answer.status for answer in outage} == {503}
    assert (await post(served, "/shop/whoami", token="bad-too")).status == 401


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("returned", [None, {"id": "x"}, Identity("x"), Principal({"id": "x"}), OSError("secret host")])  # type: ignore[arg-type]
async def test_an_authenticator_that_fails_unexpectedly_admits_no_one(
    shop: Shop, caplog: pytest.LogCaptureFixture, returned: Any, asynchronous: bool
) -> None:
    def authenticate() -> Any:
        if isinstance(returned, OSError):
            raise returned
        return returned

    class Authenticates:
        def authenticate(self, token: str | None) -> Any:
            return authenticate()

    class AuthenticatesLater:
        async def authenticate(self, token: str | None) -> Any:
            return authenticate()

    served = app(shop.registry, mcp=False, authenticator=AuthenticatesLater() if asynchronous else Authenticates())
    for answer in await asyncio.gather(*(post(served, "/shop/whoami", token="any") for _ in range(3))):
        assert (answer.status, answer.json["code"]) == (503, "UNAVAILABLE")
        assert b"secret" not in answer.body
    assert "the authenticator failed" in caplog.text


@pytest.mark.parametrize("name", ["hosts", "origins", "audiences", "authorization_servers"])
def test_a_string_instead_of_a_list_is_refused(shop: Shop, name: str) -> None:
    settings: Any = {name: "shop.example"}
    with pytest.raises(ValueError, match=rf"invalid {name} 'shop.example': expected a list; pass \['shop.example'\]"):
        app(shop.registry, **settings)


def test_a_string_instead_of_a_flag_is_refused(shop: Shop) -> None:
    with pytest.raises(ValueError, match="invalid read_only 'x': expected True or False"):
        app(shop.registry, read_only="x")  # type: ignore[arg-type]


def test_an_anonymous_caller_of_another_type_is_refused(shop: Shop) -> None:
    with pytest.raises(CallError, match=r"expected an Identity\(…\)"):
        app(shop.registry, anonymous={"id": "guest"})


@pytest.mark.parametrize("kind", ["starlette", "starlette-root", "without-lifespan"])
async def test_mounted_in_another_application(shop: Shop, kind: str) -> None:
    served = app(shop.registry, mcp=False)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with served.lifespan():
            yield

    prefix = "" if kind == "starlette-root" else "/api"
    parent = Starlette(routes=[Mount(prefix or "/", served)], lifespan=None if kind == "without-lifespan" else lifespan)
    async with parent.router.lifespan_context(parent):
        answer = await post(parent, f"{prefix}/shop/quote", {"item": "tea"})
        assert (answer.status, answer.json["item"]) == (200, "tea")
        assert (await request(parent, "GET", f"{prefix}/healthz")).status == 200
        assert (await request(parent, "GET", f"{prefix}/shop/quote?item=a")).status == 200
        assert (await post(parent, f"{prefix}/none")).status == 404
    assert served.is_draining is (kind != "without-lifespan")


async def test_a_root_path_of_the_server(shop: Shop) -> None:
    served = app(shop.registry, mcp=False)
    answer = await post(served, "/shop/quote", {"item": "tea"}, root_path="/behind/proxy")
    assert answer.status == 200


async def test_draining_finishes_calls_and_ends_streams(shop: Shop) -> None:
    served = app(shop.registry, mcp=False)
    async with exchange(served, "POST", "/shop/slow") as call, following(served, "/shop/watch") as stream:
        await shop.started.wait()
        await stream.until(lambda sent: sent.status == 200)
        draining = asyncio.create_task(served.drain())
        ended = await stream.complete()
        assert '"UNAVAILABLE"' in events_of(ended.body)[-1]["data"]
        refused = await post(served, "/shop/quote", {"item": "a"})
        assert (refused.status, refused.json["details"]["reason"]) == (503, "DRAINING")
        assert not draining.done()
        shop.go_on.set()
        assert (await call.complete()).json == "done"
        await draining


async def test_a_call_that_takes_too_long_is_ended_by_draining(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, limits=Limits(drain_seconds=0.05))
    async with exchange(served, "POST", "/shop/slow") as call:
        await shop.started.wait()
        await served.drain()
        answer = await call.complete()
    assert (answer.status, answer.json["code"], answer.json["executed"]) == (503, "UNAVAILABLE", "unknown")


async def test_each_call_leaves_one_record(shop: Shop) -> None:
    records: list[AuditRecord] = []
    served = app(shop.registry, mcp=False, authenticator=tokens(), audit=records.append)
    await post(served, "/shop/quote", {"item": "secret"}, token="reader-token")
    await post(served, "/vault/put", token="reader-token")
    await post(served, "/none/none", token="reader-token")
    shop.items.put_nowait(None)
    await request(served, "GET", "/shop/watch", token="writer-token")
    assert [(each.operation_id, each.caller, each.code, each.status) for each in records] == [
        ("shop.quote", "reader", "OK", 200),
        ("vault.put", "reader", "ACCESS_DENIED", 403),
        ("shop.watch", "writer", "OK", 200),
    ]
    assert all(each.request_id and each.address == "10.0.0.1" for each in records)
    assert "secret" not in str(records)


async def test_a_revoked_key_ends_streams_and_is_refused(shop: Shop, tmp_path: Path) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    token, kept = keys.create("robot", scopes=["read"])
    served = app(shop.registry, mcp=False, authenticator=keys)
    async with served.lifespan():
        assert (await post(served, "/vault/look", headers={"x-api-key": token})).json == "gold"
        async with following(served, "/shop/watch", token=token) as stream:
            await stream.until(lambda sent: sent.status == 200)
            assert APIKeys(tmp_path / "keys.json").revoke(kept.id)
            ended = await stream.complete()
            assert '"UNAVAILABLE"' in events_of(ended.body)[-1]["data"]
        assert (await post(served, "/vault/look", headers={"x-api-key": token})).status == 401


@pytest.mark.parametrize("has_lifespan", [True, False])
async def test_a_revoked_key_is_refused_although_another_request_read_the_file_first(
    shop: Shop, tmp_path: Path, has_lifespan: bool
) -> None:
    keys = APIKeys(tmp_path / "keys.json")
    token, kept = keys.create("robot", scopes=["read"])
    served = app(shop.registry, mcp=False, authenticator=keys)
    async with served.lifespan() if has_lifespan else contextlib.nullcontext():
        assert (await post(served, "/vault/look", headers={"x-api-key": token})).json == "gold"
        async with following(served, "/shop/watch", token=token) as stream:
            await stream.until(lambda sent: sent.status == 200)
            assert APIKeys(tmp_path / "keys.json").revoke(kept.id)
            # The authenticator reads the changed file here, before the periodic check.
            assert (await post(served, "/vault/look", headers={"x-api-key": token[:-1]})).status == 401
            ended = await stream.complete()
            assert '"UNAVAILABLE"' in events_of(ended.body)[-1]["data"]
        assert (await post(served, "/vault/look", headers={"x-api-key": token})).status == 401


async def test_a_payload_cannot_name_its_caller(shop: Shop) -> None:
    served = app(shop.registry, mcp=False, authenticator=tokens())
    answer = await post(
        served,
        "/shop/whoami?identity=writer",
        {},
        token="reader-token",
        headers={"x-identity": "writer", "x-forwarded-user": "writer", "operations-request-id": "forged"},
    )
    assert answer.json["id"] == "reader"
    assert answer.json["request"] != "forged"


def test_authenticators_and_limits_are_checked_when_the_application_is_made() -> None:
    registry = OperationRegistry()
    with pytest.raises(TypeError, match=r"invalid authenticator of type dict.*StaticTokens"):
        app(registry, authenticator={"token": Principal(Identity("ada"))})  # type: ignore[arg-type]
    with pytest.raises(CallError, match=r"limits: unknown key 'concurency': expected one of .*concurrency"):
        app(registry, limits={"concurency": 4})
    assert app(registry, limits={"concurrency": 4}).settings.limits == Limits(concurrency=4)


async def test_an_mcp_server_serves_nothing_but_mcp(shop: Shop) -> None:
    served = mcp_server(shop.registry, authenticator=tokens())
    credentials = {"authorization": "Bearer reader-token"}
    async with HTTPServer(served, "127.0.0.1:0") as server:
        config = MCPClientConfig(url=f"{server.url}/mcp", headers=credentials)
        async with create_mcp_client("far", config) as client:
            registry = OperationRegistry(client.operations)
            envelope = await registry.execute("far.shop.quote", {"item": "tea"})
            assert envelope.data == (await shop.registry.execute("shop.quote", {"item": "tea"})).data
        for path in ("/shop/quote", "/openapi.json", "/docs", "/~/jobs/1"):
            answer = await request(served, "GET", path, headers=credentials)
            assert (answer.status, answer.json["code"]) == (404, "OPERATION_NOT_FOUND")
            assert "/mcp" in answer.json["detail"]
            assert (await request(served, "GET", path)).status == 401
    with pytest.raises(ValueError, match="console"):
        mcp_server(shop.registry, console=True)
