"""Streamable HTTP by the SDK: sessions, resumable streams, and the 2026-07-28 requests outside the fast path."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
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
from operations.serving.mcp.sdk.server import CALLER, SDKServer, requester
from operations.serving.mcp.server import MCPServer

_log = logging.getLogger("operations.mcp")
_MAX_EVENTS = 256
_MAX_EVENT_BYTES = 1024 * 1024
_MAX_OPENING_BYTES = 64 * 1024
"""Largest size of the request that opens a session. The SDK stores the request's parameters until the session ends."""
MAX_SESSIONS = 1_000
SESSIONS_PER_IDENTITY = 64
"""Largest number of open sessions of one identity."""
STREAMS_PER_IDENTITY = 2 * SESSIONS_PER_IDENTITY
"""Largest number of open streams of one identity: one for each session, and the resumed streams of calls."""
LARGE_BYTES_PER_IDENTITY = 64 * 1024 * 1024
"""Largest total size of one identity's large sessions, which keep more than `_MAX_EVENT_BYTES` each.

The SDK keeps the last message of each session in both directions.
"""
SESSION_SECONDS = 30 * 60.0
RETRY_MS = 500


class SessionEvents(EventStore):
    """The latest events of a session's streams, for clients that reconnect. The oldest are dropped first.

    The last event is kept even if it is large; `grown` is then called.
    """

    def __init__(self, grown: Callable[[SessionEvents], None]) -> None:
        self.bytes = 0
        self._grown = grown
        self._token = os.urandom(8).hex()
        self._events: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        self._count = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event and return its id."""
        self._count += 1
        size = 0 if message is None else len(message.model_dump_json(by_alias=True, exclude_unset=True))
        self._events.append((self._count, stream_id, message, size))
        self.bytes += size
        while len(self._events) > 1 and (len(self._events) > _MAX_EVENTS or self.bytes > _MAX_EVENT_BYTES):
            self.bytes -= self._events.popleft()[3]
        if self.bytes > _MAX_EVENT_BYTES:
            self._grown(self)
        return f"{self._token}-{self._count}"

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the events after `last_event_id` in its stream; return the stream's id, or None for an unknown event."""
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


class _Session(msgspec.Struct, eq=False):
    """A session of the SDK, with its caller and its size, which count towards the caller's limits."""

    owner: str
    """The key (`Caller.key`) of the caller whose limits include this session."""
    events: SessionEvents
    received: int = 0
    """Size of the last message of the client."""

    @property
    def bytes(self) -> int:
        """Size of the stored messages."""
        return self.events.bytes + self.received


class _Manager(StreamableHTTPSessionManager):
    """A session manager with an event store per session, because stream ids are unique only within a session."""

    grown: Callable[[SessionEvents], None]
    """Called for each large event."""

    @property
    def event_store(self) -> EventStore | None:
        return SessionEvents(self.grown)

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None: ...


