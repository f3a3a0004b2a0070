"""MCP servers of this library: each tool is imported as the operation it was made from, and returns the same results.

`_meta` contains the data for which the protocol has no field: ids, types, whole envelopes, error codes. The ids of
imported operations always start with the namespace of this client.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import msgspec

from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.schema import UNKNOWN, Schema, from_schema
from operations.sources.mcp.calls import MCPRequest
from operations.sources.mcp.own_fields import (
    BYTES,
    ENVELOPE,
    ERROR,
    INPUT,
    OWN,
    RESULT,
    SPEC,
    STREAM,
    WRAPPED,
    move_references,
    plain_json,
)
from operations.sources.mcp.protocol import unavailable
from operations.sources.mcp.tools import ServerOrigin, ToolRunner, tool_envelope
from operations.spec import NAME_PATTERN, NAMESPACE_PATTERN, Operation, OperationSpec, OperationType

_ID = re.compile(f"({NAMESPACE_PATTERN[1:-1]})\\.({NAME_PATTERN[1:-1]})")
_TYPES = frozenset(OperationType)
_LAST_ITEM_SECONDS = 5.0
_MOST_WAITING = 10_000
"""Largest number of unread items of a stream. Further items end the stream, because the client cannot slow down the
server.
"""


def is_own(tool: Mapping[str, Any]) -> bool:
    """Whether a listed tool is an operation of a server of this library."""
    return _about(tool) is not None


def own_operations(origin: ServerOrigin, listed: Iterable[Mapping[str, Any]]) -> list[Operation[Any]]:
    """Return the operations of listed tools; of two with the same id, only the first."""
    found: dict[str, Operation[Any]] = {}
    for tool in listed:
        about = _about(tool)
        if about is not None:
            operation = _operation(origin, tool, about)
            found.setdefault(operation.id, operation)
    return list(found.values())


def _about(tool: Mapping[str, Any]) -> Mapping[str, Any] | None:
    meta = tool.get("_meta")
    about = meta.get(SPEC) if isinstance(meta, Mapping) else None
    if not isinstance(about, Mapping) or about.get("type") not in _TYPES:
        return None
    operation_id = about.get("id")
    return about if isinstance(operation_id, str) and _ID.fullmatch(operation_id) else None


def _operation(origin: ServerOrigin, tool: Mapping[str, Any], about: Mapping[str, Any]) -> Operation[Any]:
    meta = tool["_meta"]
    namespace, _, name = about["id"].rpartition(".")
    version = about.get("version")
    hints = tool.get("annotations")
    kind = OperationType(about["type"])
    wraps_input = about.get("input") == INPUT
    output = UNKNOWN if kind is OperationType.SUBSCRIPTION else _schema(tool, "outputSchema", RESULT, WRAPPED in meta)
    description, title = tool.get("description"), tool.get("title")
    spec = OperationSpec(
        name=name,
        namespace=f"{origin.namespace}.{namespace}",
        version=version if isinstance(version, str) else origin.version,
        type=kind,
        description=description if isinstance(description, str) else "",
        title=title if isinstance(title, str) else None,
        input_schema=_schema(tool, "inputSchema", INPUT, wraps_input),
        output_schema=output,
        annotations=dict(hints) if isinstance(hints, Mapping) else {},
        output_policy=origin.output_policy,
    )
    runner = _OwnRunner(origin.server, origin.calls, tool, spec, wraps_input=wraps_input)
    is_stream = kind is OperationType.SUBSCRIPTION
    return Operation(
        spec=spec,
        handler=None if is_stream else runner.run,
        stream=runner.items if is_stream else runner.follow,
        threaded=False,
        dump=None,
    )


def _schema(tool: Mapping[str, Any], field: str, name: str, wrapped: bool) -> Schema:
    document = tool.get(field)
    if not isinstance(document, Mapping):
        return UNKNOWN
    if not wrapped:
        return from_schema(document)
    properties = document.get("properties")
    inner = properties.get(name, True) if isinstance(properties, Mapping) else True
    moved = move_references(inner, f"#/properties/{name}", "#")
    return from_schema(moved) if isinstance(moved, Mapping | bool) else UNKNOWN


class _OwnRunner(ToolRunner):
    """Calls a tool of an MCP server that is made with this library."""

    def __init__(
        self, server: str, calls: Any, tool: Mapping[str, Any], spec: OperationSpec, *, wraps_input: bool
    ) -> None:
        super().__init__(calls, tool, spec.output_schema, spec.type is OperationType.QUERY)
        self._server = server
        self._spec = spec
        self._wraps_input = wraps_input

    def request(self, input: Any) -> MCPRequest:
        """Return the request for an input; bytes become base64 strings, and `_meta` has their JSON pointers."""
        arguments, places = plain_json({INPUT: input} if self._wraps_input else input)
        if not isinstance(arguments, Mapping):
            message = f"invalid input of {self._spec.id}: expected an object, not {type(input).__name__}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        return self.tool_request(arguments, {OWN: 1, **({BYTES: places} if places else {})})

    def read(self, result: Mapping[str, Any]) -> ResponseEnvelope[Any]:
        """Return the envelope that the operation returned at the server, or raise the error that it raised."""
        return read_own(result, self._spec.output_schema)

    async def items(self, input: Any, context: OperationContext) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Yield the items of a stream; closing the iterator cancels the call."""
        request = self.request(input)
        request = msgspec.structs.replace(request, meta={**request.meta, STREAM: True})
        received = _Items()
        call = asyncio.ensure_future(self.calls.call(request, context, received.take))
        call.add_done_callback(lambda _: received.changed.set())
        try:
            while True:
                while (item := received.next()) is not None:
                    yield item
                if call.done():
                    break
                received.changed.clear()
                await received.changed.wait()
            result = call.result()
            read_own(result, UNKNOWN)  # raises the error that ended the stream
            async for item in self._rest(received, result):
                yield item
        finally:
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await call

    async def _rest(self, received: _Items, result: Mapping[str, Any]) -> AsyncIterator[ResponseEnvelope[Any]]:
        """Yield the items whose messages are handled after the message with the result."""
        meta = result.get("_meta")
        count = meta.get(STREAM) if isinstance(meta, Mapping) else None
        try:
            async with asyncio.timeout(_LAST_ITEM_SECONDS):
                while isinstance(count, int) and received.given < count:
                    while (item := received.next()) is not None:
                        yield item
                    if received.given < count:
                        received.changed.clear()
                        await received.changed.wait()
        except TimeoutError:
            raise unavailable(self._server, "items of a stream were lost", executed="unknown") from None


