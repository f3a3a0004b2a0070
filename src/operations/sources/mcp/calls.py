"""One call to a server: request metadata, time limit, safe retries, and responses to the server's requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from operations.context import TRACE_FIELDS, Identity, OperationContext
from operations.errors import CallError, ErrorCode
from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.connection import MCPConnection
from operations.sources.mcp.limits import MAX_DEPTH, is_too_deep
from operations.sources.mcp.protocol import (
    HEADER_MISMATCH,
    OnProgress,
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
    ServerSession,
    call_error,
)

MAX_INPUT_ROUNDS = 10
"""Maximum number of times that a server may request more input before it responds to a call."""
RECONNECT_SECONDS = 0.25
GRACE_SECONDS = 0.25
IDENTITY = "operations/identity"
"""The `_meta` key of the caller's identity."""


class MCPRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that an operation sends to its MCP server."""

    method: str
    params: Mapping[str, Any]
    what: str
    """What the request is about, such as `tool 'add'`; used in error messages."""
    meta: Mapping[str, Any] = {}
    """Fields of `_meta` for this request, in addition to the fields that every request has."""
    repeatable: bool = False
    """Whether the request only reads, and may therefore be sent again after the connection was lost."""


class KnownTools(Protocol):
    """The most recent list of a server's tools."""

    async def refresh(self) -> None:
        """Fetch the list again."""

    def has_tool(self, name: str) -> bool:
        """Whether the list has a tool of that name."""


