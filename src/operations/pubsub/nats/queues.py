"""Durable messages in JetStream: for each namespace a queue, a queue of suspects that run alone, and dead letters."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.nats.jetstream import ANSWER_SECONDS, HOUR, SECOND, Answer, Client, JetStream
from operations.pubsub.nats.subjects import Arrivals, Subjects
from operations.pubsub.nats.wire import Message, publish
from operations.pubsub.protocols import Arrival, Delivery, Refused, Stop, Take, Undelivered

_log = logging.getLogger("operations")
_ASK_SECONDS = 10.0
_MOST_ASKED = 256
_TROUBLE_SECONDS = 0.25
_EXPIRED = (404, 408)


class Queues:
    """The durable queues of one end; missing streams and consumers are created."""

    def __init__(self, client: Client, subjects: Subjects, *, ack_wait: float, replicas: int) -> None:
        self.client = client
        self.subjects = subjects
        self.arrivals = Arrivals(subjects.prefix)
        self.ack_wait = ack_wait
        self.jetstream = JetStream(client, subjects.prefix, replicas=replicas)
        self._takers: list[Taker] = []
        self.numbers = itertools.count(1)

    def store(
        self, address: str, message: bytes, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store a message; if there is no stream yet, create it and try once more."""
        subject = self.subjects.target(address)
        if subject is None:
            undelivered(Refused(f"{address!r} cannot be a NATS subject"))
            return
        headers = b"Nats-Msg-Id: %b\r\n" % key.encode()

        def answered(answer: Answer) -> None:
            if answer.error is None:
                stored()
            else:
                undelivered(f"JetStream did not store it: {answer.error.description}")

        def nobody(reason: str) -> None:
            if isinstance(reason, Refused):
                undelivered(reason)
            else:
                _ = self.jetstream.spawn(self._store_again(subject, message, headers, answered, undelivered))

        self.jetstream.publish(subject, message, headers, answered, nobody)

    async def _store_again(
        self,
        subject: bytes,
        message: bytes,
        headers: bytes,
        answered: Callable[[Answer], None],
        undelivered: Undelivered,
    ) -> None:
        problem = await self.jetstream.make_streams()
        if problem is not None:
            undelivered(f"there is no JetStream stream for it: {problem}")
        else:
            self.jetstream.publish(subject, message, headers, answered, undelivered)

    def take(self, address: str, take: Take, limit: int) -> Stop:
        """Take what is stored at an address; messages that may have killed a worker are handled alone."""
        namespace = address.partition(".")[2]

        def sort(message: bytes, delivery: Delivery, arrival: Arrival) -> None:
            if delivery.number > 1 and isinstance(delivery, StoredDelivery):
                self._suspect(namespace, message, delivery, arrival.sender)
            else:
                take(message, delivery, arrival)

        takers = [
            Taker(self, "queue", namespace, sort, limit),
            Taker(self, "suspect", namespace, take, 1),
        ]
        self._takers += takers
        for taker in takers:
            taker.begin()

        def stop() -> None:
            for taker in takers:
                if taker in self._takers:
                    self._takers.remove(taker)
                    taker.stop()

        return stop

    def _suspect(self, namespace: str, message: bytes, delivery: StoredDelivery, caller: str | None) -> None:
        """Move a message to the suspects, which run one at a time: one of those that a dead worker held killed it."""
        subject = self.subjects.target(f"suspect.{namespace}", caller=caller)
        headers = b"Nats-Msg-Id: %b-%d\r\n" % (self.jetstream.stream.encode(), delivery.sequence)
        if subject is not None:
            self._publish_or_warn(subject, message, headers, delivery.done)

    async def remember(self, key: str, seconds: float) -> bool:
        """Note a key for all ends of the bus; False where it was noted already."""
        problem = await self.jetstream.make_records()
        if problem is None:
            kind = "hour" if seconds <= HOUR else "day"
            answer = await self.jetstream.request(f"{self.subjects.prefix}.once.{kind}".encode(), b"", key)
            if answer.error is None:
                return not answer.duplicate
            problem = answer.error.description
        message = f"the record of requests is out of reach: {problem}"
        raise CallError(ErrorCode.UNAVAILABLE, message, {"executed": "no"})

    def regained(self) -> None:
        """The connection is back: ask for work again."""
        for taker in self._takers:
            taker.begin()

    def lost(self) -> None:
        """The connection is gone: requested messages will not arrive."""
        for taker in self._takers:
            taker.lost()

    def close(self) -> None:
        """Stop all takers."""
        for taker in self._takers:
            taker.stop()
        self._takers.clear()
        self.jetstream.close()

    def bury(self, namespace: str, message: bytes, reason: str, buried: Callable[[], None]) -> None:
        """Store a dead letter with the reason; `buried` is called once it is stored."""
        headers = b"Operations-Reason: %b\r\n" % " ".join(reason.split()).encode("ascii", "replace")[:500]
        subject = self.subjects.target(f"dead.{namespace}")
        if subject is not None:
            self._publish_or_warn(subject, message, headers, buried)

    def _publish_or_warn(self, subject: bytes, message: bytes, headers: bytes, done: Callable[[], None]) -> None:
        """Store a message elsewhere; on failure it stays where it was and is delivered again."""

        def answered(answer: Answer) -> None:
            if answer.error is None:
                done()
            else:
                nobody(answer.error.description)

        def nobody(problem: str) -> None:
            _log.warning("a message could not be moved to %s: %s", subject.decode(), problem)

        self.jetstream.publish(subject, message, headers, answered, nobody)


