"""Serving: a registry as an HTTP API, an MCP server and a WebSocket endpoint. Needs the extra `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operations.serving.app import ServedApp, app, mcp_server
from operations.serving.limits import Limits

if TYPE_CHECKING:
    from operations.serving.server import HTTPServer, serve_http

__all__ = ["HTTPServer", "Limits", "ServedApp", "app", "mcp_server", "serve_http"]


def __getattr__(name: str) -> Any:
    if name in (
        "HTTPServer",
        "serve_http",
    ):  # these import uvicorn, which an application under another server does not need
        from operations.serving import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
