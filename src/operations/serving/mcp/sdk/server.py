"""SDKServer: the low-level server of the SDK with the handlers of MCPServer. SDKClient: the client of a request.

Clients never receive the text of an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import mcp_types as types
import msgspec
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from operations.context import ELICIT, Identity, Question
from operations.dispatch import Slots
from operations.errors import CallError, ErrorCode
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.admission import Caller
from operations.serving.asking_client import has_capability, is_usable
from operations.serving.mcp.calls import INTERNAL_ERROR, INVALID_PARAMS, ProtocolError, RequestInfo
from operations.serving.mcp.results import error_result
from operations.serving.mcp.sdk.change_notifications import LEVELS, ChangeNotifications, check_uris, subscriber
from operations.serving.mcp.server import CAPABILITIES_KEY, DISCOVER_TTL_MS, PROGRESS_TOKEN, MCPServer, input_required
from operations.serving.mcp.tasks import TaskCreated
from operations.serving.mcp.tools import TTL_MS, Tool
from operations.serving.suspended_calls import InputRequired

_log = logging.getLogger("operations.mcp")
_encode = msgspec.json.Encoder().encode
_Context = ServerRequestContext[Any, Any]
CALLER = "operations.caller"
"""The key of the caller in the scope of an HTTP request."""
requester: ContextVar[Identity | None] = ContextVar("requester", default=None)
"""The caller of the HTTP request that the SDK examines before it calls a handler."""
POLL = "mcpPollSeconds"
"""The annotation with the seconds after which the stream of a call is closed; the client then polls for the result."""
_MAX_REPEATED_LENGTH = 1_024
SUBSCRIPTIONS_PER_IDENTITY = 16
"""Largest number of open subscriptions of one identity."""
_PRIVATE = CacheHint(ttl_ms=TTL_MS, scope="private")
_REQUESTS: dict[str, tuple[type[Any], tuple[type[BaseModel], ...]]] = {
    ELICIT: (types.ElicitRequest, (types.ElicitResult,)),
    "sampling/createMessage": (
        types.CreateMessageRequest,
        (types.CreateMessageResult, types.CreateMessageResultWithTools),
    ),
    "roots/list": (types.ListRootsRequest, (types.ListRootsResult,)),
}


class _Server(Server[Any]):
    """A server whose capabilities state that it notifies clients of changed lists."""

    def create_initialization_options(self, *args: Any, **options: Any) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(True, True, True), **options)


class SDKServer:
    """The handlers of the SDK's server. Pass `caller` for a transport whose requests all have the same caller."""

    def __init__(self, mcp_server: MCPServer, *, caller: Caller | None = None) -> None:
        self.mcp_server = mcp_server
        self.changes = ChangeNotifications(mcp_server)
        self._caller = caller
        self._listener = ListenHandler(self.changes.bus)
        self._listening = ConcurrencyLimits(SUBSCRIPTIONS_PER_IDENTITY, "subscriptions")
        self.server = self._build()

    def _build(self) -> Server[Any]:
        server: Server[Any] = _Server(
            self.mcp_server.name,
            version=self.mcp_server.version,
            instructions=self.mcp_server.instructions,
            cache_hints={
                "tools/list": _PRIVATE,
                "prompts/list": _PRIVATE,
                "resources/list": _PRIVATE,
                "resources/templates/list": _PRIVATE,
                "resources/read": CacheHint(ttl_ms=0, scope="private"),
                "server/discover": CacheHint(ttl_ms=DISCOVER_TTL_MS, scope="private"),
            },
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
        )
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        # The SDK's middleware for tracing is left out: the dispatcher creates the spans.
        server.middleware[:] = [self._guard]
        return server

    async def _guard(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Handle a request with `call_next`, and replace unexpected exceptions with a general error.

        For older protocol versions, answer `tools/list` without `call_next`.
        """
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        try:
            _check_repeated(ctx)
            if not is_modern and ctx.session.client_params is not None:
                self.changes.settings(ctx)
                if ctx.method == "tools/list":
                    return await self._page(ctx, modern=False)
            return await call_next(ctx)
        except ProtocolError as error:
            raise MCPError(error.code, error.message, error.data) from None
        except (MCPError, ValidationError):
            raise
        except Exception as error:  # noqa: BLE001  # the text of an exception is not sent
            _log.error("MCP %s failed", ctx.method, exc_info=error)
            raise MCPError(INTERNAL_ERROR, "Internal server error") from None

    def caller(self, context: _Context) -> Caller:
        """Return the caller of a request."""
        if self._caller is not None:
            return self._caller
        if context.request is None:
            raise ProtocolError(INTERNAL_ERROR, "the request has no caller")
        caller: Caller = context.request.scope[CALLER]
        return caller

    def _request_info(self, context: _Context) -> RequestInfo:
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        client = SDKClient(context, self.mcp_server.calls.dispatcher.slots, self.changes)
        params = context.params or {}
        meta, state = _meta(params), params.get("requestState")
        wants_progress = (context.meta or {}).get("progress_token", meta.get(PROGRESS_TOKEN))
        return RequestInfo(
            caller=self.caller(context),
            modern=is_modern,
            meta=meta,
            capabilities=meta.get(CAPABILITIES_KEY) if is_modern else None,
            progress=client.progress if wants_progress is not None else None,
            client=client,
            responses=params.get("inputResponses"),
            state=state if isinstance(state, str) else None,
        )

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        """Return the input schema of a permitted tool if clients must also send arguments as headers; else None."""
        tool = self.mcp_server.tool_list.find(name, requester.get())
        return tool.input_document if tool is not None and tool.has_headers else None

    async def _page(self, context: _Context, *, modern: bool) -> dict[str, Any]:
        params = context.params or {}
        cursor = params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise ProtocolError(INVALID_PARAMS, "Invalid cursor")
        page = await self.mcp_server.list_tools(self.caller(context).identity, cursor, _meta(params), modern=modern)
        result: dict[str, Any] = msgspec.json.decode(page)
        return result

    async def _list_tools(self, context: _Context, params: Any) -> Any:
        return await self._page(context, modern=context.protocol_version in MODERN_PROTOCOL_VERSIONS)

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> Any:
        arguments = (context.params or {}).get("arguments")
        info = self._request_info(context)
        timer = self._poll(context, self.mcp_server.tool_list.find(params.name, info.identity))
        try:
            result = await self.mcp_server.call_tool(params.name, arguments, info)
        finally:
            if timer is not None:
                timer.cancel()
        if isinstance(result, TaskCreated):
            return dict(result.fields)
        if isinstance(result, InputRequired):
            return input_required(result)
        fields = result.to_dict()
        too_large = self.mcp_server.check_size(params.name, _encode(fields))
        return _complete(fields if too_large is None else error_result(too_large, params.name).to_dict(), context)

    def _poll(self, context: _Context, tool: Tool | None) -> asyncio.TimerHandle | None:
        seconds = tool.operation.spec.annotations.get(POLL) if tool is not None else None
        close = context.close_sse_stream
        if close is None or not isinstance(seconds, int | float):
            return None
        return asyncio.get_running_loop().call_later(seconds, _start, close)

    async def _list_resources(self, context: _Context, params: Any) -> Any:
        return _complete(
            {"resources": await self.mcp_server.resource_requests.list_resources(self._request_info(context))}, context
        )

    async def _list_templates(self, context: _Context, params: Any) -> Any:
        listed = await self.mcp_server.resource_requests.list_templates(self._request_info(context))
        return _complete({"resourceTemplates": listed}, context)

    async def _read_resource(self, context: _Context, params: types.ReadResourceRequestParams) -> Any:
        result = await self.mcp_server.resource_requests.read_resource(str(params.uri), self._request_info(context))
        self._check_size(str(params.uri), result)
        return _complete(result, context)

    def _check_size(self, name: str, result: dict[str, Any] | InputRequired) -> None:
        if not isinstance(result, InputRequired):
            too_large = self.mcp_server.check_size(name, _encode(result))
            if too_large is not None:
                raise ProtocolError(INTERNAL_ERROR, too_large.message)

    async def _list_prompts(self, context: _Context, params: Any) -> Any:
        return _complete(
            {"prompts": await self.mcp_server.resource_requests.list_prompts(self._request_info(context))}, context
        )

    async def _get_prompt(self, context: _Context, params: types.GetPromptRequestParams) -> Any:
        result = await self.mcp_server.resource_requests.get_prompt(
            params.name, params.arguments or {}, self._request_info(context)
        )
        self._check_size(params.name, result)
        return _complete(result, context)

    async def _complete(self, context: _Context, params: types.CompleteRequestParams) -> Any:
        others = (params.context.arguments if params.context is not None else None) or {}
        reference = params.ref.model_dump(by_alias=True, mode="json")
        argument = params.argument
        result = await self.mcp_server.resource_requests.complete(
            reference, argument.name, argument.value, others, self._request_info(context)
        )
        return _complete(result, context)

    async def _listen(self, context: _Context, params: types.SubscriptionsListenRequestParams) -> Any:
        caller = self.caller(context)
        key = caller.key
        check_uris(params.notifications.resource_subscriptions or ())
        subscriber.set(caller.identity)
        try:
            self._listening.acquire(key)
        except CallError as error:
            raise ProtocolError(INTERNAL_ERROR, error.message) from None
        try:
            return await self._listener(context, params)
        finally:
            self._listening.release(key)

    async def _subscribe(self, context: _Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self.changes.watch(context, str(params.uri), self.caller(context).identity)
        return types.EmptyResult()

    async def _unsubscribe(self, context: _Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.changes.settings(context).watched.pop(str(params.uri), None)
        return types.EmptyResult()

    async def _set_level(self, context: _Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        if params.level in LEVELS:
            self.changes.settings(context).level = params.level
        return types.EmptyResult()


def _check_repeated(context: _Context) -> None:
    """Refuse a long request id or progress token: the server repeats them in each notification of the request."""
    for name, given in (
        ("request id", context.request_id),
        (PROGRESS_TOKEN, _meta(context.params or {}).get(PROGRESS_TOKEN)),
    ):
        if isinstance(given, str) and len(given) > _MAX_REPEATED_LENGTH:
            raise ProtocolError(INVALID_PARAMS, f"Invalid {name}: expected at most {_MAX_REPEATED_LENGTH} characters")


def _meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = params.get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def _complete(result: dict[str, Any] | InputRequired, context: _Context) -> dict[str, Any]:
    """Return a result as JSON, with the `resultType` that version 2026-07-28 requires."""
    if isinstance(result, InputRequired):
        return input_required(result)
    return {**result, "resultType": "complete"} if context.protocol_version in MODERN_PROTOCOL_VERSIONS else result


_closing: set[asyncio.Task[None]] = set()


def _start(close: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.ensure_future(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


class SDKClient:
    """The client of one request. Before version 2026-07-28, handlers can ask the client while the request runs."""

    def __init__(self, context: ServerRequestContext[Any, Any], slots: Slots, changes: ChangeNotifications) -> None:
        self._context = context
        self._slots = slots
        self._changes = changes

    def supports(self, method: str) -> bool:
        """Whether the client declared the capability that a request needs."""
        declared = self._context.session.client_capabilities
        if declared is None or method not in _REQUESTS:
            return False
        return has_capability(declared.model_dump(by_alias=True, exclude_none=True), method)

    async def ask(self, questions: Mapping[str, Question], timeout: float) -> Mapping[str, Any]:
        """Send each question as a request on the stream of the call; return the answers by key."""
        async with self._slots.released():
            results = await asyncio.gather(*(self._ask(question, timeout) for question in questions.values()))
        return dict(zip(questions, results, strict=True))

    async def _ask(self, question: Question, timeout: float) -> Any:
        kind, answers = _REQUESTS[question.method]
        try:
            request = kind.model_validate({"method": question.method, "params": dict(question.params)})
        except ValidationError:
            message = f"invalid parameters for {question.method}"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "BAD_QUESTION"}) from None
        result = await self._send(request, answers, timeout)
        if not is_usable(question, result):
            message = "invalid answer: it does not match the question"
            raise CallError(ErrorCode.EXECUTION_ERROR, message, {"reason": "BAD_ANSWER"})
        return result

    async def _send(self, request: Any, answers: tuple[type[BaseModel], ...], timeout: float) -> Any:
        related = ServerMessageMetadata(related_request_id=self._context.request_id)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                answer = await self._context.session.send_request(request, _Anything, metadata=related)
        except TimeoutError:
            if not limit.expired():
                raise
            raise CallError(ErrorCode.TIMEOUT, f"no answer within {timeout:g} s", {"reason": "NO_ANSWER"}) from None
        except (MCPError, ValidationError) as error:
            _log.debug("the client gave no valid answer to %s: %s", request.method, error)
            message = f"the client gave no valid answer to {request.method}"
            raise CallError(ErrorCode.UNAVAILABLE, message, {"reason": "NO_ANSWER"}) from None
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a log message on the stream of the call, or notify subscribers of a changed resource."""
        if method == "notifications/resources/updated":
            await self._changes.resource_updated(str(params.get("uri")))
        elif method == "notifications/message" and self._changes.wants_log(self._context, str(params.get("level"))):
            with contextlib.suppress(ValidationError):
                message = types.LoggingMessageNotification.model_validate({"method": method, "params": dict(params)})
                await self._send_quietly(message)

    async def _send_quietly(self, message: Any) -> None:
        try:
            await self._context.session.send_notification(message, self._context.request_id)
        except Exception as error:  # noqa: BLE001  # a notification may be lost; the call goes on
            _log.debug("a notification was lost: %r", error)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send the progress of the call."""
        if not math.isfinite(progress) or (total is not None and not math.isfinite(total)):
            return
        try:
            await self._context.session.report_progress(progress, total, message)
        except Exception as error:  # noqa: BLE001  # progress may be lost; the call goes on
            _log.debug("progress was lost: %r", error)


class _Anything(BaseModel, extra="allow"):
    """A result of any form; `is_usable` checks it."""
