"""Messages that wait to be written to one address, and the listeners of one channel."""

from __future__ import annotations

from collections.abc import Iterator

from operations.pubsub.protocols import Arrival, Receive, Undelivered


class UnsentMessages:
    """Messages to one address that wait for the next write, each with its `undelivered` callback."""

    __slots__ = ("messages", "undelivered")

    def __init__(self, messages: list[bytes], undelivered: list[Undelivered | None]) -> None:
        self.messages = messages
        self.undelivered = undelivered

    def fail(self, reason: str) -> None:
        """Report the messages as undelivered."""
        for undelivered in self.undelivered:
            if undelivered is not None:
                undelivered(reason)

    def split(self, most: int) -> Iterator[UnsentMessages]:
        """Split into parts of at most `most` messages."""
        if len(self.messages) <= most:
            yield self
            return
        for start in range(0, len(self.messages), most):
            yield UnsentMessages(self.messages[start : start + most], self.undelivered[start : start + most])


class ChannelListeners:
    """The listeners of one channel."""

    __slots__ = ("arrival", "receivers")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.receivers: list[Receive] = []
