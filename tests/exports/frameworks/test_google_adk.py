from __future__ import annotations

from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, WAIT, check_cancellation, check_texts, tool_set

pytest.importorskip("google.adk", reason="google-adk is not installed: `make agents` runs this")

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from operations.exports.frameworks.google_adk import google_adk_tools
from operations.exports.tools import ToolSet

DECLARED: list[Any] = []


class FakeModel(BaseLlm):  # type: ignore[misc]  # the framework is not installed where types are checked
    calls: Any = CALLS

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        DECLARED[:] = llm_request.config.tools[0].function_declarations
        if len(llm_request.contents) == 1:
            parts = [
                types.Part(function_call=types.FunctionCall(id=name, name=name, args=each)) for name, each in self.calls
            ]
        else:
            parts = [types.Part(text="done")]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def test_a_run_sees_a_result_a_failure_and_a_refusal() -> None:
    agent = LlmAgent(name="buyer", model=FakeModel(model="fake"), tools=google_adk_tools(tool_set()))
    runner = InMemoryRunner(agent=agent, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="ann")
    message = types.Content(role="user", parts=[types.Part(text="buy tea")])
    parts = []
    async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=message):
        parts += event.content.parts
    returned = {
        part.function_response.name: part.function_response.response for part in parts if part.function_response
    }
    assert [list(returned[name]) for name, _ in CALLS] == [["output"], ["error"], ["error"]]
    check_texts([next(iter(returned[name].values())) for name, _ in CALLS])
    assert parts[-1].text == "done"
    assert DECLARED[0].parameters_json_schema["type"] == "object"


async def test_cancelling_a_run_cancels_the_call() -> None:
    async def run(tools: ToolSet) -> None:
        model = FakeModel(model="fake", calls=[(WAIT, {})])
        runner = InMemoryRunner(
            agent=LlmAgent(name="buyer", model=model, tools=google_adk_tools(tools)), app_name="shop"
        )
        session = await runner.session_service.create_session(app_name="shop", user_id="ann")
        message = types.Content(role="user", parts=[types.Part(text="wait")])
        async for _ in runner.run_async(user_id="ann", session_id=session.id, new_message=message):
            pass

    await check_cancellation(run)
