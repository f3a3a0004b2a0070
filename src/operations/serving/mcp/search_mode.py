"""SearchMode: three tools (search, describe, call) in place of a long list of tools.

The list depends on the caller's rights only, as the protocol requires: it never changes as a side effect of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from operations.catalogue import unknown_operation
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.exports.arguments import parse_arguments, read_arguments
from operations.exports.search_tools import CALL, DESCRIBE, SEARCH, SearchTools
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.exposure import Exposure
from operations.serving.mcp.calls import RequestInfo
from operations.serving.mcp.results import Result, error_result
from operations.serving.mcp.tools import Tool, ToolList, tool_sets
from operations.sources.mcp.own_fields import INPUT

SEARCH_ABOVE = 200
"""Number of tools above which a caller gets search, describe and call instead, if `enabled` is None."""
_NAMES = frozenset({SEARCH, DESCRIBE, CALL})
_SEARCHES_PER_IDENTITY = 8
_MAX_QUERY_LENGTH = 500
_MAX_IDS = 20
_MAX_ID_LENGTH = 256
_encode = msgspec.json.Encoder().encode
RunTool = Callable[[Tool, Any, RequestInfo], Awaitable[Any]]
"""Calls a tool; may return a `TaskCreated`: an MCP task that runs the call."""
T = TypeVar("T")


class SearchMode:
    """Lists and calls the tools search, describe and call.

    If `enabled` is None, they replace the tools of callers with more than `SEARCH_ABOVE` tools.
    """

    def __init__(self, exposure: Exposure, tool_list: ToolList, run: RunTool, *, enabled: bool | None) -> None:
        self._exposure = exposure
        self._tool_list = tool_list
        self._run = run
        self._enabled = enabled
        self._tool_sets = tool_sets(exposure, tool_list, SearchTools)
        self._searching = asyncio.Lock()
        self._threads = ConcurrencyLimits(_SEARCHES_PER_IDENTITY, "searches at once")

    def applies(self, identity: Identity | None) -> bool:
        """Whether a caller gets the tools search, describe and call in place of all tools."""
        if self._enabled is not None:
            return self._enabled
        return len(self._tool_list.visible(identity)) > SEARCH_ABOVE

    def handles(self, name: str, identity: Identity | None) -> bool:
        """Whether a name is one of the three tools of a caller."""
        return name in _NAMES and self.applies(identity)

    def definitions(self, identity: Identity | None) -> list[bytes]:
        """Return the three tools as JSON."""
        listed = self._tool_sets.of(identity).mcp()
        for each in listed:
            each["annotations"] = {"readOnlyHint": each["name"] != CALL}
        return [_encode(each) for each in listed]

    async def call(self, name: str, arguments: Any, info: RequestInfo) -> Any:
        """Call one of the three tools."""
        try:
            given = parse_arguments(arguments)
            if name == CALL:
                return await self._call_operation(given, info)
            return await self._limited(info, self._read(name, given, info.identity))
        except CallError as error:
            return error_result(error, name)

    async def _call_operation(self, given: Mapping[str, Any], info: RequestInfo) -> Any:
        operation_id = _string(given, "id")[:_MAX_ID_LENGTH]
        tool = self._tool_list.find_operation(operation_id, info.identity)
        if tool is None:
            known = list(self._exposure.visible(info.identity))
            raise await self._limited(info, asyncio.to_thread(unknown_operation, operation_id, known))
        arguments = given.get("input")
        if not isinstance(arguments, Mapping | str | None):
            arguments = {INPUT: arguments}
        input = read_arguments(parse_arguments(arguments), tool.operation.spec.input_schema)
        return await self._run(tool, {INPUT: input} if tool.wraps_input else input, info)

    async def _limited(self, info: RequestInfo, work: Coroutine[Any, Any, T]) -> T:
        """Await work that runs in a thread; limit how many threads one caller uses at the same time."""
        key = info.caller.key
        try:
            self._threads.acquire(key)
        except CallError:
            work.close()
            raise
        try:
            return await work
        finally:
            self._threads.release(key)

    async def _read(self, name: str, given: Mapping[str, Any], identity: Identity | None) -> Result:
        """Search or describe, in a thread: the first search builds an index, and both may take milliseconds."""
        tools = self._tool_sets.of(identity)
        if name == SEARCH:
            query, limit = _string(given, "query", ""), given.get("limit")
            number = limit if type(limit) is int else 8
            async with self._searching:  # one thread builds the index
                text = await asyncio.to_thread(tools.search, query[:_MAX_QUERY_LENGTH], number)
        else:
            ids = given.get("ids")
            wanted = [ids] if isinstance(ids, str) else ids
            if not isinstance(wanted, Sequence) or not all(isinstance(each, str) for each in wanted):
                raise CallError(ErrorCode.VALIDATION_ERROR, "invalid argument ids: expected a list of operation ids")
            text = await asyncio.to_thread(tools.describe, [each[:_MAX_ID_LENGTH] for each in wanted[:_MAX_IDS]])
        return Result([{"type": "text", "text": text}])


def _string(given: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"invalid argument {name}: expected a string")
    return value
