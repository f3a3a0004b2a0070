"""MCPCalls: runs operations for MCP requests. It does not depend on transports or on the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from operations.context import (
    ASK_SECONDS,
    MAX_TRACE_LENGTH,
    NO_ASK,
    TRACE_FIELDS,
    Client,
    Exposed,
    Grant,
    Identity,
    Progress,
)
from operations.dispatch import Dispatcher, Request
from operations.envelope import MCPResponseMeta, ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.exports.results import readable
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.admission import Caller
from operations.serving.asking_client import capability_of
from operations.serving.audit import AuditWriter
from operations.serving.limits import Limits
from operations.serving.mcp.results import Result, error_result, tool_result, whole_envelope
from operations.serving.mcp.tools import Tool, can_ask
from operations.serving.refusals import public_error
from operations.serving.suspended_calls import CallKey, InputRequired, InvalidStateError, SuspendedCalls
from operations.sources.mcp.own_fields import BYTES, INPUT, OWN, STREAM, plain_json, put_bytes
from operations.spec import Operation

T = TypeVar("T")

INVALID_PARAMS = -32602
MISSING_CAPABILITY = -32021
INTERNAL_ERROR = -32603
MAX_ITEMS = 100
STREAM_SECONDS = 10.0
REPLAYABLE = "replayable"
"""The annotation of an operation whose suspended call another process may run again, with the recorded answers."""


class ProtocolError(Exception):
    """An error that is returned as a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def unknown_tool(name: str) -> ProtocolError:
    """Return the error for a tool that does not exist or is not permitted. The error does not reveal which."""
    return ProtocolError(INVALID_PARAMS, f"Unknown tool: {name}")


class RequestInfo(msgspec.Struct, kw_only=True):
    """A request without its operation and input: caller, protocol version, meta, answers."""

    caller: Caller
    modern: bool
    """Whether the protocol version is 2026-07-28."""
    meta: Mapping[str, Any] = {}
    capabilities: Any = None
    progress: Progress | None = None
    client: Client | None = None
    """The client that receives notifications. Before version 2026-07-28, it also receives questions, as requests."""
    responses: Any = None
    state: str | None = None

    @property
    def identity(self) -> Identity | None:
        """The caller's identity."""
        return self.caller.identity

    @property
    def own(self) -> bool:
        """Whether the client is a registry of this library, which reads envelopes."""
        return OWN in self.meta


