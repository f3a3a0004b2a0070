"""An endpoint with a caller, without admission: for tests of the endpoint itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from operations import OperationRegistry
from operations.context import Identity
from operations.dispatch import Dispatcher
from operations.serving.admission import Caller
from operations.serving.exposure import Exposure
from operations.serving.mcp.endpoint import MCPEndpoint
from operations.serving.mcp.server import MCPServer
from tests.asgi_server import serving_here


def by_header(scope: Any) -> Caller:
    """The caller that the header `x-caller` names, with the scopes after the name: `ann read write`."""
    headers = dict(scope["headers"])
    who, *scopes = headers.get(b"x-caller", b"").decode().split() or [""]
    return Caller(None, Identity(id=who, scopes=tuple(scopes)) if who else None, headers=headers)


@asynccontextmanager
async def serve_endpoint(
    registry: OperationRegistry, *, who: Callable[[Any], Caller] = by_header, **options: Any
) -> AsyncIterator[tuple[str, MCPEndpoint]]:
    """Serve a registry's endpoint at `/mcp` in the running loop; gives its URL."""
    mcp_server = MCPServer(Exposure(registry), Dispatcher(registry), name="test", version="1.0", **options)
    endpoint = MCPEndpoint(mcp_server)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await endpoint(scope, receive, send, who(scope))

    async with endpoint.run(), serving_here(app) as url:
        yield url.replace("ws://", "http://") + "mcp", endpoint
