"""HTTP+SSE transport of protocol version 2024-11-05, for servers that do not have streamable HTTP yet.

The SDK's transport only logs a POST that fails, and the caller waits until the time limit. With the HTTP client of this
module, a failed POST ends the session, so that the request fails and the next call opens another session. If a server
names no endpoint, or an endpoint at another origin, connecting fails after `connect_timeout`. An event has at most
1 MiB. A response that the SDK cannot read becomes an error response; the SDK would ignore it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
from mcp.client.sse import sse_client

from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.http import ErrorReportingClient, is_event_stream, with_events
from operations.sources.mcp.oauth import oauth_provider
from operations.sources.mcp.server_messages import substitute

MAX_EVENT_BYTES = 1024 * 1024
"""Maximum size of an event; the SDK's limit."""


@contextlib.asynccontextmanager
async def sse_transport(config: MCPClientConfig, on_ended: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Open the streams of a session with the server at the config's URL."""
    assert config.url is not None
    provider = None if config.oauth is None else oauth_provider(config.url, config.oauth)

    def make_client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        return _SSEClient(config, on_ended, auth=provider)  # with the config's headers and time limits

    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(config.connect_timeout):
                opened = sse_client(config.url, httpx_client_factory=make_client)
                streams = await stack.enter_async_context(opened)
        except TimeoutError:
            reason = f"the server named no endpoint at its own origin within {config.connect_timeout:g} s"
            raise TimeoutError(reason) from None
        yield streams


class _SSEClient(ErrorReportingClient):
    """An HTTP client that ends the session if a POST fails. Bodies are limited; the event stream has no idle limit."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; end the session if it fails."""
        if request.method == "GET":
            request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}
        try:
            response = await httpx2.AsyncClient.send(self, request, **options)
        except BaseException:
            self._on_expired()
            raise
        if request.method == "POST" and response.status_code >= 400:
            self._on_expired()
        if request.method == "GET" and is_event_stream(response):
            return with_events(response, MAX_EVENT_BYTES, lambda message: substitute(message) or message)
        return response
