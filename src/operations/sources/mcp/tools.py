"""Tools as operations: what a server lists becomes specs, one by one, so that a bad tool costs only itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import UNKNOWN, Policy, Schema, from_schema
from operations.sources.mcp.calls import Request, progress_callback
from operations.sources.mcp.names import assign_names
from operations.sources.mcp.results import is_tool_data, progress_envelope, tool_envelope
from operations.sources.mcp.server import OnProgress
from operations.spec import Operation, OperationSpec, OperationType

_log = logging.getLogger("operations.mcp")

_NAMED = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations"})


class Calls(Protocol):
    """What an operation needs of its server."""

    async def call(
        self, request: Request, context: OperationContext, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """The server's result for a request; raises CallError."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where operations come from: the server's names, and how it is called."""

    server: str
    namespace: str
    version: str
    calls: Calls
    output_policy: Policy | None


def is_tool(listed: Any) -> bool:
    """Whether an item of a listing can be called at all."""
    return isinstance(listed, Mapping) and isinstance(listed.get("name"), str) and bool(listed["name"])


def tool_operations(origin: Origin, listed: Iterable[Mapping[str, Any]]) -> list[Operation[Any]]:
    """An operation for each tool of a listing; what is wrong with a tool is logged."""
    tools: dict[str, Mapping[str, Any]] = {}
    for tool in listed:
        if tool["name"] in tools:
            _log.warning("%s: tool %r is listed more than once; the first is kept", origin.server, tool["name"])
        else:
            tools[tool["name"]] = tool
    names = assign_names(tools)
    return [_operation(origin, tool, *names[original]) for original, tool in tools.items()]


def _operation(origin: Origin, tool: Mapping[str, Any], name: str, kept: Mapping[str, Any]) -> Operation[Any]:
    hints = tool.get("annotations")
    hints = hints if isinstance(hints, Mapping) else {}
    reads = hints.get("readOnlyHint") is True
    title = tool.get("title") or hints.get("title")
    description = tool.get("description")
    spec = OperationSpec(
        name=name,
        namespace=origin.namespace,
        version=origin.version,
        type=OperationType.QUERY if reads else OperationType.MUTATION,
        description=description if isinstance(description, str) else "",
        title=title if isinstance(title, str) else None,
        input_schema=_schema(origin, tool, "inputSchema"),
        output_schema=_schema(origin, tool, "outputSchema"),
        annotations={**hints, **kept, **_others(tool)},
        output_policy=origin.output_policy,
    )
    runner = _ToolRunner(origin.calls, tool["name"], spec.output_schema, reads)
    return Operation(
        spec=spec,
        handler=runner.run,
        stream=runner.follow,
        threaded=False,
        dump=None,
        describes=_never if spec.output_schema.is_unknown else is_tool_data,
    )


class _ToolRunner:
    """Runs one tool: to its result, or as its progress followed by its result."""

    def __init__(self, calls: Calls, tool: str, output_schema: Schema, reads: bool) -> None:
        self._calls = calls
        self._tool = tool
        self._output_schema = output_schema
        self._reads = reads

    async def run(self, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Call the tool; its progress goes to the context's callback."""
        return await self._call(input, context, progress_callback(context))

    async def follow(self, input: Any, context: OperationContext) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Call the tool and yield its progress, then its result; leaving early cancels the call."""
        report = progress_callback(context)
        events = _Latest()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            events.put(progress_envelope(progress, total, message))
            if report is not None:
                await report(progress, total, message)

        call = asyncio.ensure_future(self._call(input, context, on_progress))
        call.add_done_callback(lambda _: events.put(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            yield await call
        finally:
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await call

    async def _call(
        self, input: Any, context: OperationContext, on_progress: OnProgress | None
    ) -> ResponseEnvelope[Any]:
        if not isinstance(input, Mapping):
            message = f"the arguments of tool {self._tool!r} are an object, not {type(input).__name__}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        request = Request(
            method="tools/call",
            params={"name": self._tool, "arguments": input},
            what=f"tool {self._tool!r}",
            repeatable=self._reads,
        )
        return tool_envelope(await self._calls.call(request, context, on_progress), self._output_schema)


class _Latest:
    """Progress that waits for a reader; of more than it keeps, the oldest is out of date and dropped."""

    def __init__(self, *, capacity: int = 1_000) -> None:
        self._queue: asyncio.Queue[ResponseEnvelope[Any] | None] = asyncio.Queue(capacity)
        self.get = self._queue.get

    def put(self, event: ResponseEnvelope[Any] | None) -> None:
        """Add an event; None ends the progress."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(event)


def _schema(origin: Origin, tool: Mapping[str, Any], field: str) -> Schema:
    document = tool.get(field)
    if document is None:
        return UNKNOWN
    if isinstance(document, Mapping | bool):
        return from_schema(document)
    _log.warning("%s: the %s of tool %r is not a JSON Schema; anything goes", origin.server, field, tool["name"])
    return UNKNOWN


def _others(tool: Mapping[str, Any]) -> dict[str, Any]:
    """What the server says of a tool that a spec has no field for (`icons`, `_meta`, …)."""
    others = {key: value for key, value in tool.items() if key not in _NAMED}
    return {"mcp": others} if others else {}


def _never(envelope: ResponseEnvelope[Any]) -> bool:
    return False