class SDKSessions:
    """Serves HTTP requests through the SDK. The first request that needs the SDK starts the SDK."""

    def __init__(self, mcp_server: MCPServer, *, max_body: int) -> None:
        self._sdk = SDKServer(mcp_server)
        self._manager = _Manager(
            self._sdk.server,
            retry_interval=RETRY_MS,
            session_idle_timeout=SESSION_SECONDS,
            max_request_body_size=max_body,
            max_sessions=MAX_SESSIONS,
        )
        self._manager.grown = self._limit_large
        self._sessions: dict[str, _Session] = {}
        """The open sessions by id, the least recently used first."""
        self._opening: Counter[str] = Counter()
        """Number of each caller's running requests that open a session."""
        self._ending: set[asyncio.Task[None]] = set()
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

    async def handle(self, scope: Any, receive: Any, send: Any, caller: Caller, size: int) -> None:
        """Serve a request with a body of `size` bytes. The SDK refuses a request to a session of another identity."""
        await self._started.wait()
        scope = {**scope, CALLER: caller}
        identity = caller.identity
        requester.set(identity)
        if identity is not None:
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=identity.id, scopes=[]))
        else:
            scope.pop("user", None)
        if scope["method"] == "GET":
            await self._stream(scope, receive, send, caller.key)
        elif _is_modern(scope):
            await self._manager.handle_request(scope, receive, send)
        elif (session_id := _session_id(scope)) is not None:
            self._receive(session_id, caller.key, size)
            await self._manager.handle_request(scope, receive, send)
        elif size > _MAX_OPENING_BYTES:
            await _refuse(send, 413, b"The request that opens a session has at most %d bytes" % _MAX_OPENING_BYTES)
        elif self._count(caller.key) + self._opening[caller.key] >= SESSIONS_PER_IDENTITY:
            await _refuse(send, 429, b"Too many open sessions")
        else:
            await self._open(scope, receive, send, caller.key)

    async def _stream(self, scope: Any, receive: Any, send: Any, key: str) -> None:
        """Serve a stream within its caller's limit: the SDK does not limit streams that begin at the same time."""
        try:
            self._streams.acquire(key)
        except CallError:
            await _refuse(send, 429, b"Too many open streams")
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
        self._forget_ended()
        return sum(session.owner == key for session in self._sessions.values())

    def _forget_ended(self) -> None:
        open_sessions = self._manager._server_instances  # the SDK does not report ended sessions
        self._sessions = {each: session for each, session in self._sessions.items() if each in open_sessions}

    def _receive(self, session_id: str, key: str, size: int) -> None:
        """Store the size of a message to a session; ignore a message of another identity, which the SDK refuses."""
        session = self._sessions.get(session_id)
        if session is None or not (session.owner == key or session.owner[:2] == key[:2] == "a:"):
            return
        del self._sessions[session_id]
        self._sessions[session_id] = session
        session.received = size
        if size > _MAX_EVENT_BYTES:
            self._limit_large(session.events)

    def _limit_large(self, events: SessionEvents) -> None:
        """Limit the large messages that the sessions of one caller keep: end the least recently used sessions.

        The session of `events`, which has just received or sent a large message, is not ended.
        """
        self._forget_ended()
        owner = next((session.owner for session in self._sessions.values() if session.events is events), None)
        large = [
            (session_id, session)
            for session_id, session in self._sessions.items()
            if session.owner == owner and session.bytes > _MAX_EVENT_BYTES and session.events is not events
        ]
        excess = sum(session.bytes for _, session in large) - LARGE_BYTES_PER_IDENTITY
        for session_id, session in large:
            if excess <= 0:
                return
            excess -= session.bytes
            _log.warning(
                "an MCP session of %r was ended: the large messages of this caller's sessions exceed the limit", owner
            )
            del self._sessions[session_id]
            ending = asyncio.create_task(self._manager._server_instances[session_id].terminate())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _record_session(self, key: str, send: Any) -> Any:
        async def send_recorded(event: Any) -> None:
            if event["type"] == "http.response.start":
                for name, value in event["headers"]:
                    if name.lower() == b"mcp-session-id":
                        session_id = value.decode("latin-1")
                        transport: Any = self._manager._server_instances.get(session_id)
                        if transport is not None:
                            self._sessions[session_id] = _Session(key, transport._event_store)
            await send(event)

        return send_recorded

    async def close(self) -> None:
        """End every session."""
        self._stop.set()
        await asyncio.wait((self._owner,), timeout=5)


def _is_modern(scope: Any) -> bool:
    """Whether the protocol version of a request is one without sessions, such as 2026-07-28, or an unknown one."""
    version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), None)
    return version is not None and version.decode("latin-1") not in HANDSHAKE_PROTOCOL_VERSIONS


def _session_id(scope: Any) -> str | None:
    """Return the session id in the headers of a request, or None."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"mcp-session-id"), None)


async def _refuse(send: Any, status: int, message: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"%b"}}' % message
    await Response(status, [JSON_TYPE], body).send(send)
