"""The fast path: 2026-07-28 `tools/call`, `tools/list`, `server/discover` and `tasks/*` without the SDK.

The SDK serves all other requests, and returns the errors for invalid ones.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import msgspec

from operations.envelope import LocalResponseMeta, ResponseEnvelope
from operations.errors import CallError
from operations.serving.admission import Caller
from operations.serving.mcp.calls import INTERNAL_ERROR, ProtocolError, RequestInfo, make_result, unknown_tool
from operations.serving.mcp.results import error_result
from operations.serving.mcp.server import (
    CAPABILITIES_KEY,
    LOG_LEVEL_KEY,
    PROGRESS_TOKEN,
    VERSION,
    VERSION_KEY,
    MCPServer,
)
from operations.serving.mcp.tools import Tool
from operations.sources.mcp.own_fields import BYTES, OWN, STREAM, plain_json
from operations.wire import PLAIN

_log = logging.getLogger("operations.mcp")

CALL = "tools/call"
LIST = "tools/list"
DISCOVER = "server/discover"
METHOD_NOT_FOUND = -32601
HEADER_MISMATCH = -32020
_STATUS = {-32602: 400, -32021: 400}
_encode = msgspec.json.Encoder().encode


class Params(msgspec.Struct, gc=False):
    """The parameters of a request of the fast path."""

    meta: dict[str, Any] = msgspec.field(name="_meta")
    name: str = ""
    arguments: dict[str, Any] | None = None
    cursor: str | None = None
    input_responses: dict[str, Any] | None = msgspec.field(name="inputResponses", default=None)
    request_state: str | None = msgspec.field(name="requestState", default=None)
    task_id: str = msgspec.field(name="taskId", default="")


class Message(msgspec.Struct, gc=False):
    """A request of the fast path."""

    jsonrpc: Literal["2.0"]
    id: int | str
    method: Literal["tools/call", "tools/list", "server/discover", "tasks/get", "tasks/update", "tasks/cancel"]
    params: Params


_decode = msgspec.json.Decoder(Message).decode


def read(body: bytes) -> Message | None:
    """Decode a request of the fast path; return None for any other."""
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


async def answer(mcp_server: MCPServer, message: Message, caller: Caller, tool: Tool | None) -> tuple[int, bytes]:
    """Return the HTTP status and the JSON-RPC response. `tool` is the named tool, or None."""
    params = message.params
    try:
        if message.method == CALL:
            meta = params.meta
            if (
                tool is not None
                and tool.is_direct
                and tool.task_support is None
                and OWN not in meta
                and BYTES not in meta
            ):
                if not tool.is_allowed(caller.identity):
                    raise unknown_tool(params.name)
                body = await _call_directly(mcp_server, tool, params.arguments or {}, caller, meta)
            else:
                body = await _call(mcp_server, params, caller)
            if (too_large := mcp_server.check_size(params.name, body)) is not None:
                body = mcp_server.encode(error_result(too_large, params.name))
        elif message.method == LIST:
            body = await mcp_server.list_tools(caller.identity, params.cursor, params.meta, modern=True)
        elif message.method == DISCOVER:
            body = mcp_server.discovered
        else:
            body = await _serve_task(mcp_server, message, caller)
            if (too_large := mcp_server.check_size(params.task_id, body)) is not None:
                raise ProtocolError(INTERNAL_ERROR, too_large.message)
    except ProtocolError as error:
        data = {} if error.data is None else {"data": error.data}
        body = _encode({"code": error.code, "message": error.message, **data})
        return _STATUS.get(error.code, 200), b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (_encode(message.id), body)
    return 200, b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(message.id), body)


async def _serve_task(mcp_server: MCPServer, message: Message, caller: Caller) -> bytes:
    if mcp_server.tasks is None:
        raise ProtocolError(METHOD_NOT_FOUND, "Method not found")
    params = message.params
    info = _request_info(params, caller)
    return mcp_server.stamped(
        await mcp_server.tasks.serve(message.method, params.task_id, params.input_responses, info)
    )


def _request_info(params: Params, caller: Caller) -> RequestInfo:
    return RequestInfo(
        caller=caller,
        modern=True,
        meta=params.meta,
        capabilities=params.meta[CAPABILITIES_KEY],
        responses=params.input_responses,
        state=params.request_state,
    )


async def _call(mcp_server: MCPServer, params: Params, caller: Caller) -> bytes:
    info = _request_info(params, caller)
    return mcp_server.encode(await mcp_server.call_tool(params.name, params.arguments, info))


async def _call_directly(
    mcp_server: MCPServer, tool: Tool, arguments: dict[str, Any], caller: Caller, meta: dict[str, Any]
) -> bytes:
    """Call a tool whose handler cannot ask questions. Results that are objects of plain values are encoded fastest."""
    try:
        envelope = await mcp_server.calls.run_direct(tool.operation, arguments, caller, meta)
        written = plain_result(tool, envelope, mcp_server.stamp)
        if written is None:
            written = mcp_server.encode(make_result(tool, envelope, RequestInfo(caller=caller, modern=True, meta=meta)))
    except CallError as error:
        return mcp_server.encode(error_result(error, tool.operation.id))
    return written


def plain_result(tool: Tool, envelope: ResponseEnvelope[Any], stamp: bytes) -> bytes | None:
    """Encode the result of a Python function if the result is an object, has no bytes and matches the schema.

    Otherwise, or if the tool nests its results under `result`, return None.
    """
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
    """Log the exception of a request. The caller receives only a general error."""
    _log.error("MCP %s failed", method, exc_info=error)
