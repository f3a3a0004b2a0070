from __future__ import annotations

from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, WAIT, check_cancellation, check_texts, tool_set

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: `make agents` runs this")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from operations.exports.frameworks.pydantic_ai import pydantic_ai_tools


def parts(messages: list[Any], kind: type[Any]) -> list[Any]:
    return [part for message in messages for part in message.parts if isinstance(part, kind)]


async def test_an_agent_sees_a_result_a_failure_and_a_refusal() -> None:
    offered: list[Any] = []

    def model(messages: list[Any], info: AgentInfo) -> ModelResponse:
        offered.extend(info.function_tools)
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart(name, arguments) for name, arguments in CALLS])
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(model), tools=pydantic_ai_tools(tool_set()))
    run = await agent.run("buy tea")
    assert run.output == "done"
    returned = {part.tool_name: part.content for part in parts(run.all_messages(), ToolReturnPart)}
    check_texts([returned[name] for name, _ in CALLS])
    assert offered[0].parameters_json_schema["type"] == "object"


async def test_invalid_arguments_make_the_model_retry() -> None:
    def model(messages: list[Any], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("shop_quote", {"itm": "tea"})])
        return ModelResponse(parts=[TextPart("done")])

    run = await Agent(FunctionModel(model), tools=pydantic_ai_tools(tool_set())).run("buy tea")
    (retried,) = parts(run.all_messages(), ToolReturnPart)
    assert retried.outcome == "retried"
    assert "VALIDATION_ERROR" in retried.content


async def test_cancelling_a_run_cancels_the_call() -> None:
    def model(messages: list[Any], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(WAIT, {})])

    await check_cancellation(lambda tools: Agent(FunctionModel(model), tools=pydantic_ai_tools(tools)).run("wait"))
