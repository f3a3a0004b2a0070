"""A registry as an MCP server: tools, resources, prompts and completions, in every protocol version.

`MCPDoor` serves HTTP, `serve_mcp_stdio` standard input and output. `@resource` and `@prompt` mark functions.
"""

from operations.serving.mcp.offers import prompt, resource

__all__ = ["prompt", "resource"]
