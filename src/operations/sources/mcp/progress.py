"""Progress of calls: delivery to a callback or a subscriber, bounded when they are slower than the server."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, NamedTuple

from operations.context import Progress
from operations.envelope import MCPResponseMeta, ResponseEnvelope, mcp_envelope

_log = logging.getLogger("operations.mcp")

MAX_EVENTS = 1_000
MAX_MESSAGE_CHARACTERS = 1024 * 1024
EVENT = "operations/event"
"""The `_meta` key that marks progress events of a subscription; a final result does not have it."""


class ProgressEvent(NamedTuple):
    """One progress notification."""

    progress: float
    total: float | None
    message: str | None


class ProgressQueue:
    """Undelivered progress of one call; a full queue drops its oldest events."""

    def __init__(self, *, max_events: int = MAX_EVENTS, max_message_characters: int = MAX_MESSAGE_CHARACTERS) -> None:
        self._max_events = max_events
        self._max_characters = max_message_characters
        self._events: deque[ProgressEvent] = deque()
        self._characters = 0
        self._has_ended = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: ProgressEvent) -> None:
        """Add an event; the newest one is always kept."""
        self._events.append(event)
        self._characters += len(event.message or "")
        while len(self._events) > 1 and (
            len(self._events) > self._max_events or self._characters > self._max_characters
        ):
            self.take()
        self._changed.set()

    def take(self) -> ProgressEvent:
        """Remove and return the oldest event."""
        event = self._events.popleft()
        self._characters -= len(event.message or "")
        return event

    def end(self) -> None:
        """Mark the end of the call."""
        self._has_ended = True
        self._changed.set()

    async def get(self) -> ProgressEvent | None:
        """Wait for the next event; None after the end."""
        while not self._events and not self._has_ended:
            self._changed.clear()
            await self._changed.wait()
        return self.take() if self._events else None


class ProgressReporter:
    """Calls a progress callback for one event at a time, in order."""

    def __init__(self, report: Progress) -> None:
        self._report = report
        self._queue = ProgressQueue()
        self._is_reporting = False

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report an event, or queue it while another is being reported."""
        self._queue.put(ProgressEvent(progress, total, message))
        if self._is_reporting:
            return
        self._is_reporting = True
        try:
            while self._queue:
                await self._deliver(self._queue.take())
        finally:
            self._is_reporting = False

    async def _deliver(self, event: ProgressEvent) -> None:
        try:
            outcome = self._report(*event)
            if outcome is not None:
                await outcome
        except Exception as error:  # noqa: BLE001  # a failing callback must not end the session
            _log.warning("the progress callback failed: %s", error, exc_info=error)


def progress_envelope(event: ProgressEvent) -> ResponseEnvelope[dict[str, Any]]:
    """Return the envelope of a progress event; `is_progress` distinguishes it from the result."""
    data = {name: value for name, value in event._asdict().items() if value is not None}
    return mcp_envelope(data, extensions={EVENT: "progress"})


def is_progress(envelope: ResponseEnvelope[Any]) -> bool:
    """Whether an event of a subscription reports progress; its last event, the result, does not."""
    meta = envelope.meta
    return isinstance(meta, MCPResponseMeta) and (meta.extensions or {}).get(EVENT) == "progress"
