"""Tools for the OpenAI Agents SDK: `Agent(name=…, tools=openai_agents_tools(registry.tools()))`."""

from __future__ import annotations

from typing import Any

from operations.exports.schema_subsets import OPENAI_STRICT, PLAIN
from operations.exports.tools import ModelTool, ToolSet

try:
    from agents import FunctionTool
except ImportError:
    message = "openai-agents is not installed: pip install 'operations[openai-agents]'"
    raise ImportError(message, name="agents") from None


def openai_agents_tools(tools: ToolSet, *, strict: bool = False) -> list[FunctionTool]:
    """Return the tools of a set. The model receives a failure as text, like a result."""
    return [_tool(tools, tool, strict) for tool in tools.tools.values()]


def _tool(tools: ToolSet, tool: ModelTool, strict: bool) -> FunctionTool:
    async def call(context: Any, arguments: str) -> str:
        return (await tools.call(tool.name, arguments)).text

    made = FunctionTool(
        name=tool.name,
        description=tool.description(),
        params_json_schema=tool.parameters(OPENAI_STRICT if strict else PLAIN),
        on_invoke_tool=call,
        strict_json_schema=False,  # the SDK's own conversion refuses maps and optional properties
    )
    made.strict_json_schema = strict
    return made
