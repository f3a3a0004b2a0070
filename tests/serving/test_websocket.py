"""The WebSocket endpoint of a served registry, on a hub of the program."""

from __future__ import annotations

from operations import Identity, OperationRegistry
from operations.calls.hub import Hub
from operations.identity.tokens import Principal, StaticTokens
from operations.serving.exposure import Exposure
from operations.serving.limits import Limits
from operations.serving.websocket import WebSocketEndpoint


async def test_a_closed_endpoint_no_longer_observes_a_hub_that_stays_open() -> None:
    async with Hub(StaticTokens({"ann-token": Principal(Identity("ann"))})) as hub:
        endpoint = WebSocketEndpoint(Exposure(OperationRegistry()), Limits(), hub)
        assert endpoint in hub.router.observers
        await endpoint.close()
        assert endpoint not in hub.router.observers