class _Items:
    """Queue that returns the items of a stream in order, although their messages may be handled in another order."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.given = 0
        self._waiting: dict[int, str] = {}

    async def take(self, progress: float, total: float | None, message: str | None) -> None:
        if message is not None and len(self._waiting) <= _MOST_WAITING and math.isfinite(progress):
            self._waiting[int(progress)] = message
            self.changed.set()

    def next(self) -> ResponseEnvelope[Any] | None:
        """Return the next item; None if it has not arrived. Raise an error if too many items are unread."""
        if len(self._waiting) > _MOST_WAITING:
            message = f"more than {_MOST_WAITING:,} items are unread"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "unknown"})
        text = self._waiting.pop(self.given + 1, None)
        if text is None:
            return None
        self.given += 1
        return _read_envelope(text)


def read_own(result: Mapping[str, Any], output_schema: Schema) -> ResponseEnvelope[Any]:
    """Return the envelope of a result from a server of this library; raise the error if the result has one."""
    meta = result.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    error, envelope = meta.get(ERROR), meta.get(ENVELOPE)
    if result.get("isError") is True and isinstance(error, Mapping):
        raise CallError.from_dict(error)
    return _read_envelope(envelope) if isinstance(envelope, str) else tool_envelope(result, output_schema)


def _read_envelope(text: str) -> ResponseEnvelope[Any]:
    try:
        return ResponseEnvelope.from_json(text)
    except CallError as error:
        message = f"the server sent an envelope that cannot be read: {error.message}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, {"executed": "yes"}) from None
