"""Progress of calls: delivery to a callback, with a bounded queue for slow callbacks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from operations.context import Progress

_log = logging.getLogger("operations")

MAX_EVENTS = 1_000
MAX_MESSAGE_CHARACTERS = 1024 * 1024


class ProgressEvent(NamedTuple):
    """One progress notification."""

    progress: float
    total: float | None
    message: str | None


class ProgressQueue:
    """Undelivered progress of one call; a full queue drops its oldest events."""

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
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
            len(self._events) > self._max_events or self._characters > MAX_MESSAGE_CHARACTERS
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
        """Wait for the next event and return it; return None when the call has ended and no event is left."""
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
        self._task: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Report an event in a separate task."""
        self._queue.put(ProgressEvent(progress, total, message))
        if not self._is_reporting:
            self._is_reporting = True
            self._task = asyncio.get_running_loop().create_task(self._deliver_all())

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report an event; while another event is being reported, queue the new one."""
        self._queue.put(ProgressEvent(progress, total, message))
        if not self._is_reporting:
            self._is_reporting = True
            await self._deliver_all()

    async def _deliver_all(self) -> None:
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
        except Exception as error:  # noqa: BLE001  # a failing callback must not end the call
            _log.warning("the progress callback failed: %s", error, exc_info=error)
