"""Calls: one MCP request for an operation, from its arguments to its result; knows nothing of transports or the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from operations.context import ASK_SECONDS, NO_ASK, TRACE_FIELDS, Client, Grant, Identity, Progress
from operations.dispatch import Dispatcher, Request
from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.admission import Caller
from operations.serving.asking import CallKey, InputRequired, InvalidStateError, Suspensions, capability_of
from operations.serving.audit import AuditLog
from operations.serving.mcp.listing import Tool
from operations.serving.mcp.results import Result, error_result, tool_result, whole_envelope
from operations.serving.refusals import public_error
from operations.sources.mcp.own_fields import BYTES, INPUT, OWN, STREAM, plain_json, put_bytes
from operations.spec import Operation

T = TypeVar("T")

INVALID_PARAMS = -32602
MISSING_CAPABILITY = -32021
INTERNAL_ERROR = -32603
MOST_ITEMS = 100
STREAM_SECONDS = 10.0
CALLS_EACH = 256
"""Calls of one identity that run at once."""
DEADLINE_SECONDS = 60.0
"""How long a call may take; one that asks its caller may take as much longer as an answer may."""
REPLAYABLE = "replayable"
"""The annotation of an operation that may run again from its start, with the same answers, in another process."""


class ProtocolError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def unknown_tool(name: str) -> ProtocolError:
    """Return the error for a tool that is not there, or not permitted: both look the same."""
    return ProtocolError(INVALID_PARAMS, f"Unknown tool: {name}")


class Incoming(msgspec.Struct, kw_only=True):
    """What a request says beside its operation and input."""

    caller: Caller
    modern: bool
    meta: Mapping[str, Any] = {}
    capabilities: Any = None
    progress: Progress | None = None
    client: Client | None = None
    """The caller, where questions are requests of their own (before 2026-07-28)."""
    responses: Any = None
    state: str | None = None

    @property
    def identity(self) -> Identity | None:
        """The caller's identity."""
        return self.caller.identity

    @property
    def own(self) -> bool:
        """Whether one of our clients sent it."""
        return OWN in self.meta


class Calls:
    """Runs operations for MCP requests, those that may ask in a task of their own."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        suspensions: Suspensions,
        *,
        audit: AuditLog,
        calls_each: int = CALLS_EACH,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.dispatcher = dispatcher
        self.suspensions = suspensions
        self._audit = audit
        self._running = ConcurrencyLimits(calls_each, "calls at once")
        self._deadline_seconds = deadline_seconds

    async def call_tool(self, tool: Tool, arguments: Any, incoming: Incoming) -> Result | InputRequired:
        """Return a tool's result, errors included; raise ProtocolError for what the protocol says is one."""
        try:
            input = _read_input(tool, arguments, incoming.meta)
            if tool.is_stream or (STREAM in incoming.meta and tool.operation.stream is not None):
                work = self._follow(tool, input, incoming)
                return await self._report(tool.operation, incoming.caller, work)
            envelope = await self.run(tool.operation, input, incoming)
            if isinstance(envelope, InputRequired):
                return envelope
            return make_result(tool, envelope, incoming)
        except CallError as error:
            _raise_missing_capability(error, incoming)
            return error_result(error, tool.operation.id)

    async def run(
        self, operation: Operation[Any], input: Any, incoming: Incoming
    ) -> ResponseEnvelope[Any] | InputRequired:
        """Run an operation within its caller's limits, and report it; raise CallError."""
        return await self._report(operation, incoming.caller, self._run(operation, input, incoming))

    async def run_direct(
        self, operation: Operation[Any], input: Any, caller: Caller, meta: Mapping[str, Any]
    ) -> ResponseEnvelope[Any]:
        """Run an operation that cannot ask, as `run` does."""
        request = Request(
            host=self.dispatcher,
            caller=caller.key,
            operation_id=operation.id,
            input=input,
            grant=Grant(identity=caller.identity),
            deadline=int((time.time() + self._deadline_seconds) * 1000),
            metadata=_trace(meta),
        )
        if self._audit.is_on:
            return await self._report(operation, caller, self.dispatcher.call(request))
        key = caller.key
        self._running.take(key)
        try:
            return await self.dispatcher.call(request)
        finally:
            self._running.give(key)

    async def _report(self, operation: Operation[Any], caller: Caller, work: Coroutine[Any, Any, T]) -> T:
        key, code = caller.key, "OK"
        began = perf_counter()
        try:
            self._running.take(key)
        except CallError:
            work.close()
            raise
        try:
            return await work
        except CallError as error:
            code = str(error.code)
            raise
        except BaseException:
            code = "ABORTED"
            raise
        finally:
            self._running.give(key)
            if self._audit.is_on:
                self._audit.record("mcp", operation.id, caller, request_id="", code=code, status=None, began=began)

    async def _run(
        self, operation: Operation[Any], input: Any, incoming: Incoming
    ) -> ResponseEnvelope[Any] | InputRequired:
        if not operation.wants_context or not incoming.modern:
            return await self.dispatcher.call(self._request(operation, input, incoming, incoming.client))

        async def work(client: Client) -> ResponseEnvelope[Any]:
            return await self.dispatcher.call(self._request(operation, input, incoming, client))

        key = CallKey.of(operation.id, plain_json(input)[0], incoming.identity.id if incoming.identity else None)
        replayable = operation.spec.type == "query" or operation.spec.annotations.get(REPLAYABLE) is True
        try:
            return await self.suspensions.run(
                work,
                key,
                capabilities=incoming.capabilities,
                send=incoming.client.notify if incoming.client is not None else None,
                responses=incoming.responses,
                state=incoming.state,
                replayable=replayable,
            )
        except InvalidStateError:
            raise ProtocolError(INVALID_PARAMS, "Invalid requestState") from None

    def _request(
        self,
        operation: Operation[Any],
        input: Any,
        incoming: Incoming,
        client: Client | None,
        *,
        is_stream: bool = False,
    ) -> Request:
        # A handler that asks may wait for a person; streams have limits of their own.
        seconds = self._deadline_seconds + (ASK_SECONDS if operation.wants_context else 0)
        return Request(
            host=self.dispatcher,
            caller=incoming.caller.key,
            deadline=None if is_stream else int((time.time() + seconds) * 1000),
            operation_id=operation.id,
            input=input,
            grant=Grant(identity=incoming.identity),
            metadata=_trace(incoming.meta),
            progress=incoming.progress,
            client=client,
        )

    async def _follow(self, tool: Tool, input: Any, incoming: Incoming) -> Result:
        """Return the first items of a stream; one of our clients gets all of them as progress."""
        request = self._request(tool.operation, input, incoming, incoming.client, is_stream=True)
        items: list[Any] = []
        stream = self.dispatcher.stream(request)
        if STREAM in incoming.meta and incoming.progress is not None:
            count = 0
            async for envelope in stream:
                count += 1
                told = incoming.progress(count, None, envelope.to_json().decode())
                if told is not None:
                    await told
            content = [{"type": "text", "text": f"{count} items"}]
            return Result(content, structured={"items": [], "complete": True}, meta={STREAM: count})
        limit = asyncio.timeout(STREAM_SECONDS)
        complete = False
        try:
            async with limit:
                async for envelope in stream:
                    items.append(plain_json(envelope.data)[0])
                    if len(items) >= MOST_ITEMS:
                        break
                else:
                    complete = True
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            await stream.aclose()
        data = {"items": items, "complete": complete}
        return Result([{"type": "text", "text": msgspec.json.encode(data).decode()}], structured=data)


