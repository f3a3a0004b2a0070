"""Durable messages in JetStream: each namespace has a queue, a queue of redelivered messages, and dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.limited_log import LimitedLog
from operations.pubsub.nats.jetstream import ANSWER_SECONDS, HOUR, SECOND, JetStream, JetStreamReply, NatsClient
from operations.pubsub.nats.records import RECORD_HEADER, NatsRecords
from operations.pubsub.nats.replies import Interrupted
from operations.pubsub.nats.subjects import Arrivals, Subjects
from operations.pubsub.nats.wire import NatsMessage, header_of, publish, whole
from operations.pubsub.protocols import (
    DECODED_FACTOR,
    MOST_HELD,
    Arrival,
    DeliveryRefused,
    Record,
    Stop,
    Stores,
    StoresKeys,
    Take,
    TooManyRecords,
    Undelivered,
)

_log = logging.getLogger("operations")
_limited_log = LimitedLog(_log, "stored messages")
_ASK_SECONDS = 10.0
"""Seconds after which a pull request ends and another one is sent."""
_MOST_ASKED = 256
"""Largest number of messages of one pull request."""
_TROUBLE_SECONDS = 0.25
"""Seconds between a failed attempt and the next one."""
_MOST_READS = 4
"""Number of attempts to read the record of a message: a replica may not have the record yet."""
_EXPIRED = (404, 408)
_TOO_LARGE = b"Message Size Exceeds MaxBytes"
"""The status with which a pull request ends if the next message exceeds the remaining bytes of the request."""
_ENTRY_HEADER = b"Operations-Entry"
"""The header with the sequence number that a redelivered message had in the queue from which a worker moved it."""
_RECORD_HEADERS = 1 << 14
"""Maximum size of the headers of a record."""


class Posting(NamedTuple):
    """A message that is being stored."""

    subject: bytes
    message: bytes
    headers: bytes
    stored: Callable[[], None]
    undelivered: Undelivered


class DurableQueues(Stores, StoresKeys):
    """The durable queues and the keys of one peer; missing streams and consumers are created."""

    def __init__(self, client: NatsClient, subjects: Subjects, *, ack_wait: float, replicas: int) -> None:
        self.client = client
        self.subjects = subjects
        self.arrivals = Arrivals(subjects.prefix)
        self.ack_wait = ack_wait
        self.jetstream = JetStream(client, subjects.prefix, replicas=replicas)
        self.records = NatsRecords(self.jetstream, subjects)
        self._readers: list[DurableQueueReader] = []
        self.numbers = itertools.count(1)

    def store(
        self,
        address: str,
        message: bytes,
        *,
        key: str,
        stored: Callable[[], None],
        undelivered: Undelivered,
        record: Record | None = None,
    ) -> None:
        """Store a message; if it has a record, store the record first."""
        subject = self.subjects.target(address)
        if subject is None:
            undelivered(DeliveryRefused(f"{address!r} cannot be a NATS subject"))
            return
        headers = b"Nats-Msg-Id: %b\r\n" % key.encode()
        if record is None:
            self._store(Posting(subject, message, headers, stored, undelivered))
        else:
            posting = Posting(subject, message, headers + self.records.header(record), stored, undelivered)
            _ = self.jetstream.spawn(self._store_recorded(posting, address, record))

    async def _store_recorded(self, posting: Posting, address: str, record: Record) -> None:
        """Store a record, then its message: workers take a message only together with its record."""
        try:
            is_admitted = await self.records.admit(record)
            if is_admitted:
                await self.records.create(address, record)
        except CallError as error:
            is_refused = error.code is ErrorCode.ACCESS_DENIED
            posting.undelivered(DeliveryRefused(error.message) if is_refused else error.message)
            return
        if is_admitted:
            self._store(posting)
        else:
            posting.undelivered(TooManyRecords("its owner has too many records"))

    def _store(self, posting: Posting, *, has_stream: bool = False) -> None:
        """Store a message; if there may be no stream yet, create it and try once more.

        After a lost connection, do nothing: the caller stores the message again.
        """

        def answered(answer: JetStreamReply) -> None:
            if answer.error is None:
                posting.stored()
                return
            problem = answer.error.description
            if isinstance(problem, Interrupted):
                return
            if answer.error.code:
                posting.undelivered(f"JetStream did not store the message: {problem}")
            elif has_stream or isinstance(problem, DeliveryRefused):
                posting.undelivered(problem)
            else:
                _ = self.jetstream.spawn(self._make_and_store(posting))

        self.jetstream.publish(posting.subject, posting.message, posting.headers, answered)

    async def _make_and_store(self, posting: Posting) -> None:
        problem = await self.jetstream.make("queues")
        if problem is None:
            self._store(posting, has_stream=True)
        else:
            posting.undelivered(f"there is no JetStream stream for the message: {problem}")

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take the messages stored at an address; redelivered messages are handled one at a time."""
        namespace = address.partition(".")[2]
        readers = [
            DurableQueueReader(self, "queue", namespace, take, limit),
            DurableQueueReader(self, "suspect", namespace, take, 1),
        ]
        self._readers += readers
        for reader in readers:
            reader.begin()

        def stop() -> None:
            for reader in readers:
                if reader in self._readers:
                    self._readers.remove(reader)
                    reader.stop()

        return stop

    def suspect(self, namespace: str, delivery: NatsDelivery, caller: str | None) -> None:
        """Move a redelivered message to the queue that delivers one message at a time: it may have crashed a worker."""
        # A caller that could guess the key could store a message with it first, and this message would be lost as a
        # duplicate.
        key = blake2b(b"%d " % delivery.sequence + delivery.message, digest_size=16).hexdigest()
        headers = b"Nats-Msg-Id: %b\r\n" % key.encode()
        headers += b"%b: %b\r\n" % (_ENTRY_HEADER, delivery.entry.encode())
        if delivery.record_key:
            headers += b"%b: %b.%b\r\n" % (RECORD_HEADER, delivery.record_key.encode(), delivery.link)
        subject = self.subjects.target(f"suspect.{namespace}", caller=caller)
        if subject is not None:
            self.jetstream.publish(subject, delivery.message, headers, delivery.settle_with(b"+ACK"))

    async def store_key(self, key: str, seconds: float, entry: str = "") -> bool:
        """Store a key for all peers of the bus; return False if it is already stored, unless for the same `entry`.

        With `entry`, a second key, which combines `key` and `entry`, is stored before `key`. If `key` is already
        stored, the position of the second key shows which entry stored `key`. If the second key is at an earlier
        position than `key`, this entry did: this is a further delivery, and the result is True. Otherwise another entry
        did.

        Without JetStream, nothing is stored, and the result is True. Raise a CallError if JetStream does not store the
        keys.
        """
        if not self.client.capabilities.durable:
            return True
        problem = await self.jetstream.make("keys")
        if problem is None:
            kind = "hour" if seconds <= HOUR else "day"
            subject = f"{self.subjects.prefix}.once.{kind}".encode()
            keys = (f"{key}-{entry}", key) if entry else (key,)
            answers = await asyncio.gather(*(self.jetstream.request(subject, b"", each) for each in keys))
            problem = next((answer.error.description for answer in answers if answer.error is not None), None)
            if problem is None:
                own, shared = answers[0], answers[-1]
                return not shared.duplicate or (own.duplicate and own.seq < shared.seq)
        message = f"JetStream, which detects repeated requests, did not record the request: {problem}"
        raise CallError(ErrorCode.UNAVAILABLE, message, {"executed": "no"})

    def delete_key(self, key: str, entry: str = "") -> None:
        """Do nothing: a key never prevents its own message from being taken again.

        A released message keeps the entry for which its key is stored. A message that is stored again has no entry, so
        its key is not checked.
        """

    def regained(self) -> None:
        """Request messages on a new connection."""
        for reader in self._readers:
            reader.begin()

    def lost(self) -> None:
        """Stop waiting for the pull requests of a lost connection."""
        for reader in self._readers:
            reader.end_asking()

    def close(self) -> None:
        """Stop all readers, and cancel all tasks."""
        for reader in self._readers:
            reader.stop()
        self._readers.clear()
        self.jetstream.close()

    def dead_letter(self, namespace: str, message: bytes, reason: str, then: Callable[[JetStreamReply], None]) -> None:
        """Store a dead letter with the reason; call `then` with JetStream's response."""
        headers = b"Operations-Reason: %b\r\n" % " ".join(reason.split()).encode("ascii", "replace")[:500]
        subject = self.subjects.target(f"dead.{namespace}")
        if subject is not None:
            self.jetstream.publish(subject, message, headers, then)