class Taker:
    """Requests as many stored messages as it may hold, and renews its hold on them."""

    def __init__(
        self, queues: Queues, kind: Literal["queue", "suspect"], namespace: str, take: Take, limit: int
    ) -> None:
        self.queues = queues
        self.namespace = namespace
        self.alone = kind == "suspect"
        """Whether all takers together hold only one message."""
        self._filter = queues.subjects.filter(f"{kind}.{namespace}").decode()
        self._take = take
        self._limit = limit
        self._consumer = f"{kind}_{namespace.replace('.', '=')}"
        self._inbox = b"%b.%b.%d" % (queues.client.replies.inbox, kind.encode(), next(queues.numbers))
        self._question = 0
        self._held: set[StoredDelivery] = set()
        self._asked = 0
        self._unsubscribe = queues.client.subscribe(self._inbox + b".*", full=self._came)
        self._overdue: asyncio.TimerHandle | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._beginning: asyncio.Task[Any] | None = None
        self._stopped = False

    def begin(self) -> None:
        """Create the consumer if it is missing, and request messages."""
        if self._beginning is None or self._beginning.done():
            self._beginning = self.queues.jetstream.spawn(self._begin())

    async def _begin(self) -> None:
        delay = 0.1
        while not self._stopped:
            problem = await self.queues.jetstream.make_streams() or await self._make_consumer()
            if problem is None:
                self._ask()
                return
            _log.warning("durable work of %s cannot be taken yet: %s", self.namespace, problem)
            await asyncio.sleep(delay)
            delay = min(5.0, delay * 2)

    async def _make_consumer(self) -> str | None:
        config = {
            "durable_name": self._consumer,
            "ack_policy": "explicit",
            "ack_wait": int(self.queues.ack_wait * SECOND),
            "max_deliver": -1,
            "max_ack_pending": 1 if self.alone else -1,
            "filter_subject": self._filter,
        }
        stream = self.queues.jetstream.stream
        what = f"CONSUMER.DURABLE.CREATE.{stream}.{self._consumer}"
        answer = await self.queues.jetstream.ask(what, {"stream_name": stream, "config": config})
        return None if answer.error is None else answer.error.description

    def stop(self) -> None:
        """Request no more messages; those that are held stay held until they are settled."""
        self._stopped = True
        if self._beginning is not None:
            self._beginning.cancel()
        self._end_asking()
        self._unsubscribe()

    def lost(self) -> None:
        """The connection is gone."""
        self._end_asking()

    def settled(self, delivery: StoredDelivery) -> None:
        """A message was handled: there is room for another."""
        self._held.discard(delivery)
        if self._asked <= 0:
            self._ask()

    def _ask(self) -> None:
        room = min(_MOST_ASKED, self._limit - len(self._held))
        if self._stopped or room <= 0:
            return
        self._end_asking()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.queues.jetstream.stream}.{self._consumer}".encode()
        options = msgspec.json.encode({"batch": room, "expires": int(_ASK_SECONDS * SECOND)})
        self._question += 1
        if self.queues.client.publish(publish(subject, options, b"%b.%d" % (self._inbox, self._question))):
            self._asked = room
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(_ASK_SECONDS + ANSWER_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._asked = 0
        self._ask()

    def _end_asking(self) -> None:
        self._asked = 0
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _came(self, message: Message) -> None:
        """Handle a stored message, or the status that ends a request."""
        if message.status is not None:
            self._told(message)
            return
        if message.reply is None or not message.reply.startswith(b"$JS.ACK."):
            return
        self._asked -= 1
        delivery = StoredDelivery(self, message)
        self._held.add(delivery)
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(self.queues.ack_wait / 3, self._renew)
        self._take(message.data, delivery, self.queues.arrivals[message.subject])
        if self._asked <= 0:
            self._ask_again()

    def _told(self, message: Message) -> None:
        """A request is over: request again, after creating the consumer if that was the problem."""
        if message.subject.rpartition(b".")[2] != b"%d" % self._question or self._stopped:
            return
        self._end_asking()
        if message.status in _EXPIRED:
            self._ask()
        else:
            self._overdue = asyncio.get_running_loop().call_later(_TROUBLE_SECONDS, self.begin)

    def _renew(self) -> None:
        """Tell JetStream that the held messages are being handled."""
        self._renewal = None
        for delivery in self._held:
            delivery.acknowledge(b"+WPI")
        if self._held:
            self._renewal = asyncio.get_running_loop().call_later(self.queues.ack_wait / 3, self._renew)


class StoredDelivery:
    """A message that this end holds."""

    __slots__ = ("_message", "_taker", "is_redelivered", "number", "sequence")

    def __init__(self, taker: Taker, message: Message) -> None:
        self._taker = taker
        self._message = message
        deliveries, self.sequence = _read_acknowledgement(message.reply or b"")
        # A suspect was delivered once before it became one.
        self.number = deliveries + taker.alone
        self.is_redelivered = self.number > 1

    def done(self) -> None:
        """The message was handled; forget it."""
        self._settle(b"+ACK")

    def release(self) -> None:
        """Give it to somebody else."""
        self._settle(b"-NAK")

    def bury(self, reason: str) -> None:
        """Move it to the dead letters, and only then forget it."""
        self._taker.queues.bury(self._taker.namespace, self._message.data, reason, lambda: self._settle(b"+TERM"))

    def acknowledge(self, word: bytes) -> None:
        """Send JetStream an acknowledgement."""
        self._taker.queues.client.publish(publish(self._message.reply or b"", word))

    def _settle(self, word: bytes) -> None:
        self.acknowledge(word)
        self._taker.settled(self)


def _read_acknowledgement(subject: bytes) -> tuple[int, int]:
    """Return the number of deliveries and the sequence number, from either form of the subject."""
    words = subject.split(b".")
    start = 4 if len(words) < 11 else 6
    numbers = [int(word) if word.isdigit() else 1 for word in words[start : start + 2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, 0)
