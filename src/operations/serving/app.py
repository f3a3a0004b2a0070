"""app: a registry as one ASGI application that serves HTTP, MCP and WebSocket.

The application owns one Exposure, one Admission and one Dispatcher. It passes each request to the endpoint of its path.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from operations.context import new_request_id
from operations.dispatch import Dispatcher
from operations.errors import CallError, ErrorCode
from operations.identity.rate_limits import FailureLimits, RateLimits
from operations.identity.tokens import AnyAuthenticator, check_authenticator
from operations.registry import OperationRegistry
from operations.serving.admission import Admission, Caller, is_preflight, preflight_response, read_headers, readable_by
from operations.serving.asgi import JSON_TYPE, Receive, Response, Scope, Send, path_of
from operations.serving.audit import AuditWriter
from operations.serving.exposure import Exposure
from operations.serving.http.document import DOCUMENT_PATH, PAGES, DocumentCache, DocumentEndpoint
from operations.serving.http.endpoint import HTTPEndpoint
from operations.serving.http.problems import problem_response
from operations.serving.http.shared_components import TOKENS, Security
from operations.serving.limits import Limits
from operations.serving.metrics import METRICS_PATH, MetricsEndpoint
from operations.serving.refusals import RefusedError
from operations.serving.settings import MCP_PATH, METADATA_PATH, AppSettings
from operations.settings import read_settings
from operations.telemetry.health import PROBE_TYPE, answer_probe
from operations.telemetry.metrics import CallMetrics

if TYPE_CHECKING:
    from operations.serving.console.console import Console
    from operations.serving.websocket import WebSocketEndpoint

WEBSOCKET_PATH = "/ws"
CONSOLE_API = "/console/api/"
_PUBLIC_STARTS = frozenset({"/c", "/h", "/r", "/.", *(page[:2] for page in PAGES)})
"""The first two characters of every public path: a request whose path begins otherwise is not public."""
_POLICY_VIOLATION = 1008
_REVOKED_WITHIN = 1.0
_log = logging.getLogger("operations.serving")
_PROBE = (b"content-type", PROBE_TYPE.encode())
Endpoint = Callable[[Scope, Receive, Send, Caller], Awaitable[None]]


class ServedApp:
    """The ASGI application of a registry, created by `app`."""

    def __init__(self, registry: OperationRegistry, settings: AppSettings) -> None:
        self.settings = settings
        limits = settings.limits
        self.exposure = Exposure(registry, allow=settings.allow, deny=settings.deny, read_only=settings.read_only)
        self.dispatcher = Dispatcher(registry, concurrency=limits.concurrency, queue=limits.queue)
        self.streams = Dispatcher(registry, concurrency=limits.all_streams, queue=0)
        self.audit = AuditWriter(settings.audit)
        self.admission = Admission(
            self.exposure,
            authenticator=settings.authenticator,
            allow_anonymous=settings.admits_anonymous,
            anonymous=settings.anonymous,
            hosts=settings.accepted_hosts,
            origins=settings.origins,
            audiences=settings.accepted_audiences,
            rate=RateLimits(limits.rate, limits.burst) if limits.rate is not None else None,
            failures=FailureLimits(limits.failures),
            challenge=settings.challenge,
            challenges={} if settings.mcp_audience is None else {settings.mcp_audience: settings.mcp_challenge},
        )
        self._watching: asyncio.Task[None] | None = None
        self.is_closing = False
        """Whether `/readyz` reports that the server is shutting down."""
        self.is_draining = False
        """Whether new requests are refused."""
        self._mcp = LazyMCP(functools.partial(_make_mcp, self)) if settings.mcp else None
        self._websocket: WebSocketEndpoint | None = None
        self._default: tuple[Endpoint, str | None] = (_refuse_path, None)
        self._endpoints: dict[str, tuple[Endpoint, str | None]] = {}
        """Endpoints by path, each with the token audience that only this endpoint accepts."""
        if settings.http:
            self._default = _http(self), None
            self._endpoints[DOCUMENT_PATH] = DocumentEndpoint(_documents(self)), None
        if self._mcp is not None:
            self._endpoints[MCP_PATH] = self._mcp, settings.mcp_audience
        if settings.metrics:
            registry.observers = (*registry.observers, CallMetrics())
            metrics = MetricsEndpoint(self._measurable, is_open=settings.is_open)
            self._endpoints[METRICS_PATH] = metrics, None
        self.console: Console | None = None
        if settings.console:
            from operations.serving.console.console import Console

            self.console = Console(self.exposure, settings, lambda: self.dispatchers)

    @property
    def dispatchers(self) -> tuple[Dispatcher, ...]:
        """The dispatchers of HTTP and MCP, of streams, and of WebSocket peers."""
        return (self.dispatcher, self.streams, *(() if self._websocket is None else self._websocket.dispatchers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request, a WebSocket connection or the lifespan."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        path = path_of(scope)
        try:
            if path[:2] in _PUBLIC_STARTS:
                public = self._public(scope, path)
                if public is not None:
                    await public.send(send, head_only=scope["method"] == "HEAD")
                    return
            headers = self._check(scope)
            if b"origin" in headers:
                self.admission.check_source(headers)
                if self.admission.is_foreign_allowed(headers[b"origin"]):
                    if is_preflight(scope, headers):
                        await preflight_response(headers).send(send)
                        return
                    send = readable_by(headers[b"origin"], send)
            endpoint, audience = self._endpoints.get(path, self._default)
            if self.console is not None and path.startswith(CONSOLE_API):
                endpoint = self.console
            caller = self.admission.admit_known(scope, headers, audience)
            if caller is None:
                self._watch()
                caller = await self.admission.admit(scope, audience, None, headers)
        except CallError as error:
            await problem_response(error, new_request_id()).send(send, head_only=scope["method"] == "HEAD")
            return
        await endpoint(scope, receive, send, caller)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket connection or the lifespan."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)

    def _check(self, scope: Scope) -> dict[bytes, bytes]:
        """Return the headers of a request by name. Refuse the request while the server shuts down."""
        if self.is_draining:
            closes = [(b"connection", b"close")]
            raise RefusedError(503, ErrorCode.UNAVAILABLE, "the server is shutting down", "DRAINING", closes)
        return read_headers(scope)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start the endpoints; on exit, drain running calls.

        An application that mounts this application enters this context manager in its own lifespan. If it does not,
        the endpoints start on first use, and running calls are not drained.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self._mcp is not None:
                await stack.enter_async_context(self._mcp.run())
            if self.console is not None:
                warming = asyncio.create_task(self.console.warm())
                stack.callback(warming.cancel)
            self._watch()
            try:
                yield
            finally:
                if self._watching is not None:
                    self._watching.cancel()
                await self.drain()

    async def drain(self) -> None:
        """Refuse new requests, end streams, wait up to `drain_seconds` for running calls, then cancel the rest."""
        self.is_draining = True
        if self.console is not None:
            self.console.close()
        await self.streams.close()  # clients can resume at another server
        grace = self.settings.limits.drain_seconds
        waiting = [self.dispatcher.drain(grace)]
        if self._websocket is not None:
            waiting.append(self._websocket.drain(grace))
        await asyncio.gather(*waiting)
        await self.dispatcher.close()

    async def revoke(self) -> None:
        """Forget verified tokens, and close streams and connections. Clients with valid tokens can reconnect."""
        self.admission.forget()
        await self.streams.close()
        if self._mcp is not None:
            self._mcp.end_streams()
        if self.console is not None:
            self.console.end_feeds()
        if self._websocket is not None:
            self._websocket.disconnect("tokens were revoked")

    def _watch(self) -> None:
        """Start the task that checks for revoked tokens, unless the task is running.

        Without a lifespan, the first request with a token that must be verified starts the task.
        """
        if hasattr(self.admission.authenticator, "has_changed") and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch_revocations())

    async def _watch_revocations(self) -> None:
        while True:
            await asyncio.sleep(_REVOKED_WITHIN)
            try:
                if self.admission.refresh():
                    await self.revoke()
            except CallError as error:  # the keys that were read last stay valid
                _log.warning("cannot read revocations: %s", error.message)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the call protocol at `/ws`; refuse any other connection."""
        try:
            if path_of(scope) != WEBSOCKET_PATH or not self.settings.websocket or self.is_draining:
                raise RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, "no WebSocket is served here", "NOT_SERVED")
            from operations.serving.websocket import WebSocketEndpoint, websocket_token

            self._watch()
            caller = await self.admission.admit(scope, None, websocket_token(scope))
        except CallError:
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        if self._websocket is None:
            limits, rate = self.settings.limits, self.admission.rate
            self._websocket = WebSocketEndpoint(self.exposure, limits, self.settings.hub, self.audit, rate=rate)
        await self._websocket(scope, receive, send, caller)

    def _measurable(self) -> tuple[object, ...]:
        """Return the objects whose metrics `/metrics` reports."""
        websocket: tuple[object, ...] = () if self.settings.hub is None else (self.settings.hub,)
        if self._websocket is not None:
            websocket = self._websocket.measurable
        dispatchers = (self.dispatcher, self.streams)
        return (self.exposure.registry, *dispatchers, *(each.counters for each in dispatchers), *websocket)

    def _public(self, scope: Scope, path: str) -> Response | None:
        """Return the response of a public path, which needs no credentials; None for any other path."""
        if self.console is not None and (page := self.console.page(scope, path)) is not None:
            return page
        probed = answer_probe(path, "stopping" if self.is_closing or self.is_draining else None)
        if probed is not None:
            return Response(probed[0], [_PROBE], probed[1])
        if path in PAGES and self.settings.http:
            return PAGES[path].response()
        if path.startswith(METADATA_PATH):
            return self._metadata(path[len(METADATA_PATH) :])
        return None

    def _metadata(self, resource: str) -> Response | None:
        """Return the OAuth metadata of a protected resource (RFC 9728); None if there is none for this path."""
        settings = self.settings
        if settings.public_url is None or not settings.authorization_servers or resource not in ("", "/", MCP_PATH):
            return None
        metadata = {
            "resource": settings.public_url + (MCP_PATH if resource == MCP_PATH else ""),
            "authorization_servers": list(settings.authorization_servers),
            "bearer_methods_supported": ["header"],
        }
        return Response(200, [JSON_TYPE, (b"access-control-allow-origin", b"*")], msgspec.json.encode(metadata))


