from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, WAIT, check_cancellation, check_texts, tool_set

pytest.importorskip("agents", reason="openai-agents is not installed: `make agents` runs this")

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from agents.strict_schema import ensure_strict_json_schema
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from operations import OperationRegistry
from operations.exports.frameworks.openai_agents import openai_agents_tools
from operations.exports.tools import ToolSet
from operations.testing import stub_operation


class FakeModel(Model):  # type: ignore[misc]  # the framework is not installed where types are checked
    def __init__(self, calls: Any = CALLS) -> None:
        self.calls = calls
        self.turns = 0
        self.tools: list[Any] = []

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: Any, tools: Any, *args: Any, **options: Any
    ) -> ModelResponse:
        self.turns += 1
        self.tools = tools
        if self.turns == 1:
            output: list[Any] = [
                ResponseFunctionToolCall(name=name, arguments=json.dumps(each), call_id=name, type="function_call")
                for name, each in self.calls
            ]
        else:
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            output = [
                ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("strict", [False, True])
async def test_a_run_sees_a_result_a_failure_and_a_refusal(strict: bool) -> None:
    model = FakeModel()
    agent = Agent(name="buyer", model=model, tools=list(openai_agents_tools(tool_set(), strict=strict)))
    run = await Runner.run(agent, "buy tea", run_config=RunConfig(tracing_disabled=True))
    assert run.final_output == "done"
    texts = [item.output for item in run.new_items if item.type == "tool_call_output_item"]
    check_texts(texts)
    assert all(tool.strict_json_schema is strict for tool in model.tools)


async def test_cancelling_a_run_cancels_the_call() -> None:
    def run(tools: ToolSet) -> Any:
        agent = Agent(name="buyer", model=FakeModel([(WAIT, {})]), tools=list(openai_agents_tools(tools)))
        return Runner.run(agent, "wait", run_config=RunConfig(tracing_disabled=True))

    await check_cancellation(run)


def test_the_sdk_changes_nothing_in_a_strict_schema() -> None:
    properties = {
        "maybe": {"type": ["string", "null"], "minLength": 2, "default": "b"},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "one": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"const": 1}}}]},
        "tree": {"$ref": "#/$defs/tree", "description": "A tree."},
    }
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    document = {"type": "object", "properties": properties, "required": ["maybe"], "$defs": {"tree": tree}}
    tools = OperationRegistry([stub_operation("shop.odd", input_schema=document)]).tools()
    schema = tools.openai(strict=True)[0]["function"]["parameters"]
    assert ensure_strict_json_schema(deepcopy(schema)) == schema
