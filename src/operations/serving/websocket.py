"""WebSocketEndpoint: the call protocol of the hub, for spokes and browsers, on the port of the application."""

from __future__ import annotations

from functools import partial
from time import perf_counter

from operations.calls.hub import Hub
from operations.calls.hub.asgi import ASGIHub
from operations.calls.hub.route_observer import RouteObserver
from operations.calls.hub.server import HubConnection
from operations.calls.hub.session import HubSession, RoutedCall
from operations.calls.worker import CallHandler
from operations.context import Identity
from operations.dispatch import Dispatcher
from operations.errors import CallError, ErrorCode
from operations.identity.rate_limits import RateLimits
from operations.identity.tokens import Principal
from operations.pubsub.link import PROTOCOLS_HEADER, Callbacks, bearer_token, split_protocols
from operations.serving.admission import Caller, find_token
from operations.serving.asgi import Receive, Scope, Send
from operations.serving.audit import AuditWriter
from operations.serving.exposure import Exposure
from operations.serving.limits import Limits
from operations.serving.refusals import public_error
from operations.telemetry.metrics import Measurable


class WebSocketEndpoint(RouteObserver):
    """A hub with the exposed operations. The application authenticates its peers.

    With a `hub`, the spokes of that hub connect here, and the exposed operations are not added to the hub.
    """

    def __init__(
        self,
        exposure: Exposure,
        limits: Limits,
        hub: Hub | None,
        audit: AuditWriter,
        *,
        rate: RateLimits | None = None,
    ) -> None:
        self._limits = limits
        self._rate = rate
        self._audit = audit
        self._callers: dict[str, Caller] = {}
        """The callers of open connections, by the name of their session."""
        self._connections: set[HubConnection] = set()
        """The connections that were opened here; a passed `hub` may have others."""
        self._hub = hub or Hub(_NoTokens(), max_payload=limits.body_bytes)
        self._handler: CallHandler | None = None
        self._hub.router.observers += (self,)
        if hub is None:
            self._handler = CallHandler(
                exposure.registry,
                self._hub.transport(),
                concurrency=limits.concurrency,
                queue=limits.queue,
                exposure=exposure,
                show_error=public_error,
                max_values=limits.values,
            )

    @property
    def dispatchers(self) -> tuple[Dispatcher, ...]:
        """The dispatchers of the calls of connected peers."""
        return () if self._handler is None else (self._handler.dispatcher,)

    @property
    def measurable(self) -> tuple[Measurable, ...]:
        """The parts of the endpoint that have metrics."""
        return (self._hub, *self.dispatchers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one connection until it is closed."""
        principal = caller.principal
        account = caller.key if principal is None else f"token {_verified_token(scope, caller)}"

        def admit(_: str | None) -> Callbacks:
            admitted = principal or Principal(caller.identity or Identity(f"anonymous:{caller.client_address}"))
            is_anonymous = principal is None and caller.identity is None
            connection = self._hub.admit_as(admitted, account, anonymous=is_anonymous)
            if self._rate is not None:
                connection.session.count_request = partial(self._rate.acquire, caller.key)
            admissions.append(connection)
            self._callers[connection.session.name] = caller
            self._connections.add(connection)
            return connection

        admissions: list[HubConnection] = []
        try:
            await ASGIHub(admit, max_payload=self._limits.body_bytes, close=self.close)(scope, receive, send)
        finally:
            for connection in admissions:
                del self._callers[connection.session.name]
                self._connections.discard(connection)

    def disconnect(self, reason: str) -> None:
        """Close every connection that was opened here; peers with valid tokens may reconnect."""
        for connection in list(self._connections):
            connection.end(reason)

    async def drain(self, grace: float) -> None:
        """Refuse new calls to the internal hub, wait for running calls, then close the endpoint."""
        if self._handler is not None:
            await self._handler.drain(grace=grace)
        await self.close()

    async def close(self) -> None:
        """Stop the audit, and close every connection of the internal hub; a passed `hub` keeps its connections."""
        router = self._hub.router
        router.observers = tuple(observer for observer in router.observers if observer is not self)
        if self._handler is not None:
            await self._hub.close()

    def ended(self, call: RoutedCall, code: str) -> None:
        """Write the audit record of a call."""
        self._record(call.caller, call.operation_id, call.caller_id, code, call.began)

    def refused(self, session: HubSession, request_id: str, operation_id: str, code: str) -> None:
        """Write the audit record of a refused call of a registered operation."""
        if operation_id in self._hub.router.operations:
            self._record(session, operation_id, request_id, code, perf_counter())

    def _record(self, session: HubSession, operation_id: str, request_id: str, code: str, began: float) -> None:
        caller = self._callers.get(session.name)
        if caller is not None and self._audit.is_on:
            outcome = "OK" if code == "ok" else code
            self._audit.record(
                "websocket", operation_id, caller, request_id=request_id, code=outcome, status=None, began=began
            )


class _NoTokens:
    """Refuses every token: the application has authenticated the peer before."""

    def authenticate(self, token: str | None) -> Principal:
        raise CallError(ErrorCode.ACCESS_DENIED, "no token is accepted: the application authenticates callers")


def _verified_token(scope: Scope, caller: Caller) -> str | None:
    """Return the token that the application verified. A handshake may contain a second, unverified token."""
    token = find_token(caller.headers)
    return websocket_token(scope) if token is None else token


def websocket_token(scope: Scope) -> str | None:
    """Return the token in the subprotocols of a handshake, where browsers send it; None if there is none."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == PROTOCOLS_HEADER.lower().encode()]
    return bearer_token("", split_protocols(lines))
