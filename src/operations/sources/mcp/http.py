"""Streamable HTTP through the SDK, with an HTTP client that keeps one request's failure from being everyone's.

The SDK's transport lets a refused connection or a failed authorisation end the whole session. This client answers
such a request with a JSON-RPC error of its own instead, which says whether the server can have seen the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from operations.errors import CallError
from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.failures import RequestFailedError, RequestLostError, explain
from operations.sources.mcp.oauth import oauth_provider

LOST = "operations/lost"
"""The member of an error's data by which our own answers are told from the server's."""
NOTIFICATION_SECONDS = 5.0
"""How long a notification may take: the SDK sends nothing else meanwhile."""
_SESSION = "mcp-session-id"
_SESSION_ERRORS = frozenset({-32000, -32001, -32600})
"""With what servers say that they do not know a session, along with status 400 or 404."""
_CUT = "SSE stream "
"""How the SDK begins its message for an event stream that ended without the answer; it has no code for that."""


@contextlib.asynccontextmanager
async def http_transport(config: MCPClientConfig, on_expired: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a session with the server at the config's address."""
    assert config.url is not None
    auth = None if config.oauth is None else oauth_provider(config.url, config.oauth)
    async with (
        ContainedClient(config, on_expired, auth=auth) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=config.max_message_bytes) as streams,
    ):
        yield streams


class ContainedClient(httpx2.AsyncClient):
    """An HTTP client whose failures are answers: a POST that cannot be made gets a JSON-RPC error as its response."""

    def __init__(self, config: MCPClientConfig, on_expired: Callable[[], None], *, auth: httpx2.Auth | None) -> None:
        super().__init__(
            headers=dict(config.headers),
            auth=auth,
            timeout=httpx2.Timeout(30.0, connect=min(30.0, config.connect_timeout), read=config.timeout),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        )
        self._on_expired = on_expired

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; one of the protocol's POSTs always gets a response."""
        if request.method == "GET":
            return await self._open_notifications(request, options)
        if request.method != "POST":
            return await super().send(request, **options)
        try:
            async with asyncio.timeout(None if _awaits_answer(request) else NOTIFICATION_SECONDS):
                return await self._exchange(request, options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            lost = {"reason": explain(error), "executed": "no", "sent": False}
        except (OAuthFlowError, CallError) as error:
            lost = {"reason": f"authorisation failed: {explain(error)}", "executed": "no"}
        except Exception as error:  # noqa: BLE001  # whatever is raised here would end the session for everybody
            lost = {"reason": explain(error), "executed": "unknown"}
        return _error_response(request, 503, -32000, str(lost["reason"]), {LOST: lost})

    async def _exchange(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        response = await super().send(request, **options)
        streams = response.headers.get("content-type", "").startswith("text/event-stream")
        if response.status_code < 400 and streams:
            return response
        # Read here, where a broken connection can still be answered for.
        body = await response.aread()
        if response.status_code < 400:
            return response
        return self._explain_status(request, response, body)

    def _explain_status(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
        """The response itself where it is a JSON-RPC error, one in its place where it is not, or ends the session."""
        status = response.status_code
        error = _rpc_error(body)
        if self._is_expired(request, status, error):
            lost = {"reason": "the server does not know the session any more", "executed": "no", "renew": True}
            return _error_response(request, status, -32600, "session expired", {LOST: lost})
        if error is not None or status == 404:
            return response
        text = body[:500].decode(errors="replace").strip()
        message = f"HTTP {status}{': ' if text else ''}{text}"
        if status in (502, 503, 504):
            lost = {"reason": message, "executed": "unknown"}
            return _error_response(request, status, -32000, message, {LOST: lost})
        return _error_response(request, status, -32603, message, {"status": status})

    async def _open_notifications(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        """Open the stream of notifications, however long the server is away: the SDK would soon give up on it.

        A session that is over is noticed here before any call has to notice it.
        """
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        pauses = iter((0.1, 0.2, 0.5, 1.0, 2.0))
        while True:
            try:
                response = await super().send(request, **options)
            except httpx2.TransportError:
                await asyncio.sleep(next(pauses, 5.0))
                continue
            if response.status_code in (400, 404) and _SESSION in request.headers:
                self._on_expired()
            return response

    def _is_expired(self, request: httpx2.Request, status: int, error: Mapping[str, Any] | None) -> bool:
        if _SESSION not in request.headers or status not in (400, 404):
            return False
        return (error is None and status == 404) or (error is not None and error.get("code") in _SESSION_ERRORS)


def lost_request(error: RequestFailedError) -> RequestLostError | None:
    """The loss that an error stands for; None where the server itself sent the error."""
    data = error.data.get(LOST) if isinstance(error.data, Mapping) else None
    if isinstance(data, Mapping):
        return RequestLostError(
            str(data.get("reason")),
            executed="no" if data.get("executed") == "no" else "unknown",
            sent=data.get("sent") is not False,
            renew=data.get("renew") is True,
        )
    if error.code == CONNECTION_CLOSED and error.message.startswith(_CUT):
        return RequestLostError(error.message, executed="unknown")
    return None


def _awaits_answer(request: httpx2.Request) -> bool:
    """Whether the message is a request: a notification has no id, an answer of ours no method."""
    before, method, _ = request.content[:200].partition(b'"method":')
    return bool(method) and b'"id":' in before


def _rpc_error(body: bytes) -> Mapping[str, Any] | None:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("code"), int) else None


def _error_response(request: httpx2.Request, status: int, code: int, message: str, data: Any) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": data}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=msgspec.json.encode(body), request=request)