def app(
    registry: OperationRegistry,
    *,
    authenticator: AnyAuthenticator | None = None,
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    read_only: bool = False,
    mcp: bool = True,
    websocket: bool = True,
    limits: Limits | Mapping[str, Any] | None = None,
    **settings: Any,
) -> ServedApp:
    """Return a registry as an ASGI application.

    `allow` and `deny` are shell patterns for operation ids. `read_only` leaves mutations out. Without an authenticator,
    callers are anonymous and may call operations without access requirements. Further settings are the fields of
    `AppSettings`.
    """
    if authenticator is not None:
        check_authenticator(authenticator)
    return ServedApp(
        registry,
        AppSettings(
            authenticator=authenticator,
            allow=allow,
            deny=deny,
            read_only=read_only,
            mcp=mcp,
            websocket=websocket,
            limits=read_settings({} if limits is None else limits, Limits, "limits"),
            **settings,
        ),
    )


def mcp_server(registry: OperationRegistry, **settings: Any) -> ServedApp:
    """Return a registry as an ASGI application that serves only MCP, at `/mcp`. The settings are those of `app`."""
    return app(registry, websocket=False, http=False, **settings)


def _http(served: ServedApp) -> HTTPEndpoint:
    settings = served.settings
    return HTTPEndpoint(
        served.exposure,
        served.dispatcher,
        streams=served.streams,
        limits=settings.limits,
        audit=served.audit,
        store=settings.store,
        jobs=settings.jobs,
        challenge=settings.challenge,
    )


