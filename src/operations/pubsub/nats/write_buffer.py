"""What one turn of the loop sends over NATS, batched before it is written, and what becomes of it afterwards.

A server says at once when nobody responds to a message, and says nothing when somebody does. But it processes messages
in order: a PONG means that whatever was sent before its PING was delivered, and can be forgotten here.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable

from operations.pubsub.framing import QUICK_SECONDS, BatchSizing, batches, join, shares
from operations.pubsub.nats.connection import Connection
from operations.pubsub.nats.wire import Message
from operations.pubsub.protocols import Undelivered

_BATCH_BYTES = 128 << 10
Requests = list[tuple[bytes, Undelivered]]
Reply = Callable[[Message], None]
Sent = tuple[bytes, Undelivered]


class Replies:
    """The reply subjects of one end: of messages that nobody may get, and of requests to the server itself."""

    def __init__(self, inbox: bytes) -> None:
        self.inbox = inbox
        """The subject under which this end's replies come."""
        self._issued = 0
        self._written = 0
        self._current: dict[int, Sent] = {}
        """What was sent since the last PING."""
        self._before_ping: deque[dict[int, Sent]] = deque()
        """What was sent before each PING that has no answer yet."""
        self._requests: dict[int, tuple[bytes, Reply, Undelivered]] = {}

    @property
    def is_unconfirmed(self) -> bool:
        """Whether a message was sent since the last PING whose sender wants to know that nobody got it."""
        return bool(self._current)

    @property
    def unconfirmed(self) -> int:
        """How many messages were sent of which it is not known whether anybody got them."""
        return len(self._current) + sum(map(len, self._before_ping))

    def expect(self, subject: bytes, undelivered: Undelivered) -> bytes:
        """The reply subject for a message whose sender wants to know that nobody got it."""
        self._issued = number = self._issued + 1
        self._current[number] = (subject, undelivered)
        return b"%b.%d" % (self.inbox, number)

    def request(self, subject: bytes, reply: Reply, undelivered: Undelivered) -> tuple[bytes, Callable[[], None]]:
        """The reply subject for a request with any number of replies, and how to stop waiting for them."""
        self._issued = number = self._issued + 1
        self._requests[number] = (subject, reply, undelivered)

        def stop() -> None:
            self._requests.pop(number, None)

        return b"%b.%d" % (self.inbox, number), stop

    def written(self) -> None:
        """What was sent so far is about to be written."""
        self._written = self._issued

    def pinged(self) -> Callable[[], None]:
        """A PING follows; returns what its PONG does, which is to forget what was sent before."""
        sent, self._current = self._current, {}
        self._before_ping.append(sent)
        return self._forget_oldest

    def _forget_oldest(self) -> None:
        if self._before_ping:
            self._before_ping.popleft()

    def nobody(self, token: bytes) -> None:
        """Nobody responds to a message."""
        number = _number(token)
        for sent in (*self._before_ping, self._current):
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
        for sent in (*self._before_ping, self._current):
            for number in [number for number, entry in sent.items() if entry[0] == subject]:
                sent.pop(number)[1](reason)
                found = True
        for number in [number for number, entry in self._requests.items() if entry[0] == subject]:
            self._requests.pop(number)[2](reason)
            found = True
        return found

    def lost(self, reason: str) -> None:
        """The connection is gone: what was never written was not delivered; the rest is unknown."""
        sent, self._current = self._current, {}
        self._before_ping.clear()
        self._requests.clear()
        for number, (_, undelivered) in sent.items():
            if number > self._written:
                undelivered(reason)


class WriteBuffer:
    """Requests and answers by subject: all answers for one inbox go as one batch, and a few requests together."""

    def __init__(self, replies: Replies, sizing: BatchSizing) -> None:
        self._replies = replies
        self._sizing = sizing
        self._answers: dict[bytes, list[bytes]] = {}
        self._requests: dict[bytes, Requests] = {}

    def request(self, connection: Connection, subject: bytes, message: bytes, undelivered: Undelivered) -> None:
        """Send to one of the workers that share a subject; the server says when there is none."""
        requests = self._requests.get(subject)
        if requests is None:
            self._requests[subject] = [(message, undelivered)]
            connection.expect_write()
        else:
            requests.append((message, undelivered))

    def answer(self, connection: Connection, subject: bytes, message: bytes) -> None:
        """Send to an inbox."""
        answers = self._answers.get(subject)
        if answers is None:
            self._answers[subject] = [message]
            connection.expect_write()
        else:
            answers.append(message)

    def put(self, connection: Connection) -> None:
        """Add everything to the connection's next write, with a PING where requests are unconfirmed: its PONG means
        that somebody got them."""
        if self._requests:
            self.put_requests(connection)
        if self._answers:
            self._put_answers(connection)
        self._replies.written()
        if connection.is_writing and self._replies.is_unconfirmed and not connection.unanswered:
            connection.ping(self._replies.pinged())

    def put_requests(self, connection: Connection) -> None:
        """Add the requests alone: what follows concerns them."""
        sent, self._requests = self._requests, {}
        most = min(_BATCH_BYTES, connection.info.max_payload)
        for subject, entries in sent.items():
            messages = [message for message, _ in entries]
            for share in shares(messages, most, quick=self._sizing.is_quick):
                together = entries[share]
                tell = together[0][1] if len(together) == 1 else functools.partial(_tell_all, together)
                reply, message = self._replies.expect(subject, tell), join(messages[share])
                connection.send(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(message), message))

    def _put_answers(self, connection: Connection) -> None:
        answers, self._answers = self._answers, {}
        most = min(_BATCH_BYTES, connection.info.max_payload)
        taken = connection.turn_seconds
        quick = taken is not None and taken < QUICK_SECONDS * sum(map(len, answers.values()))
        for subject, messages in answers.items():
            for message in batches(messages, most, quick=quick):
                connection.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(message), message))

    def lost(self, reason: str) -> dict[bytes, list[bytes]]:
        """The connection is gone: requests were not delivered; the answers are returned, to be kept."""
        requests, self._requests = self._requests, {}
        answers, self._answers = self._answers, {}
        for entries in requests.values():
            _tell_all(entries, reason)
        return answers


def _number(token: bytes) -> int:
    return int(token) if token.isdigit() else -1


def _tell_all(entries: Requests, reason: str) -> None:
    for _, undelivered in entries:
        undelivered(reason)
