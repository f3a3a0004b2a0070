"""One session with a server over the SDK: opened, greeted, and used for requests whose results nobody alters.

Results come back as the server sent them. The SDK's typed methods would refuse a whole page of tools for one bad one,
drop what they do not know, and raise where a result does not fit its schema; here that is the pipeline's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import listen
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import encode_header_value, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.failures import RequestFailedError, RequestLostError, RequestTimeoutError
from operations.sources.mcp.http import http_transport, lost_request
from operations.sources.mcp.negotiation import negotiate
from operations.sources.mcp.questions import Questions
from operations.sources.mcp.server import MCPServerInfo, OnProgress
from operations.sources.mcp.stdio import stdio_transport
from operations.sources.mcp.streams import WatchedStream, client_info, plain

_log = logging.getLogger("operations.mcp")

_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING}


class Session:
    """A greeted session; requests may be made from any task."""

    def __init__(
        self, dispatcher: JSONRPCDispatcher[Any], incoming: WatchedStream, info: MCPServerInfo, questions: Questions
    ) -> None:
        self._info = info
        self._questions = questions
        self._dispatcher = dispatcher
        self._incoming = incoming
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}
        self._is_modern = info.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._headers = {"mcp-protocol-version": info.protocol_version}
        self._stamp = {
            types.PROTOCOL_VERSION_META_KEY: info.protocol_version,
            types.CLIENT_INFO_META_KEY: plain(client_info()),
            types.CLIENT_CAPABILITIES_META_KEY: plain(questions.capabilities),
        }

    @property
    def info(self) -> MCPServerInfo:
        """What the server said of itself."""
        return self._info

    @property
    def is_closed(self) -> bool:
        """Whether the connection under it has ended."""
        return self._incoming.has_ended

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The result as the server sent it; raises RequestFailedError, RequestLostError or RequestTimeoutError."""
        params, options = self._prepare(method, params, headers)
        if on_progress is not None:
            options["on_progress"] = cast("ProgressFnT", on_progress)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._dispatcher.send_raw_request(method, params, options)
        except MCPError as error:
            raise self._explain(error) from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError from None

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer to a question of the server."""
        return await self._questions.answer(method, params)

    def admit_tool(self, name: str, input_schema: Any) -> str | None:
        """Take note of the arguments that travel as headers too; the reason where the protocol forbids the tool."""
        if not self._is_modern:
            return None
        reason = find_invalid_x_mcp_header(input_schema)
        if reason is None:
            self._header_maps[name] = x_mcp_header_map(input_schema)
        return reason

    def _prepare(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None
    ) -> tuple[Mapping[str, Any], CallOptions]:
        """The parameters and headers with what this protocol version wants to be in them."""
        if not self._is_modern:
            return params, {"headers": {**(headers or {}), **self._headers}}
        sent = {**(headers or {}), **self._headers, "mcp-method": method}
        named = params.get(_NAMED.get(method, ""))
        if isinstance(named, str):
            sent["mcp-name"] = encode_header_value(named)
            if method == "tools/call":
                sent |= mcp_param_headers(self._header_maps.get(named, {}), params.get("arguments") or {})
        return {**params, "_meta": {**params.get("_meta", {}), **self._stamp}}, {"headers": sent}

    def _explain(self, error: MCPError) -> RequestFailedError | RequestLostError:
        failed = RequestFailedError(error.code, error.message, error.data)
        # Where a transport is torn down before its end is noticed, the SDK's words are all there is to tell it by.
        if error.code == types.CONNECTION_CLOSED and (self.is_closed or error.message == "Connection closed"):
            return RequestLostError("the connection was lost", executed="unknown")
        return lost_request(failed) or failed


class SessionHooks(msgspec.Struct, frozen=True):
    """What the owner of a session wants to be told of."""

    ended: Callable[[], None]
    """The connection has ended, or the server does not know the session any more."""
    changed: Callable[[], None]
    """The server offers something else than before."""


@contextlib.asynccontextmanager
async def open_session(
    name: str, config: MCPClientConfig, hooks: SessionHooks, *, protocol: str
) -> AsyncIterator[Session]:
    """A greeted session for as long as the block lasts; it must be left in the task that entered it."""
    questions = Questions(name, config)
    listener = _Listener(name, hooks)
    async with contextlib.AsyncExitStack() as stack:
        transport = stdio_transport(name, config) if config.url is None else http_transport(config, hooks.ended)
        read, write = await stack.enter_async_context(transport)
        incoming = WatchedStream(read, hooks.ended)
        dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(incoming, write)
        client = ClientSession(
            dispatcher=dispatcher,
            read_timeout_seconds=config.connect_timeout,
            sampling_callback=questions.sampling_callback,
            elicitation_callback=questions.elicitation_callback,
            logging_callback=listener.log,
            message_handler=listener.hear,
            client_info=client_info(),
        )
        await stack.enter_async_context(client)
        await negotiate(client, dispatcher, questions, protocol=protocol, seconds=config.connect_timeout)
        session = Session(dispatcher, incoming, _info_of(client), questions)
        async with listener.listening(client):
            yield session


class _Listener:
    """Hears what a server says unasked."""

    def __init__(self, name: str, hooks: SessionHooks) -> None:
        self._name = name
        self._hooks = hooks

    async def hear(self, message: IncomingMessage) -> None:
        """Pass on that a list changed; log a message that could not be read."""
        if isinstance(message, types.ToolListChangedNotification):
            self._hooks.changed()
        elif isinstance(message, Exception):
            _log.warning("%s: a message that could not be read: %s", self._name, message)

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Log what the server logs."""
        _log.log(_LEVELS.get(params.level, logging.ERROR), "%s: %s", self._name, params.data)

    @contextlib.asynccontextmanager
    async def listening(self, client: ClientSession) -> AsyncIterator[None]:
        """Listen for changes where the protocol has a request for that; elsewhere they come unasked."""
        tools = client.server_capabilities.tools if client.server_capabilities else None
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            yield
            return
        task = asyncio.create_task(self._listen(client))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _listen(self, client: ClientSession) -> None:
        pauses = iter((0.1, 0.5, 1.0, 2.0, 5.0))
        while True:
            try:
                async with listen(client, tools_list_changed=True) as events:
                    pauses = iter((0.1, 0.5, 1.0, 2.0, 5.0))
                    async for _ in events:
                        self._hooks.changed()
            except (MCPError, RuntimeError, TimeoutError) as error:
                _log.debug("%s: listening for changes ended: %s", self._name, error)
                if isinstance(error, MCPError) and error.code == types.METHOD_NOT_FOUND:
                    return
            await asyncio.sleep(next(pauses, 15.0))
            self._hooks.changed()


def _info_of(client: ClientSession) -> MCPServerInfo:
    about = client.server_info
    return MCPServerInfo(
        name=about.name if about else "",
        version=about.version if about else "",
        title=about.title if about else None,
        protocol_version=client.protocol_version or LATEST_MODERN_VERSION,
        instructions=client.instructions,
        capabilities=plain(client.server_capabilities) if client.server_capabilities else {},
    )
