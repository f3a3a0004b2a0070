"""MCP clients reach only their own calls, tasks and sessions, and what they make the server store is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import threading
from typing import Any

import httpx2
import msgspec
import pytest

from operations import AccessControl, Operation, OperationContext, OperationRegistry, operation
from operations.schema import from_schema
from operations.serving.limits import Limits
from operations.serving.mcp import endpoint as endpoint_module
from operations.serving.mcp.resources import prompt, resource
from operations.serving.mcp.sdk import http
from operations.spec import OperationSpec, OperationType
from tests.serving.mcp.examples import ELICITS, OPERATIONS, ask_over, legacy_session
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.wire import SDK_ONLY, headers, message, post
from tests.waiting import until


async def test_no_text_of_an_exception_is_sent_in_any_version() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        for meta in ({}, SDK_ONLY):
            answer = await post(url, message("tools/call", {"name": "shop.secret_failure"}, meta=meta))
            assert "hunter2" not in json.dumps(answer)
            assert answer[1]["result"]["isError"] is True
        async with legacy_session(url) as session:
            answer = await session("tools/call", {"name": "shop.secret_failure", "arguments": {}})
            assert "hunter2" not in json.dumps(answer)
            assert answer["result"]["isError"] is True


async def test_nothing_is_listed_that_may_not_be_called_and_no_cache_shows_anothers_list() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        for _ in range(2):
            for who, sees in (("ann admin", True), ("bob other", False), ("", False), ("eve admin", True)):
                more = {"x-caller": who} if who else {}
                _, listed = await post(url, message("tools/list"), **more)
                assert ("admin.stop" in [tool["name"] for tool in listed["result"]["tools"]]) is sees
                _, called = await post(url, message("tools/call", {"name": "admin.stop"}), **more)
                assert ("result" in called) is sees
                if not sees:
                    _, unknown = await post(url, message("tools/call", {"name": "no.such"}), **more)
                    assert called["error"]["code"] == unknown["error"]["code"]
                    assert called["error"]["message"] == "Unknown tool: admin.stop"


async def test_a_session_belongs_to_the_identity_that_opened_it() -> None:
    ann = {"x-caller": "ann admin"}
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _), legacy_session(url, **ann) as session:
        assert "result" in await session("tools/call", {"name": "admin.stop", "arguments": {}})
        assert await session("tools/list", **{"x-caller": "bob admin"}) == 404
        # The same identity with fewer rights: the list of the request's rights, not of the session's.
        listed = await session("tools/list", **{"x-caller": "ann"})
        assert "admin.stop" not in [tool["name"] for tool in listed["result"]["tools"]]
        refused = await session("tools/call", {"name": "admin.stop", "arguments": {}}, **{"x-caller": "ann"})
        assert refused["error"]["message"] == "Unknown tool: admin.stop"


async def test_a_batch_is_refused_before_its_messages_are_read() -> None:
    sent = message("tools/list")
    async with (
        serve_endpoint(OperationRegistry(OPERATIONS)) as (url, endpoint),
        httpx2.AsyncClient(timeout=60) as client,
    ):
        answer = await client.post(url, content=f" [{json.dumps(sent)}]", headers=headers(sent))
        assert endpoint._sessions is None  # the SDK was not needed
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "expected one message: batches are not supported"


async def test_the_sdk_is_imported_beside_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import takes up to a second, and any caller may send the first request that needs it."""
    threads: list[int] = []

    def note(name: str) -> Any:
        threads.append(threading.get_ident())
        return importlib.import_module(name)

    monkeypatch.setattr(endpoint_module, "import_module", note)
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        answers = await asyncio.gather(*[post(url, message("tools/list"), accept="*/*") for _ in range(5)])
    assert all("result" in answer for _, answer in answers)
    assert threads
    assert threading.get_ident() not in threads


async def test_identities_in_payloads_are_ignored() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        claimed = {"operations/identity": {"id": "root", "scopes": ["admin"]}, "identity": {"scopes": ["admin"]}}
        for meta in (claimed, {**claimed, **SDK_ONLY}):
            _, answer = await post(url, message("tools/call", {"name": "admin.stop"}, meta=meta))
            assert answer["error"]["message"] == "Unknown tool: admin.stop"


