"""Who is at an end of the bus: what waits there for answers, and what runs there for somebody."""

from __future__ import annotations

from typing import Protocol

from operations.calls.codec import Codec
from operations.calls.events import CallCompleted, CallResponded
from operations.errors import CallError


class Waiting(Protocol):
    """A call or stream that waits for its answers."""

    worker: str | None
    since: float
    """When it was last sent or heard of, by the loop's clock."""

    @property
    def operation_id(self) -> str:
        """What was called."""

    def responded(self, event: CallResponded, codec: Codec, size: int) -> None:
        """An answer came."""

    def completed(self, event: CallCompleted) -> None:
        """There will be no more answers."""

    def failed(self, error: CallError) -> None:
        """It ended without a value."""

    def accepted(self, worker: str) -> None:
        """This worker has it."""

    def lost(self, reason: str) -> None:
        """The transport was lost."""

    def regained(self) -> None:
        """The transport is back."""


class Running(Protocol):
    """A call or stream that this end runs for somebody."""

    def abort(self, reason: str) -> None:
        """The caller gave up."""

    def credit(self, items: int, size: int) -> None:
        """The caller has room for more."""


class InFlight(Protocol):
    """Whatever runs calls without the tables here."""

    @property
    def in_flight(self) -> int:
        """How many run now."""
