"""Sampler: limits how many calls a feed reports per second, so that a busy server does not flood a page."""

from __future__ import annotations

from collections.abc import Sequence

from operations.telemetry.call_records import CallRecord, Change

PER_SECOND = 200
_MOST_FOLLOWED = 10_000
Entry = tuple[int, Change, CallRecord]


class Sampler:
    """Chooses the calls that one feed reports: at most `per_second` new ones, failed calls first.

    Every later change of a chosen call is reported.
    """

    def __init__(self, per_second: float = PER_SECOND) -> None:
        self.skipped = 0
        """Number of changes that were left out."""
        self._per_second = per_second
        self._budget = per_second
        self._followed: dict[int, None] = {}
        """The numbers of the calls that were chosen and still run."""

    def choose(self, entries: Sequence[Entry], seconds: float) -> list[Entry]:
        """Return the changes in `entries` that the feed sends. `seconds` is the time since the last choice."""
        self._budget = min(self._per_second, self._budget + seconds * self._per_second)
        chosen = {record.number for _, _, record in entries if record.number in self._followed}
        new = {record.number: record for _, _, record in entries if record.number not in chosen}
        for record in sorted(new.values(), key=lambda record: record.outcome != "failed"):
            if self._budget < 1:
                break
            self._budget -= 1
            chosen.add(record.number)
        kept = [entry for entry in entries if entry[2].number in chosen]
        self.skipped += len(entries) - len(kept)
        self._follow(kept)
        return kept

    def _follow(self, kept: Sequence[Entry]) -> None:
        for _, change, record in kept:
            if change == "ended":
                self._followed.pop(record.number, None)
            elif record.ended_at is None:
                self._followed[record.number] = None
        while len(self._followed) > _MOST_FOLLOWED:
            del self._followed[next(iter(self._followed))]