async def test_a_state_is_valid_for_its_own_call_and_caller_only() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        state = (await ask_over(url))["result"]["requestState"]
        answer = {"answer": {"action": "accept", "content": {"name": "Ann"}}}
        given = {"arguments": {}, "inputResponses": answer, "requestState": state}
        for params, who in (
            ({"name": "shop.greet", **given}, "eve"),
            ({"name": "shop.greet", **given, "arguments": {"other": 1}}, ""),
            ({"name": "shop.greet", **given, "requestState": state[:-4] + "AAAA"}, ""),
            ({"name": "shop.greet", **given, "requestState": ""}, ""),
        ):
            more = {"x-caller": who} if who else {}
            _, refused = await post(url, message("tools/call", params, meta=ELICITS), **more)
            assert refused["error"]["code"] == -32602, params


async def test_calls_that_wait_for_an_answer_are_bounded() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, endpoint):
        for _ in range(16):
            assert (await ask_over(url))["result"]["resultType"] == "input_required"
        refused = (await ask_over(url))["result"]
        assert refused["_meta"]["operations/error"]["details"]["reason"] == "TOO_MANY_QUESTIONS"
        assert len(endpoint.mcp_server.suspended_calls) == 16
        assert endpoint.mcp_server.calls.dispatcher.slots.free > 0


async def test_events_are_replayed_to_their_own_session_only() -> None:
    endpoint, client = serve_endpoint(OperationRegistry(OPERATIONS)), httpx2.AsyncClient(timeout=60)
    async with endpoint as (url, _), client, legacy_session(url) as ann, legacy_session(url) as eve:
        call = {"name": "shop.number", "arguments": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = await client.post(url, json=body, headers={**ann.headers, "mcp-session-id": ann.id})
        ids = [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")]
        wanted = {**eve.headers, "mcp-session-id": eve.id, "last-event-id": ids[0], "accept": "text/event-stream"}
        received = b""
        async with client.stream("GET", url, headers=wanted) as replayed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    async for chunk in replayed.aiter_raw():
                        received += chunk
        assert b"structuredContent" not in received


async def test_sessions_of_one_caller_leave_room_for_others() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        eve = [legacy_session(url, **{"x-caller": "eve"}) for _ in range(http.SESSIONS_PER_IDENTITY)]
        for each in eve:
            await each.__aenter__()
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}
        async with httpx2.AsyncClient(timeout=60) as client:
            refused = await client.post(url, json=body, headers=eve[0].headers)
            assert refused.status_code == 429
            async with legacy_session(url, **{"x-caller": "ann"}) as other:
                assert "result" in await other("tools/list")
            ended = {**eve[0].headers, "mcp-session-id": eve[0].id}
            assert (await client.delete(url, headers=ended)).status_code == 200
            assert (await client.post(url, json=body, headers=eve[0].headers)).status_code == 200
        for each in eve:
            await each.__aexit__()


async def test_a_request_that_opens_a_session_is_small() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _), httpx2.AsyncClient(timeout=60) as client:
        more: dict[str, Any] = {"experimental": {f"e{number}": {} for number in range(10_000)}}
        about = {"protocolVersion": "2025-11-25", "capabilities": more, "clientInfo": {"name": "t", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}
        refused = await client.post(url, json=body, headers=legacy_session(url).headers)
        assert (refused.status_code, "at most 65536 bytes" in refused.text) == (413, True)


@operation("blob.take", type="query")
async def take(blob: str = "", size: int = 0) -> str:
    return "x" * size


def _count_sessions() -> int:
    """Return the number of sessions whose messages are in memory."""
    gc.collect()
    return sum(type(each) is http.SessionEvents for each in gc.get_objects())


@pytest.mark.parametrize("arguments", [{"blob": "x" * 1_200_000}, {"size": 600_000}])
async def test_large_messages_that_sessions_keep_are_bounded(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    monkeypatch.setattr(http, "LARGE_BYTES_PER_IDENTITY", 3_000_000)
    async with serve_endpoint(OperationRegistry([take])) as (url, _), contextlib.AsyncExitStack() as stack:
        callers = ["eve"] * 6 + ["ann"]
        small, *large, other = [
            await stack.enter_async_context(legacy_session(url, **{"x-caller": each})) for each in callers
        ]
        assert "result" in await other("tools/call", {"name": "blob.take", "arguments": arguments})
        for each in large:
            assert "result" in await each("tools/call", {"name": "blob.take", "arguments": arguments})
        statuses = [await each("ping") for each in (small, *large, other)]
        await until(lambda: _count_sessions() == 5)
    # A session that keeps little stays open, although it was used less recently.
    assert [each == 404 for each in statuses] == [False, True, True, False, False, False, False]


@resource("blob://large", id="blob.large")
async def large() -> str:
    return "x" * 100_000


@prompt("large", id="blob.prompt")
async def large_prompt() -> str:
    return "x" * 100_000


async def test_results_are_no_larger_than_a_response_may_be() -> None:
    limits = Limits(response_bytes=100_000)
    reason = "the result has 100,"
    async with (
        serve_endpoint(OperationRegistry([take, large, large_prompt]), limits=limits) as (url, _),
        legacy_session(url) as session,
    ):
        for size, is_error in ((10_000, False), (50_000, True)):  # the result contains the text twice
            call = {"name": "blob.take", "arguments": {"size": size}}
            answers = [(await post(url, message("tools/call", call, meta=meta)))[1] for meta in ({}, SDK_ONLY)]
            for answer in (*answers, await session("tools/call", call)):
                assert answer["result"]["isError"] is is_error
                assert (reason in answer["result"]["content"][0]["text"]) is is_error
        for method, params in (("resources/read", {"uri": "blob://large"}), ("prompts/get", {"name": "large"})):
            for answer in ((await post(url, message(method, params)))[1], await session(method, params)):
                assert reason in answer["error"]["message"]


async def test_subscriptions_of_one_caller_are_bounded() -> None:
    sent = message("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    more = {**headers(sent), "x-caller": "eve"}
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        client = httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=100))
        opened: list[Any] = []
        async with client:
            for _ in range(16):
                stream = client.stream("POST", url, content=json.dumps(sent), headers=more)
                opened.append(stream)
                response = await stream.__aenter__()
                assert response.status_code == 200
            refused = await post(url, sent, **{"x-caller": "eve"})
            assert "error" in refused[1]
            for stream in opened:
                await stream.__aexit__(None, None, None)


@pytest.mark.parametrize("meta", [{}, SDK_ONLY], ids=["fast path", "SDK"])
async def test_a_tool_with_headers_that_may_not_be_called_looks_unknown(meta: dict[str, Any]) -> None:
    """Previously, an error about a missing header named the arguments of such a tool."""
    region = from_schema({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}})
    guarded = AccessControl(required_scopes=("admin",))
    spec = OperationSpec(name="stop", namespace="admin", type=OperationType.QUERY, input_schema=region)
    spec = msgspec.structs.replace(spec, access_control=guarded)
    async with serve_endpoint(OperationRegistry([Operation(spec=spec, handler=lambda *_: 1)])) as (url, _):
        for region_header in ({}, {"mcp-param-region": "north"}):
            answers = []
            for name in ("admin.stop", "admin.none"):
                sent = message("tools/call", {"name": name, "arguments": {"region": "south"}}, meta=meta)
                status, answer = await post(url, sent, **{"x-caller": "bob", **region_header})
                answers.append((status, json.dumps(answer).replace(name, "…")))
            assert answers[0] == answers[1]
            _, answer = await post(
                url,
                sent | {"params": sent["params"] | {"name": "admin.stop"}},
                **{"x-caller": "ann admin", "mcp-name": "admin.stop", **region_header},
            )
            assert "Mcp-Param-Region" in answer["error"]["message"]


