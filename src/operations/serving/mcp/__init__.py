"""A registry as an MCP server: tools, resources, prompts and completions, in every protocol version.

`MCPEndpoint` serves HTTP, `serve_mcp_stdio` standard input and output. `@resource` and `@prompt` turn functions into
resources and prompts.
"""

from operations.serving.mcp.resources import prompt, resource

__all__ = ["prompt", "resource"]
