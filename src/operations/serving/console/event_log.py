"""EventLog: the latest changes of recorded calls, numbered, for feeds that read at their own speed."""

from __future__ import annotations

import os

from operations.telemetry.call_records import CallRecord, Change

_MOST_EVENTS = 8_192


class EventLog:
    """A ring buffer of changes. Each reader has its own position: a slow reader misses changes, but delays nobody."""

    def __init__(self, size: int = _MOST_EVENTS) -> None:
        self.epoch = os.urandom(6).hex()
        """Random id of this log. It is a part of event ids, so that an id from before a restart is refused."""
        self.last = 0
        """Number of the last change."""
        self._size = size
        self._ring: list[tuple[Change, CallRecord] | None] = [None] * size

    def append(self, change: Change, record: CallRecord) -> None:
        """Add a change; if the ring is full, the change replaces the oldest one."""
        self.last += 1
        self._ring[self.last % self._size] = change, record

    def after(self, position: int) -> tuple[list[tuple[int, Change, CallRecord]], int]:
        """Return the changes after a position, each with its number, and how many of them the ring no longer has."""
        first = max(position + 1, self.last - self._size + 1, 1)
        found = []
        for number in range(first, self.last + 1):
            entry = self._ring[number % self._size]
            if entry is not None:
                found.append((number, *entry))
        return found, max(0, first - position - 1)

    def name_of(self, position: int) -> str:
        """Return the event id of a position."""
        return f"{self.epoch}-{position}"

    def position_of(self, name: str) -> int | None:
        """Return the position of an event id; None if the id is invalid or belongs to another log."""
        epoch, _, digits = name.partition("-")
        if epoch != self.epoch or not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            return None
        position = int(digits)
        return position if position <= self.last else None
