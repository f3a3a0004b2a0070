"""The own path: 2026-07-28 `tools/call`, `tools/list` and `server/discover`, decoded and answered without the SDK.

A request that is not plainly one of these, or wrong in any way, is left to the SDK, which answers it or says why not.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec

from operations.envelope import LocalResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.serving.admission import Caller
from operations.serving.mcp.calls import Incoming, ProtocolError, make_result, unknown_tool
from operations.serving.mcp.endpoint import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    PROGRESS_TOKEN,
    VERSION,
    VERSION_KEY,
    Endpoint,
)
from operations.serving.mcp.listing import Tool
from operations.serving.mcp.results import error_result
from operations.sources.mcp.own_fields import BYTES, OWN, STREAM, plain_json
from operations.wire import PLAIN

_log = logging.getLogger("operations.mcp")

CALL = "tools/call"
LIST = "tools/list"
DISCOVER = "server/discover"
METHODS = frozenset({CALL, LIST, DISCOVER})
_STATUS = {-32602: 400, -32021: 400}
_encode = msgspec.json.Encoder().encode


class Params(msgspec.Struct, gc=False):
    """The parameters that the own path reads."""

    meta: dict[str, Any] = msgspec.field(name="_meta")
    name: str = ""
    arguments: dict[str, Any] | None = None
    cursor: str | None = None
    input_responses: dict[str, Any] | None = msgspec.field(name="inputResponses", default=None)
    request_state: str | None = msgspec.field(name="requestState", default=None)


class Message(msgspec.Struct, gc=False):
    """A request of the own path."""

    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call", "tools/list", "server/discover"]
    params: Params


_decode = msgspec.json.Decoder(Message).decode


def read(body: bytes) -> Message | None:
    """Return a request that the own path answers; None for any other."""
    try:
        message = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    meta = message.params.meta
    if meta.get(VERSION_KEY) != VERSION or not isinstance(meta.get(CAPABILITIES_KEY), dict):
        return None
    if message.method != CALL:
        return message
    if not message.params.name or PROGRESS_TOKEN in meta or LOG_LEVEL_KEY in meta or STREAM in meta:
        return None
    return message


async def answer(endpoint: Endpoint, message: Message, caller: Caller, tool: Tool | None) -> tuple[int, bytes]:
    """Return the HTTP status and the JSON-RPC response for a request; `tool` is the one that it names."""
    params = message.params
    try:
        if message.method == CALL:
            if tool is None or not (tool.is_open or tool.is_allowed(caller.identity)):
                raise unknown_tool(params.name)
            meta = params.meta
            if tool.is_direct and OWN not in meta and BYTES not in meta:
                body = await _call_directly(endpoint, tool, params.arguments or {}, caller, meta)
            else:
                body = await _call(endpoint, tool, params, caller)
        elif message.method == LIST:
            body = await endpoint.list_tools(caller.identity, params.cursor, modern=True)
        else:
            body = endpoint.discovered
    except ProtocolError as error:
        data = {} if error.data is None else {"data": error.data}
        body = _encode({"code": error.code, "message": error.message, **data})
        return _STATUS.get(error.code, 200), b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (_encode(message.id), body)
    return 200, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(message.id), body)


async def _call(endpoint: Endpoint, tool: Tool, params: Params, caller: Caller) -> bytes:
    incoming = Incoming(
        caller=caller,
        modern=True,
        meta=params.meta,
        capabilities=params.meta[CAPABILITIES_KEY],
        responses=params.input_responses,
        state=params.request_state,
    )
    return endpoint.encode(await endpoint.calls.call_tool(tool, params.arguments, incoming))


async def _call_directly(
    endpoint: Endpoint, tool: Tool, arguments: dict[str, Any], caller: Caller, meta: dict[str, Any]
) -> bytes:
    """Call a tool whose operation cannot ask; most results are mappings of plain values."""
    try:
        envelope = await endpoint.calls.run_direct(tool.operation, arguments, caller, meta)
        written = plain_result(tool, envelope, endpoint.stamp)
        if written is None:
            written = endpoint.encode(make_result(tool, envelope, Incoming(caller=caller, modern=True, meta=meta)))
    except CallError as error:
        return endpoint.encode(error_result(error, tool.operation.id))
    return written


def plain_result(tool: Tool, envelope: ResponseEnvelope[Any], stamp: bytes) -> bytes | None:
    """Write the result for local data without bytes; None where the result is made another way."""
    data = envelope.data
    if type(data) is not dict or type(envelope.meta) is not LocalResponseMeta or tool.wraps_modern:
        return None
    schema = tool.output_schema
    if schema is not None and not schema.check(data):
        return None
    if not PLAIN.issuperset(map(type, data.values())) and plain_json(data)[1]:
        return None
    encoded = _encode(data)
    return (
        b'{"content":[{"type":"text","text":%b}],"isError":false,"structuredContent":%b,"resultType":"complete",%b}'
        % (
            _encode(encoded.decode()),
            encoded,
            stamp,
        )
    )


def log_failure(method: str, error: BaseException) -> None:
    """Log what made a request fail; its caller is told only that it did."""
    _log.error("MCP %s failed", method, exc_info=error)
