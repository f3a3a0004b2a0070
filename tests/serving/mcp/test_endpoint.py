"""The MCP endpoint over HTTP: the fast path and the SDK give equal responses, and callers see only what they may."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import mcp_types as types
import pytest

from mcp import Client
from operations import OperationContext, OperationRegistry, operation
from operations.context import Question
from operations.errors import CallError
from operations.interceptors import Approval
from operations.serving.admission import Caller
from operations.serving.limits import Limits
from operations.serving.mcp import prompt, resource
from operations.spec import AccessControl
from tests.serving.mcp.examples import ELICITS, NAME_FORM, OPERATIONS, ask_over, legacy_session
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.wire import SDK_ONLY, headers, message, post

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("shop.quote", {"item": "tea", "count": 2}),
    ("shop.quote", {"item": 5}),
    ("shop.quote", {}),
    ("shop.number", {}),
    ("shop.maybe", {}),
    ("shop.maybe", {"value": 3}),
    ("shop.binary", {}),
    ("shop.image", {}),
    ("shop.blocks", {}),
    ("shop.secret_failure", {}),
    ("shop.domain_failure", {}),
    ("shop.not_a_number", {}),
    ("shop.ticks", {}),
    ("admin.stop", {}),
    ("no.such", {}),
    ("shop.greet", {}),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS)
async def test_the_fast_path_and_the_sdk_return_equal_results(name: str, arguments: dict[str, Any]) -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, endpoint):
        sent = message("tools/call", {"name": name, "arguments": arguments})
        own = await post(url, sent)
        assert endpoint._sessions is None  # the SDK was not needed
        by_sdk = await post(url, message("tools/call", {"name": name, "arguments": arguments}, meta=SDK_ONLY))
        assert endpoint._sessions is not None
        assert own == by_sdk


async def test_the_fast_path_and_the_sdk_return_equal_lists() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, endpoint):
        for method in ("tools/list", "server/discover"):
            sent = message(method)
            own = await post(url, sent)
            assert endpoint._sessions is None
            # A header that the fast path leaves to the SDK.
            by_sdk = await post(url, sent, accept="*/*")
            assert own == by_sdk
            assert endpoint._sessions is not None
            await endpoint._sessions.close()
            endpoint._sessions = None


@pytest.mark.parametrize("meta", [{}, SDK_ONLY], ids=["fast path", "sdk"])
async def test_a_call_ends_at_its_deadline(meta: dict[str, Any]) -> None:
    @operation(id="shop.nap", type="query")
    async def nap() -> None:
        await asyncio.Event().wait()

    async with serve_endpoint(OperationRegistry([nap]), limits=Limits(deadline_seconds=0.2)) as (url, _):
        _, answer = await post(url, message("tools/call", {"name": "shop.nap", "arguments": {}}, meta=meta))
        result = answer["result"]
        assert result["isError"]
        assert result["_meta"]["operations/error"]["code"] == "TIMEOUT"


async def test_malformed_requests_are_refused_by_type() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        good = message("tools/call", {"name": "shop.number"})
        assert (await post(url, good, **{"mcp-name": "shop.quote"}))[1]["error"]["code"] == -32020
        assert (await post(url, good, **{"mcp-method": "tools/list"}))[1]["error"]["code"] == -32020
        no_meta = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        assert (await post(url, no_meta))[1]["error"]["code"] == -32602
        assert (await post(url, message("tools/list", {"cursor": "nonsense"})))[1]["error"]["code"] == -32602
        assert (await post(url, message("no/such")))[1]["error"]["code"] == -32601
        async with httpx2.AsyncClient(timeout=60) as client:
            for body in (b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"jsonrpc":"2.0","id":1e400}'):
                answer = await client.post(url, content=body, headers=headers(good))
                assert answer.status_code == 400, body[:20]
                assert "Traceback" not in answer.text
            large = await client.post(url, content=b"x" * (5 << 20), headers=headers(good))
            assert large.status_code == 413


@pytest.mark.parametrize("meta", [{}, SDK_ONLY])
async def test_whitespace_around_header_values_is_ignored(meta: dict[str, Any]) -> None:
    sent = message("tools/call", {"name": "shop.number"}, meta=meta)
    padded = [(name.encode(), f" \t{value} ".encode()) for name, value in headers(sent).items()]
    padded = [(name, value.strip() if name in (b"accept", b"content-type") else value) for name, value in padded]
    events: list[Any] = []

    bodies = [json.dumps(sent).encode()]

    async def receive() -> Any:
        if not bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(event: Any) -> None:
        events.append(event)

    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (_, endpoint):
        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": padded, "query_string": b""}
        await endpoint(scope, receive, send, Caller(None, None, headers=dict(padded)))
    assert events[0]["status"] == 200


async def test_a_large_list_comes_in_pages_that_survive_changes() -> None:
    made = [operation(id=f"many.op_{index:04}", type="query")(_give) for index in range(450)]
    registry = OperationRegistry(made)
    async with serve_endpoint(registry, search=False) as (url, _):
        names: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            _, answer = await post(url, message("tools/list", cursor))
            names += [tool["name"] for tool in answer["result"]["tools"]]
            if "nextCursor" not in answer["result"]:
                break
            cursor = {"cursor": answer["result"]["nextCursor"]}
            registry.register(operation(id=f"many.aa_{len(names)}")(_give))
        assert names == [f"many.op_{index:04}" for index in range(450)]


async def _give() -> int:
    return 1


async def test_a_handler_asks_and_continues_with_the_answer() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, endpoint):
        asked = (await ask_over(url))["result"]
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"]["answer"]["params"]["message"] == "Who are you?"
        assert len(endpoint.mcp_server.suspended_calls) == 1
        answer = {"answer": {"action": "accept", "content": {"name": "Ann"}}}
        wrong = {"answer": {"action": "accept", "content": {"name": 5}}}
        again = (await ask_over(url, inputResponses=wrong, requestState=asked["requestState"]))["result"]
        assert again["resultType"] == "input_required"
        done = (await ask_over(url, inputResponses=answer, requestState=again["requestState"]))["result"]
        assert done["content"][0]["text"] == "hello Ann"
        assert len(endpoint.mcp_server.suspended_calls) == 0


async def test_another_process_repeats_a_query_with_the_answers_so_far() -> None:
    runs: list[str] = []

    @operation("ask.twice", type="query")
    async def twice(context: OperationContext) -> str:
        runs.append("run")
        first = await context.ask("first?", NAME_FORM)
        second = await context.ask("second?", NAME_FORM)
        return f"{first.content['name']} {second.content['name']}"

    @operation("ask.change")
    async def change(context: OperationContext) -> str:
        runs.append("change")
        return (await context.ask("sure?")).action

    registry = OperationRegistry([twice, change])
    key = b"k" * 32
    answer = {"answer": {"action": "accept", "content": {"name": "x"}}}
    async with (
        serve_endpoint(registry, state_key=key) as (one, _),
        serve_endpoint(registry, state_key=key) as (other, _),
    ):
        asked = (await post(one, message("tools/call", {"name": "ask.twice"}, meta=ELICITS)))[1]["result"]
        params = {"name": "ask.twice", "inputResponses": answer, "requestState": asked["requestState"]}
        second = (await post(one, message("tools/call", params, meta=ELICITS)))[1]["result"]
        params["requestState"] = second["requestState"]
        done = (await post(other, message("tools/call", params, meta=ELICITS)))[1]["result"]
        assert done["content"][0]["text"] == "x x"
        assert runs == ["run", "run"]
        asked = (await post(one, message("tools/call", {"name": "ask.change"}, meta=ELICITS)))[1]["result"]
        params = {"name": "ask.change", "inputResponses": answer, "requestState": asked["requestState"]}
        refused = (await post(other, message("tools/call", params, meta=ELICITS)))[1]["result"]
        assert refused["_meta"]["operations/error"]["code"] == "UNAVAILABLE"
        assert runs == ["run", "run", "change"]


async def test_an_unanswerable_question_is_a_typed_error() -> None:
    registry = OperationRegistry(OPERATIONS)
    with pytest.raises(CallError) as raised:
        await registry.execute("shop.greet")
    assert (raised.value.code, raised.value.details["reason"]) == ("UNAVAILABLE", "NO_ASK")
    async with serve_endpoint(registry) as (url, _):
        _, answer = await post(url, message("tools/call", {"name": "shop.greet"}))
        assert answer["error"]["code"] == -32021


@pytest.mark.parametrize("meta", [{}, SDK_ONLY])
async def test_a_closed_connection_stops_the_call(meta: dict[str, Any]) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @operation("slow.wait")
    async def wait() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with serve_endpoint(OperationRegistry([wait])) as (url, endpoint):
        call = asyncio.create_task(post(url, message("tools/call", {"name": "slow.wait"}, meta=meta)))
        async with asyncio.timeout(10):
            await started.wait()
            call.cancel()
            await stopped.wait()
            await asyncio.wait((call,))
            await endpoint.mcp_server.calls.dispatcher.drain(5)
        assert endpoint.mcp_server.calls.dispatcher.in_flight == 0


async def test_progress_is_sent_on_the_stream_of_the_call() -> None:
    @operation("slow.steps")
    async def steps(context: OperationContext) -> str:
        for step in (1, 2):
            assert context.progress is not None
            told = context.progress(step, 2, f"step {step}")
            if told is not None:
                await told
        return "done"

    async with serve_endpoint(OperationRegistry([steps])) as (url, _), httpx2.AsyncClient(timeout=60) as client:
        sent = message("tools/call", {"name": "slow.steps"}, meta={"progressToken": "t"})
        answer = await client.post(url, content=json.dumps(sent), headers=headers(sent))
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert [event["params"]["progress"] for event in events[:-1]] == [1, 2]
        assert events[-1]["result"]["content"][0]["text"] == "done"


async def test_resources_and_prompts_are_offered_to_those_who_may_call_them() -> None:
    hidden = AccessControl(required_scopes=("admin",))

    @resource("notes://{id}", mime_type="text/plain", id="notes.read")
    async def read(id: int) -> str:
        return f"note {id + 1}"

    @resource("notes://secret/all", id="notes.secret", access_control=hidden)
    async def secret() -> str:
        return "secret"

    @prompt("summarise", id="notes.summarise")
    async def summarise(topic: str, context: OperationContext) -> list[Any]:
        answers = await context.ask_all({"tone": Question.form("Which tone?", NAME_FORM)}) if context.can_ask() else {}
        return [f"Summarise {topic}", {"role": "assistant", "content": str(sorted(answers))}]

    async with serve_endpoint(OperationRegistry([read, secret, summarise])) as (url, _):
        _, tools = await post(url, message("tools/list"))
        assert tools["result"]["tools"] == []
        _, templates = await post(url, message("resources/templates/list"))
        assert [each["uriTemplate"] for each in templates["result"]["resourceTemplates"]] == ["notes://{id}"]
        _, listed = await post(url, message("resources/list"))
        assert listed["result"]["resources"] == []
        _, listed = await post(url, message("resources/list"), **{"x-caller": "ann admin"})
        assert [each["uri"] for each in listed["result"]["resources"]] == ["notes://secret/all"]
        _, contents = await post(url, message("resources/read", {"uri": "notes://41"}))
        assert contents["result"]["contents"] == [{"uri": "notes://41", "mimeType": "text/plain", "text": "note 42"}]
        for uri in ("notes://secret/all", "notes://a%2Fb", "notes://x/y", "other://1"):
            _, refused = await post(url, message("resources/read", {"uri": uri}))
            assert refused["error"]["code"] == -32602, uri
        _, got = await post(url, message("prompts/get", {"name": "summarise", "arguments": {"topic": "tea"}}))
        assert [each["content"]["text"] for each in got["result"]["messages"]] == ["Summarise tea", "[]"]
        _, refused = await post(url, message("prompts/get", {"name": "other"}))
        assert refused["error"]["code"] == -32602


async def test_without_the_sdk_only_the_fast_path_serves_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "operations.serving.mcp.sdk.http", None)
    async with serve_endpoint(OperationRegistry(OPERATIONS)) as (url, _):
        assert (await post(url, message("tools/call", {"name": "shop.number"})))[0] == 200
        assert (await post(url, message("prompts/list")))[0] == 501


async def test_a_question_that_is_not_answered_in_time_ends_in_the_handler() -> None:
    ended = asyncio.Event()

    @operation("ask.briefly", type="query")
    async def briefly(context: OperationContext) -> str:
        try:
            return (await context.ask("quick?", timeout=0.05)).action
        finally:
            ended.set()

    async with serve_endpoint(OperationRegistry([briefly])) as (url, endpoint):
        asked = (await post(url, message("tools/call", {"name": "ask.briefly"}, meta=ELICITS)))[1]["result"]
        await ended.wait()
        params = {"name": "ask.briefly", "requestState": asked["requestState"]}
        late = (await post(url, message("tools/call", params, meta=ELICITS)))[1]["result"]
        assert late["_meta"]["operations/error"]["code"] == "TIMEOUT"
        assert len(endpoint.mcp_server.suspended_calls) == 0


async def test_a_call_of_a_session_is_cancelled_by_a_notification() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @operation("slow.wait")
    async def wait() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with serve_endpoint(OperationRegistry([wait])) as (url, _), legacy_session(url) as session:
        call = asyncio.create_task(session("tools/call", {"name": "slow.wait", "arguments": {}}))
        async with asyncio.timeout(30):
            await started.wait()
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
            async with httpx2.AsyncClient(timeout=60) as client:
                await client.post(url, json=cancelled, headers={**session.headers, "mcp-session-id": session.id})
            await stopped.wait()
        call.cancel()
        await asyncio.wait((call,))


async def test_closing_the_endpoint_ends_calls_that_wait() -> None:
    stopped = asyncio.Event()

    @operation("ask.long", type="query")
    async def long(context: OperationContext) -> str:
        try:
            return (await context.ask("when?")).action
        finally:
            stopped.set()

    async with serve_endpoint(OperationRegistry([long])) as (url, endpoint):
        await post(url, message("tools/call", {"name": "ask.long"}, meta=ELICITS))
        assert not stopped.is_set()
    assert stopped.is_set()
    assert len(endpoint.mcp_server.suspended_calls) == 0


@operation("shop.pay")
async def pay(amount: int) -> str:
    """Pay; the handler takes no context."""
    return f"paid {amount}"


@operation("shop.deliveries")
async def deliveries() -> AsyncIterator[str]:
    yield "box"


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_approval_is_a_question_to_the_client(mode: Any, search: bool) -> None:
    asked: list[str] = []
    answers = ["accept", "decline", "accept"]

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action=answers[len(asked) - 1], content={})  # type: ignore[arg-type]

    async def call(client: Client, name: str, input: dict[str, Any]) -> Any:
        if search:
            return await client.call_tool("call_operation", {"id": name, "input": input})
        return await client.call_tool(name, input)

    registry = OperationRegistry([pay, deliveries], interceptors=[Approval({"shop.*": "ask"})])
    async with (
        serve_endpoint(registry, search=search) as (url, endpoint),
        Client(url, mode=mode, elicitation_callback=answer) as client,
    ):
        assert (await call(client, "shop.pay", {"amount": 5})).content[0].text == "paid 5"
        refused = await call(client, "shop.pay", {"amount": 6})
        assert refused.is_error
        assert "NOT_APPROVED" in refused.model_dump_json()
        assert (await call(client, "shop.deliveries", {})).structured_content == {"items": ["box"], "complete": True}
        assert [each.partition(" with")[0] for each in asked[:2]] == ["Allow mutation shop.pay"] * 2
        assert '{"amount":6}' in asked[1]
        assert len(endpoint.mcp_server.suspended_calls) == 0
    async with serve_endpoint(registry) as (url, _):  # a client that cannot be asked
        _, refused = await post(url, message("tools/call", {"name": "shop.pay", "arguments": {"amount": 5}}))
        assert "paid" not in json.dumps(refused)
