"""app: one registry as one ASGI application, over HTTP, MCP and WebSocket.

It owns one Exposure, one Admission and one Dispatcher, and hands each request to the door of its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from operations.context import new_request_id
from operations.dispatch import Dispatcher
from operations.errors import CallError, ErrorCode
from operations.identity.rate_limits import Failures, RateLimits
from operations.identity.tokens import AnyAuthenticator
from operations.registry import OperationRegistry
from operations.serving.admission import LOOPBACK_HOSTS, Admission, Caller, read_headers
from operations.serving.asgi import Headers, Receive, Response, Scope, Send, path_of
from operations.serving.audit import AuditLog
from operations.serving.exposure import Exposure
from operations.serving.http.document import DOCUMENT_PATH, DocumentDoor
from operations.serving.http.door import HTTPDoor
from operations.serving.http.pages import PAGES
from operations.serving.http.problems import problem_response
from operations.serving.http.shared_parts import TOKENS, Security
from operations.serving.limits import Limits
from operations.serving.refusals import RefusedError
from operations.serving.settings import MCP_PATH, METADATA_PATH, Settings

if TYPE_CHECKING:
    from operations.serving.websocket import WebSocketDoor

WEBSOCKET_PATH = "/ws"
_PREFLIGHT_SECONDS = b"600"
_PUBLIC_STARTS = frozenset({"/h", "/r", "/.", *(page[:2] for page in PAGES)})
"""How paths begin that everybody may read."""
_POLICY_VIOLATION = 1008
_REVOKED_WITHIN = 1.0
_log = logging.getLogger("operations.serving")
_JSON = (b"content-type", b"application/json")
Door = Callable[[Scope, Receive, Send, Caller], Awaitable[None]]


class ServedApp:
    """The ASGI application of a registry; made by `app`."""

    def __init__(self, registry: OperationRegistry, settings: Settings) -> None:
        self.settings = settings
        limits = settings.limits
        self.exposure = Exposure(registry, allow=settings.allow, deny=settings.deny, read_only=settings.read_only)
        self.dispatcher = Dispatcher(registry, concurrency=limits.concurrency, queue=limits.queue)
        self.streams = Dispatcher(registry, concurrency=limits.all_streams, queue=0)
        self.audit = AuditLog(settings.audit)
        self.admission = Admission(
            self.exposure,
            authenticator=settings.authenticator,
            allow_anonymous=settings.allow_anonymous,
            anonymous=settings.anonymous,
            hosts=settings.accepted_hosts,
            origins=settings.origins,
            audiences=settings.accepted_audiences,
            rate=RateLimits(limits.rate, limits.burst) if limits.rate is not None else None,
            failures=Failures(limits.failures),
            challenge=settings.challenge,
            challenges={} if settings.mcp_audience is None else {settings.mcp_audience: settings.mcp_challenge},
        )
        self.is_closing = False
        """Whether `/readyz` sends new callers elsewhere."""
        self.is_draining = False
        """Whether requests are refused."""
        self._http = HTTPDoor(
            self.exposure,
            self.dispatcher,
            streams=self.streams,
            limits=limits,
            audit=self.audit,
            store=settings.store,
            challenge=settings.challenge,
        )
        self._mcp = _MCP(self) if settings.mcp and find_spec("operations.serving.mcp") else None
        self._websocket: WebSocketDoor | None = None
        self._default: tuple[Door, str | None] = (self._http, None)
        self._doors: dict[str, tuple[Door, str | None]] = {}
        """The doors by path, each with the audience that only it accepts."""
        self._doors[DOCUMENT_PATH] = _document_door(self), None
        if self._mcp is not None:
            self._doors[MCP_PATH] = self._mcp, settings.mcp_audience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, one connection, or the server's start and end."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        path = path_of(scope)
        try:
            if path[:2] in _PUBLIC_STARTS:
                public = self._public(path)
                if public is not None:
                    await public.send(send, head_only=scope["method"] == "HEAD")
                    return
            headers = self._check(scope)
            if b"origin" in headers:
                readable = self._cross_origin(scope, headers, send)
                if readable is None:
                    await self._preflight(scope).send(send)
                    return
                send = readable
            door, audience = self._doors.get(path, self._default)
            caller = self.admission.admit_known(scope, headers, audience)
            if caller is None:
                caller = await self.admission.admit(scope, audience, None, headers)
        except CallError as error:
            await problem_response(error, new_request_id()).send(send, head_only=scope["method"] == "HEAD")
            return
        await door(scope, receive, send, caller)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)

    def _check(self, scope: Scope) -> dict[bytes, bytes]:
        """Return the headers of a request by name; refuse it while the server shuts down."""
        if self.is_draining:
            closes = [(b"connection", b"close")]
            raise RefusedError(503, ErrorCode.UNAVAILABLE, "the server is shutting down", "DRAINING", closes)
        return read_headers(scope)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Run what the doors need; at the end, finish what runs.

        An application that mounts this one enters it in its own lifespan. Without that, the doors start when they are
        first used, and nothing is drained.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self._mcp is not None:
                await stack.enter_async_context(self._mcp.run())
            if hasattr(self.admission.authenticator, "has_changed"):
                watching = asyncio.create_task(self._watch_revocations())
                stack.callback(watching.cancel)
            try:
                yield
            finally:
                await self.drain()

    async def drain(self) -> None:
        """Refuse new requests, wait for those that run, and stop what runs for too long."""
        self.is_draining = True
        await self.streams.close()  # clients resume at another server
        grace = self.settings.limits.drain_seconds
        if self._websocket is not None:
            await self._websocket.drain(grace)
        await self.dispatcher.drain(grace)
        await self.dispatcher.close()

    async def revoke(self) -> None:
        """Verify every token again, and end streams and connections: whoever is still admitted comes back."""
        self.admission.cache.clear()
        await self.streams.close()
        if self._websocket is not None:
            await self._websocket.close()

    @property
    def has_default_hosts(self) -> bool:
        """Whether only the names of loopback are accepted as hosts."""
        return tuple(self.settings.accepted_hosts) == LOOPBACK_HOSTS

    async def _watch_revocations(self) -> None:
        while True:
            await asyncio.sleep(_REVOKED_WITHIN)
            try:
                if self.admission.refresh():
                    await self.revoke()
            except CallError as error:  # the last good state stays
                _log.warning("revocations cannot be read: %s", error.message)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the call protocol at its path; refuse any other connection."""
        try:
            if path_of(scope) != WEBSOCKET_PATH or not self.settings.websocket or self.is_draining:
                raise RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, "no WebSocket is served here", "NOT_SERVED")
            from operations.serving.websocket import WebSocketDoor, websocket_token

            caller = await self.admission.admit(scope, None, websocket_token(scope))
        except CallError:
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if self._websocket is None:
            self._websocket = WebSocketDoor(self.exposure, self.settings.limits)
        await self._websocket(scope, receive, send, caller)

    def _public(self, path: str) -> Response | None:
        """Return the answer at a path that everybody may read, whoever asks."""
        if path == "/healthz":
            return Response(200, [_JSON], b'{"status":"ok"}')
        if path == "/readyz":
            if self.is_closing or self.is_draining:
                return Response(503, [_JSON], b'{"status":"draining"}')
            return Response(200, [_JSON], b'{"status":"ready"}')
        if path in PAGES:
            return PAGES[path].response()
        if path.startswith(METADATA_PATH):
            return self._metadata(path[len(METADATA_PATH) :])
        return None

    def _metadata(self, resource: str) -> Response | None:
        """Return the metadata of a protected resource (RFC 9728)."""
        settings = self.settings
        if settings.public_url is None or not settings.authorization_servers or resource not in ("", "/", MCP_PATH):
            return None
        metadata = {
            "resource": settings.public_url + (MCP_PATH if resource == MCP_PATH else ""),
            "authorization_servers": list(settings.authorization_servers),
            "bearer_methods_supported": ["header"],
        }
        return Response(200, [_JSON, (b"access-control-allow-origin", b"*")], msgspec.json.encode(metadata))

    def _cross_origin(self, scope: Scope, headers: Mapping[bytes, bytes], send: Send) -> Send | None:
        """Return a `send` that lets a configured page of another host read the response; None for a preflight."""
        self.admission.check_source(headers)
        origin = headers[b"origin"]
        if not self.admission.is_foreign_allowed(origin):
            return send
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return None

        async def send_readable(event: Any) -> None:
            if event["type"] == "http.response.start":
                exposed = b"Operations-Request-Id, Operations-Source, Operations-Upstream-Status, Retry-After"
                event["headers"] = [
                    *event["headers"],
                    (b"access-control-allow-origin", origin),
                    (b"access-control-expose-headers", exposed),
                    (b"vary", b"Origin"),
                ]
            await send(event)

        return send_readable

    def _preflight(self, scope: Scope) -> Response:
        """Return the answer to a browser that asks whether a configured page may send a request."""
        headers = dict(scope["headers"])
        allowed: Headers = [
            (b"access-control-allow-origin", headers[b"origin"]),
            (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS"),
            (b"access-control-max-age", _PREFLIGHT_SECONDS),
            (b"vary", b"Origin"),
        ]
        wanted = headers.get(b"access-control-request-headers")
        if wanted is not None:
            allowed.append((b"access-control-allow-headers", wanted))
        return Response(204, allowed)


def app(
    registry: OperationRegistry,
    *,
    authenticator: AnyAuthenticator | None = None,
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    read_only: bool = False,
    mcp: bool = True,
    websocket: bool = True,
    limits: Limits | None = None,
    **settings: Any,
) -> ServedApp:
    """Return a registry as an ASGI application.

    `allow` and `deny` are shell patterns on ids; `read_only` serves no mutations. Without an authenticator callers are
    anonymous: they may call what requires no rights. Further settings are the fields of `Settings`.
    """
    return ServedApp(
        registry,
        Settings(
            authenticator=authenticator,
            allow=allow,
            deny=deny,
            read_only=read_only,
            mcp=mcp,
            websocket=websocket,
            limits=limits or Limits(),
            **settings,
        ),
    )


class _MCP:
    """The MCP door, imported and started when it is first needed."""

    def __init__(self, served: ServedApp) -> None:
        self._served = served
        self._door: Any = None
        self._is_running = False
        self._background: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Answer one request; without a lifespan, the door runs in a task of its own from now on."""
        if not self._is_running:
            await self._run_in_background()
        await self._door(scope, receive, send, caller)

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the door within the block."""
        async with self._open().run():
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False

    def _open(self) -> Any:
        from operations.serving.mcp.door import MCPDoor  # type: ignore[import-not-found, unused-ignore]

        served = self._served
        limits = served.settings.limits
        self._door = MCPDoor(
            served.exposure,
            served.dispatcher,
            name=served.settings.title,
            version=served.settings.version,
            audit=served.audit,
            state_key=served.settings.state_key,
            max_body=limits.body_bytes,
            calls_each=limits.calls,
            deadline_seconds=limits.deadline_seconds,
        )
        return self._door

    async def _run_in_background(self) -> None:
        if self._background is None or self._background.done():
            self._ready = asyncio.get_running_loop().create_future()
            self._background = asyncio.create_task(self._run_forever(self._ready))
        assert self._ready is not None
        await asyncio.shield(self._ready)

    async def _run_forever(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.run():
                ready.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:  # whoever waits for the door gets it
            if ready.done():
                raise
            ready.set_exception(error)


def _document_door(served: ServedApp) -> DocumentDoor:
    settings = served.settings
    security = Security()
    if settings.authenticator is not None:
        security = Security(TOKENS.schemes, anonymous=settings.allow_anonymous is True)
    return DocumentDoor(
        served.exposure,
        title=settings.title,
        version=settings.version,
        servers=() if settings.public_url is None else (settings.public_url,),
        security=security,
    )
