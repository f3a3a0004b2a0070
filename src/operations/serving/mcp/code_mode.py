"""CodeMode: one tool, which runs a script of the model, in place of a list of tools.

Scripts run in sandbox processes. Their calls go through `MCPCalls`, like the calls of any MCP request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from operations.context import Client, Identity
from operations.errors import CallError, ErrorCode
from operations.exports.arguments import parse_arguments
from operations.exports.code_limits import RUN, CodeLimits
from operations.exports.code_tool import CodeTool
from operations.exports.sandbox_pool import SandboxPool
from operations.exports.tools import ModelTool, ToolSet
from operations.identity.rate_limits import ConcurrencyLimits
from operations.interceptors.approval import needs_consent
from operations.serving.exposure import Exposure
from operations.serving.mcp.calls import MCPCalls, RequestInfo
from operations.serving.mcp.results import Result, error_result
from operations.serving.mcp.tools import ToolList, tool_sets
from operations.serving.suspended_calls import InputRequired

PROCESSES = 8
"""Largest number of scripts that run at the same time."""
PROCESSES_PER_IDENTITY = 2
"""Largest number of scripts of one identity that run at the same time; further scripts wait."""
_SCRIPTS_PER_IDENTITY = 128
_encode = msgspec.json.Encoder().encode


class CodeMode:
    """Lists and calls the tool `run_python`."""

    def __init__(self, exposure: Exposure, tool_list: ToolList, calls: MCPCalls, limits: CodeLimits) -> None:
        self._exposure = exposure
        self._tool_list = tool_list
        self._calls = calls
        self._limits = limits
        self._sandboxes = SandboxPool(PROCESSES, per_owner=PROCESSES_PER_IDENTITY)
        self._tool_sets = tool_sets(exposure, tool_list, self._make)
        self._preparing = asyncio.Lock()
        self._scripts = ConcurrencyLimits(_SCRIPTS_PER_IDENTITY, "scripts at once")

    async def definitions(self, identity: Identity | None) -> list[bytes]:
        """Return the tool as JSON; its description has the operations that the caller may call."""
        tool = await self._tool(identity)
        return [_encode({**each, "annotations": {"readOnlyHint": False}}) for each in tool.mcp()]

    async def call(self, arguments: Any, info: RequestInfo) -> Result | InputRequired:
        """Run a script. In version 2026-07-28, the script is suspended while one of its calls waits for an answer."""
        key = info.caller.key
        try:
            code = parse_arguments(arguments).get("code")
            if not isinstance(code, str):
                raise CallError(ErrorCode.VALIDATION_ERROR, "invalid argument code: expected a string")
            self._scripts.acquire(key)
        except CallError as error:
            return error_result(error, RUN)
        try:
            await self._sandboxes.open()
            tool = await self._tool(info.identity)

            async def run(client: Client | None) -> Result:
                calls = _ScriptCalls(self._calls, self._tool_list, info, client)
                result = await tool.run(code, calls=calls, owner=key)
                if result.error is not None:
                    return error_result(result.error, RUN)
                return Result(list(result.blocks))

            return await self._calls.suspendable(RUN, {"code": code}, info, run)
        finally:
            self._scripts.release(key)

    async def close(self) -> None:
        """Stop every script and end the sandboxes."""
        await self._sandboxes.close()

    def _make(self, tools: ToolSet) -> CodeTool:
        return CodeTool(tools, limits=self._limits, sandboxes=self._sandboxes)

    async def _tool(self, identity: Identity | None) -> CodeTool:
        tool = self._tool_sets.of(identity)
        async with self._preparing:  # one thread reads the schemas
            await asyncio.to_thread(tool.prepare)
        return tool


class _ScriptCalls:
    """Runs the calls of one script with the identity and the client of its request."""

    def __init__(self, calls: MCPCalls, tool_list: ToolList, info: RequestInfo, client: Client | None) -> None:
        self._calls = calls
        self._tool_list = tool_list
        # Answers belong to the script, not to one of its calls. Calls report no progress: each would begin at zero.
        self._info = msgspec.structs.replace(info, progress=None, responses=None, state=None)
        self._client = client

    async def call(self, tool: ModelTool, input: Any) -> Any:
        """Call an operation and return its data; raise `OPERATION_NOT_FOUND` if the caller may no longer call it."""
        found = self._tool_list.find_operation(tool.spec.id, self._info.identity)
        if found is None:
            raise CallError(ErrorCode.OPERATION_NOT_FOUND, f"no operation {tool.spec.id!r}")
        return await self._calls.call_for_data(found, input, self._info, self._client)

    def asks(self, tool: ModelTool) -> bool:
        """Whether a call of the tool may need approval by a person."""
        return needs_consent(self._calls.dispatcher.registry.interceptors, tool.spec)
