"""Tools for google-genai: `GenerateContentConfig(tools=[google_genai_tool(tools)])` and `run_function_calls`."""

from __future__ import annotations

import base64
from typing import Any

from operations.exports.results import ToolResult
from operations.exports.tools import ToolSet

try:
    from google.genai import types
except ImportError:
    message = "google-genai is not installed: pip install 'operations[google-genai]'"
    raise ImportError(message, name="google.genai") from None


def google_genai_tool(tools: ToolSet) -> types.Tool:
    """Return the tools of a set as one tool with function declarations."""
    return types.Tool(function_declarations=[types.FunctionDeclaration(**each) for each in tools.gemini()])


async def run_function_calls(tools: ToolSet, response: types.GenerateContentResponse) -> types.Content | None:
    """Run the function calls of a response, one after the other.

    Return the content to send back to the model; None if the response has no function calls. A result is sent as
    `{"output": text}`, a failure as `{"error": text}`. Images are parts of the function response.
    """
    calls = response.function_calls or []
    parts = [await _run(tools, call) for call in calls]
    return types.Content(role="user", parts=parts) if parts else None


async def _run(tools: ToolSet, call: types.FunctionCall) -> types.Part:
    result = await tools.call(call.name or "", call.args or {})
    answer = {"error" if result.is_error else "output": result.text}
    made = types.FunctionResponse(id=call.id, name=call.name, response=answer, parts=_images(result) or None)
    return types.Part(function_response=made)


def _images(result: ToolResult) -> list[Any]:
    return [
        types.FunctionResponsePart.from_bytes(data=base64.b64decode(block["data"]), mime_type=block["mimeType"])
        for block in result.blocks
        if block.get("type") == "image"
    ]