async def test_what_notifications_repeat_is_short() -> None:
    """Previously, each report of the progress of a call repeated a token of up to 4 MiB."""

    @operation("shop.report")
    async def report(context: OperationContext) -> str:
        if context.progress is not None and (reported := context.progress(1, 2, None)) is not None:
            await reported
        return "done"

    async with serve_endpoint(OperationRegistry([report])) as (url, _):
        call = {"name": "shop.report", "arguments": {}}
        for length, is_refused in ((1_024, False), (1_025, True)):
            _, answer = await post(url, message("tools/call", call, meta={"progressToken": "t" * length}))
            assert ("expected at most 1024 characters" in json.dumps(answer)) is is_refused
            _, answer = await post(url, message("tools/call", call, meta=SDK_ONLY, id="i" * length))
            assert ("expected at most 1024 characters" in json.dumps(answer)) is is_refused
            async with legacy_session(url) as session:
                given = {**call, "_meta": {"progressToken": "t" * length}}
                assert ("at most 1024 characters" in json.dumps(await session("tools/call", given))) is is_refused


async def test_trace_fields_are_truncated() -> None:
    @operation("shop.trace")
    async def trace(context: OperationContext) -> dict[str, int]:
        return {name: len(value) for name, value in context.metadata.items()}

    async with serve_endpoint(OperationRegistry([trace])) as (url, _):
        given = {"traceparent": "t" * 100_000, "tracestate": "s" * 100_000}
        _, answer = await post(url, message("tools/call", {"name": "shop.trace"}, meta=given))
        assert answer["result"]["structuredContent"] == {"traceparent": 512, "tracestate": 512}


