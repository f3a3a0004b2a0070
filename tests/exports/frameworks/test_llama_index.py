from __future__ import annotations

from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, check_cancellation, check_texts, tool_set

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed: `make agents` runs this")

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM

from operations.exports.frameworks.llama_index import llama_index_tools


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the framework uses an old attribute of pydantic
async def test_an_agent_sees_a_result_a_failure_and_a_refusal() -> None:
    seen: list[Any] = []

    def respond(messages: Any, **options: Any) -> ChatMessage:
        seen[:] = messages
        if any(message.role == MessageRole.TOOL for message in messages):
            return ChatMessage(role="assistant", content="done")
        calls = [ToolCallBlock(tool_call_id=name, tool_name=name, tool_kwargs=each) for name, each in CALLS]
        return ChatMessage(role="assistant", blocks=[TextBlock(text="calling"), *calls])

    llm = MockFunctionCallingLLM(response_generator=respond)
    tools = llama_index_tools(tool_set())
    handler = FunctionAgent(tools=tools, llm=llm, streaming=False).run("buy tea")
    results = {}
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            results[event.tool_name] = event.tool_output
    assert str(await handler) == "done"
    check_texts([results[name].content for name, _ in CALLS])
    assert [results[name].is_error for name, _ in CALLS] == [False, True, True]
    assert results["shop_quote"].raw_output.envelope.data["total"] == 6
    assert tools[0].metadata.to_openai_tool()["function"]["parameters"]["type"] == "object"
    assert "ACCESS_DENIED" in str(seen)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_cancelling_a_run_cancels_the_call() -> None:
    await check_cancellation(lambda tools: llama_index_tools(tools)[0].acall())
