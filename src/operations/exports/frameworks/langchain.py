"""Tools for LangChain: `model.bind_tools(langchain_tools(registry.tools()))`."""

from __future__ import annotations

from typing import Any

from operations.exports.results import ToolResult
from operations.exports.tools import ModelTool, ToolSet

try:
    from langchain_core.tools import StructuredTool, ToolException
except ImportError:
    message = "langchain-core is not installed: pip install 'operations[langchain]'"
    raise ImportError(message, name="langchain_core") from None


def langchain_tools(tools: ToolSet) -> list[StructuredTool]:
    """Return the tools of a set for LangChain.

    The `ToolMessage` of a call has the `ToolResult` as its artifact. After a failure, the message has the status
    `error` and no artifact.
    """
    return [_tool(tools, tool) for tool in tools.tools.values()]


def _tool(tools: ToolSet, tool: ModelTool) -> StructuredTool:
    async def call(**arguments: Any) -> tuple[str, ToolResult]:
        result = await tools.call(tool.name, arguments)
        if result.is_error:
            raise ToolException(result.text)
        return result.text, result

    return StructuredTool.from_function(
        coroutine=call,
        name=tool.name,
        description=tool.description(),
        args_schema=tool.parameters(),
        response_format="content_and_artifact",
        handle_tool_error=True,
    )
