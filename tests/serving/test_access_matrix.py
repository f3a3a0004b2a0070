"""Every kind of endpoint and credential: the outcome depends on `check_access` alone.

Each kind of endpoint has a row in ENDPOINTS; an endpoint of the application without a row fails the test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jwt
import msgspec
import pytest

from operations.access import check_access
from operations.context import Identity
from operations.identity import JWTTokens
from operations.jobs import Jobs
from operations.serving import Limits, app
from operations.serving.app import ServedApp
from operations.spec import AccessControl
from tests.serving.asgi_client import Answer, events_of, following, post, request
from tests.serving.mcp import wire
from tests.serving.shop import Shop

SECRET = "s" * 32
URL = "https://api.example.com"
OPEN = AccessControl()
READ = AccessControl(required_scopes=("read",))
WRITE = AccessControl(required_scopes=("write",))
WATCH = AccessControl(required_scopes=("operations:watch",))


def token(scopes: str = "", *, audience: str | list[str] = URL, lifetime: float = 60, key: str = SECRET) -> str:
    claims = {"sub": "caller", "scope": scopes, "aud": audience, "exp": time.time() + lifetime}
    return jwt.encode(claims, key, algorithm="HS256")


class Credential(msgspec.Struct, frozen=True):
    """The credential of a caller and its identity; None for a caller that is not admitted."""

    name: str
    token: Callable[[], str | None]
    identity: Identity | None = None


CREDENTIALS = [
    Credential("none", lambda: None),
    Credential("wrong", lambda: token("read write", key="x" * 32)),
    Credential("garbage", lambda: "garbage"),
    Credential("unsigned", lambda: jwt.encode({"sub": "caller", "exp": 9e9, "aud": URL}, "", algorithm="none")),
    Credential("expired", lambda: token("read write", lifetime=-3600)),
    Credential("wrong audience", lambda: token("read write", audience="https://other.example.com")),
    Credential("audience of MCP", lambda: token("read write", audience=f"{URL}/mcp")),
    Credential("missing scope", lambda: token("other"), Identity("caller", ("other",))),
    Credential("read", lambda: token("read"), Identity("caller", ("read",))),
    Credential("watch", lambda: token("operations:watch"), Identity("caller", ("operations:watch",))),
    Credential("read and write", lambda: token("read write"), Identity("caller", ("read", "write"))),
]


class World:
    """One application with every kind of endpoint."""

    def __init__(self) -> None:
        self.shop = Shop()
        self.served: ServedApp = app(
            self.shop.registry,
            public_url=URL,
            hosts=["127.0.0.1"],
            authenticator=JWTTokens(SECRET, algorithms=["HS256"], audience=[URL, f"{URL}/mcp"]),
            limits=Limits(replay_seconds=30, failures=1_000),
            jobs=Jobs(self.shop.registry),
            metrics=True,
        )

    async def job_of_another(self, shown: str | None, method: str = "GET", end: str = "") -> Answer:
        """Use the job of another caller."""
        claims = jwt.decode(token("write"), options={"verify_signature": False})
        owner = jwt.encode({**claims, "sub": "owner"}, SECRET, algorithm="HS256")
        body = {"item": "owned"}
        job = await post(self.served, "/vault/put", body, headers={"prefer": "respond-async"}, token=owner)
        assert job.status == 202
        return await request(self.served, method, job.headers["location"] + end, token=shown)

    async def replayed(self, shown: str | None) -> Answer:
        """Send a mutation that the owner has sent before with the same key."""
        key = {"idempotency-key": "k"}
        owner = token("write", audience=URL)
        claims = jwt.decode(owner, options={"verify_signature": False})
        other = jwt.encode({**claims, "sub": "owner"}, SECRET, algorithm="HS256")
        await post(self.served, "/vault/put", {"item": "owned"}, headers=key, token=other)
        return await post(self.served, "/vault/put", {"item": "mine"}, headers=key, token=shown)

    async def resumed(self, shown: str | None) -> Answer:
        """Resume a stream of another caller."""
        claims = jwt.decode(token("read"), options={"verify_signature": False})
        owner = jwt.encode({**claims, "sub": "owner"}, SECRET, algorithm="HS256")
        async with following(self.served, "/shop/watch", token=owner) as sent:
            self.shop.items.put_nowait("theirs")
            await sent.until(lambda each: events_of(each.body))
            last = events_of(sent.body)[0]["id"]
        return await request(self.served, "GET", "/shop/watch", token=shown, headers={"last-event-id": last})


class Endpoint(msgspec.Struct, frozen=True):
    """A kind of endpoint: its requirements, its request, and the response to a permitted caller."""

    kind: str
    access: AccessControl
    ask: Callable[[World, str | None], Awaitable[Answer]]
    allowed: int = 200
    denied: int = 403
    """The status for an authenticated caller without the rights."""
    path: str = ""
    """The path of an endpoint other than that of operations."""


def calls(path: str, method: str = "POST") -> Callable[[World, str | None], Awaitable[Answer]]:
    return lambda world, shown: request(world.served, method, path, token=shown)


def asks_mcp(method: str, **params: Any) -> Callable[[World, str | None], Awaitable[Answer]]:
    async def ask(world: World, shown: str | None) -> Answer:
        sent = wire.message(method, params)
        return await request(
            world.served, "POST", "/mcp", body=json.dumps(sent).encode(), headers=wire.headers(sent), token=shown
        )

    return ask


async def connects(world: World, shown: str | None) -> Answer:
    """Open a WebSocket; its status is 101 where it is accepted."""
    sent: list[Any] = []
    gone = asyncio.Event()
    events = iter([{"type": "websocket.connect"}])

    async def receive() -> Any:
        event = next(events, None)
        if event is None:
            await gone.wait()
            return {"type": "websocket.disconnect", "code": 1000}
        return event

    async def send(event: Any) -> None:
        sent.append(event)
        gone.set()

    headers = [(b"host", b"127.0.0.1"), (b"sec-websocket-protocol", b"operations.v1")]
    headers += [(b"authorization", f"Bearer {shown}".encode())] if shown is not None else []
    scope = {"type": "websocket", "path": "/ws", "headers": headers, "client": ("10.0.0.1", 1)}
    async with asyncio.timeout(5):
        await world.served(scope, receive, send)
    accepted = sent[0]["type"] == "websocket.accept"
    return Answer(101 if accepted else 401, [(b"www-authenticate", b"Bearer")], b"")


async def submits(world: World, shown: str | None) -> Answer:
    return await request(world.served, "POST", "/vault/put", token=shown, headers={"prefer": "respond-async"})


ENDPOINTS = [
    Endpoint("document", OPEN, calls("/openapi.json", "GET"), path="/openapi.json"),
    Endpoint("MCP list", OPEN, asks_mcp("tools/list"), path="/mcp"),
    Endpoint("MCP discovery", OPEN, asks_mcp("server/discover"), path="/mcp"),
    Endpoint("MCP call of an open tool", OPEN, asks_mcp("tools/call", name="shop.picture", arguments={}), path="/mcp"),
    Endpoint(
        "MCP call of a guarded tool",
        READ,
        asks_mcp("tools/call", name="vault.look", arguments={}),
        denied=400,  # as for an unknown one
        path="/mcp",
    ),
    Endpoint("metrics", WATCH, calls("/metrics", "GET"), path="/metrics"),
    Endpoint("WebSocket", OPEN, connects, 101, path="/ws"),
    Endpoint("open query", OPEN, calls("/shop/picture")),
    Endpoint("open query by GET", OPEN, calls("/shop/picture", "GET")),
    Endpoint("guarded query", READ, calls("/vault/look")),
    Endpoint("guarded query by GET", READ, calls("/vault/look", "GET")),
    Endpoint("guarded query by HEAD", READ, calls("/vault/look", "HEAD")),
    Endpoint("guarded mutation", WRITE, calls("/vault/put")),
    Endpoint("guarded stream", READ, calls("/vault/follow", "GET")),
    Endpoint("methods of a guarded query", READ, calls("/vault/look", "OPTIONS"), 204),
    Endpoint("job", WRITE, submits, 202),
    Endpoint("job of another", OPEN, lambda world, shown: world.job_of_another(shown), 404),
    Endpoint("result of another", OPEN, lambda world, shown: world.job_of_another(shown, end="/result"), 404),
    Endpoint("cancelled job of another", OPEN, lambda world, shown: world.job_of_another(shown, "DELETE"), 404),
    Endpoint("unknown path", OPEN, calls("/vault/nothing"), 404),
    Endpoint("replayed key of another", WRITE, lambda world, shown: world.replayed(shown)),
    Endpoint("resumed stream of another", OPEN, lambda world, shown: world.resumed(shown), 410),
]
OTHER_AUDIENCE = "audience of MCP"
"""The credential that the MCP endpoint alone accepts."""


@pytest.mark.parametrize("credential", CREDENTIALS, ids=lambda each: each.name)
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.kind)
async def test_access(endpoint: Endpoint, credential: Credential) -> None:
    world = World()
    answer = await endpoint.ask(world, credential.token())
    identity = credential.identity
    if credential.name == OTHER_AUDIENCE and endpoint.path == "/mcp":
        identity = Identity("caller", ("read", "write"))
    allowed = identity is not None and check_access(endpoint.access, identity).allowed
    expected = 401 if identity is None else endpoint.allowed if allowed else endpoint.denied
    assert answer.status == expected
    if not allowed:
        assert b"gold" not in answer.body
    if allowed and identity is not None and not check_access(READ, identity).allowed:
        assert b"vault.follow" not in answer.body  # it is listed for those who may call it
    if expected in (401, 403):
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert b"vault" not in answer.body or expected == 403
        assert world.shop.sent in ([], ["owned"])
    if endpoint.kind == "replayed key of another" and expected == 200:
        assert answer.json == "mine"
    assert b"theirs" not in answer.body


async def test_every_endpoint_has_a_row() -> None:
    assert {*World().served._endpoints, "/ws", ""} == {each.path for each in ENDPOINTS}


@pytest.mark.parametrize("credential", CREDENTIALS, ids=lambda each: each.name)
async def test_nothing_is_listed_that_may_not_be_called(credential: Credential) -> None:
    world = World()
    answer = await post(world.served, "/vault/loo", token=credential.token())
    if credential.identity is None:
        assert answer.status == 401
        return
    nearest: list[Any] = answer.json["details"]["nearest"]
    operations = world.shop.registry.operations
    assert all(check_access(operations[each].spec.access_control, credential.identity).allowed for each in nearest)


async def test_the_token_of_one_caller_is_not_cached_for_another() -> None:
    world = World()
    for _ in range(3):
        for scopes, status in (("read", 200), ("other", 403), ("read write", 200)):
            assert (await post(world.served, "/vault/look", token=token(scopes))).status == status


async def test_a_cached_token_ends_with_its_lifetime() -> None:
    world = World()
    shown = token("read", lifetime=-8.5)  # the leeway is ten seconds
    assert (await post(world.served, "/vault/look", token=shown)).status == 200
    end = time.time() + 5
    while (answer := await post(world.served, "/vault/look", token=shown)).status == 200:
        assert time.time() < end
    assert answer.status == 401
