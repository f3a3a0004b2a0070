"""Sent: messages on their way to the next write."""

from __future__ import annotations

from collections.abc import Iterator

from operations.pubsub import Undelivered


class Sent:
    """What was sent to one address and not yet written, and whom to tell should nobody get it."""

    __slots__ = ("messages", "tell")

    def __init__(self, messages: list[bytes], tell: list[Undelivered | None]) -> None:
        self.messages = messages
        self.tell = tell

    def fail(self, reason: str) -> None:
        """Nobody got them."""
        for undelivered in self.tell:
            if undelivered is not None:
                undelivered(reason)

    def cut(self, most: int) -> Iterator[Sent]:
        """The same in parts of at most so many messages."""
        if len(self.messages) <= most:
            yield self
            return
        for start in range(0, len(self.messages), most):
            yield Sent(self.messages[start : start + most], self.tell[start : start + most])
