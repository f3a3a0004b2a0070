from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from tests.exports.frameworks.shop import CALLS, WAIT, check_cancellation, check_texts, tool_set

pytest.importorskip("google.genai", reason="google-genai is not installed: `make agents` runs this")

from google import genai
from google.genai import types

from operations.exports.frameworks.google_genai import google_genai_tool, run_function_calls


def candidate(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


async def test_a_chat_sees_a_result_a_failure_and_a_refusal() -> None:
    http: Any = import_module("httpx2" if genai.__version__ >= "3" else "httpx")
    requests: list[dict[str, Any]] = []

    def answer(request: Any) -> Any:
        requests.append(json.loads(request.content))
        if len(requests) == 1:
            calls = [{"functionCall": {"id": name, "name": name, "args": each}} for name, each in CALLS]
            return http.Response(200, json=candidate(calls))
        return http.Response(200, json=candidate([{"text": "done"}]))

    client = genai.Client(
        api_key="none",
        http_options=types.HttpOptions(httpx_async_client=http.AsyncClient(transport=http.MockTransport(answer))),
    )
    tools = tool_set()
    config = types.GenerateContentConfig(tools=[google_genai_tool(tools)])
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text="buy tea")])]
    response = await client.aio.models.generate_content(model="gemini-fake", contents=contents, config=config)
    while (ran := await run_function_calls(tools, response)) is not None:
        contents += [response.candidates[0].content, ran]
        response = await client.aio.models.generate_content(model="gemini-fake", contents=contents, config=config)
    assert response.text == "done"
    returned = [part["functionResponse"] for part in requests[1]["contents"][-1]["parts"]]
    assert [each["id"] for each in returned] == [name for name, _ in CALLS]
    assert [list(each["response"]) for each in returned] == [["output"], ["error"], ["error"]]
    check_texts([next(iter(each["response"].values())) for each in returned])
    declared = requests[0]["tools"][0]["functionDeclarations"]
    schema = declared[0].get("parametersJsonSchema") or declared[0]["parameters_json_schema"]
    assert schema["type"] == "object"


async def test_cancelling_a_run_cancels_the_call() -> None:
    call = types.Part(function_call=types.FunctionCall(name=WAIT, args={}))
    response = types.GenerateContentResponse(candidates=[types.Candidate(content=types.Content(parts=[call]))])
    await check_cancellation(lambda tools: run_function_calls(tools, response))