async def _refuse_path(scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
    """Refuse a request to a path without an endpoint. With `http=False`, operations have no paths."""
    message = f"nothing is served at this path: operations are called over MCP, at {MCP_PATH}"
    refused = RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, message, "NOT_SERVED")
    await problem_response(refused, new_request_id()).send(send, head_only=scope["method"] == "HEAD")


def _make_mcp(served: ServedApp) -> Any:
    from operations.serving.mcp.endpoint import MCPEndpoint
    from operations.serving.mcp.server import MCPServer

    settings = served.settings
    mcp_server = MCPServer(
        served.exposure,
        served.dispatcher,
        streams=served.streams,
        name=settings.title,
        version=settings.version,
        audit=served.audit,
        state_key=settings.state_key,
        search=settings.search,
        code=settings.code,
        jobs=settings.jobs,
        limits=settings.limits,
    )
    return MCPEndpoint(mcp_server)


def _documents(served: ServedApp) -> DocumentCache:
    settings = served.settings
    security = Security()
    if settings.authenticator is not None:
        security = Security(TOKENS.schemes, anonymous=settings.allow_anonymous is True)
    return DocumentCache(
        served.exposure,
        title=settings.title,
        version=settings.version,
        servers=() if settings.public_url is None else (settings.public_url,),
        has_jobs=settings.jobs is not None,
        security=security,
    )


class LazyMCP:
    """The MCP endpoint. `make` creates the endpoint when it starts, because its modules are slow to import."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._endpoint: Any = None
        self._is_running = False
        self._background: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request. Without a lifespan, the first request starts the endpoint in a background task."""
        if not self._is_running:
            await self._run_in_background()
        await self._endpoint(scope, receive, send, caller)

    def end_streams(self) -> None:
        """End the streams of notifications."""
        if self._endpoint is not None:
            self._endpoint.end_streams()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Run the endpoint within the block."""
        self._endpoint = self._make()
        async with self._endpoint.run():
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False

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
        except Exception as error:  # raised in the requests that wait for the start
            if ready.done():
                raise
            ready.set_exception(error)
