"""Tools for LlamaIndex: `FunctionAgent(tools=llama_index_tools(registry.tools()), llm=llm)`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from operations.exports.tools import ModelTool, ToolSet

try:
    from llama_index.core.base.llms.types import ImageBlock, TextBlock
    from llama_index.core.tools.types import AsyncBaseTool, ToolMetadata, ToolOutput
except ImportError:
    message = "llama-index-core is not installed: pip install 'operations[llama-index]'"
    raise ImportError(message, name="llama_index.core") from None


def llama_index_tools(tools: ToolSet) -> list[AsyncBaseTool]:
    """Return the tools of a set for LlamaIndex.

    The `ToolOutput` of a call has the `ToolResult` as its `raw_output`. After a failure, its `is_error` is true.
    """
    return [_OperationTool(tools, tool) for tool in tools.tools.values()]


@dataclass
class _Metadata(ToolMetadata):  # type: ignore[misc]  # the framework is not installed where types are checked
    """Metadata with a JSON Schema in place of a pydantic model."""

    parameters: dict[str, Any] = field(default_factory=dict)

    def get_parameters_dict(self) -> dict[str, Any]:
        """Return the schema of the arguments."""
        return self.parameters


class _OperationTool(AsyncBaseTool):  # type: ignore[misc]  # the framework is not installed where types are checked
    """One operation as a tool of the framework."""

    def __init__(self, tools: ToolSet, tool: ModelTool) -> None:
        self._tools = tools
        self._metadata = _Metadata(
            name=tool.name, description=tool.description(), fn_schema=None, parameters=tool.parameters()
        )

    @property
    def metadata(self) -> ToolMetadata:
        """Name, description and parameters."""
        return self._metadata

    def call(self, **arguments: Any) -> ToolOutput:
        """Call the operation from a program without an event loop."""
        return asyncio.run(self.acall(**arguments))

    async def acall(self, **arguments: Any) -> ToolOutput:
        """Call the operation."""
        result = await self._tools.call(self._metadata.name, arguments)
        return ToolOutput(
            tool_name=self._metadata.name,
            blocks=[_block(block) for block in result.blocks if block.get("type") in ("text", "image")],
            raw_input=arguments,
            raw_output=result,
            is_error=result.is_error,
            exception=result.error,
        )


def _block(block: Mapping[str, Any]) -> Any:
    if block["type"] == "text":
        return TextBlock(text=block["text"])
    return ImageBlock(image=base64.b64decode(block["data"]), image_mimetype=block["mimeType"])
