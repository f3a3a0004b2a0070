"""Changes: notifications that lists or resources changed, to the clients that are connected and want them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from operations.serving.mcp.endpoint import LOG_LEVEL_KEY, Endpoint

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_MOST_WATCHED = 1_000
_SEND_SECONDS = 5.0
_DELAY_SECONDS = 0.02
"""Changes this close together are told once: sources register many operations at a time."""


class Session:
    """What one connection of a version before 2026-07-28 asked for."""

    def __init__(self) -> None:
        self.level = "debug"
        self.watched: set[str] = set()


class Changes:
    """Watches a registry while it runs, and tells clients: by their subscriptions, or earlier ones by their session."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.bus = InMemorySubscriptionBus()
        self._endpoint = endpoint
        self._sessions: weakref.WeakKeyDictionary[Connection, Session] = weakref.WeakKeyDictionary()
        self._fingerprint = endpoint.offers.fingerprint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: Callable[[], None] | None = None

    def start(self) -> None:
        """Watch the registry."""
        self._loop = asyncio.get_running_loop()
        self._unwatch = self._endpoint.exposure.registry.watch(self._changed)

    def stop(self) -> None:
        """Watch it no longer."""
        if self._unwatch is not None:
            self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def session(self, context: ServerRequestContext[Any, Any]) -> Session:
        """Return what the connection of a request asked for."""
        connection: Connection = context.session._connection
        found = self._sessions.get(connection)
        if found is None:
            found = self._sessions[connection] = Session()
        return found

    def watch(self, context: ServerRequestContext[Any, Any], uri: str) -> None:
        """Tell a session when a resource changes."""
        watched = self.session(context).watched
        if len(watched) < _MOST_WATCHED:
            watched.add(uri)

    def wants_log(self, context: ServerRequestContext[Any, Any], level: str) -> bool:
        """Whether a request's client wants log messages of a level."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            lowest = (context.meta or {}).get(LOG_LEVEL_KEY)
        else:
            lowest = self.session(context).level
        return level in LEVELS and lowest in LEVELS and LEVELS.index(level) >= LEVELS.index(lowest)

    async def resource_updated(self, uri: str) -> None:
        """Tell those that watch a resource that it changed."""
        await self.bus.publish(ResourceUpdated(uri=uri))
        for connection, session in list(self._sessions.items()):
            if uri in session.watched:
                await self._tell(connection, "notifications/resources/updated", {"uri": uri})

    def _changed(self) -> None:
        # The registry may be changed in any thread.
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(_DELAY_SECONDS, self._start_telling)

    def _start_telling(self) -> None:
        self._timer = None
        task = asyncio.ensure_future(self._tell_everybody())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_everybody(self) -> None:
        before, self._fingerprint = self._fingerprint, self._endpoint.offers.fingerprint
        events: list[tuple[ServerEvent, str]] = [(ToolsListChanged(), "tools")]
        if before[0] != self._fingerprint[0]:
            events.append((ResourcesListChanged(), "resources"))
        if before[1] != self._fingerprint[1]:
            events.append((PromptsListChanged(), "prompts"))
        for event, kind in events:
            await self.bus.publish(event)
            told = (self._tell(each, f"notifications/{kind}/list_changed", None) for each in list(self._sessions))
            await asyncio.gather(*told)

    @staticmethod
    async def _tell(connection: Connection, method: str, params: dict[str, Any] | None) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await connection.notify(method, params)
        except TimeoutError:
            return
