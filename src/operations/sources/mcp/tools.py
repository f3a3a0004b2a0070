"""MCP tools as operations: makes their specs, calls the tools, and makes envelopes of results and progress."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from operations.content import content_block
from operations.context import OperationContext
from operations.envelope import MCPResponseMeta, ResponseEnvelope, mcp_envelope
from operations.errors import CallError, ErrorCode
from operations.progress import ProgressEvent, ProgressQueue, ProgressReporter
from operations.schema import UNKNOWN, Policy, Schema, from_schema
from operations.sources.mcp.calls import MCPRequest
from operations.sources.mcp.protocol import OnProgress
from operations.spec import Operation, OperationSpec, OperationType, map_source_name
from operations.wire import encode_json

EVENT = "operations/event"
"""The `_meta` key that marks progress events of a subscription; a final result does not have it."""


def progress_envelope(event: ProgressEvent) -> ResponseEnvelope[dict[str, Any]]:
    """Return the envelope of a progress event; `is_progress` distinguishes it from the result."""
    data = {name: value for name, value in event._asdict().items() if value is not None}
    return mcp_envelope(data, extensions={EVENT: "progress"})


def is_progress(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether an event of a subscription reports progress; the last event of the subscription, the result, does not."""
    meta = envelope.meta
    return isinstance(meta, MCPResponseMeta) and (meta.extensions or {}).get(EVENT) == "progress"


_log = logging.getLogger("operations.mcp")

_SPEC_FIELDS = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations"})
_MISSING: Any = object()
_read_json = msgspec.json.Decoder().decode


