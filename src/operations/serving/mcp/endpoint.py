"""Endpoint: everything that an MCP server of ours answers with, whichever transport and protocol version asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from operations.context import Client, Identity, Progress
from operations.dispatch import Dispatcher
from operations.serving.admission import Caller
from operations.serving.asking import InputRequired, Suspensions
from operations.serving.audit import AuditLog
from operations.serving.exposure import Exposure
from operations.serving.mcp.calls import (
    CALLS_EACH,
    DEADLINE_SECONDS,
    INVALID_PARAMS,
    Calls,
    Incoming,
    ProtocolError,
    unknown_tool,
)
from operations.serving.mcp.listing import Listing
from operations.serving.mcp.offers import Offers
from operations.serving.mcp.reading import Reading
from operations.serving.mcp.results import Result

VERSION = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
PROGRESS_TOKEN = "progressToken"  # the name of a field
DISCOVER_TTL_MS = 60_000
_CHANGES = {"listChanged": True}
CAPABILITIES: dict[str, Any] = {
    "completions": {},
    "logging": {},
    "prompts": _CHANGES,
    "resources": {"listChanged": True, "subscribe": True},
    "tools": _CHANGES,
}
_encode = msgspec.json.Encoder().encode


class Endpoint:
    """The tools, resources and prompts of an exposure, and how they are called."""

    def __init__(
        self,
        exposure: Exposure,
        dispatcher: Dispatcher,
        *,
        name: str,
        version: str,
        instructions: str | None = None,
        state_key: bytes | None = None,
        audit: AuditLog | None = None,
        calls_each: int = CALLS_EACH,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.name = name
        self.version = version
        self.instructions = instructions
        self.exposure = exposure
        self.suspensions = Suspensions(dispatcher.slots, key=state_key)
        self.calls = Calls(
            dispatcher,
            self.suspensions,
            audit=audit or AuditLog(),
            calls_each=calls_each,
            deadline_seconds=deadline_seconds,
        )
        info = _encode({SERVER_INFO_KEY: {"name": name, "version": version}})[1:-1]
        self.stamp = b'"_meta":{%b}' % info
        self.listing = Listing(exposure, info)
        self.offers = Offers(exposure)
        self.reading = Reading(self.calls, self.offers)
        self.discovered = self._discover()

    async def call_tool(self, name: str, arguments: Any, incoming: Incoming) -> Result | InputRequired:
        """Call a tool that the caller may call; raise ProtocolError."""
        tool = self.listing.find(name, incoming.identity)
        if tool is None:
            raise unknown_tool(name)
        return await self.calls.call_tool(tool, arguments, incoming)

    async def list_tools(self, identity: Identity | None, cursor: str | None, *, modern: bool) -> bytes:
        """Return a page of the tools that a caller may call, as JSON."""
        page = await self.listing.page(identity, cursor, modern=modern)
        if page is None:
            raise ProtocolError(INVALID_PARAMS, "Invalid cursor")
        return page

    def _discover(self) -> bytes:
        result: dict[str, Any] = {
            "resultType": "complete",
            "supportedVersions": [VERSION],
            "capabilities": CAPABILITIES,
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "private",
        }
        if self.instructions is not None:
            result["instructions"] = self.instructions
        return _encode(result)[:-1] + b"," + self.stamp + b"}"

    def encode(self, result: Result | InputRequired) -> bytes:
        """Write a result of 2026-07-28."""
        if isinstance(result, InputRequired):
            return _encode(input_required(result))[:-1] + b"," + self.stamp + b"}"
        data = result.to_dict()
        data["resultType"] = "complete"
        if "_meta" not in data:
            return _encode(data)[:-1] + b"," + self.stamp + b"}"
        meta = data["_meta"]
        if meta.get(SERVER_INFO_KEY) is None:
            data["_meta"] = {**meta, SERVER_INFO_KEY: {"name": self.name, "version": self.version}}
        return _encode(data)


def input_required(result: InputRequired) -> dict[str, Any]:
    """Return the open questions of a call as the protocol's JSON."""
    requests = {key: {"method": each.method, "params": each.params} for key, each in result.questions.items()}
    return {"resultType": "input_required", "inputRequests": requests, "requestState": result.state}


def incoming(
    caller: Caller,
    params: Mapping[str, Any],
    *,
    modern: bool,
    progress: Progress | None = None,
    client: Client | None = None,
) -> Incoming:
    """Return what the parameters of a request say beside its operation and input."""
    meta = params.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    state = params.get("requestState")
    return Incoming(
        caller=caller,
        modern=modern,
        meta=meta,
        capabilities=meta.get(CAPABILITIES_KEY) if modern else None,
        progress=progress,
        client=client,
        responses=params.get("inputResponses"),
        state=state if isinstance(state, str) else None,
    )
