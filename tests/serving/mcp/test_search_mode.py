"""Search mode: a model searches, describes and calls by three tools, within the rights of its caller."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mcp import Client
from operations import Operation, OperationRegistry, operation
from operations.serving.mcp.search_mode import SEARCH_ABOVE
from operations.sources.mcp import MCPClientConfig, create_mcp_client
from operations.spec import AccessControl
from tests.documents import github
from tests.serving.mcp.examples import ELICITS, OPERATIONS
from tests.serving.mcp.served_endpoint import serve_endpoint
from tests.serving.mcp.wire import message, post

NAMES = ["search_operations", "describe_operations", "call_operation"]
CHARACTERS_PER_TOKEN = 3
"""Fewer than the average of tokenizers, so that the number of tokens is not underestimated."""


async def listed(url: str, **headers: str) -> list[Any]:
    tools: list[Any] = (await post(url, message("tools/list"), **headers))[1]["result"]["tools"]
    return tools


async def call(url: str, name: str, arguments: Any, *, meta: Any = None, **headers: str) -> Any:
    sent = message("tools/call", {"name": name, "arguments": arguments}, meta=meta)
    return (await post(url, sent, **headers))[1]


async def text(url: str, name: str, arguments: Any, **headers: str) -> str:
    result = (await call(url, name, arguments, **headers))["result"]
    return str(result["content"][0]["text"])


async def test_the_three_tools_search_describe_and_call() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), search=True) as (url, _):
        assert [tool["name"] for tool in await listed(url)] == NAMES
        found = await text(url, "search_operations", {"query": "price of an item"})
        assert found.startswith("shop.quote(")
        assert "count" in await text(url, "describe_operations", {"ids": ["shop.quote"]})
        called = await call(url, "call_operation", {"id": "shop.quote", "input": {"item": "tea"}})
        assert called["result"]["structuredContent"] == {"item": "tea", "price": 2.5}
        refused = (await call(url, "call_operation", {"id": "shop.quote", "input": {}}))["result"]
        assert refused["isError"] is True
        assert refused["content"][0]["text"].startswith("VALIDATION_ERROR")
        assert "hunter2" not in json.dumps(await call(url, "call_operation", {"id": "shop.secret_failure"}))
        # The tools themselves can still be called by name.
        direct = await call(url, "shop.quote", {"item": "tea"})
        assert direct["result"]["structuredContent"]["price"] == 2.5


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_of_either_version_uses_the_tools(mode: Any) -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), search=True) as (url, _), Client(url, mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == NAMES
        result = await client.call_tool("call_operation", {"id": "shop.domain_failure", "input": {}})
        assert result.is_error
        assert result.content[0].text == "OUT_OF_STOCK: no tea left"  # type: ignore[union-attr]


async def test_a_caller_finds_and_calls_only_permitted_operations() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), search=True) as (url, _):
        admin = {"x-caller": "ann admin"}
        assert "admin.stop" in await text(url, "search_operations", {"query": "stop"}, **admin)
        assert "admin.stop" not in await text(url, "search_operations", {"query": "stop"})
        assert "admin" not in await text(url, "search_operations", {"query": ""})
        assert (await text(url, "call_operation", {"id": "admin.stop"}, **admin)) == "stopped"
        for name, arguments in (
            ("call_operation", {"id": "admin.stop"}),
            ("describe_operations", {"ids": "admin.stop"}),
        ):
            missing = (await text(url, name, arguments)).replace("admin.stop", "admin.gone")
            unknown = json.loads(json.dumps(arguments).replace("admin.stop", "admin.gone"))
            assert missing == await text(url, name, unknown)


async def test_a_handler_that_asks_continues_through_call_operation() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), search=True) as (url, _):
        arguments = {"id": "shop.greet", "input": {}}
        asked = (await call(url, "call_operation", arguments, meta=ELICITS))["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": "Ann"}}}
        params = {"name": "call_operation", "arguments": arguments}
        params |= {"inputResponses": answers, "requestState": asked["requestState"]}
        done = (await post(url, message("tools/call", params, meta=ELICITS)))[1]["result"]
        assert done["content"][0]["text"] == "hello Ann"


def many(count: int) -> list[Operation[Any]]:
    async def handler() -> str:
        return "done"

    return [operation(id=f"many.n{number}", type="query")(handler) for number in range(count)]


async def test_the_mode_is_chosen_by_the_number_of_tools_of_a_caller() -> None:
    hidden = AccessControl(required_scopes=("all",))
    registry = OperationRegistry(many(SEARCH_ABOVE))
    registry.register(operation(id="more.one", type="query", access_control=hidden)(_one))
    async with serve_endpoint(registry) as (url, _):
        assert len(await listed(url)) == SEARCH_ABOVE
        unknown = await call(url, "search_operations", {"query": "x"})
        assert unknown["error"]["code"] == -32602
        assert [tool["name"] for tool in await listed(url, **{"x-caller": "ann all"})] == NAMES
        registry.register(operation(id="more.two", type="query")(_one))
        assert [tool["name"] for tool in await listed(url)] == NAMES
    async with serve_endpoint(registry, search=False) as (url, _):
        assert len(await listed(url)) == 200  # the first page


async def _one() -> str:
    return "one"


async def test_a_registry_of_this_library_imports_all_tools() -> None:
    count = SEARCH_ABOVE + 5
    async with serve_endpoint(OperationRegistry(many(count))) as (url, _):
        client = await create_mcp_client("far", MCPClientConfig(url=url))
        assert sum(each.id.startswith("far.many.") for each in client.operations) == count
        await client.close()


async def test_wrong_and_oversized_arguments_are_typed_errors() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), search=True) as (url, _):
        for name, arguments in (
            ("search_operations", {"query": 5}),
            ("describe_operations", {"ids": 5}),
            ("describe_operations", {"ids": [1]}),
            ("call_operation", {}),
            ("call_operation", {"id": "shop.quote", "input": 5}),
        ):
            assert (await text(url, name, arguments)).startswith("VALIDATION_ERROR"), arguments
        assert "no operation matches" in await text(url, "search_operations", {"query": "zq" * 100_000})
        described = await text(url, "describe_operations", {"ids": ["x" * 1_000] * 1_000})
        assert described.count("OPERATION_NOT_FOUND") == 20
        unknown = await text(url, "call_operation", {"id": "shop.quot" + "e" * 1_000_000})
        assert len(unknown) < 1_000


async def test_searches_of_one_caller_are_limited() -> None:
    async with serve_endpoint(OperationRegistry(OPERATIONS), search=True) as (url, endpoint):
        lock = endpoint.mcp_server.search_mode._searching
        await lock.acquire()  # a search that takes long
        waiting = [asyncio.create_task(text(url, "search_operations", {"query": "tea"})) for _ in range(20)]
        refused, others = set[Any](), set(waiting)
        async with asyncio.timeout(20):
            while len(refused) < 12:
                done, others = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
                refused |= done
            other = asyncio.create_task(text(url, "search_operations", {"query": "price"}, **{"x-caller": "ann"}))
            lock.release()
            assert "shop.quote" in await other
            assert all("too many searches" in task.result() for task in refused)
            assert not any("too many searches" in answer for answer in await asyncio.gather(*others))


async def test_github_costs_a_model_few_tokens_and_is_searched_without_blocking_the_loop() -> None:
    registry = await github()
    async with serve_endpoint(registry) as (url, endpoint):
        tools = await listed(url)
        assert [tool["name"] for tool in tools] == NAMES
        assert len(json.dumps(tools)) / CHARACTERS_PER_TOKEN <= 2_000
        overview = await text(url, "search_operations", {"query": ""})
        assert len(overview) / CHARACTERS_PER_TOKEN <= 2_000
        found = await asyncio.gather(
            *(text(url, "search_operations", {"query": "create an issue comment"}) for _ in range(5))
        )
        assert len(set(found)) == 1
        assert "github.issues/create-comment(" in found[0]
        assert "issue_number" in await text(url, "describe_operations", {"ids": ["github.issues/create-comment"]})
        assert len(endpoint.mcp_server.search_mode._tool_sets._kept) == 1
