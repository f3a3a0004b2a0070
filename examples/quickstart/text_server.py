"""An MCP server with two tools, over stdio."""

from __future__ import annotations

from typing import TypedDict

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("text", version="1.0.0", log_level="WARNING")
READS = ToolAnnotations(read_only_hint=True)


class Count(TypedDict):
    """The size of a text."""

    words: int
    characters: int


@server.tool(annotations=READS)
def count(text: str) -> Count:
    """Count the words and characters of a text."""
    return {"words": len(text.split()), "characters": len(text)}


@server.tool(annotations=READS)
def headline(text: str) -> str:
    """Return a text as a headline; an empty text is an error."""
    if not text.strip():
        raise ToolError("there is no text")
    return text.strip().title()


if __name__ == "__main__":
    server.run("stdio")
