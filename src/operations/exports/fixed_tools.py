"""FixedTools: tools of the library itself, such as `search_operations`, in the format of each provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operations.exports.results import ToolResult


class FixedTools:
    """A base class: `definitions` returns the tools in Anthropic's format, and the other methods convert them."""

    def definitions(self) -> list[dict[str, Any]]:
        """Return name, description and `input_schema` of each tool."""
        raise NotImplementedError

    def anthropic(self) -> list[dict[str, Any]]:
        """Return the definitions for Anthropic's messages."""
        return self.definitions()

    def openai(self, *, api: str = "chat") -> list[dict[str, Any]]:
        """Return the definitions for OpenAI's chat completions or responses."""
        functions = [_with_schema_as(each, "parameters") for each in self.definitions()]
        if api == "responses":
            return [{"type": "function", **function} for function in functions]
        return [{"type": "function", "function": function} for function in functions]

    def gemini(self) -> list[dict[str, Any]]:
        """Return the function declarations for Gemini."""
        return [_with_schema_as(each, "parameters_json_schema") for each in self.definitions()]

    def mcp(self) -> list[dict[str, Any]]:
        """Return the tools in the format of MCP's `tools/list`."""
        return [_with_schema_as(each, "inputSchema") for each in self.definitions()]


def tool_definition(name: str, description: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """Return a tool in Anthropic's format."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


def text_result(text: str) -> ToolResult:
    """Return a successful tool result with the given text."""
    return ToolResult(text=text, blocks=[{"type": "text", "text": text}])


def _with_schema_as(definition: dict[str, Any], key: str) -> dict[str, Any]:
    return {"name": definition["name"], "description": definition["description"], key: definition["input_schema"]}
