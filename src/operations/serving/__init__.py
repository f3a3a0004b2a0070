"""Serving: a registry as an HTTP API, an MCP server and a WebSocket endpoint. Needs the extra `serve`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from operations.serving.app import ServedApp, app, mcp_server
from operations.serving.limits import Limits

if TYPE_CHECKING:
    from operations.serving.mcp.stdio import serve_mcp_stdio
    from operations.serving.server import HTTPServer, serve_http

__all__ = ["HTTPServer", "Limits", "ServedApp", "app", "mcp_server", "serve_http", "serve_mcp_stdio"]
_ON_FIRST_USE = {"HTTPServer": "server", "serve_http": "server", "serve_mcp_stdio": "mcp.stdio"}
"""Names that are imported on first use, by module: an application that another server runs needs none of them."""


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(f"operations.serving.{_ON_FIRST_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
