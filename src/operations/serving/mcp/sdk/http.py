"""Streamable HTTP by the SDK: sessions, resumable streams, and the 2026-07-28 requests outside the fast path."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from operations.errors import CallError
from operations.identity.rate_limits import ConcurrencyLimits
from operations.serving.admission import Caller
from operations.serving.asgi import JSON_TYPE, Response
from operations.serving.mcp.sdk.server import CALLER, SDKServer
from operations.serving.mcp.server import MCPServer

_MAX_EVENTS = 256
_MAX_EVENT_BYTES = 1024 * 1024
MAX_SESSIONS = 1_000
SESSIONS_PER_IDENTITY = 64
"""Largest number of open sessions of one identity."""
STREAMS_PER_IDENTITY = 2 * SESSIONS_PER_IDENTITY
"""Largest number of open streams of one identity: one of each session, and streams of calls that are resumed."""
SESSION_SECONDS = 30 * 60.0
RETRY_MS = 500


class SessionEvents(EventStore):
    """The latest events of a session's streams, for clients that reconnect. The oldest are dropped first."""

    def __init__(self) -> None:
        self._token = os.urandom(8).hex()
        self._events: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        self._count = 0
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event and return its id."""
        self._count += 1
        size = 0 if message is None else len(message.model_dump_json(by_alias=True, exclude_unset=True))
        self._events.append((self._count, stream_id, message, size))
        self._bytes += size
        while len(self._events) > 1 and (len(self._events) > _MAX_EVENTS or self._bytes > _MAX_EVENT_BYTES):
            self._bytes -= self._events.popleft()[3]
        return f"{self._token}-{self._count}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the events of a stream after an id; return None for an id of another session."""
        token, _, number = last_event_id.rpartition("-")
        if token != self._token or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        last = int(number)
        stream = next((stream for count, stream, _, _ in self._events if count == last), None)
        if stream is None:
            return None
        for count, of, message, _ in list(self._events):
            if of == stream and count > last and message is not None:
                await send_callback(EventMessage(message, f"{self._token}-{count}"))
        return stream


class _Manager(StreamableHTTPSessionManager):
    """A session manager with an event store per session, because stream ids are unique only within a session."""

    @property
    def event_store(self) -> EventStore | None:
        return SessionEvents()

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None: ...


class SDKSessions:
    """Serves HTTP requests through the SDK. The first request that needs the SDK starts it."""

    def __init__(self, mcp_server: MCPServer, *, max_body: int) -> None:
        self._sdk = SDKServer(mcp_server)
        self._manager = _Manager(
            self._sdk.server,
            retry_interval=RETRY_MS,
            session_idle_timeout=SESSION_SECONDS,
            max_request_body_size=max_body,
            max_sessions=MAX_SESSIONS,
        )
        self._sessions: dict[str, str] = {}
        """The owner of each session."""
        self._opening: Counter[str] = Counter()
        """The requests of each caller that open a session."""
        self._streams = ConcurrencyLimits(STREAMS_PER_IDENTITY, "streams")
        self._started = asyncio.Event()
        self._stop = asyncio.Event()
        self._owner = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Keep the SDK's task group open in one task: the task that enters it must also leave it."""
        async with self._manager.run():
            self._sdk.changes.start()
            self._started.set()
            try:
                await self._stop.wait()
            finally:
                self._sdk.changes.stop()

    async def handle(self, scope: Any, receive: Any, send: Any, caller: Caller) -> None:
        """Serve a request. The SDK refuses a session of another identity."""
        await self._started.wait()
        scope = {**scope, CALLER: caller}
        identity = caller.identity
        if identity is not None:
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=identity.id, scopes=[]))
        else:
            scope.pop("user", None)
        if scope["method"] == "GET":
            await self._stream(scope, receive, send, caller.key)
        elif any(name == b"mcp-session-id" for name, _ in scope["headers"]) or _is_modern(scope):
            await self._manager.handle_request(scope, receive, send)
        elif self._count(caller.key) + self._opening[caller.key] >= SESSIONS_PER_IDENTITY:
            await _refuse(send, b"Too many open sessions")
        else:
            await self._open(scope, receive, send, caller.key)

    async def _stream(self, scope: Any, receive: Any, send: Any, key: str) -> None:
        """Serve a stream. The SDK admits any number of streams of a session that are requested at the same time."""
        try:
            self._streams.acquire(key)
        except CallError:
            await _refuse(send, b"Too many open streams")
            return
        try:
            await self._manager.handle_request(scope, receive, send)
        finally:
            self._streams.release(key)

    async def _open(self, scope: Any, receive: Any, send: Any, key: str) -> None:
        """Serve a request that opens a session."""
        self._opening[key] += 1
        try:
            await self._manager.handle_request(scope, receive, self._record_session(key, send))
        finally:
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]

    def _count(self, key: str) -> int:
        """Return the number of open sessions of a caller."""
        open_sessions = self._manager._server_instances  # the SDK does not report ended sessions
        self._sessions = {each: whose for each, whose in self._sessions.items() if each in open_sessions}
        return sum(whose == key for whose in self._sessions.values())

    def _record_session(self, key: str, send: Any) -> Any:
        async def send_recorded(event: Any) -> None:
            if event["type"] == "http.response.start":
                for name, value in event["headers"]:
                    if name.lower() == b"mcp-session-id":
                        self._sessions[value.decode("latin-1")] = key
            await send(event)

        return send_recorded

    async def close(self) -> None:
        """End every session."""
        self._stop.set()
        await asyncio.wait((self._owner,), timeout=5)


def _is_modern(scope: Any) -> bool:
    """Whether the protocol version of a request is one without sessions, such as 2026-07-28."""
    version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), None)
    return version is not None and version.decode("latin-1") not in HANDSHAKE_PROTOCOL_VERSIONS


async def _refuse(send: Any, message: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"%b"}}' % message
    await Response(429, [JSON_TYPE], body).send(send)
