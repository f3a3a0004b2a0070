"""Receipts: what becomes of a message that somebody wants to hear of, by the reply subject that it alone has.

A server says at once when nobody responds to a message, and says nothing when somebody does. But it processes messages
in order: a PONG means that whatever was sent before its PING has been delivered, and can be forgotten here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from operations.pubsub import Undelivered
from operations.pubsub.nats.wire import Message

Reply = Callable[[Message], None]
Sent = tuple[bytes, Undelivered]


class Receipts:
    """The messages of one end that nobody may get, and the requests whose replies it waits for."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        """The subject under which this end's replies come."""
        self._issued = 0
        self._written = 0
        self._current: dict[int, Sent] = {}
        """What was sent since the last PING."""
        self._sealed: deque[dict[int, Sent]] = deque()
        """What was sent before a PING that has no answer yet."""
        self._replies: dict[int, tuple[bytes, Reply, Undelivered]] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether anything was sent since the last PING."""
        return bool(self._current)

    def expect(self, subject: bytes, undelivered: Undelivered) -> bytes:
        """The reply subject for a message whose sender wants to hear that nobody got it."""
        self._issued = number = self._issued + 1
        self._current[number] = (subject, undelivered)
        return b"%b.%d" % (self.inbox, number)

    def request(self, subject: bytes, reply: Reply, undelivered: Undelivered) -> tuple[bytes, Callable[[], None]]:
        """The reply subject for a request of any number of replies, and how to stop waiting for them."""
        self._issued = number = self._issued + 1
        self._replies[number] = (subject, reply, undelivered)

        def stop() -> None:
            self._replies.pop(number, None)

        return b"%b.%d" % (self.inbox, number), stop

    def written(self) -> None:
        """What was sent so far is about to be written."""
        self._written = self._issued

    def seal(self) -> Callable[[], None]:
        """A PING follows: returns what its PONG does, which is to forget what was sent before."""
        sealed, self._current = self._current, {}
        self._sealed.append(sealed)
        return self._forget_oldest

    def _forget_oldest(self) -> None:
        if self._sealed:
            self._sealed.popleft()

    def nobody(self, token: bytes, message: Message) -> None:
        """Nobody responds to a message."""
        number = _number(token)
        for sent in (*self._sealed, self._current):
            entry = sent.pop(number, None)
            if entry is not None:
                entry[1](f"nobody listens at {entry[0].decode()}")
                return
        reply = self._replies.pop(number, None)
        if reply is not None:
            reply[2](f"nobody listens at {reply[0].decode()}")

    def answered(self, token: bytes, message: Message) -> None:
        """A reply came; foreign ones are ignored."""
        entry = self._replies.get(_number(token))
        if entry is not None:
            entry[1](message)

    def refused(self, subject: bytes, reason: str) -> bool:
        """The server refused a message to this subject: every such message is told; whether there was one."""
        told = False
        for sent in (*self._sealed, self._current):
            for number in [number for number, entry in sent.items() if entry[0] == subject]:
                sent.pop(number)[1](reason)
                told = True
        for number in [number for number, entry in self._replies.items() if entry[0] == subject]:
            self._replies.pop(number)[2](reason)
            told = True
        return told

    def lost(self, reason: str) -> None:
        """The connection is gone: what was never written was not delivered; the rest nobody knows."""
        sent, self._current = self._current, {}
        self._sealed.clear()
        self._replies.clear()
        for number, (_, undelivered) in sent.items():
            if number > self._written:
                undelivered(reason)


def _number(token: bytes) -> int:
    return int(token) if token.isdigit() else -1
