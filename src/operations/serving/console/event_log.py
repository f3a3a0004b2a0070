"""EventLog: the last changes of calls, numbered, for feeds that read at their own speed."""

from __future__ import annotations

import os

from operations.telemetry.call_records import CallRecord, Change

_MOST_EVENTS = 8_192


class EventLog:
    """A ring of changes. Each reader has its own position: a slow reader misses changes and delays no other."""

    def __init__(self, size: int = _MOST_EVENTS) -> None:
        self.epoch = os.urandom(6).hex()
        """Random id of this log, so that a position in another log is recognised."""
        self.last = 0
        """Number of the last change."""
        self._size = size
        self._ring: list[tuple[Change, CallRecord] | None] = [None] * size

    def append(self, change: Change, record: CallRecord) -> None:
        """Add a change; if the ring is full, the change replaces the oldest one."""
        self.last += 1
        self._ring[self.last % self._size] = change, record

    def after(self, position: int) -> tuple[list[tuple[int, Change, CallRecord]], int]:
        """Return the changes after a position with their numbers, and how many of them are lost."""
        first = max(position + 1, self.last - self._size + 1, 1)
        found = []
        for number in range(first, self.last + 1):
            entry = self._ring[number % self._size]
            if entry is not None:
                found.append((number, *entry))
        return found, max(0, first - position - 1)

    def name_of(self, position: int) -> str:
        """Return the id of a position."""
        return f"{self.epoch}-{position}"

    def position_of(self, name: str) -> int | None:
        """Return the position with an id; None if it is invalid or belongs to another log."""
        epoch, _, digits = name.partition("-")
        if epoch != self.epoch or not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            return None
        position = int(digits)
        return position if position <= self.last else None
