"""ChangeNotifications: notifies connected clients of changed lists and resources."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
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

from operations.context import Identity
from operations.serving.mcp.calls import INVALID_PARAMS, ProtocolError
from operations.serving.mcp.resources import MAX_URI_LENGTH, ResourceIndex
from operations.serving.mcp.server import LOG_LEVEL_KEY, MCPServer

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_MAX_WATCHED = 1_000
_MAX_WATCHED_LENGTH = 256 * 1024
"""Largest total number of characters of the URIs that one session or subscription watches."""
_SEND_SECONDS = 5.0
_DELAY_SECONDS = 0.02
"""Changes within this time cause only one notification, because a source registers many operations at a time."""


class ConnectionSettings:
    """The log level and subscriptions of one connection of a version before 2026-07-28."""

    def __init__(self) -> None:
        self.level = "debug"
        self.watched: dict[str, Identity | None] = {}
        """The caller that subscribed to each resource, by URI."""


subscriber: ContextVar[Identity | None] = ContextVar("subscriber", default=None)
"""The caller of the request that subscribes to a bus."""


class _Bus(InMemorySubscriptionBus):
    """A bus that does not deliver the changes of resources that the subscriber may not use."""

    def __init__(self, resource_index: ResourceIndex) -> None:
        super().__init__()
        self._resource_index = resource_index

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        identity = subscriber.get()

        def listen(event: ServerEvent) -> None:
            if not isinstance(event, ResourceUpdated) or not self._resource_index.hides(event.uri, identity):
                listener(event)

        return super().subscribe(listen)


class ChangeNotifications:
    """Watches a registry and notifies clients of changes.

    In version 2026-07-28, clients subscribe to changes. In earlier ones, all sessions are notified of changed lists.
    """

    def __init__(self, mcp_server: MCPServer) -> None:
        self.bus = _Bus(mcp_server.resource_index)
        self._mcp_server = mcp_server
        self._connections: weakref.WeakKeyDictionary[Connection, ConnectionSettings] = weakref.WeakKeyDictionary()
        self._fingerprint = mcp_server.resource_index.fingerprint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: Callable[[], None] | None = None

    def start(self) -> None:
        """Watch the registry."""
        self._loop = asyncio.get_running_loop()
        self._unwatch = self._mcp_server.exposure.registry.watch(self._changed)

    def stop(self) -> None:
        """Stop watching the registry."""
        if self._unwatch is not None:
            self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def settings(self, context: ServerRequestContext[Any, Any]) -> ConnectionSettings:
        """Return the settings of the connection of a request."""
        connection: Connection = context.session._connection
        found = self._connections.get(connection)
        if found is None:
            found = self._connections[connection] = ConnectionSettings()
        return found

    def watch(self, context: ServerRequestContext[Any, Any], uri: str, identity: Identity | None) -> None:
        """Subscribe the connection of a request to a resource."""
        watched = self.settings(context).watched
        check_uris([*{*watched, uri}])
        watched[uri] = identity

    def wants_log(self, context: ServerRequestContext[Any, Any], level: str) -> bool:
        """Whether a request's client requested log messages of a level."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            lowest = (context.meta or {}).get(LOG_LEVEL_KEY)
        else:
            lowest = self.settings(context).level
        return level in LEVELS and lowest in LEVELS and LEVELS.index(level) >= LEVELS.index(lowest)

    async def resource_updated(self, uri: str) -> None:
        """Notify the subscribers of a resource."""
        await self.bus.publish(ResourceUpdated(uri=uri))
        for connection, settings in list(self._connections.items()):
            if uri in settings.watched and not self._mcp_server.resource_index.hides(uri, settings.watched[uri]):
                await self._notify(connection, "notifications/resources/updated", {"uri": uri})

    def _changed(self) -> None:
        # The registry may change in any thread.
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(_DELAY_SECONDS, self._start_notifying)

    def _start_notifying(self) -> None:
        self._timer = None
        task = asyncio.ensure_future(self._notify_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify_all(self) -> None:
        before, self._fingerprint = self._fingerprint, self._mcp_server.resource_index.fingerprint
        events: list[tuple[ServerEvent, str]] = [(ToolsListChanged(), "tools")]
        if before[0] != self._fingerprint[0]:
            events.append((ResourcesListChanged(), "resources"))
        if before[1] != self._fingerprint[1]:
            events.append((PromptsListChanged(), "prompts"))
        for event, kind in events:
            await self.bus.publish(event)
            notifications = (
                self._notify(each, f"notifications/{kind}/list_changed", None) for each in list(self._connections)
            )
            await asyncio.gather(*notifications)

    @staticmethod
    async def _notify(connection: Connection, method: str, params: dict[str, Any] | None) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await connection.notify(method, params)
        except TimeoutError:
            return


def check_uris(uris: Sequence[str]) -> None:
    """Refuse a subscription to too many resources, or to resources with long URIs."""
    length = sum(map(len, uris))
    if len(uris) > _MAX_WATCHED or length > _MAX_WATCHED_LENGTH or any(len(uri) > MAX_URI_LENGTH for uri in uris):
        message = (
            f"too many subscriptions: expected at most {_MAX_WATCHED} URIs, "
            f"each with at most {MAX_URI_LENGTH} characters, and at most {_MAX_WATCHED_LENGTH} characters in total"
        )
        raise ProtocolError(INVALID_PARAMS, message)
