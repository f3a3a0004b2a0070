"""A session with a server over the SDK: opening, negotiation, and requests with unparsed results.

Results are returned as sent. The SDK's typed methods would reject a whole page of tools for one invalid tool, drop
unknown fields, and raise if a result does not match its schema. Here the result pipeline handles mismatches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import mcp_types as types
import msgspec
from mcp.client.session import ClientSession
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import encode_header_value, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.http import actual_failure, http_transport, sse_transport
from operations.sources.mcp.negotiation import client_info, negotiate
from operations.sources.mcp.protocol import (
    MCPServerInfo,
    OnProgress,
    RequestFailedError,
    RequestLostError,
    RequestTimeoutError,
)
from operations.sources.mcp.server_messages import (
    ELICIT,
    SAMPLE,
    LimitedResponses,
    Notifications,
    ServerRequests,
    dump_model,
)
from operations.sources.mcp.stdio import stdio_transport

_NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class MCPSession:
    """An initialised session; requests may be made from any task."""

    def __init__(
        self,
        dispatcher: JSONRPCDispatcher[Any],
        incoming: WatchedStream,
        info: MCPServerInfo,
        requests: ServerRequests,
    ) -> None:
        self._info = info
        self._requests = requests
        self._dispatcher = dispatcher
        self._incoming = incoming
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}
        self._is_modern = info.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._headers = {"mcp-protocol-version": info.protocol_version}
        self._meta = {
            types.PROTOCOL_VERSION_META_KEY: info.protocol_version,
            types.CLIENT_INFO_META_KEY: dump_model(client_info()),
            types.CLIENT_CAPABILITIES_META_KEY: dump_model(requests.capabilities),
        }

    @property
    def info(self) -> MCPServerInfo:
        """The server's name, version and capabilities."""
        return self._info

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the result unchanged; raise RequestFailedError, RequestLostError or RequestTimeoutError."""
        params, options = self._prepare(method, params, headers)
        if on_progress is not None:
            options["on_progress"] = cast("ProgressFnT", on_progress)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._dispatcher.send_raw_request(method, params, options)
        except MCPError as error:
            raise self._translate(error) from None
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeoutError from None

    async def respond(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a handler's response to a server's request; raise RequestFailedError if no handler gives one."""
        return await self._requests.respond(method, params)

    def set_tools(self, input_schemas: Mapping[str, Any]) -> Mapping[str, str]:
        """Store which arguments are also sent as headers; return the tools that the protocol forbids, with reasons."""
        if not self._is_modern:
            return {}
        found = {name: find_invalid_x_mcp_header(schema) for name, schema in input_schemas.items()}
        forbidden = {name: reason for name, reason in found.items() if reason is not None}
        self._header_maps = {
            name: x_mcp_header_map(schema) for name, schema in input_schemas.items() if name not in forbidden
        }
        return forbidden

    def _prepare(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None
    ) -> tuple[Mapping[str, Any], CallOptions]:
        """Return the parameters and headers of a request, with the fields that the protocol version requires."""
        if not self._is_modern:
            return params, {"headers": {**(headers or {}), **self._headers}}
        sent = {**(headers or {}), **self._headers, "mcp-method": method}
        name = params.get(_NAME_PARAMS.get(method, ""))
        if isinstance(name, str):
            sent["mcp-name"] = encode_header_value(name)
            if method == "tools/call":
                sent |= mcp_param_headers(self._header_maps.get(name, {}), params.get("arguments") or {})
        return {**params, "_meta": {**params.get("_meta", {}), **self._meta}}, {"headers": sent}

    def _translate(self, error: MCPError) -> RequestFailedError | RequestLostError:
        message = error.message
        # The newer protocol has no requests from a server to its client. A tool that sends one fails.
        if self._is_modern and error.code == types.INVALID_REQUEST and (ELICIT in message or SAMPLE in message):
            remedy = 'set protocol = "legacy" for this server: its tool sends a request of the older protocol'
            message = f"{message.removesuffix('.')}; {remedy}"
        failed = RequestFailedError(error.code, message, error.data)
        # A transport may close before its stream ends. Then only the SDK's message shows that the connection was lost.
        if error.code == types.CONNECTION_CLOSED and (self._incoming.has_ended or error.message == "Connection closed"):
            return RequestLostError("the connection was lost", executed="unknown")
        return actual_failure(failed)


class SessionHooks(msgspec.Struct, frozen=True):
    """Callbacks to the owner of a session."""

    ended: Callable[[], None]
    """Called when the connection ends or the server ends the session."""
    changed: Callable[[], None]
    """Called when the server's list of tools changes."""


@contextlib.asynccontextmanager
async def open_session(
    name: str, config: MCPClientConfig, hooks: SessionHooks, *, protocol: str
) -> AsyncIterator[MCPSession]:
    """Open a session for the duration of the block; the block must be left in the task that entered it."""
    requests = ServerRequests(name, config)
    notifications = Notifications(name, hooks.changed)
    async with contextlib.AsyncExitStack() as stack:
        read, write = await stack.enter_async_context(_transport(name, config, hooks.ended))
        incoming = WatchedStream(read, hooks.ended)
        # The dispatcher needs the methods of a stream, not its type.
        dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(incoming, cast("Any", LimitedResponses(name, write)))
        client = ClientSession(
            dispatcher=dispatcher,
            read_timeout_seconds=config.connect_timeout,
            sampling_callback=requests.sampling_callback,
            elicitation_callback=requests.elicitation_callback,
            logging_callback=notifications.log,
            message_handler=notifications.receive,
            client_info=client_info(),
        )
        await stack.enter_async_context(client)
        if config.sse and protocol == "auto":
            protocol = "legacy"  # the transport is older than every protocol without a handshake
        await negotiate(client, dispatcher, requests, protocol=protocol, seconds=config.connect_timeout)
        async with notifications.subscribed(client):
            yield MCPSession(dispatcher, incoming, _server_info(client), requests)


def _transport(
    name: str, config: MCPClientConfig, on_ended: Callable[[], None]
) -> contextlib.AbstractAsyncContextManager[tuple[Any, Any]]:
    if config.url is None:
        return stdio_transport(name, config)
    return sse_transport(config, on_ended) if config.sse else http_transport(config, on_ended)


def _server_info(client: ClientSession) -> MCPServerInfo:
    about = client.server_info
    return MCPServerInfo(
        name=about.name if about else "",
        version=about.version if about else "",
        title=about.title if about else None,
        protocol_version=client.protocol_version or LATEST_MODERN_VERSION,
        instructions=client.instructions,
        capabilities=dump_model(client.server_capabilities) if client.server_capabilities else {},
    )


class WatchedStream:
    """The incoming messages of a transport; calls `on_ended` at their end, before the SDK handles the end."""

    def __init__(self, stream: Any, on_ended: Callable[[], None]) -> None:
        self.has_ended = False
        self._stream = stream
        self._on_ended = on_ended

    @property
    def last_context(self) -> Any:
        """The context variables of the sender of the last message, if the transport has them."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        return await self.__anext__()

    async def aclose(self) -> None:
        """Close the stream."""
        self._end()
        await self._stream.aclose()

    def __aiter__(self) -> WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._end()
            raise

    async def __aenter__(self) -> WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._end()
        await self._stream.__aexit__(*exc_info)

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._on_ended()