class DurableQueueReader:
    """Requests stored messages, up to the number and the memory that a worker may hold at a time.

    While messages are held, it notifies JetStream regularly, so that JetStream does not deliver them again.
    """

    def __init__(
        self, queues: DurableQueues, kind: Literal["queue", "suspect"], namespace: str, take: Take, limit: int
    ) -> None:
        self.queues = queues
        self.namespace = namespace
        self.alone = kind == "suspect"
        """Whether all readers of the queue, in all workers, together hold at most one message at a time."""
        self._filter = queues.subjects.filter(f"{kind}.{namespace}").decode()
        self._take = take
        self._limit = limit
        self._consumer = f"{kind}_{namespace.replace('.', '=')}"
        self._inbox = b"%b.%b.%d" % (queues.client.replies.inbox, kind.encode(), next(queues.numbers))
        self._question = 0
        self._held: dict[int, NatsDelivery] = {}
        """The messages that are held, by sequence number; a later delivery of a message replaces the earlier one."""
        self._memory = 0
        """The memory of the messages that are held."""
        self._is_next_large = False
        """Whether the next message exceeds the limit of bytes: it is requested alone and without the limit."""
        self._asked = 0
        self._unsubscribe = queues.client.subscribe(self._inbox + b".*", whole(self._received))
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
            problem = await self.queues.jetstream.make("queues") or await self._make_consumer()
            if problem is None:
                self._ask()
                return
            _log.warning("stored requests of %s cannot be taken yet: %s", self.namespace, problem)
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
        """Request no more messages; this worker keeps those that it holds until it acknowledges or releases them."""
        self._stopped = True
        if self._beginning is not None:
            self._beginning.cancel()
        self.end_asking()
        self._unsubscribe()

    def settled(self, delivery: NatsDelivery) -> None:
        """Remove a message that this worker no longer holds; request further ones unless a pull request is pending."""
        if self._held.get(delivery.sequence) is delivery:
            del self._held[delivery.sequence]
            self._memory -= delivery.memory
        if self._asked <= 0:
            self._ask()

    def weigh(self, delivery: NatsDelivery, memory: int) -> None:
        """Store how much memory a message takes; request further ones unless a pull request is pending."""
        if self._held.get(delivery.sequence) is delivery:
            self._memory += memory - delivery.memory
            delivery.memory = memory
            if self._asked <= 0:
                self._ask()

    def _ask(self) -> None:
        room, memory = min(_MOST_ASKED, self._limit - len(self._held)), MOST_HELD - self._memory
        if self._stopped or room <= 0 or memory <= 0:
            return
        self.end_asking()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.queues.jetstream.stream}.{self._consumer}".encode()
        limits = {"batch": room, "max_bytes": max(1, memory // DECODED_FACTOR)}
        if self._is_next_large:
            room, limits = 1, {"batch": 1}
        options = msgspec.json.encode({**limits, "expires": int(_ASK_SECONDS * SECOND)})
        self._question += 1
        if self.queues.client.publish(publish(subject, options, b"%b.%d" % (self._inbox, self._question))):
            self._asked = room
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(_ASK_SECONDS + ANSWER_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._asked = 0
        self._ask()

    def end_asking(self) -> None:
        """Stop waiting for the pending pull request."""
        self._asked = 0
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _received(self, message: NatsMessage) -> None:
        """Handle a stored message, or the status that ends a pull request."""
        if message.status is not None:
            self._status_received(message)
            return
        if message.reply is None or not message.reply.startswith(b"$JS.ACK."):
            return
        self._asked -= 1
        self._is_next_large = False
        delivery = NatsDelivery(self, message)
        earlier = self._held.get(delivery.sequence)
        if earlier is not None:
            self._memory -= earlier.memory
        self._held[delivery.sequence] = delivery
        self._memory += delivery.memory
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_later(self.queues.ack_wait / 3, self._renew)
        arrival = self.queues.arrivals[message.subject]
        if delivery.record_key:
            _ = self.queues.jetstream.spawn(self._take_recorded(delivery, arrival))
        else:
            self._pass_on(delivery, arrival)
        if self._asked <= 0:
            self._ask_again()

    def _pass_on(self, delivery: NatsDelivery, arrival: Arrival) -> None:
        if delivery.number > 1 and not self.alone:
            self.queues.suspect(self.namespace, delivery, arrival.sender)
        else:
            self._take(delivery.message, delivery, arrival)

    async def _take_recorded(self, delivery: NatsDelivery, arrival: Arrival) -> None:
        """Pass a message on if its record belongs to it and is not final; otherwise end or release the delivery."""
        kept, is_known = None, False
        for attempt in range(_MOST_READS):
            if attempt:
                await asyncio.sleep(_TROUBLE_SECONDS)
            try:
                kept, is_known = await self.queues.records.read(arrival.address, delivery.record_key), True
            except ValueError:
                delivery.dead_letter("the key of the message's record is not valid")
                return
            except CallError:
                is_known = False
                continue
            if kept is not None and not kept.is_final and delivery.link and kept.link == delivery.link:
                self._pass_on(delivery, arrival)
                return
        if not is_known:
            delivery.release()
        elif kept is not None and kept.is_final:
            delivery.done()
        else:
            delivery.dead_letter("the record of the message is missing, or belongs to another message")

    def _status_received(self, message: NatsMessage) -> None:
        """Handle the end of a pull request: send another one, after creating the consumer if it was missing."""
        if message.subject.rpartition(b".")[2] != b"%d" % self._question or self._stopped:
            return
        self.end_asking()
        self._is_next_large = _TOO_LARGE in message.headers
        if self._is_next_large or message.status in _EXPIRED:
            self._ask()
        else:
            self._overdue = asyncio.get_running_loop().call_later(_TROUBLE_SECONDS, self.begin)

    def _renew(self) -> None:
        """Notify JetStream that the received messages are being handled."""
        self._renewal = None
        for delivery in self._held.values():
            delivery.acknowledge(b"+WPI")
        if self._held:
            self._renewal = asyncio.get_running_loop().call_later(self.queues.ack_wait / 3, self._renew)


class NatsDelivery:
    """A message that this peer has received and not yet acknowledged."""

    __slots__ = (
        "_message",
        "_reader",
        "entry",
        "is_redelivered",
        "link",
        "memory",
        "number",
        "record_key",
        "sequence",
    )

    def __init__(self, reader: DurableQueueReader, message: NatsMessage) -> None:
        self._reader = reader
        self._message = message
        self.memory = len(message.headers) + len(message.data) * DECODED_FACTOR
        """The memory of the message, which counts for the limit of the reader."""
        deliveries, self.sequence = _read_acknowledgement(message.reply or b"")
        # A message in the queue of redelivered messages was delivered before.
        self.number = deliveries + reader.alone
        self.is_redelivered = self.number > 1
        # Only workers can send to the queue of redelivered messages, so this header is true there.
        moved = header_of(message.headers, _ENTRY_HEADER).decode(errors="replace")
        self.entry = moved if reader.alone else str(self.sequence)
        key, _, self.link = header_of(message.headers, RECORD_HEADER).partition(b".")
        self.record_key = key.decode(errors="replace")
        """The key of the message's record; empty if it has no record."""

    @property
    def message(self) -> bytes:
        """The message as it is stored."""
        return self._message.data

    def weigh(self, decoded: int) -> None:
        """State how much memory the decoded message takes."""
        self._reader.weigh(self, len(self._message.headers) + len(self._message.data) + decoded)

    def done(self, record: Record | None = None) -> None:
        """Delete the message, which was handled; before that, replace its record if `record` has the same key."""
        if record is None or record.key != self.record_key:
            self._settle(b"+ACK")
        else:
            self._replace_record(record, b"+ACK")

    def note(self, record: Record) -> None:
        """Replace the message's record if `record` has the same key; a failure is ignored."""
        queues = self._reader.queues
        if record.key == self.record_key:
            _ = queues.jetstream.spawn(self._note(queues, record))

    async def _note(self, queues: DurableQueues, record: Record) -> None:
        with contextlib.suppress(CallError):  # the next note, or the outcome, replaces the record
            await queues.records.note(f"queue.{self._reader.namespace}", record)

    def release(self) -> None:
        """Release the message for another worker."""
        self._settle(b"-NAK")

    def dead_letter(self, reason: str, record: Record | None = None) -> None:
        """Move the message to the dead letters, and only then delete it from its queue.

        If `record` is given and can be stored, it is the dead letter instead of the message.
        """
        queues = self._reader.queues
        if record is not None and record.key == self.record_key:
            self._replace_record(record, b"+TERM")
        elif record is not None and not self.record_key:
            _ = queues.jetstream.spawn(self._dead_letter_recorded(queues, reason, record))
        else:
            queues.dead_letter(self._reader.namespace, self.message, reason, self.settle_with(b"+TERM"))

    async def _dead_letter_recorded(self, queues: DurableQueues, reason: str, record: Record) -> None:
        """Write `record` as the dead letter of a message that had no record.

        If the record cannot be stored, for example because its owner has too many, dead-letter the message instead.
        """
        is_admitted = len(record.body) + _RECORD_HEADERS <= queues.jetstream.max_payload
        with contextlib.suppress(CallError):
            if is_admitted and await queues.records.admit(record):
                self._replace_record(record, b"+TERM")
                return
        self.dead_letter(reason)

    def _replace_record(self, record: Record, word: bytes) -> None:
        """Replace the record, and then acknowledge the message with `word`."""
        self._reader.queues.records.replace(f"queue.{self._reader.namespace}", record, self.settle_with(word))

    def settle_with(self, word: bytes) -> Callable[[JetStreamReply], None]:
        """Return a function that handles JetStream's response to the last step before the message is acknowledged.

        If the step succeeded, the function acknowledges the message with `word`. If the step failed, this worker no
        longer holds the message, so that JetStream delivers it again.
        """

        def settle(answer: JetStreamReply) -> None:
            if answer.error is None:
                self._settle(word)
            else:
                _limited_log.warning("a stored message is delivered again: %s", answer.error.description)
                self._reader.settled(self)

        return settle

    def acknowledge(self, word: bytes) -> None:
        """Send JetStream an acknowledgement."""
        self._reader.queues.client.publish(publish(self._message.reply or b"", word))

    def _settle(self, word: bytes) -> None:
        self.acknowledge(word)
        self._reader.settled(self)


def _read_acknowledgement(subject: bytes) -> tuple[int, int]:
    """Return the number of deliveries and the sequence number in an acknowledgement subject (old or new form)."""
    words = subject.split(b".")
    start = 4 if len(words) < 11 else 6
    numbers = [int(word) if word.isdigit() else 1 for word in words[start : start + 2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, 0)
