"""Serving: a registry as an HTTP API, an MCP server and a WebSocket endpoint. Needs the extra `serve`."""
