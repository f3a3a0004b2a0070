"""The console of a hub, attacked by an identity without rights: it learns nothing, stops nothing, displaces nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from operations import AccessControl, CallError, Identity, OperationContext, OperationRegistry, operation
from operations.calls import PendingRequestMap, from_call, serve_registry
from operations.calls.codec import JSON
from operations.calls.events import VERSION, CallRequested, RequestPayload
from operations.calls.hub import Hub
from operations.calls.hub.session import HubSession
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.serving import HTTPServer, ServedApp, app
from operations.serving.console.hub import HubRecorder
from operations.telemetry.call_records import CallRecords
from tests.serving.asgi_client import Answer, events_of, exchange, following, post, request

TOKENS = {
    "ann-token": Principal(Identity("ann", ("keep",))),
    "eve-token": Principal(Identity("eve")),
    "eye-token": Principal(Identity("eye", ("keep", "operations:watch", "operations:manage"))),
    "a-token": Principal(Identity("a"), ("a",)),
    "b-token": Principal(Identity("b"), ("b",)),
}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
API = "/console/api"
GUARDED = AccessControl(required_scopes=("keep",))


class Field:
    """A hub with two workers and its console."""

    def __init__(self) -> None:
        self.hub = Hub(StaticTokens(TOKENS))
        self.stack = AsyncExitStack()
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.served: ServedApp

    async def open(self) -> None:
        await self.stack.enter_async_context(self.hub)
        look, *others = self._operations()
        for token, operations in (("b-token", [look]), ("a-token", others)):
            spoke = await self.stack.enter_async_context(Spoke(self.hub.url, token=token))
            worker = await self.stack.enter_async_context(serve_registry(OperationRegistry(operations), spoke))
            await worker.registered()
        registry = OperationRegistry()
        remote = await self.stack.enter_async_context(from_call(self.hub.transport(), registry=registry))
        await remote.ready("b.look", "a.gold", "a.slow", timeout=10)
        self.served = app(
            registry, authenticator=StaticTokens(TOKENS), hub=self.hub, console=True, mcp=False, metrics=True
        )
        await self.stack.enter_async_context(self.served.lifespan())

    def _operations(self) -> list[Any]:
        @operation(id="b.look", type="query")
        async def look() -> int:
            return 1

        @operation(id="a.gold", type="query", access_control=GUARDED)
        async def gold(context: OperationContext) -> int:
            """Where the treasure is."""
            return (await context.env.b.look()).data  # type: ignore[no-any-return]

        @operation(id="a.slow", type="query", access_control=GUARDED)
        async def slow() -> None:
            self.started.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

        return [look, gold, slow]

    @property
    def records(self) -> CallRecords:
        assert self.served.console is not None
        return self.served.console.records


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    opened = Field()
    async with opened.stack, asyncio.timeout(30):
        await opened.open()
        yield opened


async def get(field: Field, path: str, token: str | None = "eve-token", **options: Any) -> Answer:
    return await request(field.served, "GET", f"{API}/{path}", token=token, **options)


async def test_nothing_is_answered_without_credentials(field: Field) -> None:
    paths = ["session", "catalogue", "operations/b.look", "calls", "calls/x", "traces/x", "workers", "metrics"]
    for path in (*paths, "audit", "jobs", "feed", "nothing", ""):
        for token in (None, "wrong"):
            answer = await get(field, path, token)
            assert answer.status == 401, path
            assert b"b.look" not in answer.body
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        assert (await request(field.served, method, f"{API}/calls/x")).status == 401
    assert (await request(field.served, "GET", "/metrics")).status == 401


async def test_no_resource_shows_forbidden_data(field: Field) -> None:
    await post(field.served, "/a/gold", token="ann-token", headers=TRACED)
    async with Spoke(field.hub.url, token="ann-token") as spoke:
        await PendingRequestMap(spoke).call("a.gold", {}, metadata=TRACED)
    paths = ["session", "catalogue", "calls?limit=200", "calls?caller=ann", "audit", "workers", "metrics"]
    paths += ["metrics?operation=a.gold", "metrics?worker=a-1", f"traces/{TRACE}", "operations/a.gold", "jobs"]
    paths += [f"calls/{record.request_id}" for record in field.records.newest()]
    assert len(field.records) >= 4
    assert field.served.console is not None
    everything = {"last-event-id": field.served.console._endpoint._log.name_of(0)}
    answers = [await get(field, path) for path in paths]
    async with following(field.served, f"{API}/feed", token="eve-token", headers=everything) as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        await post(field.served, "/b/look", token="eve-token")
        await feed.until(lambda feed: b"call.ended" in feed.body)
    for path, answer in zip(paths, answers, strict=True):
        assert not [word for word in (b"gold", b"ann", b"treasure", b"a-1") if word in answer.body], path
    assert [path for path, answer in zip(paths, answers, strict=True) if answer.status == 200] == [
        "session",
        "catalogue",
        "calls?limit=200",
        "calls?caller=ann",
    ]
    events = {event.get("event") for event in events_of(feed.body)}
    assert events <= {"hello", "call.started", "call.ended", None}
    assert b"gold" not in feed.body
    assert b'"ann"' not in feed.body
    unknown = await get(field, "operations/b.nothing")
    assert (await get(field, "operations/a.gold")).json["detail"] == unknown.json["detail"]
    assert (await request(field.served, "GET", "/metrics", token="eve-token")).status == 403


async def test_a_call_of_another_is_not_cancelled(field: Field) -> None:
    async with exchange(field.served, "POST", "/a/slow", json_body={}, token="ann-token") as calling:
        await field.started.wait()
        [running] = (await get(field, "calls?outcome=running", "ann-token")).json["calls"]
        for suffix in ("", "/", "%20", "?as=ann", "/retry"):
            path = f"{API}/calls/{running['requestId']}{suffix}"
            assert (await request(field.served, "DELETE", path, token="eve-token")).status == 404
        forged = {"x-operations-identity": "ann", "cookie": "token=ann-token"}
        path = f"{API}/calls/{running['requestId']}"
        assert (await request(field.served, "DELETE", path, token="eve-token", headers=forged)).status == 404
        assert (await request(field.served, "DELETE", path, headers={"cookie": "ann-token"})).status == 401
        assert not field.cancelled.is_set()
        field.go_on.set()
        assert (await calling.complete()).status == 200


async def test_the_trace_of_another_shows_an_intruder_only_its_own_calls(field: Field) -> None:
    await post(field.served, "/a/gold", token="ann-token", headers=TRACED)
    await post(field.served, "/b/look", token="eve-token", headers=TRACED)
    spans = (await get(field, f"traces/{TRACE}")).json["spans"]
    assert [(each.get("operationId"), each.get("caller")) for each in spans] == [("b.look", "eve")]
    theirs = (await get(field, f"traces/{TRACE}", "ann-token")).json["spans"]
    assert {each["caller"] for each in theirs} == {"ann"}
    assert [each["operationId"] for each in theirs] == ["a.gold", "b.look"]


def _recorder(hub: Hub) -> HubRecorder:
    return next(each for each in hub.router.observers if isinstance(each, HubRecorder))


async def _send_with_ids(field: Field, token: str, ids: list[str]) -> None:
    """Send requests with chosen ids, and wait until the hub has refused them all."""
    refused = asyncio.Event()
    recorder, counted = _recorder(field.hub), 0
    note = recorder.refused

    def count(session: HubSession, request_id: str, operation_id: str, code: str) -> None:
        nonlocal counted
        counted += 1
        note(session, request_id, operation_id, code)
        if counted == len(ids):
            refused.set()

    recorder.refused = count  # type: ignore[method-assign]
    async with Spoke(field.hub.url, token=token) as spoke:
        for each in ids:
            payload = RequestPayload(each, "b.nothing", metadata=TRACED)
            spoke.send("work.b", JSON.encode(CallRequested(VERSION, each, "b.nothing", payload)))
        await refused.wait()
    recorder.refused = note  # type: ignore[method-assign]


async def test_guessed_request_ids_do_not_hide_the_calls_of_others(field: Field) -> None:
    """The ids of HTTP requests are counted: a peer that uses the next ones first must not take their place."""
    answer = await post(field.served, "/b/look", token="eve-token")
    prefix, _, number = answer.headers["operations-request-id"].rpartition("-")
    await _send_with_ids(field, "eve-token", [f"{prefix}-{int(number, 16) + step:x}" for step in range(1, 200)])
    answer = await post(field.served, "/a/gold", token="ann-token")
    identifier = answer.headers["operations-request-id"]
    own = await get(field, f"calls/{identifier}", "ann-token")
    assert (own.status, own.json["operationId"]) == (200, "a.gold")
    spans = (await get(field, f"traces/{own.json['traceId']}", "ann-token")).json["spans"]
    assert [each["operationId"] for each in spans] == ["a.gold", "b.look"]
    assert (await get(field, f"calls/{identifier}")).status == 404
    assert b"hidden" not in (await get(field, f"traces/{TRACE}")).body


async def test_refused_requests_displace_neither_calls_nor_series_of_others(field: Field) -> None:
    field.records._max_records = 20
    await post(field.served, "/a/gold", token="ann-token")
    await _send_with_ids(field, "eve-token", [f"eve{number}" for number in range(200)])
    kept = [each["operationId"] for each in (await get(field, "calls", "ann-token")).json["calls"]]
    assert kept == ["b.look", "a.gold"]
    assert {name for kind, name in field.records.series._series if kind == "operation"} == {"a.gold", "b.look"}


async def test_open_feeds_are_limited_for_each_identity(field: Field) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(16):
            feed = await stack.enter_async_context(following(field.served, f"{API}/feed", token="eve-token"))
            await feed.until(lambda feed: b"hello" in feed.body)
        refused = await get(field, "feed")
        assert refused.status == 429
        other = await stack.enter_async_context(following(field.served, f"{API}/feed", token="ann-token"))
        await other.until(lambda feed: b"hello" in feed.body)
    async with following(field.served, f"{API}/feed", token="eve-token") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:9", "http://localhost.evil.example"]
)
async def test_another_site_reaches_nothing_even_with_a_token(field: Field, origin: str) -> None:
    headers = {"origin": origin}
    for method, path in (("GET", "session"), ("DELETE", "calls/x"), ("POST", "jobs/x/retry"), ("GET", "feed")):
        answer = await request(field.served, method, f"{API}/{path}", token="eye-token", headers=headers)
        assert answer.status == 403, path
        assert "access-control-allow-origin" not in answer.headers
    asked = {**headers, "access-control-request-method": "DELETE", "access-control-request-headers": "authorization"}
    preflight = await request(field.served, "OPTIONS", f"{API}/calls/x", headers=asked)
    assert "access-control-allow-origin" not in preflight.headers


async def test_another_host_name_reaches_nothing(field: Field) -> None:
    answer = await get(field, "session", "eye-token", headers={"host": "rebound.evil.example"})
    assert answer.status in (403, 421)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_request_bodies_are_ignored(field: Field, method: str) -> None:
    body = [b'{"identity": {"id": "eye", "scopes": ["operations:watch"]}}' * 1_000] * 100
    for path in ("session", "calls/x", "workers", "jobs/x/retry", "audit", "feed"):
        answer = await request(field.served, method, f"{API}/{path}", token="eve-token", body=body)
        assert answer.status in (403, 404, 405), path
        assert len(answer.body) < 1_000


async def test_a_real_server_refuses_malformed_requests_and_continues(field: Field) -> None:
    async with HTTPServer(field.served, "127.0.0.1:0") as server:
        port = int(server.url.rpartition(":")[2])
        head = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer eve-token\r\n"
        for line, more in (
            ("GET /console/api/calls/%00%ff%2e%2e/ HTTP/1.1", ""),
            ("GET /console/api/../../calls HTTP/1.1", ""),
            ("GET /console/api/calls?cursor=%ff%fe HTTP/1.1", ""),
            ("DELETE /console/api/calls/x HTTP/1.1", "Content-Length: 999999999999\r\n"),
            ("POST /console/api/jobs/x/retry HTTP/1.1", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
            ("GET /console/api/session HTTP/1.1", "Authorization: Bearer eye-token\r\n"),
            ("GET /console/api/operations/" + "x" * 60_000 + " HTTP/1.1", ""),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{line}\r\n{head}{more}\r\n".encode())
            status = (await reader.readline()).split(b" ")[1:2]
            assert not status or 400 <= int(status[0]) < 500, line[:60]
            writer.close()
        assert (await get(field, "session")).json["identity"] == {"id": "eve", "scopes": []}


async def test_a_spoke_that_comes_and_goes_displaces_no_other(field: Field) -> None:
    recorder = _recorder(field.hub)
    before = {each.name for each in recorder.states()}
    known = recorder._spokes[next(iter(recorder._spokes))]
    for number in range(3_000):
        recorder._spokes[f"gone{number}"] = known
        if len(recorder._spokes) > 1_000:
            recorder._forget_one()
    assert before == {each.name for each in recorder.states() if each.state != "lost"} == {"a-1", "b-1"}
    assert len(recorder._spokes) <= 1_000


async def test_an_identity_without_a_namespace_is_not_a_worker(field: Field) -> None:
    @operation(id="b.look", type="query")
    async def stolen() -> int:
        return 666

    async with (
        Spoke(field.hub.url, token="eve-token") as spoke,
        serve_registry(OperationRegistry([stolen]), spoke) as worker,
    ):
        with pytest.raises(CallError):
            await worker.registered()
        workers = (await get(field, "workers", "eye-token")).json["workers"]
        offered = {each["name"]: each["operations"] for each in workers if each["operations"]}
        assert offered == {"hub": 3, "a-1": 2, "b-1": 1}
        assert (await post(field.served, "/b/look", token="ann-token")).json == 1
