"""Counters of messages that were not processed normally."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from operations.telemetry.metrics import Measure

_NAMES = (
    *("late", "duplicate", "dropped", "rejected", "malformed"),
    *("foreign", "forged", "expired", "dead_lettered", "abandoned"),
)
"""The counts of messages that were not processed normally; `metrics.METRICS` describes them."""


class Counters:
    """Counts since the start; `in_flight` is the current number of running and queued calls and streams.

    Each transport has separate counters. If several wrappers share one connection (such as a `SignedTransport` for each
    session), each wrapper has separate counters as well. A late or duplicate response is counted by the wrapper that
    made the call. A message that belongs to no call is counted by every wrapper.
    """

    __slots__ = ("_in_flight", "_unsent", *_NAMES)

    def __init__(self, in_flight: Callable[[], int] = lambda: 0, unsent: Callable[[], int] = lambda: 0) -> None:
        self._in_flight = in_flight
        self._unsent = unsent
        self.late = 0
        self.duplicate = 0
        self.dropped = 0
        self.rejected = 0
        self.malformed = 0
        self.foreign = 0
        self.forged = 0
        self.expired = 0
        self.dead_lettered = 0
        self.abandoned = 0

    @property
    def in_flight(self) -> int:
        """Number of running and queued calls and streams."""
        return self._in_flight()

    @property
    def unsent(self) -> int:
        """Number of messages that could not be sent: there was no connection, or the server would refuse them."""
        return self._unsent()

    def to_dict(self) -> dict[str, int]:
        """Return every count by name."""
        return {"in_flight": self.in_flight, "unsent": self.unsent, **{name: getattr(self, name) for name in _NAMES}}

    def measures(self) -> Iterator[Measure]:
        """Return the counts as metrics."""
        yield Measure("operations_bus_in_flight", self.in_flight)
        yield Measure("operations_bus_unsent_total", self.unsent)
        for name in _NAMES:
            yield Measure(f"operations_bus_{name}_total", getattr(self, name))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={count}" for name, count in self.to_dict().items() if count)
        return f"<counters {shown or 'all 0'}>"
