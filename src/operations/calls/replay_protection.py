"""Replay protection: each worker accepts a signed request at most once.

Each worker keeps the ids of the signed requests that it received recently. All workers also share the record of signed
requests. It has the ids of mutations and stored requests, so that only one worker accepts each of them.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from operations.calls.events import CallRequested
from operations.context import Identity
from operations.errors import CallError
from operations.failures import unavailable
from operations.pubsub import Delivery, StoresKeys

STORED_SECONDS = 86_400.0
"""Seconds for which a stored request may wait for a worker."""
SKEW_SECONDS = 300.0
"""Allowed difference between the clocks of caller and worker, for a stored request."""
LONGEST_DEADLINE = 3_600.0
"""Longest time to the deadline of a signed request, in seconds; a request with a later deadline is refused."""
_FRESH_SECONDS = 60.0
"""Largest age of a signed request without a deadline."""


_MOST_IDS = 500_000
"""Largest number of ids that are kept for one caller without rights; an id takes up to 300 bytes."""
_NO_SENDERS: Counter[str] = Counter()


class ReplayError(CallError):
    """The error for a signed request that was received before.

    The request gets no response, because a response would go to the original caller.
    """


class SeenRequests:
    """The ids of the signed requests that were received.

    An id is kept until the deadline of its request; without a deadline, until two minutes after the request was sent. A
    copy that arrives later is too old to run. At most `_MOST_IDS` ids are kept for a caller without rights; further
    requests of this caller are refused.
    """

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, int]] = {}
        self._senders: dict[int, Counter[str]] = {}
        """The number of ids of each caller without rights, by the second until which the ids are kept."""
        self._counts: Counter[str] = Counter()
        """The number of ids of each caller without rights."""
        self._swept = 0

    def is_new(self, event: CallRequested, signer: Identity) -> bool:
        """Store a request's id; return False if the id is stored already with the same or a later attempt number."""
        now = int(time.time())
        if now != self._swept:
            self._sweep(now)
        until, attempt = int(kept_until(event)), event.payload.attempt
        seen = self._seen.setdefault(until, {})
        before = seen.get(event.id)
        if before is not None and before >= attempt:
            return False
        if before is None and not signer.has_rights:
            self._count(signer.id, until, event.to)
        seen[event.id] = attempt
        return True

    def _count(self, sender: str, until: int, operation_id: str) -> None:
        if self._counts[sender] >= _MOST_IDS:
            raise unavailable(operation_id, "this caller has too many unexpired signed requests", "no")
        self._counts[sender] += 1
        self._senders.setdefault(until, Counter())[sender] += 1

    def _sweep(self, now: int) -> None:
        self._swept = now
        for second in [second for second in self._seen if second < now - 1]:
            del self._seen[second]
            self._counts -= self._senders.pop(second, _NO_SENDERS)


def kept_until(event: CallRequested) -> float:
    """Return the time until which `SeenRequests` keeps the id of a request, in seconds since the epoch."""
    payload = event.payload
    if payload.deadline is not None:
        return payload.deadline / 1000
    return (payload.sent_at or 0) / 1000 + 2 * _FRESH_SECONDS


def replay_problem(event: CallRequested, *, stored: bool) -> str:
    """Return why a request cannot be protected against replays, or an empty string.

    Without these checks, a copy of a request could run after the id of the request is no longer kept.
    """
    payload, now = event.payload, time.time()
    if stored:
        if payload.not_after is None or payload.not_after / 1000 - now > STORED_SECONDS + SKEW_SECONDS:
            return "a stored request needs an expiry time within a day"
    elif payload.deadline is not None:
        if payload.deadline / 1000 - now > LONGEST_DEADLINE:
            return "the deadline is too far away for replay protection"
    elif payload.sent_at is None or abs(now - payload.sent_at / 1000) > _FRESH_SECONDS:
        return "the request has no deadline and was not sent recently"
    return ""


class RecordedDelivery:
    """A delivery whose `release` also removes the request from the shared record of signed requests.

    All other members are those of the inner delivery.
    """

    def __init__(self, inner: Delivery, keys: StoresKeys | None) -> None:
        self.key = ""
        """The key of the request in the shared record; empty if its signature is not valid."""
        self._inner = inner
        self._stored_keys = keys

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def release(self) -> None:
        """Release the message for another worker, and remove it from the shared record."""
        if self.key and self._stored_keys is not None:
            self._stored_keys.delete_key(self.key, self.entry)
        self._inner.release()
