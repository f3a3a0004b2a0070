"""Messages that a server initiates: requests (elicitation, sampling) and notifications (changes, log)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext, ClientSession, ElicitationFnT, IncomingMessage, SamplingFnT
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from operations.sources.mcp.config import MCPClientConfig, MCPServerRequest, ServerRequestHandler
from operations.sources.mcp.limits import response_id, without_deep_tools
from operations.sources.mcp.protocol import PARSE_ERROR, RequestFailedError, explain

_log = logging.getLogger("operations.mcp")

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
MAX_SERVER_REQUESTS = 100
"""Maximum number of concurrent requests of one server; further requests are rejected."""
MAX_UNSENT_RESPONSES = 4 * 1024 * 1024
"""Maximum size of the unsent responses to a server, in bytes; further responses are dropped."""
_OVERHEAD = 8 * 1024
"""Largest number of bytes that an unsent response needs in addition to its text."""
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING}


def dump_model(model: BaseModel) -> dict[str, Any]:
    """Return an SDK model as the protocol's JSON."""
    data: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return data


class ServerRequests:
    """Passes a server's requests to the user's handlers; rejects those without a handler immediately."""

    def __init__(self, server: str, config: MCPClientConfig) -> None:
        self._server = server
        self._handlers: dict[str, ServerRequestHandler] = {}
        self._running = 0
        if config.elicitation is not None:
            self._handlers[ELICIT] = config.elicitation
        if config.sampling is not None:
            self._handlers[SAMPLE] = config.sampling

    async def respond(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of the handler for a request of the server.

        Raise `RequestFailedError` if there is no handler, if the handler fails, or if too many requests are running. A
        handler returns None to decline: the result is then `{"action": "decline"}` for an elicitation, and
        `RequestFailedError` for a sampling request.
        """
        handler = self._handlers.get(method)
        if handler is None:
            raise RequestFailedError(types.INVALID_REQUEST, f"{method} is not supported by this client")
        if self._running >= MAX_SERVER_REQUESTS:
            raise RequestFailedError(types.INVALID_REQUEST, f"more than {MAX_SERVER_REQUESTS} concurrent requests")
        self._running += 1
        try:
            respond = await handler(MCPServerRequest(self._server, method, params))
        except Exception as error:
            _log.warning("%s: the handler for %s failed: %s", self._server, method, explain(error), exc_info=error)
            raise RequestFailedError(types.INTERNAL_ERROR, f"the client could not handle {method}") from error
        finally:
            self._running -= 1
        if respond is not None:
            return dict(respond)
        if method == ELICIT:
            return {"action": "decline"}
        raise RequestFailedError(types.INVALID_REQUEST, "the client declined")

    @property
    def capabilities(self) -> types.ClientCapabilities:
        """The capabilities that this client announces."""
        elicitation = types.ElicitationCapability(
            form=types.FormElicitationCapability(), url=types.UrlElicitationCapability()
        )
        return types.ClientCapabilities(
            elicitation=elicitation if ELICIT in self._handlers else None,
            sampling=types.SamplingCapability() if SAMPLE in self._handlers else None,
        )

    @property
    def elicitation_callback(self) -> ElicitationFnT | None:
        """The callback of an SDK session for elicitations; None without a handler: the session then rejects them."""
        return self._elicit if ELICIT in self._handlers else None

    @property
    def sampling_callback(self) -> SamplingFnT | None:
        """The callback of an SDK session for sampling; None without a handler: the session then rejects it."""
        return self._sample if SAMPLE in self._handlers else None

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        respond = await self._respond_typed(ELICIT, params, (types.ElicitResult,))
        assert isinstance(respond, types.ElicitResult | types.ErrorData)
        return respond

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        kinds = (types.CreateMessageResult, types.CreateMessageResultWithTools)
        respond = await self._respond_typed(SAMPLE, params, kinds)
        assert isinstance(respond, (*kinds, types.ErrorData))
        return respond

    async def _respond_typed(self, method: str, params: BaseModel, kinds: tuple[type[BaseModel], ...]) -> BaseModel:
        try:
            respond = await self.respond(method, dump_model(params))
        except RequestFailedError as error:
            return types.ErrorData(code=error.code, message=error.message)
        for kind in kinds:
            try:
                return kind.model_validate(respond)
            except ValidationError as error:
                reason = explain(error)
        _log.warning("%s: the handler for %s returned an invalid result: %s", self._server, method, reason)
        return types.ErrorData(code=types.INTERNAL_ERROR, message=f"the client could not handle {method}")


def substitute(message: bytes) -> bytes | None:
    """Return a replacement for a message that the SDK cannot parse; None if the SDK can parse it.

    The replacement is the same message without the tools that are nested too deeply. If the SDK cannot parse
    this copy, the replacement is an error response. A message that is not a response has no replacement.
    """
    problem = _problem(message)
    if problem is None:
        return None
    pruned = without_deep_tools(message)
    if pruned is not None and _problem(pruned) is None:
        return pruned
    request_id = response_id(message)
    if request_id is None:
        return None
    failure = {"code": PARSE_ERROR, "message": f"the response cannot be read: {problem}"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": failure})


def _problem(message: bytes) -> str | None:
    """Return why the SDK cannot parse a message; None if it can."""
    try:
        types.jsonrpc_message_adapter.validate_json(message, by_name=False)
    except ValidationError as error:
        return str(error.errors(include_url=False, include_input=False)[0]["msg"])
    return None


def is_response(item: SessionMessage) -> bool:
    """Whether a message responds to a request of the server."""
    return isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError)


class LimitedResponses:
    """The sending end of a transport; it drops responses while too many earlier ones are unsent.

    A server may send any number of requests, such as pings, and read none of the responses.
    """

    def __init__(self, server: str, stream: Any) -> None:
        self._server = server
        self._stream = stream
        self._unsent = 0
        self._has_warned = False

    async def send(self, item: SessionMessage) -> None:
        """Send a message, or drop it."""
        if not is_response(item):
            await self._stream.send(item)
            return
        size = len(item.message.model_dump_json()) + _OVERHEAD
        if self._unsent and self._unsent + size > MAX_UNSENT_RESPONSES:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("%s: the server does not read responses to its requests; dropping some", self._server)
            return
        self._unsent += size
        try:
            await self._stream.send(item)
        finally:
            self._unsent -= size

    async def aclose(self) -> None:
        """Close the sending end."""
        await self._stream.aclose()

    async def __aenter__(self) -> LimitedResponses:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Notifications:
    """Receives a server's notifications: reports changes of the list of tools, logs messages."""

    def __init__(self, server: str, on_changed: Callable[[], None]) -> None:
        self._server = server
        self._on_changed = on_changed

    async def receive(self, message: IncomingMessage) -> None:
        """Report a changed list of tools; log unreadable messages."""
        if isinstance(message, types.ToolListChangedNotification):
            self._on_changed()
        elif isinstance(message, Exception):
            _log.warning("%s: unreadable message: %s", self._server, message)

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Write a server's log message to the log."""
        _log.log(_LEVELS.get(params.level, logging.ERROR), "%s: %s", self._server, params.data)

    @contextlib.asynccontextmanager
    async def subscribed(self, client: ClientSession) -> AsyncIterator[None]:
        """Subscribe to changes of the list of tools during the block, if protocol version and server support this."""
        tools = client.server_capabilities.tools if client.server_capabilities else None
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            yield
            return
        task = asyncio.create_task(self._subscribe(client))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _subscribe(self, client: ClientSession) -> None:
        pauses = iter((0.1, 0.5, 1.0, 2.0, 5.0))
        while True:
            try:
                async with listen(client, tools_list_changed=True) as events:
                    pauses = iter((0.1, 0.5, 1.0, 2.0, 5.0))
                    async for _ in events:
                        self._on_changed()
            except (MCPError, RuntimeError, TimeoutError) as error:
                _log.debug("%s: the subscription to changes ended: %s", self._server, error)
                if isinstance(error, MCPError) and error.code == types.METHOD_NOT_FOUND:
                    return
            await asyncio.sleep(next(pauses, 15.0))
            self._on_changed()
