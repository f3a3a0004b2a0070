"""WebSocketDoor: the call protocol on the port of the application, for spokes and browsers."""

from __future__ import annotations

from operations.calls.hub import Hub
from operations.calls.hub.asgi import ASGIHub
from operations.calls.worker import CallHandler
from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity.tokens import Principal
from operations.pubsub.link import PROTOCOLS_HEADER, Callbacks, bearer_token, split_protocols
from operations.serving.admission import Caller
from operations.serving.asgi import Receive, Scope, Send
from operations.serving.exposure import Exposure
from operations.serving.limits import Limits
from operations.spec import Operation


class WebSocketDoor:
    """A hub whose peers the application admits; what is exposed is registered at it."""

    def __init__(self, exposure: Exposure, limits: Limits) -> None:
        self._exposure = exposure
        self._limits = limits
        self._hub = Hub(_NoTokens(), max_payload=limits.body_bytes)
        self._transport = self._hub.transport()
        self._handler = CallHandler(
            exposure.registry,
            self._transport,
            concurrency=limits.concurrency,
            queue=limits.queue,
            serves=self._is_exposed,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one connection until it is closed."""
        principal = caller.principal
        account = caller.key if principal is None else None

        def admit(token: str | None) -> Callbacks:
            admitted = principal or Principal(caller.identity or Identity(f"anonymous:{caller.client_address}"))
            return self._hub.admit_as(admitted, token if account is None else account)

        await ASGIHub(admit, max_payload=self._limits.body_bytes, close=self.close)(scope, receive, send)

    async def drain(self, grace: float) -> None:
        """Take no more calls, finish those that run, and close every connection."""
        await self._handler.drain(grace=grace)
        await self.close()

    async def close(self) -> None:
        """Close every connection; its peer may connect again."""
        await self._hub.close()

    def _is_exposed(self, operation: Operation[object]) -> bool:
        return operation.id in self._exposure.operations


class _NoTokens:
    """The hub authenticates nobody: the application has done so before."""

    def authenticate(self, token: str | None) -> Principal:
        raise CallError(ErrorCode.ACCESS_DENIED, "connections are admitted by the application")


def websocket_token(scope: Scope) -> str | None:
    """Return the token of a handshake: from a header, or from the sub-protocol that a browser sends it in."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == PROTOCOLS_HEADER.lower().encode()]
    return bearer_token("", split_protocols(lines))
