"""Counters: what became of every message that did not take the ordinary way."""

from __future__ import annotations

from collections.abc import Callable

_NAMES = {
    "late": "Answers that came after their call had ended without one.",
    "duplicate": "Requests and answers that were there already.",
    "dropped": "Messages that belong to nothing known here: control of calls that ended, types from the future.",
    "rejected": "Requests refused unread: too many at once, over a limit, or not allowed.",
    "malformed": "Messages that are no event.",
    "foreign": "Ids that their sender has no right to: somebody guesses or forges.",
    "forged": "Identities claimed in a payload by somebody who is not believed.",
    "expired": "Requests whose deadline had passed before they could run.",
    "unsent": "Messages that were never written: the connection they were for was gone.",
    "abandoned": "Handlers that ignored their cancellation and still ran after their call ended.",
}


class Counters:
    """Counts since the start; `in_flight` is how many calls and streams run here, or wait for a place, now.

    They are those of one transport. Several wrappers of one transport (a SignedTransport for each session, say) are
    ends of one connection: an answer counts at the end that made the call, what belongs to none of them at each.
    """

    __slots__ = ("_in_flight", *_NAMES)

    def __init__(self, in_flight: Callable[[], int] = lambda: 0) -> None:
        self._in_flight = in_flight
        self.late = 0
        self.duplicate = 0
        self.dropped = 0
        self.rejected = 0
        self.malformed = 0
        self.foreign = 0
        self.forged = 0
        self.expired = 0
        self.unsent = 0
        self.abandoned = 0

    @property
    def in_flight(self) -> int:
        """How many calls and streams run here, or wait for a place."""
        return self._in_flight()

    def to_dict(self) -> dict[str, int]:
        """Every count by name."""
        return {"in_flight": self.in_flight, **{name: getattr(self, name) for name in _NAMES}}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={count}" for name, count in self.to_dict().items() if count)
        return f"<counters {shown or 'all 0'}>"
