"""Tools for pydantic-ai: `Agent(model, tools=pydantic_ai_tools(registry.tools()))`."""

from __future__ import annotations

from typing import Any

from operations.errors import ErrorCode
from operations.exports.results import ToolResult
from operations.exports.tools import ModelTool, ToolSet

try:
    from pydantic_ai import ModelRetry
    from pydantic_ai import Tool as FrameworkTool
except ImportError:
    message = "pydantic-ai is not installed: pip install 'operations[pydantic-ai]'"
    raise ImportError(message, name="pydantic_ai") from None

_CORRECTABLE = (ErrorCode.VALIDATION_ERROR, ErrorCode.OPERATION_NOT_FOUND)


def pydantic_ai_tools(tools: ToolSet) -> list[FrameworkTool[Any]]:
    """Return the tools of a set. Invalid arguments make the model retry; other failures are results for the model."""
    return [_tool(tools, tool) for tool in tools.tools.values()]


def _tool(tools: ToolSet, tool: ModelTool) -> FrameworkTool[Any]:
    async def call(**arguments: Any) -> str:
        return _content(await tools.call(tool.name, arguments))

    return FrameworkTool.from_schema(
        call, name=tool.name, description=tool.description(), json_schema=tool.parameters()
    )


def _content(result: ToolResult) -> str:
    if result.error is not None and result.error.code in _CORRECTABLE:
        raise ModelRetry(result.text)
    return result.text