class MCPCaller:
    """Sends the requests of operations over a connection."""

    def __init__(self, connection: MCPConnection, config: MCPClientConfig, tools: KnownTools) -> None:
        self._connection = connection
        self._config = config
        self._tools = tools

    async def call(
        self, request: MCPRequest, context: OperationContext, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """Return the server's result; raise `CallError` for every failure."""
        clock = asyncio.get_running_loop().time
        seconds = self._seconds(context)
        until = None if seconds is None else clock() + seconds
        meta = {**request.meta, **request_meta(self._config, context)}
        params = as_json({**request.params, "_meta": meta} if meta else request.params, self._config.max_message_bytes)
        pending = _PendingRequest(request, params, _trace_fields(self._config, context), until, on_progress)
        try:
            result = await self._send(pending)
            if result.get("resultType") == "input_required":
                result = await self._provide_input(pending, result)
            return result
        except (RequestFailedError, RequestLostError, RequestTimeoutError) as error:
            failure = call_error(error, self._connection.name, request.what)
            if failure.code is ErrorCode.VALIDATION_ERROR and await self._is_removed(request):
                failure = CallError(ErrorCode.OPERATION_NOT_FOUND, failure.message, failure.details)
            raise failure from error

    async def _send(self, pending: _PendingRequest) -> dict[str, Any]:
        """Send a request, and repeat it once after certain failures.

        If the connection was lost, repeat a request that was not sent or that only reads. If the headers of a request
        came from an outdated list of tools, repeat the request after fetching the list again.
        """
        try:
            return await self._send_once(pending)
        except RequestLostError as lost:
            if lost.sent and not pending.request.repeatable:
                raise
            if self._connection.session is not None:
                await asyncio.sleep(RECONNECT_SECONDS)
        except RequestFailedError as failed:
            if failed.code != HEADER_MISMATCH:
                raise
            # The headers came from an outdated list of tools.
            await self._tools.refresh()
        return await self._send_once(pending)

    async def _send_once(self, pending: _PendingRequest) -> dict[str, Any]:
        session = self._connection.session or await self._wait_for_session(pending)
        try:
            return await session.request(
                pending.request.method,
                pending.params,
                timeout=pending.remaining(),
                on_progress=pending.on_progress,
                headers=pending.headers,
            )
        except RequestLostError as lost:
            if lost.renew:
                self._connection.renew(session)
            raise

    async def _wait_for_session(self, pending: _PendingRequest) -> ServerSession:
        limit = asyncio.timeout(pending.remaining())
        try:
            async with limit:
                return await self._connection.get_session()
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError from None

    async def _provide_input(self, pending: _PendingRequest, result: dict[str, Any]) -> dict[str, Any]:
        """Send the request again with responses to the server's input requests, and return the final result."""
        pause = 0.05
        for _ in range(MAX_INPUT_ROUNDS):
            input_requests = result.get("inputRequests")
            more: dict[str, Any] = {}
            if isinstance(input_requests, Mapping) and input_requests:
                more["inputResponses"] = await self._input_responses(input_requests)
            else:
                await asyncio.sleep(pause)
                pause = min(0.25, pause * 2)
            if "requestState" in result:
                more["requestState"] = result["requestState"]
            result = await self._send(pending.with_params(more))
            if result.get("resultType") != "input_required":
                return result
        raise RequestFailedError(-32603, f"the server requested input more than {MAX_INPUT_ROUNDS} times")

    async def _input_responses(self, input_requests: Mapping[str, Any]) -> dict[str, Any]:
        session = await self._connection.get_session()
        responses: dict[str, Any] = {}
        for key, question in input_requests.items():
            if not isinstance(question, Mapping):
                raise RequestFailedError(-32603, "the server sent an invalid input request")
            params = question.get("params")
            respond = await session.respond(str(question.get("method")), params or {})
            responses[key] = as_json(respond, self._config.max_message_bytes)
        return responses

    async def _is_removed(self, request: MCPRequest) -> bool:
        """Whether the server no longer has the tool of a failed request, according to a new list of tools.

        The error code is not enough: servers use the same code for unknown tools and for invalid arguments.
        """
        if request.method != "tools/call":
            return False
        with contextlib.suppress(CallError):
            await self._tools.refresh()
            return not self._tools.has_tool(request.params["name"])
        return False

    def _seconds(self, context: OperationContext) -> float | None:
        """Return the seconds that a call may take: until just after its deadline; without one, the config's `timeout`.

        Raise `TIMEOUT` if the deadline has passed. The registry already enforces the deadline; this limit is for
        handlers that are called directly. It ends later than the deadline, because two cancellations at the same moment
        would interrupt each other.
        """
        if context.deadline is None:
            return self._config.timeout
        remaining = context.deadline / 1000 - time.time()
        if remaining <= 0:
            raise CallError(ErrorCode.TIMEOUT, "the deadline passed before the call began", {"executed": "no"})
        return remaining + GRACE_SECONDS


class _PendingRequest(msgspec.Struct, frozen=True):
    """A request in flight: its current parameters and its time limit."""

    request: MCPRequest
    params: Mapping[str, Any]
    headers: Mapping[str, str]
    until: float | None
    on_progress: OnProgress | None

    def remaining(self) -> float | None:
        """Return the seconds left; None without a limit."""
        return None if self.until is None else self.until - asyncio.get_running_loop().time()

    def with_params(self, more: Mapping[str, Any]) -> _PendingRequest:
        """Return a copy with more parameters; values in `more` replace earlier ones."""
        return msgspec.structs.replace(self, params={**self.params, **more})


def request_meta(config: MCPClientConfig, context: OperationContext) -> dict[str, Any]:
    """Return the `_meta` of a request: trace context, and the identity fields that the config selects."""
    meta: dict[str, Any] = _trace_fields(config, context)
    if config.identity_fields and context.identity is not None:
        meta[IDENTITY] = _selected(context.identity, config.identity_fields)
    return meta


def _trace_fields(config: MCPClientConfig, context: OperationContext) -> dict[str, str]:
    """Return the trace fields in the metadata of a call.

    Values that are not printable ASCII are left out, because over HTTP the fields are also sent as headers.
    """
    if not config.trace or not context.metadata:
        return {}
    found = {name: context.metadata.get(name) for name in TRACE_FIELDS}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and value.isascii() and value.isprintable()
    }


def _selected(identity: Identity, fields: Sequence[str]) -> dict[str, Any]:
    selected: dict[str, Any] = {}
    for field in fields:
        name, _, claim = field.partition(".")
        if name == "claims" and claim:
            if claim in identity.claims:
                selected.setdefault("claims", {})[claim] = identity.claims[claim]
        elif name in Identity.__struct_fields__:
            value = getattr(identity, name)
            selected[name] = list(value) if isinstance(value, tuple) else value
    return selected


def as_json(params: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return the parameters as JSON values; raise `VALIDATION_ERROR` if they are not JSON or exceed a limit.

    Parameters are checked before they are sent: a value that cannot be encoded would end the session for all calls.
    """
    try:
        encoded = msgspec.json.encode(params)
        plain: dict[str, Any] = msgspec.json.decode(encoded)
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise CallError(ErrorCode.VALIDATION_ERROR, "the request cannot be encoded as JSON") from None
    if len(encoded) > max_bytes:
        message = f"the request has {len(encoded):,} bytes and exceeds max_message_bytes ({max_bytes:,})"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, {"bytes": len(encoded), "limit": max_bytes})
    # Fast path: most requests have fewer brackets than the number of levels that is allowed.
    if encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH and is_too_deep(encoded):
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the request is nested deeper than {MAX_DEPTH} levels")
    return plain
