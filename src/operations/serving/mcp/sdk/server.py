"""The SDK's low-level server with our endpoint as its handlers. No text of an exception reaches a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
import msgspec
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from operations.errors import CallError
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.admission import Caller
from operations.serving.asking import InputRequired
from operations.serving.mcp.calls import INTERNAL_ERROR, INVALID_PARAMS, Incoming, ProtocolError
from operations.serving.mcp.endpoint import DISCOVER_TTL_MS, PROGRESS_TOKEN, Endpoint, incoming, input_required
from operations.serving.mcp.listing import TTL_MS
from operations.serving.mcp.sdk.asking import SDKClient
from operations.serving.mcp.sdk.changes import LEVELS, Changes

_log = logging.getLogger("operations.mcp")
_Context = ServerRequestContext[Any, Any]
CALLER = "operations.caller"
"""The key of the caller in the scope of an HTTP request."""
POLL = "mcpPollSeconds"
"""The annotation that closes the stream of a call after so many seconds: the client then polls for the result."""
LISTENING_EACH = 16
"""Open subscriptions of one identity."""
_PRIVATE = CacheHint(ttl_ms=TTL_MS, scope="private")


class _Server(Server[Any]):
    """A server that announces its notifications of changed lists."""

    def create_initialization_options(self, *args: Any, **options: Any) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(True, True, True), **options)


class SDKServer:
    """Handlers for the SDK. The caller is that of each request; `caller` is for a transport that has only one."""

    def __init__(self, endpoint: Endpoint, *, caller: Caller | None = None) -> None:
        self.endpoint = endpoint
        self.changes = Changes(endpoint)
        self._caller = caller
        self._listener = ListenHandler(self.changes.bus)
        self._listening = ConcurrencyLimits(LISTENING_EACH, "subscriptions")
        self.server = self._build()

    def _build(self) -> Server[Any]:
        server: Server[Any] = _Server(
            self.endpoint.name,
            version=self.endpoint.version,
            instructions=self.endpoint.instructions,
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
        # The dispatcher makes the spans.
        server.middleware[:] = [self._guard]
        return server

    async def _guard(self, ctx: _Context, call_next: CallNext) -> HandlerResult:
        """Answer lists from the cache, and hide what an exception says."""
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        try:
            if not is_modern and ctx.session.client_params is not None:
                self.changes.session(ctx)
                if ctx.method == "tools/list":
                    return await self._page(ctx, modern=False)
            return await call_next(ctx)
        except ProtocolError as error:
            raise MCPError(error.code, error.message, error.data) from None
        except (MCPError, ValidationError):
            raise
        except Exception as error:  # noqa: BLE001  # whatever it was, its text stays here
            _log.error("MCP %s failed", ctx.method, exc_info=error)
            raise MCPError(INTERNAL_ERROR, "Internal server error") from None

    def caller(self, context: _Context) -> Caller:
        """Return who sent a request."""
        if self._caller is not None:
            return self._caller
        if context.request is None:
            raise ProtocolError(INTERNAL_ERROR, "the request has no caller")
        caller: Caller = context.request.scope[CALLER]
        return caller

    def _incoming(self, context: _Context) -> Incoming:
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        client = SDKClient(context, self.endpoint.calls.dispatcher.slots, self.changes)
        params = context.params or {}
        wants_progress = (context.meta or {}).get("progress_token", params.get("_meta", {}).get(PROGRESS_TOKEN))
        progress = client.progress if wants_progress is not None else None
        return incoming(self.caller(context), params, modern=is_modern, progress=progress, client=client)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self.endpoint.listing.tools.get(name)
        return tool.input_document if tool is not None and tool.has_headers else None

    async def _page(self, context: _Context, *, modern: bool) -> dict[str, Any]:
        cursor = (context.params or {}).get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise ProtocolError(INVALID_PARAMS, "Invalid cursor")
        page = await self.endpoint.list_tools(self.caller(context).identity, cursor, modern=modern)
        result: dict[str, Any] = msgspec.json.decode(page)
        return result

    async def _list_tools(self, context: _Context, params: Any) -> Any:
        return await self._page(context, modern=context.protocol_version in MODERN_PROTOCOL_VERSIONS)

    async def _call_tool(self, context: _Context, params: types.CallToolRequestParams) -> Any:
        arguments = (context.params or {}).get("arguments")
        incoming = self._incoming(context)
        timer = self._poll(context, params.name)
        try:
            result = await self.endpoint.call_tool(params.name, arguments, incoming)
        finally:
            if timer is not None:
                timer.cancel()
        return _complete(result if isinstance(result, InputRequired) else result.to_dict(), context)

    def _poll(self, context: _Context, name: str) -> asyncio.TimerHandle | None:
        tool = self.endpoint.listing.tools.get(name)
        seconds = tool.operation.spec.annotations.get(POLL) if tool is not None else None
        close = context.close_sse_stream
        if close is None or not isinstance(seconds, int | float):
            return None
        return asyncio.get_running_loop().call_later(seconds, _start, close)

    async def _list_resources(self, context: _Context, params: Any) -> Any:
        return _complete({"resources": await self.endpoint.reading.list_resources(self._incoming(context))}, context)

    async def _list_templates(self, context: _Context, params: Any) -> Any:
        listed = await self.endpoint.reading.list_templates(self._incoming(context))
        return _complete({"resourceTemplates": listed}, context)

    async def _read_resource(self, context: _Context, params: types.ReadResourceRequestParams) -> Any:
        result = await self.endpoint.reading.read_resource(str(params.uri), self._incoming(context))
        return _complete(result, context)

    async def _list_prompts(self, context: _Context, params: Any) -> Any:
        return _complete({"prompts": await self.endpoint.reading.list_prompts(self._incoming(context))}, context)

    async def _get_prompt(self, context: _Context, params: types.GetPromptRequestParams) -> Any:
        result = await self.endpoint.reading.get_prompt(params.name, params.arguments or {}, self._incoming(context))
        return _complete(result, context)

    async def _complete(self, context: _Context, params: types.CompleteRequestParams) -> Any:
        others = (params.context.arguments if params.context is not None else None) or {}
        reference = params.ref.model_dump(by_alias=True, mode="json")
        argument = params.argument
        result = await self.endpoint.reading.complete(
            reference, argument.name, argument.value, others, self._incoming(context)
        )
        return _complete(result, context)

    async def _listen(self, context: _Context, params: types.SubscriptionsListenRequestParams) -> Any:
        key = self.caller(context).key
        try:
            self._listening.take(key)
        except CallError as error:
            raise ProtocolError(INTERNAL_ERROR, error.message) from None
        try:
            return await self._listener(context, params)
        finally:
            self._listening.give(key)

    async def _subscribe(self, context: _Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self.changes.watch(context, str(params.uri))
        return types.EmptyResult()

    async def _unsubscribe(self, context: _Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self.changes.session(context).watched.discard(str(params.uri))
        return types.EmptyResult()

    async def _set_level(self, context: _Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        if params.level in LEVELS:
            self.changes.session(context).level = params.level
        return types.EmptyResult()


def _complete(result: dict[str, Any] | InputRequired, context: _Context) -> dict[str, Any]:
    """Return a result as JSON, with the type that 2026-07-28 requires."""
    if isinstance(result, InputRequired):
        return input_required(result)
    return {**result, "resultType": "complete"} if context.protocol_version in MODERN_PROTOCOL_VERSIONS else result


_closing: set[asyncio.Task[None]] = set()


def _start(close: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.ensure_future(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
