"""Tools for Google's Agent Development Kit: `LlmAgent(tools=google_adk_tools(registry.tools()), …)`."""

from __future__ import annotations

from typing import Any

from operations.exports.schema_subsets import GEMINI
from operations.exports.tools import ModelTool, ToolSet

try:
    from google.adk.tools.base_tool import BaseTool
    from google.genai import types
except ImportError:
    message = "google-adk is not installed: pip install 'operations[google-adk]'"
    raise ImportError(message, name="google.adk") from None


def google_adk_tools(tools: ToolSet) -> list[BaseTool]:
    """Return the tools of a set. A result is `{"output": text}`, a failure `{"error": text}`."""
    return [_OperationTool(tools, tool) for tool in tools.tools.values()]


class _OperationTool(BaseTool):  # type: ignore[misc]  # the framework is not installed where types are checked
    """One operation as a tool of the framework."""

    def __init__(self, tools: ToolSet, tool: ModelTool) -> None:
        super().__init__(name=tool.name, description=tool.description())
        self._tools = tools
        self._tool = tool

    def _get_declaration(self) -> types.FunctionDeclaration:
        schema = self._tool.parameters(GEMINI)
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters_json_schema=schema)

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> dict[str, str]:
        """Call the operation."""
        result = await self._tools.call(self.name, args)
        return {"error" if result.is_error else "output": result.text}
