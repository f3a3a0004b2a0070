"""The reply subjects of one end of a NATS bus: they tell that nobody got a message, or carry JetStream's answers.

A server says at once when nobody responds to a message, and says nothing when somebody does. But it processes messages
in order: a PONG means that whatever was sent before its PING was delivered, and can be forgotten here.
"""

from __future__ import annotations

from collections.abc import Callable

from operations.pubsub.nats.wire import Message
from operations.pubsub.protocols import Undelivered

Reply = Callable[[Message], None]
Sent = tuple[bytes, Undelivered]
"""The subject of a message, and how to tell its sender that nobody got it."""


class Replies:
    """The messages and requests that may still get a reply, by the number at the end of their reply subject."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        """The subject under which this end's replies come."""
        self.issued = 0
        """The newest number."""
        self.written = 0
        """The newest number when the connection last wrote."""
        self.sent: dict[int, Sent] = {}
        """The messages since the last PING."""
        self.pinged: dict[int, Sent] = {}
        """The messages before a PING that the server has not answered."""
        self._requests: dict[int, tuple[bytes, Reply, Undelivered]] = {}

    @property
    def unconfirmed(self) -> int:
        """How many messages were sent of which it is not known whether anybody got them."""
        return len(self.sent) + len(self.pinged)

    def request(self, subject: bytes, reply: Reply, undelivered: Undelivered) -> tuple[bytes, Callable[[], None]]:
        """The reply subject for a request with any number of replies, and how to stop waiting for them."""
        self.issued = number = self.issued + 1
        self._requests[number] = (subject, reply, undelivered)

        def stop() -> None:
            self._requests.pop(number, None)

        return b"%b.%d" % (self.inbox, number), stop

    def nobody(self, token: bytes) -> None:
        """Nobody responds to a message."""
        number = _number(token)
        for sent in (self.pinged, self.sent):
            entry = sent.pop(number, None)
            if entry is not None:
                entry[1](f"nobody listens at {entry[0].decode()}")
                return
        request = self._requests.pop(number, None)
        if request is not None:
            request[2](f"nobody listens at {request[0].decode()}")

    def answered(self, token: bytes, message: Message) -> None:
        """A reply came; unknown ones are ignored."""
        entry = self._requests.get(_number(token))
        if entry is not None:
            entry[1](message)

    def refused(self, subject: bytes, reason: str) -> bool:
        """The server refused a message to this subject: every such message fails. Whether there was one."""
        found = False
        for sent in (self.pinged, self.sent):
            for number in [number for number, entry in sent.items() if entry[0] == subject]:
                sent.pop(number)[1](reason)
                found = True
        for number in [number for number, entry in self._requests.items() if entry[0] == subject]:
            self._requests.pop(number)[2](reason)
            found = True
        return found

    def lost(self, reason: str) -> None:
        """The connection is gone: what was never written was not delivered; the rest is unknown."""
        sent, self.sent = self.sent, {}
        self.pinged.clear()
        self._requests.clear()
        for number, (_, undelivered) in sent.items():
            if number > self.written:
                undelivered(reason)


def _number(token: bytes) -> int:
    return int(token) if token.isdigit() else -1
