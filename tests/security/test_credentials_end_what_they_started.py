"""What was started with a token ends with it: revocation and expiry, also of slow requests and of streams over MCP."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from operations.identity import JWTTokens
from operations.identity.api_keys import APIKeys
from operations.serving import Limits, app
from operations.serving.app import ServedApp
from operations.sources.mcp.own_fields import STREAM
from tests.serving.asgi_client import events_of, exchange, following, request
from tests.serving.http_server import connected, post_bytes, running
from tests.serving.mcp.examples import legacy_session
from tests.serving.mcp.wire import headers, message
from tests.serving.shop import Shop
from tests.waiting import until

SECRET = "s" * 32
FOLLOWED: dict[str, Any] = {STREAM: True, "progressToken": "p"}


def token(seconds: float, scopes: str = "read") -> str:
    return jwt.encode({"sub": "ada", "scope": scopes, "exp": time.time() + seconds}, SECRET, algorithm="HS256")


def keyed(shop: Shop, path: Path, **options: Any) -> tuple[ServedApp, str, str]:
    """Return an application, an API key, and the id of the key."""
    keys = APIKeys(path / "keys.json")
    shown, kept = keys.create("robot", scopes=["read"])
    return app(shop.registry, authenticator=keys, **options), shown, kept.id


async def revoke(served: ServedApp, path: Path, key_id: str) -> None:
    """Revoke a key, and wait until the server has noticed it."""
    noticed = asyncio.Event()
    original = served.revoke

    async def note() -> None:
        await original()
        noticed.set()

    served.revoke = note  # type: ignore[method-assign]
    assert APIKeys(path / "keys.json").revoke(key_id)
    async with asyncio.timeout(20):
        await noticed.wait()


@pytest.mark.parametrize("path", ["/shop/watch", "/vault/look", "/mcp"])
async def test_a_request_that_arrives_during_a_revocation_is_refused(tmp_path: Path, path: str) -> None:
    """Previously, a stream whose body arrived after the revocation of its key stayed open."""
    shop = Shop()
    served, shown, key_id = keyed(shop, tmp_path)
    lines = [f"authorization: Bearer {shown}", "accept: application/json, text/event-stream", "content-length: 2"]
    async with running(served) as place, connected(place) as connection:
        connection.write(post_bytes(path, b"{", *lines))
        await until(lambda: bool(served.admission.cache._principals))
        await revoke(served, tmp_path, key_id)
        connection.write(b"}")
        status, _, body = await connection.response()
    assert (status, b"send it again" in body) == (503, True)
    assert not shop.started.is_set()


async def test_a_request_is_refused_if_its_token_is_revoked_while_it_is_verified(tmp_path: Path) -> None:
    shop = Shop()
    verifying, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        async def authenticate(self, shown: str | None) -> Any:
            verifying.set()
            await go_on.wait()
            return JWTTokens(SECRET, algorithms=["HS256"]).authenticate(shown)

    served = app(shop.registry, mcp=False, authenticator=Slow())
    async with exchange(served, "GET", "/shop/watch", token=token(60)) as sent:
        await verifying.wait()
        await served.revoke()
        go_on.set()
        assert (await sent.complete()).status == 503


async def followed(url: str, sent: dict[str, Any], shown: str, lines: list[str]) -> None:
    async with (
        httpx2.AsyncClient(timeout=60) as client,
        client.stream(
            "POST", url, content=json.dumps(sent), headers={**headers(sent), "authorization": f"Bearer {shown}"}
        ) as response,
    ):
        async for line in response.aiter_lines():
            lines.append(line)


async def test_a_revoked_key_ends_a_stream_over_mcp(tmp_path: Path) -> None:
    shop, lines = Shop(), list[str]()
    served, shown, key_id = keyed(shop, tmp_path)
    sent = message("tools/call", {"name": "shop.watch", "arguments": {}}, meta=FOLLOWED)
    async with running(served) as place, asyncio.timeout(30):
        url = f"http://{place[0]}:{place[1]}/mcp"
        following_it = asyncio.create_task(followed(url, sent, shown, lines))
        await shop.started.wait()
        shop.items.put_nowait("before")
        await until(lambda: "before" in str(lines))
        await revoke(served, tmp_path, key_id)
        await following_it
        await shop.closed.wait()
    assert '"isError":true' in lines[-2]


@pytest.mark.parametrize("is_legacy", [False, True])
async def test_an_expired_token_ends_a_stream_over_mcp_at_the_server(is_legacy: bool) -> None:
    """Previously, the handler of a stream in a session ran on although the response had ended."""
    shop = Shop()
    served = app(shop.registry, authenticator=JWTTokens(SECRET, algorithms=["HS256"], leeway=0))
    async with running(served) as place, asyncio.timeout(30):
        url = f"http://{place[0]}:{place[1]}/mcp"
        call = {"name": "shop.watch", "arguments": {}, "_meta": FOLLOWED}
        shown = {"authorization": f"Bearer {token(3)}"}
        if is_legacy:
            async with legacy_session(url, **shown) as session:
                task = asyncio.create_task(session("tools/call", call))
                await shop.closed.wait()
                task.cancel()
                await asyncio.wait((task,))
        else:
            sent = message("tools/call", {"name": "shop.watch", "arguments": {}}, meta=FOLLOWED)
            task = asyncio.create_task(followed(url, sent, token(3), []))
            await shop.closed.wait()
            await asyncio.wait((task,))


@pytest.mark.parametrize(
    ("second", "status"), [(60, 200), (600, 200), (2, 410), ("read write", 410), ("", 410)], ids=str
)
async def test_a_stream_is_resumed_only_with_credentials_as_strong_as_the_first(
    second: float | str, status: int
) -> None:
    """Previously, a stream that was resumed with a short-lived token lasted as long as the first token."""
    shop = Shop()
    served = app(
        shop.registry,
        mcp=False,
        authenticator=JWTTokens(SECRET, algorithms=["HS256"]),
        limits=Limits(replay_seconds=30),
    )
    async with following(served, "/shop/watch", token=token(60)) as sent:
        shop.items.put_nowait("a")
        await sent.until(lambda each: events_of(each.body))
        last = events_of(sent.body)[0]["id"]
    shown = token(120, second) if isinstance(second, str) else token(second)
    shop.items.put_nowait(None)
    answer = await request(served, "GET", "/shop/watch", token=shown, headers={"last-event-id": last})
    assert answer.status == status