class MCPCalls:
    """Runs operations for MCP requests. Operations that can ask the client run in a separate task."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        streams: Dispatcher,
        suspended_calls: SuspendedCalls,
        *,
        exposure: Exposed,
        audit: AuditWriter,
        limits: Limits,
    ) -> None:
        self.dispatcher = dispatcher
        self._streams = streams
        """The dispatcher of streams. A server ends all streams, for example after a token was revoked."""
        self.suspended_calls = suspended_calls
        self._exposure = exposure
        self._audit = audit
        self._running = ConcurrencyLimits(limits.calls, "calls at once")
        self._inputs = ConcurrencyLimits(limits.incoming_bytes, "bytes of inputs at once")
        self._deadline_seconds = limits.deadline_seconds
        """The longest duration of a call. A call that can ask its caller may take `ASK_SECONDS` longer."""

    async def call_tool(self, tool: Tool, arguments: Any, info: RequestInfo) -> Result | InputRequired:
        """Return a tool's result; a failed call has an error as result.

        Raise ProtocolError for errors that MCP reports as JSON-RPC errors.
        """
        try:
            input = read_input(tool, arguments, info.meta)
            if tool.is_stream or (STREAM in info.meta and tool.operation.stream is not None):
                follow = self._run_asking(
                    tool.operation, input, info, lambda client: self._follow(tool, input, info, client)
                )
                return await self.report(tool.operation, info.caller, follow)
            envelope = await self.run(tool.operation, input, info)
            if isinstance(envelope, InputRequired):
                return envelope
            return make_result(tool, envelope, info)
        except CallError as error:
            _raise_missing_capability(error, info)
            return error_result(error, tool.operation.id)

    async def run(
        self, operation: Operation[Any], input: Any, info: RequestInfo
    ) -> ResponseEnvelope[Any] | InputRequired:
        """Run an operation within the caller's limits and write the audit record; raise CallError if it fails.

        Return InputRequired if the call was suspended, because it asked the client a question.
        """

        def call(client: Client | None) -> Coroutine[Any, Any, ResponseEnvelope[Any]]:
            return self.dispatcher.call(self._request(operation, input, info, client))

        return await self.report(operation, info.caller, self._run_asking(operation, input, info, call))

    async def call_for_data(self, tool: Tool, input: Any, info: RequestInfo, client: Client | None) -> Any:
        """Run an operation for a script, and return its data; for a stream, a list of its first items.

        A raised error does not contain the text of an exception. `client` receives the questions of the operation: the
        whole script is suspended, not the single call.
        """
        operation = tool.operation
        try:
            if tool.is_stream:
                items = await self.report(operation, info.caller, self._follow(tool, input, info, client))
                return readable(items.structured["items"])
            work = self.dispatcher.call(self._request(operation, input, info, client))
            envelope = await self.report(operation, info.caller, work)
            envelope.raise_for_error()
            return readable(envelope.data)
        except CallError as error:
            raise public_error(error, operation.id) from None

    async def run_direct(
        self, operation: Operation[Any], input: Any, caller: Caller, meta: Mapping[str, Any]
    ) -> ResponseEnvelope[Any]:
        """Run an operation that asks no questions, with the same limits and audit record as `run`."""
        request = Request(
            host=self.dispatcher,
            caller=caller.key,
            operation_id=operation.id,
            input=input,
            grant=Grant(identity=caller.identity, protocol="mcp", exposure=self._exposure),
            deadline=int((time.time() + self._deadline_seconds) * 1000),
            metadata=_trace(meta),
        )
        if self._audit.is_on:
            return await self.report(operation, caller, self.dispatcher.call(request))
        self._acquire(caller)
        try:
            return await self.dispatcher.call(request)
        finally:
            self._release(caller)

    def _acquire(self, caller: Caller) -> None:
        """Count a call and its input; raise a `RATE_LIMITED` error if a limit of the caller is exceeded."""
        self._running.check(caller.key)
        if caller.input_bytes:
            self._inputs.acquire(caller.key, caller.input_bytes)
        self._running.add(caller.key)

    def _release(self, caller: Caller) -> None:
        self._running.release(caller.key)
        if caller.input_bytes:
            self._inputs.release(caller.key, caller.input_bytes)

    async def report(self, operation: Operation[Any], caller: Caller, work: Coroutine[Any, Any, T]) -> T:
        """Await a call within the caller's limits, and write its audit record."""
        code = "OK"
        began = perf_counter()
        try:
            self._acquire(caller)
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
            self._release(caller)
            if self._audit.is_on:
                self._audit.record("mcp", operation.id, caller, request_id="", code=code, status=None, began=began)

    async def _run_asking(
        self,
        operation: Operation[Any],
        input: Any,
        info: RequestInfo,
        work: Callable[[Client | None], Coroutine[Any, Any, T]],
    ) -> T | InputRequired:
        """Run a call that may ask the client; in version 2026-07-28, suspend the call while it waits for an answer."""
        if not can_ask(operation, self.dispatcher.registry):
            return await work(info.client)
        # If only interceptors ask, they ask before the handler runs: a repetition does not run the handler twice.
        replayable = operation.spec.type == "query" or not operation.wants_context
        replayable = replayable or operation.spec.annotations.get(REPLAYABLE) is True
        return await self.suspendable(operation.id, input, info, work, replayable=replayable)

    async def suspendable(
        self,
        name: str,
        input: Any,
        info: RequestInfo,
        work: Callable[[Client | None], Coroutine[Any, Any, T]],
        *,
        replayable: bool = False,
    ) -> T | InputRequired:
        """Run `work`, which may ask the client; in version 2026-07-28, suspend `work` while it waits for an answer."""
        if not info.modern:
            return await work(info.client)
        key = CallKey.of(name, plain_json(input)[0], info.identity.id if info.identity else None)
        try:
            return await self.suspended_calls.run(
                work,
                key,
                owner=info.caller.key,
                capabilities=info.capabilities,
                send=info.client.notify if info.client is not None else None,
                responses=info.responses,
                state=info.state,
                replayable=replayable,
            )
        except InvalidStateError:
            raise ProtocolError(INVALID_PARAMS, "Invalid requestState") from None

    def _request(
        self,
        operation: Operation[Any],
        input: Any,
        info: RequestInfo,
        client: Client | None,
    ) -> Request:
        # A handler that asks may wait for a person.
        asks = can_ask(operation, self.dispatcher.registry)
        seconds = self._deadline_seconds + (ASK_SECONDS if asks else 0)
        return Request(
            host=self.dispatcher,
            caller=info.caller.key,
            deadline=int((time.time() + seconds) * 1000),
            operation_id=operation.id,
            input=input,
            grant=Grant(identity=info.identity, protocol="mcp", exposure=self._exposure),
            metadata=_trace(info.meta),
            progress=info.progress,
            client=client,
        )

    async def _follow(self, tool: Tool, input: Any, info: RequestInfo, client: Client | None) -> Result:
        """Return the first items of a stream.

        If the client is a registry of this library, send it every item as progress instead.
        """
        request = self._request(tool.operation, input, info, client)
        principal = info.caller.principal
        expires = None if principal is None else principal.expires_at
        request.deadline = None if expires is None else int(expires * 1000)
        items: list[Any] = []
        stream = self._streams.stream(request)
        if STREAM in info.meta and info.progress is not None:
            count = 0
            async for envelope in stream:
                count += 1
                reported = info.progress(count, None, envelope.to_json().decode())
                if reported is not None:
                    await reported
            content = [{"type": "text", "text": f"{count} items"}]
            return Result(content, structured={"items": [], "complete": True}, meta={STREAM: count})
        limit = asyncio.timeout(STREAM_SECONDS)
        complete = False
        try:
            async with limit:
                async for envelope in stream:
                    items.append(plain_json(envelope.data)[0])
                    if len(items) >= MAX_ITEMS:
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


