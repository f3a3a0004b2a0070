"""MCP source: tools, resources and prompts of MCP servers as operations. The SDK is imported on first use."""

from operations.sources.mcp.client import MCPClient, MCPClientLoader, close_mcp_client, create_mcp_client
from operations.sources.mcp.config import MCPClientConfig, MCPOAuth, MCPServerRequest, ServerRequestHandler
from operations.sources.mcp.connection import MCPClientState
from operations.sources.mcp.protocol import MCPServerInfo
from operations.sources.mcp.tools import is_progress

__all__ = [
    "MCPClient",
    "MCPClientConfig",
    "MCPClientLoader",
    "MCPClientState",
    "MCPOAuth",
    "MCPServerInfo",
    "MCPServerRequest",
    "ServerRequestHandler",
    "close_mcp_client",
    "create_mcp_client",
    "is_progress",
]