def _read_input(tool: Tool, arguments: Any, meta: Mapping[str, Any]) -> Any:
    given = {} if arguments is None else arguments
    if BYTES in meta:
        given = put_bytes(given, meta[BYTES])
    if not tool.wraps_input:
        return given
    if given.keys() != {INPUT}:
        message = f"the arguments of {tool.name} are an object with the property {INPUT!r}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no", "operationId": tool.operation.id})
    return given[INPUT]


def _trace(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    if "traceparent" not in meta:
        return None
    return {name: meta[name] for name in TRACE_FIELDS if isinstance(meta.get(name), str)}


def make_result(tool: Tool, envelope: ResponseEnvelope[Any], incoming: Incoming) -> Result:
    """Return a tool's result; raise CallError where it does not fit what the list says of it."""
    if incoming.own:
        return whole_envelope(envelope)
    schema = tool.output_schema
    if schema is None or isinstance(envelope.meta, MCPResponseMeta):
        return tool_result(envelope, wrap=False, modern=incoming.modern)
    if not schema.check(envelope.data):
        # A client that checks results against the listed schema would not see why it fails.
        message = f"{tool.operation.id}: the result does not fit the operation's output schema"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "RESULT_MISMATCH", "executed": "yes"})
    wrap = tool.wraps_modern if incoming.modern else tool.wraps_legacy
    return tool_result(envelope, wrap=wrap, modern=incoming.modern)


def public_failure(error: CallError, operation_id: str, code: int, incoming: Incoming) -> ProtocolError:
    """Return a failure of a request that has no other place for it than a JSON-RPC error."""
    _raise_missing_capability(error, incoming)
    shown = public_error(error, operation_id)
    return ProtocolError(code, str(shown), {"code": str(shown.code)})


def _raise_missing_capability(error: CallError, incoming: Incoming) -> None:
    """Raise the protocol's own error where a handler asked what the client did not declare (2026-07-28)."""
    details = error.details
    if not incoming.modern or not isinstance(details, dict) or details.get("reason") != NO_ASK:
        return
    capability = capability_of(str(details.get("method")))
    if capability is not None:
        needed: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
        raise ProtocolError(MISSING_CAPABILITY, f"Missing required client capability: {capability}", needed)