def read_input(tool: Tool, arguments: Any, meta: Mapping[str, Any]) -> Any:
    """Return the input of a tool call; raise CallError for arguments of the wrong form."""
    given = {} if arguments is None else arguments
    if BYTES in meta:
        given = put_bytes(given, meta[BYTES])
    if not tool.wraps_input:
        return given
    if given.keys() != {INPUT}:
        message = f"invalid arguments for {tool.name}: expected an object with the one property {INPUT!r}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message, {"executed": "no", "operationId": tool.operation.id})
    return given[INPUT]


def _trace(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    if "traceparent" not in meta:
        return None
    return {name: meta[name][:MAX_TRACE_LENGTH] for name in TRACE_FIELDS if isinstance(meta.get(name), str)}


def make_result(tool: Tool, envelope: ResponseEnvelope[Any], info: RequestInfo) -> Result:
    """Return a tool's result; raise CallError if it does not match the listed output schema.

    A result of an imported MCP tool is not checked, nor is a result for a registry of this library.
    """
    if info.own:
        return whole_envelope(envelope)
    schema = tool.output_schema
    if schema is None or isinstance(envelope.meta, MCPResponseMeta):
        return tool_result(envelope, wrap=False, modern=info.modern)
    if not schema.check(envelope.data):
        # Name the reason here: a client that validates results would report none.
        message = f"{tool.operation.id}: the result does not match the output schema"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "RESULT_MISMATCH", "executed": "yes"})
    wrap = tool.wraps_modern if info.modern else tool.wraps_legacy
    return tool_result(envelope, wrap=wrap, modern=info.modern)


def public_failure(error: CallError, operation_id: str, code: int, info: RequestInfo) -> ProtocolError:
    """Return an error as a JSON-RPC error, for requests whose results cannot contain errors."""
    _raise_missing_capability(error, info)
    shown = public_error(error, operation_id)
    return ProtocolError(code, str(shown), {"code": str(shown.code)})


def _raise_missing_capability(error: CallError, info: RequestInfo) -> None:
    """Raise a ProtocolError if the call asked a question that the client has not declared to support (2026-07-28)."""
    details = error.details
    if not info.modern or not isinstance(details, dict) or details.get("reason") != NO_ASK:
        return
    capability = capability_of(str(details.get("method")))
    if capability is not None:
        needed: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
        raise ProtocolError(MISSING_CAPABILITY, f"Missing required client capability: {capability}", needed)
