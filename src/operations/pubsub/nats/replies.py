"""The reply subjects of one peer on a NATS bus: for reports of missing listeners, and for responses of JetStream.

A server reports immediately that a message has no listener, and reports nothing otherwise. It processes messages in
order: a PONG means that everything before its PING was delivered.
"""

from __future__ import annotations

from collections.abc import Callable

from operations.pubsub.nats.wire import NatsMessage
from operations.pubsub.protocols import Undelivered

Reply = Callable[[NatsMessage], None]
Sent = tuple[bytes, Undelivered]
"""The subject of a message, and its `undelivered` callback."""


class Interrupted(str):
    """The reason why a request has no response: the connection was lost, and the request may have been handled."""


class Replies:
    """The messages and requests that may still get a reply, by the number at the end of their reply subject."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        """The subject of replies to this peer."""
        self.issued = 0
        """The newest number that was assigned."""
        self.written = 0
        """The value of `issued` when the connection last wrote: messages with a greater number were never written."""
        self.sent: dict[int, Sent] = {}
        """The messages that were sent since the last PING."""
        self.pinged: dict[int, Sent] = {}
        """The messages that were sent before a PING that the server has not answered."""
        self._requests: dict[int, tuple[bytes, Reply, Undelivered]] = {}

    def successor(self) -> Replies:
        """Return the object for the next connection: it takes over the last number and the pending requests."""
        following = Replies(self.inbox)
        following.issued = following.written = self.issued
        following._requests = self._requests
        return following

    def request(self, subject: bytes, reply: Reply, undelivered: Undelivered) -> tuple[bytes, Callable[[], None]]:
        """Return a reply subject for a request with any number of replies, and a function that ends the request."""
        self.issued = number = self.issued + 1
        self._requests[number] = (subject, reply, undelivered)

        def stop() -> None:
            self._requests.pop(number, None)

        return b"%b.%d" % (self.inbox, number), stop

    def no_responders(self, token: bytes) -> None:
        """Report that a message has no listener."""
        number = _number(token)
        for sent in (self.pinged, self.sent):
            entry = sent.pop(number, None)
            if entry is not None:
                entry[1](f"no listener at {entry[0].decode()}")
                return
        request = self._requests.pop(number, None)
        if request is not None:
            request[2](f"no listener at {request[0].decode()}")

    def answered(self, token: bytes, message: NatsMessage) -> None:
        """Pass a reply to the request that it belongs to; ignore a reply without a request."""
        entry = self._requests.get(_number(token))
        if entry is not None:
            entry[1](message)

    def refused(self, subject: bytes, reason: str) -> bool:
        """Fail every message and request to a subject that the server refused; return whether there was one."""
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
        """Handle the loss of the connection: report unwritten messages as undelivered, and requests as interrupted."""
        sent, self.sent = self.sent, {}
        requests, self._requests = self._requests, {}
        self.pinged.clear()
        for number, (_, undelivered) in sent.items():
            if number > self.written:
                undelivered(reason)
        for _, _, undelivered in requests.values():
            undelivered(Interrupted(reason))


def _number(token: bytes) -> int:
    return int(token) if token.isdigit() else -1
