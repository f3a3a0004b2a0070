"""The console of a hub: calls across workers are one trace; workers are listed; routed calls can be cancelled."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from operations import CallError, Identity, OperationContext, OperationRegistry, __version__, operation
from operations.calls import PendingRequestMap, from_call, serve_registry
from operations.calls.hub import Hub
from operations.calls.hub.spoke import Spoke
from operations.identity import Principal, StaticTokens
from operations.serving import HTTPServer, ServedApp, app
from tests.serving.asgi_client import Answer, exchange, following, post, request

TOKENS = {
    "ann-token": Principal(Identity("ann")),
    "eye-token": Principal(Identity("eye", ("operations:watch", "operations:manage"))),
    "a-token": Principal(Identity("a"), ("a",)),
    "b-token": Principal(Identity("b"), ("b",)),
    "c-token": Principal(Identity("c"), ("c",)),
}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
API = "/console/api"


class Field:
    """A hub with two workers and its application."""

    def __init__(self) -> None:
        self.hub = Hub(StaticTokens(TOKENS))
        self.stack = AsyncExitStack()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.spokes: dict[str, AsyncExitStack] = {}
        self.served: ServedApp

    async def open(self) -> None:
        await self.stack.enter_async_context(self.hub)
        await self.add_worker("a-token", self._outer())
        await self.add_worker("b-token", self._inner(), *self._others())
        registry = OperationRegistry()
        remote = await self.stack.enter_async_context(from_call(self.hub.transport(), registry=registry))
        await remote.ready("a.outer", "b.inner", "b.slow", "b.stream", timeout=10)
        self.served = app(
            registry, authenticator=StaticTokens(TOKENS), hub=self.hub, console=True, mcp=False, metrics=True
        )
        await self.stack.enter_async_context(self.served.lifespan())

    async def add_worker(self, token: str, *operations: Any, concurrency: int = 32) -> None:
        stack = self.spokes[token] = AsyncExitStack()
        self.stack.push_async_callback(stack.aclose)
        spoke = await stack.enter_async_context(Spoke(self.hub.url, token=token))
        worker = await stack.enter_async_context(
            serve_registry(OperationRegistry(operations), spoke, concurrency=concurrency)
        )
        await worker.registered()

    def _outer(self) -> Any:
        @operation(id="a.outer", type="query")
        async def outer(context: OperationContext) -> list[int]:
            good = (await context.env.b.inner(n=1)).data
            try:
                await context.env.b.inner(n=-1)
            except CallError as error:
                return [good, len(str(error.code))]
            return []

        return outer

    def _inner(self) -> Any:
        @operation(id="b.inner", type="query")
        async def inner(n: int) -> int:
            if n < 0:
                raise CallError("NEGATIVE", "below zero")
            return n

        return inner

    def _others(self) -> list[Any]:
        @operation(id="b.slow", type="query")
        async def slow() -> None:
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

        @operation(id="b.stream")
        async def stream() -> AsyncIterator[int]:
            for number in range(3):
                yield number

        return [slow, stream]


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    opened = Field()
    async with opened.stack, asyncio.timeout(30):
        await opened.open()
        yield opened


async def get(field: Field, path: str, token: str = "eye-token") -> Answer:
    return await request(field.served, "GET", f"{API}/{path}", token=token)


async def test_a_call_across_two_workers_is_one_trace(field: Field) -> None:
    answer = await post(field.served, "/a/outer", token="ann-token", headers=TRACED)
    assert answer.json == [1, len("NEGATIVE")]
    for token in ("ann-token", "eye-token"):
        spans = (await get(field, f"traces/{TRACE}", token)).json["spans"]
        assert [(each["operationId"], each["worker"]) for each in spans] == [
            ("a.outer", "a-1"),
            ("b.inner", "b-1"),
            ("b.inner", "b-1"),
        ]
        root = spans[0]
        assert {each["parentRequestId"] for each in spans[1:]} == {root["requestId"]}
        assert [each["outcome"] for each in spans] == ["ok", "ok", "failed"]
        assert spans[2]["code"] == "NEGATIVE"
        assert {each["caller"] for each in spans} == {"ann"}
        for each in spans[1:]:
            assert root["queuedAt"] <= each["startedAt"] <= each["endedAt"] <= root["endedAt"]


async def test_calls_from_spokes_are_recorded_with_their_trace(field: Field) -> None:
    async with Spoke(field.hub.url, token="ann-token") as spoke:
        await PendingRequestMap(spoke).call("b.inner", {"n": 5}, metadata=TRACED, parent_request_id="made up")
        items = [item.data async for item in PendingRequestMap(spoke).subscribe("b.stream")]
    assert items == [0, 1, 2]
    [span] = (await get(field, f"traces/{TRACE}", "ann-token")).json["spans"]
    assert (span["kind"], span["protocol"], span["worker"]) == ("routed", "ws", "b-1")
    assert "parentRequestId" not in span
    [stream] = (await get(field, "calls?operation=b.stream", "ann-token")).json["calls"]
    assert (stream["items"], stream["outcome"]) == (3, "ok")


async def test_calls_of_spokes_are_audited_refused_ones_included(field: Field) -> None:
    await post(field.served, "/a/outer", token="ann-token")
    async with Spoke(field.hub.url, token="ann-token") as spoke:
        await PendingRequestMap(spoke).call("b.inner", {"n": 5})
        with pytest.raises(CallError):
            await PendingRequestMap(spoke).call("b.nothing")
    entries = (await get(field, "audit")).json["entries"]
    assert [(each["operationId"], each["protocol"]) for each in entries] == [("b.inner", "ws"), ("a.outer", "http")]
    [refused] = (await get(field, "calls?operation=b.nothing", "ann-token")).json["calls"]
    assert (refused["outcome"], refused["code"]) == ("failed", "OPERATION_NOT_FOUND")


async def test_a_routed_call_is_cancelled_by_its_caller_and_managers_only(field: Field) -> None:
    async with Spoke(field.hub.url, token="a-token") as spoke:
        call = asyncio.ensure_future(PendingRequestMap(spoke).call("b.slow", as_worker=True))
        await field.started.wait()
        [running] = (await get(field, "calls?outcome=running")).json["calls"]
        path = f"{API}/calls/{running['requestId']}"
        assert (await request(field.served, "DELETE", path, token="ann-token")).status == 404
        assert (await request(field.served, "DELETE", path, token="eye-token")).status == 202
        await field.cancelled.wait()
        with pytest.raises(CallError, match="cancelled in the console"):
            await call
        assert (await request(field.served, "DELETE", path, token="eye-token")).status == 409


async def test_a_call_through_the_application_is_cancelled_at_its_worker(field: Field) -> None:
    async with exchange(field.served, "POST", "/b/slow", json_body={}, token="ann-token") as calling:
        await field.started.wait()
        [running] = (await get(field, "calls?outcome=running", "ann-token")).json["calls"]
        assert running["worker"] == "b-1"
        path = f"{API}/calls/{running['requestId']}"
        assert (await request(field.served, "DELETE", path, token="ann-token")).status == 202
        await field.cancelled.wait()
        assert (await calling.complete()).json["code"] == "ABORTED"


async def test_a_call_that_waits_for_a_slot_of_its_worker_says_how_many_are_busy(field: Field) -> None:
    opened = {1: asyncio.Event(), 2: asyncio.Event()}

    @operation(id="c.wait", type="query")
    async def wait(number: int) -> int:
        await opened[number].wait()
        return number

    await field.add_worker("c-token", wait, concurrency=1)
    async with Spoke(field.hub.url, token="a-token") as spoke:
        caller = PendingRequestMap(spoke)
        calls = [asyncio.ensure_future(caller.call("c.wait", {"number": number}, as_worker=True)) for number in (1, 2)]
        async with following(field.served, f"{API}/feed?topics=calls", token="eye-token") as feed:
            await feed.until(lambda feed: feed.body.count(b"event: call.queued") == 1)
            running = (await get(field, "calls?outcome=running")).json["calls"]
            assert [("startedAt" in each, each.get("busySlots")) for each in running] == [(False, 1), (True, None)]
            opened[1].set()
            await feed.until(lambda feed: feed.body.count(b"event: call.ended") == 1)
            opened[2].set()
            assert [(await call).data for call in calls] == [1, 2]
            await feed.until(lambda feed: feed.body.count(b"event: call.ended") == 2)
    ended = (await get(field, "calls")).json["calls"]
    assert [each.get("busySlots") for each in ended] == [1, None]
    assert ended[0]["queuedAt"] < ended[0]["startedAt"] <= ended[0]["endedAt"]
    assert ended[0]["startedAt"] >= ended[1]["endedAt"]


async def test_workers_are_listed_and_their_loss_is_reported(field: Field) -> None:
    listed = {each["name"]: each for each in (await get(field, "workers")).json["workers"]}
    assert listed.keys() == {"hub", "a-1", "b-1"}
    assert (listed["b-1"]["state"], listed["b-1"]["operations"]) == ("ready", 3)
    assert listed["b-1"]["pid"] == os.getpid()
    assert listed["b-1"]["host"] == socket.gethostname()
    assert listed["b-1"]["version"] == __version__
    async with following(field.served, f"{API}/feed?topics=workers,catalogue", token="eye-token") as feed:
        await feed.until(lambda feed: b"hello" in feed.body)
        await field.spokes["b-token"].aclose()
        await feed.until(lambda feed: b'"state":"lost"' in feed.body and b"catalogue.changed" in feed.body)
    lost = {each["name"]: each for each in (await get(field, "workers")).json["workers"]}["b-1"]
    assert lost["state"] == "lost"
    assert lost["lostAt"] > 0
    await field.add_worker("b-token", field._inner())
    again = {each["name"]: each["state"] for each in (await get(field, "workers")).json["workers"]}
    assert again == {"hub": "ready", "a-1": "ready", "b-1": "lost", "b-2": "ready"}


async def test_spokes_connect_to_the_hub_through_the_application(field: Field) -> None:
    async with HTTPServer(field.served, "127.0.0.1:0") as server:
        url = server.url.replace("http://", "ws://") + "/ws"
        async with Spoke(url, token="ann-token") as spoke:
            assert (await PendingRequestMap(spoke).call("b.inner", {"n": 7})).data == 7
        [call] = (await get(field, "calls", "ann-token")).json["calls"]
        assert call["worker"] == "b-1"


async def test_the_metrics_of_the_hub_are_served_to_watchers(field: Field) -> None:
    assert (await request(field.served, "GET", "/metrics")).status == 401
    assert (await request(field.served, "GET", "/metrics", token="ann-token")).status == 403
    assert (await request(field.served, "POST", "/metrics", token="eye-token")).status == 405
    await post(field.served, "/b/inner", {"n": 2}, token="ann-token")
    answer = await request(field.served, "GET", "/metrics", token="eye-token")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'operations_calls_total{operation="b.inner",kind="served",outcome="ok"} 1' in answer.body
    assert b'operations_request_bytes_total{operation="b.inner"} 8' in answer.body
    assert b"operations_hub_peers 2" in answer.body
    assert b"ann" not in answer.body
