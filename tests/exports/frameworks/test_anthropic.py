from __future__ import annotations

import json
from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, check_cancellation, check_texts, tool_set

pytest.importorskip("anthropic", reason="anthropic is not installed: `make agents` runs this")

import anthropic as sdk

from operations.exports.frameworks.anthropic import anthropic_tools


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
