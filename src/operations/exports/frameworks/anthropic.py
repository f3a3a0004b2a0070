"""Tools for Anthropic's tool runner: `client.beta.messages.tool_runner(tools=anthropic_tools(registry.tools()), …)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.exports.tools import ModelTool, ToolSet

try:
    from anthropic import beta_async_tool
    from anthropic.lib.tools import ToolError
except ImportError:
    message = "anthropic is not installed: pip install 'operations[anthropic]'"
    raise ImportError(message, name="anthropic") from None


def anthropic_tools(tools: ToolSet) -> list[Any]:
    """Return the tools of a set. A failure is a result with `is_error`; images are image blocks."""
    return [_tool(tools, tool) for tool in tools.tools.values()]


def _tool(tools: ToolSet, tool: ModelTool) -> Any:
    async def call(**arguments: Any) -> Any:
        result = await tools.call(tool.name, arguments)
        if result.is_error:
            raise ToolError(result.text)
        return [_block(block) for block in result.blocks if block.get("type") in ("text", "image")]

    return beta_async_tool(call, name=tool.name, description=tool.description(), input_schema=tool.parameters())


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = {"type": "base64", "media_type": block["mimeType"], "data": block["data"]}
    return {"type": "image", "source": source}
