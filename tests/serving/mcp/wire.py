"""Requests of 2026-07-28 as they go over the wire."""

from __future__ import annotations

import json
from typing import Any

import httpx2

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SDK_ONLY = {"io.modelcontextprotocol/logLevel": "emergency"}
"""A field that the fast path leaves to the SDK and that changes no result."""


def message(method: str, params: dict[str, Any] | None = None, *, meta: Any = None, id: Any = 1) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": id,
        "method": method,
        "params": {**(params or {}), "_meta": {**META, **(meta or {})}},
    }


def headers(sent: dict[str, Any], **more: str) -> dict[str, str]:
    name = sent["params"].get("name") or sent["params"].get("uri")
    return {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": sent["method"],
        **({"mcp-name": name} if name and name.isascii() else {}),
        **more,
    }


async def post(url: str, sent: dict[str, Any], **more: str) -> tuple[int, Any]:
    """The status and the JSON of the answer; of a stream, its last message."""
    async with httpx2.AsyncClient(timeout=60) as client:
        answer = await client.post(url, content=json.dumps(sent), headers={**headers(sent), **more})
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        return answer.status_code, json.loads(events[-1])
    return answer.status_code, json.loads(answer.content) if answer.content else None