class RequestSender(Protocol):
    """Sends requests to a server."""

    async def call(
        self, request: MCPRequest, context: OperationContext, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """Return the server's result; raise `CallError` for every failure."""


class ServerOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The server of an operation: its names and its request sender."""

    server: str
    namespace: str
    version: str
    calls: RequestSender
    output_policy: Policy | None


def is_tool(listed: Any) -> bool:
    """Whether a list item has a name, without which it cannot be called."""
    return isinstance(listed, Mapping) and isinstance(listed.get("name"), str) and bool(listed["name"])


def tool_operations(origin: ServerOrigin, listed: Iterable[Mapping[str, Any]]) -> list[Operation[Any]]:
    """Return an operation for each listed tool; a problem is logged and affects only its tool."""
    tools: dict[str, Mapping[str, Any]] = {}
    for tool in listed:
        if tool["name"] in tools:
            _log.warning("%s: duplicate tool %r; using the first", origin.server, tool["name"])
        else:
            tools[tool["name"]] = tool
    names = assign_names(tools)
    return [_operation(origin, tool, *names[original]) for original, tool in tools.items()]


def assign_names(originals: Iterable[str]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return an operation name and annotations for each tool name.

    A valid name stays the same and has no annotations. For any other name, the annotations have the original name. If
    two tools would get the same name, a hash of the original name is appended to a changed name. Names therefore do not
    depend on the order of the tools.
    """
    mapped = {original: map_source_name(original) for original in originals}
    claims = Counter(name for name, _ in mapped.values())
    assigned: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for original, (name, name_annotations) in mapped.items():
        if name_annotations and claims[name] > 1:
            name = f"{name}_{hashlib.sha256(original.encode(errors='surrogatepass')).hexdigest()[:8]}"
        assigned[original] = name, name_annotations
    return assigned


def _operation(
    origin: ServerOrigin, tool: Mapping[str, Any], name: str, name_annotations: Mapping[str, Any]
) -> Operation[Any]:
    hints = tool.get("annotations")
    hints = hints if isinstance(hints, Mapping) else {}
    read_only = hints.get("readOnlyHint") is True
    title = tool.get("title") or hints.get("title")
    description = tool.get("description")
    spec = OperationSpec(
        name=name,
        namespace=origin.namespace,
        version=origin.version,
        type=OperationType.QUERY if read_only else OperationType.MUTATION,
        description=description if isinstance(description, str) else "",
        title=title if isinstance(title, str) else None,
        input_schema=_schema(origin, tool, "inputSchema"),
        output_schema=_schema(origin, tool, "outputSchema"),
        annotations={**hints, **name_annotations, **_other_fields(tool)},
        output_policy=origin.output_policy,
    )
    runner = ToolRunner(origin.calls, tool, spec.output_schema, read_only)
    return Operation(
        spec=spec,
        handler=runner.run,
        stream=runner.follow,
        threaded=False,
        dump=None,
        schema_applies=(lambda envelope: False) if spec.output_schema.is_unknown else is_tool_data,
    )


def _schema(origin: ServerOrigin, tool: Mapping[str, Any], field: str) -> Schema:
    document = tool.get(field)
    if document is None:
        return UNKNOWN
    if isinstance(document, Mapping | bool):
        return from_schema(document)
    _log.warning(
        "%s: the %s of tool %r is not a JSON Schema; any value is accepted", origin.server, field, tool["name"]
    )
    return UNKNOWN


def _other_fields(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool that a spec does not have (`icons`, `_meta`, …)."""
    others = {key: value for key, value in tool.items() if key not in _SPEC_FIELDS}
    return {"mcp": others} if others else {}


def _requires_task(tool: Mapping[str, Any]) -> bool:
    execution = tool.get("execution")
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


CANCEL_SECONDS = 0.5
"""Time limit for cancelling a task at the server."""


class ToolRunner:
    """Calls one tool: `run` returns its result; `follow` yields its progress, then its result."""

    def __init__(self, calls: RequestSender, tool: Mapping[str, Any], output_schema: Schema, read_only: bool) -> None:
        self.calls = calls
        self._tool: str = tool["name"]
        self._requires_task = _requires_task(tool)
        self._output_schema = output_schema
        self._read_only = read_only

    async def run(self, input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
        """Call the tool and return its envelope; progress goes to the context's callback."""
        report = None if context.progress is None else ProgressReporter(context.progress)
        return await self._call(input, context, report)

    async def follow(self, input: Any, context: OperationContext) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Call the tool and yield its progress, then its result; closing the iterator cancels the call."""
        report = None if context.progress is None else ProgressReporter(context.progress)
        events = ProgressQueue()

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            events.put(ProgressEvent(progress, total, message))
            if report is not None:
                await report(progress, total, message)

        call = asyncio.ensure_future(self._call(input, context, on_progress))
        call.add_done_callback(lambda _: events.end())
        try:
            while (event := await events.get()) is not None:
                yield progress_envelope(event)
            yield await call
        finally:
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await call

    async def _call(
        self, input: Any, context: OperationContext, on_progress: OnProgress | None
    ) -> ResponseEnvelope[Any]:
        if self._requires_task:
            return self.read(await self._run_task(self.request(input), context, on_progress))
        return self.read(await self.calls.call(self.request(input), context, on_progress))

    async def _run_task(
        self, request: MCPRequest, context: OperationContext, on_progress: OnProgress | None
    ) -> Mapping[str, Any]:
        """Run the tool as a task of protocol version 2025-11-25, and return the result of the task when it ends."""
        request = msgspec.structs.replace(request, params={**request.params, "task": {}}, repeatable=False)
        try:
            created = await self.calls.call(request, context, on_progress)
        except CallError as error:
            if error.code is not ErrorCode.OPERATION_NOT_FOUND:
                raise
            message = f"tool {self._tool!r} requires MCP tasks, which the server does not offer"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, error.details) from error
        task = created.get("task")
        if not isinstance(task, Mapping) or not isinstance(task.get("taskId"), str):
            return created
        about: dict[str, Any] = {"params": {"taskId": task["taskId"]}, "what": request.what}
        try:
            return await self.calls.call(MCPRequest(method="tasks/result", repeatable=True, **about), context)
        except asyncio.CancelledError:
            with contextlib.suppress(CallError, TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self.calls.call(MCPRequest(method="tasks/cancel", **about), context)
            raise

    def request(self, input: Any) -> MCPRequest:
        """Return the request for an input."""
        if not isinstance(input, Mapping):
            message = f"invalid arguments of tool {self._tool!r}: expected an object, not {type(input).__name__}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return self.tool_request(input)

    def tool_request(self, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> MCPRequest:
        """Return the `tools/call` request with these arguments."""
        return MCPRequest(
            method="tools/call",
            params={"name": self._tool, "arguments": arguments},
            what=f"tool {self._tool!r}",
            meta=meta or {},
            repeatable=self._read_only,
        )

    def read(self, result: Mapping[str, Any]) -> ResponseEnvelope[Any]:
        """Return the envelope of a result."""
        return tool_envelope(result, self._output_schema)


def tool_envelope(result: Mapping[str, Any], output_schema: Schema) -> ResponseEnvelope[Any]:
    """Return the envelope of a `tools/call` result.

    Its data is the structured content, else the JSON in a single text block if it matches the output schema, else the
    content blocks.
    """
    content = [content_block(_as_block(block)) for block in _as_list(result.get("content"))]
    structured = result.get("structuredContent")
    extensions = result.get("_meta")
    is_error = result.get("isError") is True
    if structured is not None:
        data: Any = structured
    else:
        data = _MISSING if is_error else _json_text(content, output_schema)
        if data is _MISSING:
            data = [block.to_dict() for block in content]
    return mcp_envelope(
        data,
        is_error=is_error,
        content=content,
        # The envelope's field accepts only objects; other JSON values (allowed since 2026-07-28) are in `data`.
        structured_content=structured if isinstance(structured, dict) else None,
        extensions=extensions if isinstance(extensions, dict) else None,
    )


def is_tool_data(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether a tool's output schema applies: not to errors, progress, or content blocks used as data."""
    meta = envelope.meta
    if not isinstance(meta, MCPResponseMeta) or meta.is_error:
        return False
    if meta.structured_content is not None:
        return True
    if meta.extensions and is_progress(envelope):
        return False
    return bool(envelope.data != [block.to_dict() for block in meta.content])


def _json_text(content: list[Any], schema: Schema) -> Any:
    """Return the JSON value in a single text block, if it matches the output schema; else `_MISSING`."""
    if len(content) != 1 or content[0].type != "text" or schema.is_unknown:
        return _MISSING
    try:
        value = _read_json(content[0].text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return _MISSING
    return value if schema.check(value) else _MISSING


def _as_list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]


def _as_block(block: Any) -> Mapping[str, Any]:
    return block if isinstance(block, Mapping) else {"type": "text", "text": encode_json(block).decode()}
