from __future__ import annotations

import pytest

from tests.exports.frameworks.shop import CALLS, WAIT, check_cancellation, check_texts, tool_set

pytest.importorskip("langchain_core", reason="langchain-core is not installed: `make agents` runs this")

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from operations.exports.frameworks.langchain import langchain_tools


async def test_a_chat_model_sees_a_result_a_failure_and_a_refusal() -> None:
    calls = [{"name": name, "args": arguments, "id": name} for name, arguments in CALLS]
    model = GenericFakeChatModel(messages=iter([AIMessage("", tool_calls=calls)]))
    tools = {tool.name: tool for tool in langchain_tools(tool_set())}
    asked = await model.ainvoke("buy tea")
    messages = [await tools[call["name"]].ainvoke(call) for call in asked.tool_calls]
    check_texts([message.content for message in messages])
    assert [message.status for message in messages] == ["success", "error", "error"]
    assert messages[0].artifact.envelope.data["total"] == 6
    assert tools["shop_quote"].tool_call_schema["properties"]["item"]["type"] == "string"


async def test_cancelling_a_run_cancels_the_call() -> None:
    await check_cancellation(
        lambda tools: langchain_tools(tools)[0].ainvoke({"name": WAIT, "args": {}, "id": "1", "type": "tool_call"})
    )
