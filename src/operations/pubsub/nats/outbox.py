"""Outbox: what one turn of the loop sends over NATS, put together before it is written."""

from __future__ import annotations

import functools

from operations.pubsub import Undelivered
from operations.pubsub.framing import batches, join, shares
from operations.pubsub.nats.connection import Connection
from operations.pubsub.nats.receipts import Receipts
from operations.pubsub.pace import QUICK_SECONDS, Pace

_BATCH_BYTES = 128 << 10
Requests = list[tuple[bytes, Undelivered]]


class Outbox:
    """Requests and answers by subject: all answers for one inbox go as one message, and a few requests together."""

    def __init__(self, receipts: Receipts, pace: Pace) -> None:
        self._receipts = receipts
        self._pace = pace
        self._answers: dict[bytes, list[bytes]] = {}
        self._requests: dict[bytes, Requests] = {}

    def request(self, connection: Connection, subject: bytes, message: bytes, undelivered: Undelivered) -> None:
        """Send to one of those who share the work at a subject; where there is nobody, the server tells."""
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
        """Add everything to the connection's next write, and a PING where somebody wants to hear of requests that
        nobody got: its PONG means that somebody did."""
        if self._requests:
            self.put_requests(connection)
        if self._answers:
            self._put_answers(connection)
        self._receipts.written()
        if connection.is_writing and self._receipts.is_waiting and not connection.unanswered:
            connection.ping(self._receipts.seal())

    def put_requests(self, connection: Connection) -> None:
        """Add the requests alone: what follows them concerns them."""
        sent, self._requests = self._requests, {}
        most = min(_BATCH_BYTES, connection.info.max_payload)
        for subject, entries in sent.items():
            messages = [message for message, _ in entries]
            for share in shares(messages, most, quick=self._pace.is_quick):
                together = entries[share]
                tell = together[0][1] if len(together) == 1 else functools.partial(_tell_all, together)
                reply, message = self._receipts.expect(subject, tell), join(messages[share])
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


def _tell_all(entries: Requests, reason: str) -> None:
    for _, undelivered in entries:
        undelivered(reason)
