"""The WebSocket server over picows: it authenticates every connection before accepting it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import picows

from operations.errors import CallError
from operations.pubsub.link import (
    MAX_PAYLOAD,
    PROTOCOL,
    PROTOCOLS_HEADER,
    Admit,
    LargeMessages,
    bearer_token,
    refusal_status,
    split_protocols,
)
from operations.pubsub.protocols import HEARTBEAT_SECONDS
from operations.pubsub.websocket import WebSocketLink, settings


class WebSocketListener:
    """A WebSocket server that authenticates every connection before accepting it."""

    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self.port = port

    async def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


async def serve(
    admit: Admit,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    heartbeat: float = HEARTBEAT_SECONDS,
    max_payload: int = MAX_PAYLOAD,
    tls: ssl.SSLContext | None = None,
) -> WebSocketListener:
    """Listen for WebSocket connections; port 0 selects any free port."""
    large = LargeMessages()

    def accept(request: Any) -> Any:
        protocols = split_protocols(request.headers.getall(PROTOCOLS_HEADER, ()))
        try:
            callbacks = admit(bearer_token(request.headers.get("Authorization", ""), protocols))
        except CallError as error:
            refusal = picows.WSUpgradeResponse.create_error_response(
                refusal_status(error), error.message.encode(errors="replace"), {"WWW-Authenticate": "Bearer"}
            )
            return picows.WSUpgradeResponseWithListener(refusal, None)
        # The response never names the sub-protocol that carries a token.
        chosen = {PROTOCOLS_HEADER: PROTOCOL} if PROTOCOL in protocols else None
        accepted = picows.WSUpgradeResponse.create_101_response(chosen)
        return picows.WSUpgradeResponseWithListener(accepted, WebSocketLink(callbacks, max_payload, large))

    server = await picows.ws_create_server(accept, host, port, ssl=tls, **settings(heartbeat, max_payload))
    return WebSocketListener(server, server.sockets[0].getsockname()[1])