async def test_pointers_to_bytes_cost_no_more_than_the_request() -> None:
    deep: Any = "aGk="
    for _ in range(200):
        deep = [deep]
    places = ["/item" + "/0" * 200] * 2_000 + ["/" + "9" * 5_000, "nonsense", "/item/~2", ""]
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        meta: dict[str, Any] = {"operations/bytes": [*places, 5, None]}
        params = {"name": "shop.quote", "arguments": {"item": deep}}
        async with asyncio.timeout(10):
            status, answer = await post(url, message("tools/call", params, meta=meta))
        assert status == 200
        assert answer["result"]["isError"] is True


async def test_sessions_that_one_caller_opens_at_once_are_bounded() -> None:
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}
    eve = {"accept": "application/json, text/event-stream", "x-caller": "eve"}
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _), httpx2.AsyncClient(timeout=60) as client:
        opened = await asyncio.gather(
            *(client.post(url, json=body, headers=eve) for _ in range(2 * http.SESSIONS_PER_IDENTITY))
        )
        statuses = [each.status_code for each in opened]
        assert (statuses.count(200), statuses.count(429)) == (http.SESSIONS_PER_IDENTITY, http.SESSIONS_PER_IDENTITY)


async def test_concurrent_lists_are_counted_once_in_the_cache() -> None:
    registry = OperationRegistry(OPERATIONS)
    async with serve_endpoint(registry) as (url, endpoint):
        await asyncio.gather(*(post(url, message("tools/list")) for _ in range(8)))
        tool_list = endpoint.mcp_server.tool_list
        assert tool_list._bytes == sum(map(len, tool_list._pages.values())) > 0


@resource("vault://gold", namespace="vault", access_control=AccessControl(required_scopes=("admin",)))
async def gold() -> str:
    return "gold"


async def test_changes_of_a_resource_are_sent_only_to_callers_that_may_read_it() -> None:
    received: dict[str, str] = {}

    async def listen(name: str, url: str, method: str, body: Any, wanted: dict[str, str]) -> None:
        async with (
            httpx2.AsyncClient(timeout=60) as client,
            client.stream(method, url, json=body, headers=wanted) as stream,
        ):
            received[name] = ""
            async for chunk in stream.aiter_text():
                received[name] += chunk

    async with serve_endpoint(OperationRegistry([gold])) as (url, endpoint), contextlib.AsyncExitStack() as stack:
        listening = []
        for who in ("ann admin", "eve"):
            session = await stack.enter_async_context(legacy_session(url, **{"x-caller": who}))
            for uri in ("vault://gold", "no://such"):
                assert (await session("resources/subscribe", {"uri": uri}))["result"] == {}
            wanted = {**session.headers, "mcp-session-id": session.id, "accept": "text/event-stream"}
            listening.append(listen(f"{who}, session", url, "GET", None, wanted))
            sent = message("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["vault://gold"]}})
            listening.append(listen(who, url, "POST", sent, headers(sent, **{"x-caller": who})))
        tasks = [asyncio.create_task(each) for each in listening]
        await until(lambda: len(received) == 4)
        await asyncio.sleep(0.2)
        assert isinstance(endpoint._sessions, http.SDKSessions)
        await endpoint._sessions._sdk.changes.resource_updated("vault://gold")
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert {name: "resources/updated" in text for name, text in received.items()} == {
        "ann admin": True,
        "ann admin, session": True,
        "eve": False,
        "eve, session": False,
    }


async def test_the_resources_that_one_session_subscribes_to_are_bounded() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        async with legacy_session(url) as session:
            assert "error" in await session("resources/subscribe", {"uri": "x://" + "u" * 10_000})
            uris = [f"x://{number}" + "u" * 8_000 for number in range(33)]
            answers = [await session("resources/subscribe", {"uri": each}) for each in uris]
            assert ["error" in each for each in answers] == [False] * 32 + [True]
            assert "262144 characters in total" in answers[-1]["error"]["message"]
        for uris in (["x://" + "u" * 10_000], [f"x://{number}" for number in range(1_001)]):
            sent = message("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
            assert (await post(url, sent))[1]["error"]["code"] == -32602


async def test_streams_of_the_sessions_of_one_caller_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STREAMS_PER_IDENTITY", 2)
    async with (
        serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _),
        httpx2.AsyncClient(timeout=60) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        statuses = []
        for who in ("eve", "eve", "eve", "ann"):
            session = await stack.enter_async_context(legacy_session(url, **{"x-caller": who}))
            wanted = {**session.headers, "mcp-session-id": session.id, "accept": "text/event-stream"}
            stream = await stack.enter_async_context(client.stream("GET", url, headers=wanted))
            statuses.append(stream.status_code)
    assert statuses == [200, 200, 429, 200]
