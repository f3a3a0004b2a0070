"""MCPServer: the tools, resources and prompts of an exposure, for any transport and protocol version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from operations.context import Identity
from operations.dispatch import Dispatcher
from operations.errors import CallError
from operations.exports.code_limits import RUN, CodeLimits
from operations.failures import too_large
from operations.jobs import Jobs
from operations.serving.audit import AuditWriter
from operations.serving.exposure import Exposure
from operations.serving.limits import Limits
from operations.serving.mcp.calls import INVALID_PARAMS, MCPCalls, ProtocolError, RequestInfo, unknown_tool
from operations.serving.mcp.resource_requests import ResourceRequests
from operations.serving.mcp.resources import ResourceIndex
from operations.serving.mcp.results import Result
from operations.serving.mcp.search_mode import SearchMode
from operations.serving.mcp.tasks import EXTENSION, TaskCreated, Tasks
from operations.serving.mcp.tools import Tool, ToolList
from operations.serving.suspended_calls import InputRequired, SuspendedCalls
from operations.sources.mcp.own_fields import OWN

if TYPE_CHECKING:
    from operations.serving.mcp.code_mode import CodeMode

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
ToolOutcome = Result | InputRequired | TaskCreated


class MCPServer:
    """Lists the tools, resources and prompts of an exposure, and calls its operations."""

    def __init__(
        self,
        exposure: Exposure,
        dispatcher: Dispatcher,
        *,
        streams: Dispatcher | None = None,
        name: str,
        version: str,
        instructions: str | None = None,
        state_key: bytes | None = None,
        search: bool | None = None,
        code: CodeLimits | bool = False,
        jobs: Jobs | None = None,
        audit: AuditWriter | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.instructions = instructions
        self.exposure = exposure
        self.limits = limits or Limits()
        self.suspended_calls = SuspendedCalls(dispatcher.slots, key=state_key)
        self.calls = MCPCalls(
            dispatcher,
            streams or dispatcher,
            self.suspended_calls,
            exposure=exposure,
            audit=audit or AuditWriter(),
            limits=self.limits,
        )
        info = _encode({SERVER_INFO_KEY: {"name": name, "version": version}})[1:-1]
        self.stamp = b'"_meta":{%b}' % info
        self.tool_list = ToolList(exposure, info)
        self.tasks = Tasks(jobs, exposure, self.tool_list, self.calls) if jobs is not None else None
        self.search_mode = SearchMode(exposure, self.tool_list, self._run_tool, enabled=search)
        self.code_mode = _code_mode(exposure, self.tool_list, self.calls, code) if code else None
        self._lists_search = search is True or self.code_mode is None
        self.resource_index = ResourceIndex(exposure)
        self.resource_requests = ResourceRequests(self.calls, self.resource_index)
        self.discovered = self._discover()

    async def call_tool(self, name: str, arguments: Any, info: RequestInfo) -> ToolOutcome:
        """Call a tool; raise ProtocolError if it does not exist or the caller may not call it."""
        tool = self.tool_list.find(name, info.identity)
        if tool is not None:
            return await self._run_tool(tool, arguments, info)
        if self.search_mode.handles(name, info.identity):
            outcome: ToolOutcome = await self.search_mode.call(name, arguments, info)
            return outcome
        if name == RUN and self.code_mode is not None:
            return await self.code_mode.call(arguments, info)
        raise unknown_tool(name)

    async def close(self) -> None:
        """Cancel suspended calls and end the sandboxes."""
        await self.suspended_calls.close()
        if self.code_mode is not None:
            await self.code_mode.close()

    async def _run_tool(self, tool: Tool, arguments: Any, info: RequestInfo) -> ToolOutcome:
        if self.tasks is not None and self.tasks.creates(tool, info):
            return await self.tasks.create(tool, arguments, info)
        return await self.calls.call_tool(tool, arguments, info)

    async def list_tools(
        self, identity: Identity | None, cursor: str | None, meta: Mapping[str, Any], *, modern: bool
    ) -> bytes:
        """Return a page of the tools that a caller may call, as JSON; in search or code mode, the tools of that mode.

        A client that `meta` identifies as a registry of this library receives all tools, to import them.
        """
        if OWN not in meta and cursor is None:
            listed = [] if self.code_mode is None else await self.code_mode.definitions(identity)
            if self._lists_search and self.search_mode.applies(identity):
                listed += self.search_mode.definitions(identity)
            if listed:
                return self.tool_list.join(listed, modern=modern)
        page = await self.tool_list.page(identity, cursor, modern=modern)
        if page is None:
            raise ProtocolError(INVALID_PARAMS, "Invalid cursor")
        return page

    def check_size(self, name: str, result: bytes) -> CallError | None:
        """Return the error for a result that exceeds the limit on responses; None for any other result."""
        limit = self.limits.response_bytes
        return too_large(name, "result", len(result), limit, "yes") if len(result) > limit else None

    def _discover(self) -> bytes:
        result: dict[str, Any] = {
            "resultType": "complete",
            "supportedVersions": [VERSION],
            "capabilities": CAPABILITIES if self.tasks is None else {**CAPABILITIES, "extensions": {EXTENSION: {}}},
            "ttlMs": DISCOVER_TTL_MS,
            "cacheScope": "private",
        }
        if self.instructions is not None:
            result["instructions"] = self.instructions
        return _encode(result)[:-1] + b"," + self.stamp + b"}"

    def encode(self, result: ToolOutcome) -> bytes:
        """Encode a result for protocol version 2026-07-28."""
        if isinstance(result, InputRequired):
            return self.stamped(input_required(result))
        if isinstance(result, TaskCreated):
            return self.stamped(result.fields)
        data = result.to_dict()
        data["resultType"] = "complete"
        if "_meta" not in data:
            return self.stamped(data)
        meta = data["_meta"]
        if meta.get(SERVER_INFO_KEY) is None:
            data["_meta"] = {**meta, SERVER_INFO_KEY: {"name": self.name, "version": self.version}}
        return _encode(data)

    def stamped(self, fields: Mapping[str, Any]) -> bytes:
        """Encode a result that has no `_meta`, and add a `_meta` with the name and version of the server."""
        return _encode(fields)[:-1] + b"," + self.stamp + b"}"


def _code_mode(exposure: Exposure, tool_list: ToolList, calls: MCPCalls, code: CodeLimits | bool) -> CodeMode:
    from operations.serving.mcp.code_mode import CodeMode  # needs the sandbox

    return CodeMode(exposure, tool_list, calls, code if isinstance(code, CodeLimits) else CodeLimits())


def input_required(result: InputRequired) -> dict[str, Any]:
    """Return the open questions of a call in the format of the protocol."""
    requests = {key: {"method": each.method, "params": each.params} for key, each in result.questions.items()}
    return {"resultType": "input_required", "inputRequests": requests, "requestState": result.state}
