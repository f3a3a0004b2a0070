from __future__ import annotations

import json
from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, check_cancellation, check_texts, tool_set

pytest.importorskip("anthropic", reason="anthropic is not installed: `make agents` runs this")

import anthropic as sdk

from operations import OperationRegistry
from operations.exports.frameworks.anthropic import anthropic_tools
from operations.testing import stub_operation


def message(content: list[dict[str, Any]], stop: str) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    head = {"id": "m", "type": "message", "role": "assistant", "model": "fake", "stop_sequence": None}
    return {**head, "content": content, "stop_reason": stop, "usage": usage}


async def test_the_tool_runner_sees_a_result_a_failure_and_a_refusal() -> None:
    http = pytest.importorskip(sdk.DefaultAsyncHttpxClient.__mro__[1].__module__.split(".")[0])
    requests: list[dict[str, Any]] = []

    def answer(request: Any) -> Any:
        requests.append(json.loads(request.content))
        if len(requests) == 1:
            uses = [{"type": "tool_use", "id": name, "name": name, "input": each} for name, each in CALLS]
            return http.Response(200, json=message(uses, "tool_use"))
        return http.Response(200, json=message([{"type": "text", "text": "done"}], "end_turn"))

    client = sdk.AsyncAnthropic(
        api_key="none", http_client=http.AsyncClient(transport=http.MockTransport(answer)), max_retries=0
    )
    runner = client.beta.messages.tool_runner(
        model="fake",
        max_tokens=10,
        tools=anthropic_tools(tool_set()),
        messages=[{"role": "user", "content": "buy tea"}],
    )
    final = await runner.until_done()
    assert final.content[0].text == "done"
    results = requests[1]["messages"][-1]["content"]
    assert [result.get("is_error", False) for result in results] == [False, True, True]
    texts = [
        result["content"] if isinstance(result["content"], str) else result["content"][0]["text"] for result in results
    ]
    check_texts(texts)
    assert requests[0]["tools"][0]["input_schema"]["type"] == "object"


async def test_cancelling_a_run_cancels_the_call() -> None:
    await check_cancellation(lambda tools: anthropic_tools(tools)[0].call({}))


def without_types_of_enums(schema: Any) -> Any:
    """The SDK leaves out the type of an `enum`."""
    if isinstance(schema, list):
        return [without_types_of_enums(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: without_types_of_enums(each) for name, each in schema.items()}
    if isinstance(kept.get("enum"), list):
        kept.pop("type", None)
    return kept


def test_the_sdk_changes_nothing_in_a_strict_schema() -> None:
    properties = {
        "maybe": {"type": ["string", "null"], "minLength": 2, "pattern": "^a"},
        "mixed": {"type": ["integer", "string", "array", "null"], "items": {"type": "number", "minimum": 1}},
        "some": {"enum": ["a", 1, None]},
        "none": {"type": ["string", "null"], "enum": ["a"]},
        "free": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        "list": {"type": "array", "items": {"type": "string", "format": "uri-template"}, "minItems": 3},
        "when": {"type": "string", "format": "date-time"},
        "tree": {"$ref": "#/$defs/tree"},
    }
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    document = {"type": "object", "properties": properties, "required": ["maybe"], "$defs": {"tree": tree}}
    tools = OperationRegistry([stub_operation("shop.odd", input_schema=document)]).tools()
    (tool,) = tools.anthropic(strict=True)
    schema = without_types_of_enums(tool["input_schema"])
    assert without_types_of_enums(sdk.transform_schema(tool["input_schema"])) == schema
