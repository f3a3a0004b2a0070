"""Replay protection: a signed request is accepted once. A worker remembers requests, and all of them share a record."""

from __future__ import annotations

import time

from operations.calls.events import CallRequested
from operations.errors import CallError
from operations.pubsub import Delivery, Remembers

STORED_SECONDS = 86_400.0
"""How long a stored request may wait for a worker."""
LONGEST_DEADLINE = 3_600.0
_FRESH_SECONDS = 60.0
_SKEW_SECONDS = 300.0


class ReplayError(CallError):
    """A request that was here already. It gets no answer: that would go to the caller of the first one."""


class Replays:
    """Which signed requests were here: each is remembered until its deadline, after which it would not run anyway."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, int]] = {}
        self._swept = 0

    def is_new(self, event: CallRequested) -> bool:
        """Note a request; False where it was here and is not sent again with a higher number."""
        now = int(time.time())
        if now != self._swept:
            self._sweep(now)
        seen = self._seen.setdefault(int(remembered_until(event)), {})
        attempt = event.payload.attempt
        if seen.get(event.id, -1) >= attempt:
            return False
        seen[event.id] = attempt
        return True

    def _sweep(self, now: int) -> None:
        self._swept = now
        for second in [second for second in self._seen if second < now - 1]:
            del self._seen[second]


def remembered_until(event: CallRequested) -> float:
    """Until when a request that `problem_with` accepts is remembered, in seconds since the epoch."""
    payload = event.payload
    if payload.deadline is not None:
        return payload.deadline / 1000
    return (payload.sent_at or 0) / 1000 + 2 * _FRESH_SECONDS


def problem_with(event: CallRequested, *, stored: bool) -> str:
    """Why a request cannot be remembered for as long as it could be run; nothing where it can."""
    payload, now = event.payload, time.time()
    if stored:
        if payload.not_after is None or payload.not_after / 1000 - now > STORED_SECONDS + _SKEW_SECONDS:
            return "a stored request must say until when it may be run, within a day"
    elif payload.deadline is not None:
        if payload.deadline / 1000 - now > LONGEST_DEADLINE:
            return "the deadline is too far away to remember the request for so long"
    elif payload.sent_at is None or abs(now - payload.sent_at / 1000) > _FRESH_SECONDS:
        return "the request has no deadline and was not sent just now"
    return ""


class RecordedDelivery:
    """A delivery whose request is in the shared record; one that is released is taken out of it."""

    def __init__(self, inner: Delivery, remembers: Remembers | None) -> None:
        self.key = ""
        """The key in the shared record, once it is there."""
        self._inner = inner
        self._remembers = remembers

    @property
    def number(self) -> int:
        """How many times it was delivered."""
        return self._inner.number

    @property
    def is_redelivered(self) -> bool:
        """Whether the server delivered this very message before."""
        return self._inner.is_redelivered

    def done(self) -> None:
        """The message was handled."""
        self._inner.done()

    def release(self) -> None:
        """Give it to somebody else, to whom it is new."""
        if self.key and self._remembers is not None:
            self._remembers.forget(self.key)
        self._inner.release()

    def bury(self, reason: str) -> None:
        """Move it to the dead letters."""
        self._inner.bury(reason)
