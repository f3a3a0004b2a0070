"""Records of stored messages in JetStream: a record is the last message of a subject. Records are listed by owner."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.nats.jetstream import ANSWER_SECONDS, SECOND, JetStream, JetStreamReply
from operations.pubsub.nats.subjects import Subjects
from operations.pubsub.nats.wire import NatsMessage, header_of, publish, whole
from operations.pubsub.protocols import DeliveryRefused, KeepsRecords, Record, Stop

RECORD_HEADER = b"Operations-Record"
"""The header of a stored message; its value is the record's key, a dot, and the link (see `_LINK`)."""
_LINK = b"Operations-Link"
"""The header with a record's link: a secret in the record and in its message. Other messages cannot use the record."""
_VALUE = b"Operations-Value"
"""The header with the value of a record, as base64; the body of the record is the data of the JetStream message."""
_FINAL = b"Operations-Final"
"""The header of a record whose message was handled, deleted or dead-lettered."""
_WRONG_SEQUENCE = 10_071
"""The code of JetStream's error if a record was changed since it was read."""
_NO_MESSAGE = 404
"""The status with which JetStream responds if there is no record."""
_LISTED_TOGETHER = 1_000
"""Largest number of records that one request lists."""
_COUNTED_SECONDS = 10.0
"""Seconds for which a count of an owner's records is used."""
_MOST_COUNTED = 10_000
"""Largest number of owners whose counts are stored."""
_BEYOND_ALL = 1 << 30
"""An offset greater than the number of subjects of any stream."""
_NOT_EXECUTED = {"executed": "no"}


class KeptRecord(msgspec.Struct, frozen=True):
    """A record as the server has it."""

    value: bytes
    body: bytes
    sequence: int
    is_final: bool
    link: bytes


class NatsRecords(KeepsRecords):
    """The records that this peer writes, reads and watches."""

    def __init__(self, jetstream: JetStream, subjects: Subjects) -> None:
        self.jetstream = jetstream
        self._subjects = subjects
        self._counts: dict[str, tuple[float, int]] = {}
        """Per owner: the time of the last count, and its result plus the records that this peer has added since."""
        self._counting = asyncio.Lock()
        self._fetches = 0
        self._secret = os.urandom(16)

    def header(self, record: Record) -> bytes:
        """Return the header that links a message to its record."""
        return b"%b: %b.%b\r\n" % (RECORD_HEADER, record.key.encode(), self._link(record))

    def _link(self, record: Record) -> bytes:
        """Return the link of a record; it is the same when this peer writes the record again."""
        return blake2b(record.key.encode(), key=self._secret, digest_size=16).hexdigest().encode()

    async def admit(self, record: Record) -> bool:
        """Count a new record of its owner; return whether the owner may have it.

        The server's count is read at intervals, and again when the limit is reached.
        """
        await self._make_stream()
        if self._is_uncertain(record):
            async with self._counting:
                if self._is_uncertain(record):
                    await self._count(record.owner)
        counted_at, count = self._counts[record.owner]
        self._counts[record.owner] = counted_at, count + 1
        return not record.most or count < record.most

    async def _make_stream(self) -> None:
        problem = await self.jetstream.make("records")
        if problem is not None:
            raise _unreachable(problem)

    def _is_uncertain(self, record: Record) -> bool:
        """Whether the records of an owner have to be counted again: the last count is old, or near the limit."""
        counted_at, count = self._counts.get(record.owner, (-_COUNTED_SECONDS, 0))
        return time.monotonic() - counted_at >= _COUNTED_SECONDS or 0 < record.most <= count

    async def _count(self, owner: str) -> None:
        # With this offset, the response contains the number of subjects, but no subjects.
        options = {"subjects_filter": f"{self._subjects.prefix}.record.{owner}.>", "offset": _BEYOND_ALL}
        answer = await self._ask("STREAM.INFO", options)
        if len(self._counts) >= _MOST_COUNTED:
            self._counts.clear()
        self._counts[owner] = time.monotonic(), answer.total

    async def create(self, address: str, record: Record) -> None:
        """Write the first value of a record, unless it was written before."""
        await self._write(address, record, 0, _headers(record, self._link(record)))

    def replace(self, address: str, record: Record, then: Callable[[JetStreamReply], None]) -> None:
        """Write the final value of a record: its message was handled or dead-lettered."""
        headers = b"%b: 1\r\n%b" % (_FINAL, _headers(record))
        self.jetstream.publish(self._subjects.record(address, record.key), record.body, headers, then)

    async def read_record(self, address: str, key: str) -> tuple[bytes, bytes] | None:
        """Return the value and body of a record; None if there is none."""
        kept = await self.read(address, key)
        return None if kept is None else (kept.value, kept.body)

    async def read(self, address: str, key: str) -> KeptRecord | None:
        """Return a record; None if there is none."""
        await self._make_stream()
        subject = self._subjects.record(address, key)
        reply = await self.jetstream.fetch(
            f"$JS.API.DIRECT.GET.{self.jetstream.record_stream}.".encode() + subject, b""
        )
        if not isinstance(reply, NatsMessage):
            raise _unreachable(reply)
        if reply.status == _NO_MESSAGE:
            return None
        if reply.status is not None:
            raise _unreachable(f"JetStream responded with status {reply.status}")
        sequence = header_of(reply.headers, b"Nats-Sequence")
        number = int(sequence) if sequence.isdigit() else 0
        is_final, link = bool(header_of(reply.headers, _FINAL)), header_of(reply.headers, _LINK)
        return KeptRecord(_read_value(reply.headers), reply.data, number, is_final, link)

    async def note(self, address: str, record: Record) -> None:
        """Replace a record whose message is being handled, unless the record is missing, final or changes meanwhile."""
        kept = await self.read(address, record.key)
        if kept is not None and not kept.is_final:
            await self._write(address, record, kept.sequence, _headers(record, kept.link))

    async def end_record(self, address: str, record: Record) -> bool:
        """Write the final value of a record, so that its message is dropped.

        Return False if there is no such record, or if its value is already final.
        """
        while True:
            kept = await self.read(address, record.key)
            if kept is None or kept.is_final:
                return False
            if await self._write(address, record, kept.sequence, b"%b: 1\r\n%b" % (_FINAL, _headers(record))):
                return True

    async def store_again(self, address: str, message: bytes, record: Record, *, sender: str) -> None:
        """Store a message again in the queue of redelivered messages, and replace its record."""
        subject = self._subjects.target(f"suspect.{address.partition('.')[2]}", caller=sender)
        if subject is None:
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{sender!r} cannot be part of a NATS subject")
        await self._reopen(address, record)
        answer = await self.jetstream.request(subject, message, headers=self.header(record))
        if answer.error is not None:
            problem = f"JetStream did not store the message: {answer.error.description}"
            raise CallError(ErrorCode.UNAVAILABLE, problem, {"executed": "unknown"})

    async def _reopen(self, address: str, record: Record) -> None:
        """Replace the final value of a record, because its message is stored again.

        Raise a CallError if the record is missing or not final, or changes meanwhile.
        """
        kept = await self.read(address, record.key)
        headers = _headers(record, self._link(record))
        if kept is None or not kept.is_final or not await self._write(address, record, kept.sequence, headers):
            message = "the record is gone, or its message is already stored"
            raise CallError(ErrorCode.UNAVAILABLE, message, _NOT_EXECUTED)

    async def _write(self, address: str, record: Record, sequence: int, headers: bytes) -> bool:
        """Write a record if its sequence number is still `sequence` (0: no record); return whether it was written."""
        expected = b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % sequence
        subject = self._subjects.record(address, record.key)
        answer = await self.jetstream.request(subject, record.body, headers=expected + headers)
        if answer.error is not None and answer.error.err_code != _WRONG_SEQUENCE:
            raise _unreachable(answer.error.description)
        return answer.error is None

    async def list_records(self, owner: str | None, most: int) -> list[tuple[str, str, bytes]]:
        """Return the address, key and value of the `most` records that were written last: those of `owner`, or all."""
        await self._make_stream()
        prefix = self._subjects.prefix
        consumer = await self._consume(f"{prefix}.record.>" if owner is None else f"{prefix}.record.{owner}.>", most)
        newest: deque[NatsMessage] = deque(maxlen=most)
        left = consumer.num_pending
        while left > 0:
            fetched = await self._fetch(consumer.name, min(left, _LISTED_TOGETHER))
            newest += fetched
            left = left - len(fetched) if fetched else 0
        self._delete(consumer)
        return [(*self._subjects.read_record(each.subject), _read_value(each.headers)) for each in newest]

    async def _consume(self, subjects: str, most: int) -> JetStreamReply:
        """Create a consumer that delivers the `most` last messages of `subjects`, after few earlier ones.

        A consumer begins at a sequence number of the stream. A binary search finds a number for which at most
        `_LISTED_TOGETHER` earlier messages are delivered.
        """
        consumer = await self._consume_from(subjects, 1)
        if consumer.num_pending <= most + _LISTED_TOGETHER:
            return consumer
        start, end = 1, (await self._ask("STREAM.INFO", {})).state.last_seq + 1
        while consumer.num_pending > most + _LISTED_TOGETHER and end - start > 1:
            middle = (start + end) // 2
            other = await self._consume_from(subjects, middle)
            if other.num_pending < most:
                end = middle
            else:
                start, consumer, other = middle, other, consumer
            self._delete(other)
        return consumer

    async def _consume_from(self, subjects: str, sequence: int) -> JetStreamReply:
        config = {
            "ack_policy": "none",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "filter_subject": subjects,
            "inactive_threshold": 10 * SECOND,
            "mem_storage": True,
            "headers_only": True,
        }
        return await self._ask("CONSUMER.CREATE", {"stream_name": self.jetstream.record_stream, "config": config})

    def _delete(self, consumer: JetStreamReply) -> None:
        stream = self.jetstream.record_stream
        _ = self.jetstream.spawn(self.jetstream.ask(f"CONSUMER.DELETE.{stream}.{consumer.name}", {}))

    async def _ask(self, what: str, options: dict[str, Any]) -> JetStreamReply:
        """Make a request about the stream of records; raise a CallError for an error."""
        answer = await self.jetstream.ask(f"{what}.{self.jetstream.record_stream}", options)
        if answer.error is not None:
            raise _unreachable(answer.error.description)
        return answer

    async def _fetch(self, consumer: str, count: int) -> list[NatsMessage]:
        """Return the next messages of a consumer, at most `count`."""
        messages: list[NatsMessage] = []
        ended = asyncio.Event()

        def came(message: NatsMessage) -> None:
            if message.status is None:
                messages.append(message)
            if message.status is not None or len(messages) >= count:
                ended.set()

        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.jetstream.record_stream}.{consumer}".encode()
        options = msgspec.json.encode({"batch": count, "no_wait": True})
        # Messages arrive with the subjects of their records, so they need a separate subscription.
        self._fetches += 1
        inbox = b"%b.records.%d" % (self.jetstream.client.replies.inbox, self._fetches)
        stop = self.jetstream.client.subscribe(inbox, whole(came))
        try:
            if not self.jetstream.client.publish(publish(subject, options, inbox)):
                raise _unreachable("there is no connection to the NATS server")
            async with asyncio.timeout(ANSWER_SECONDS):
                await ended.wait()
        except TimeoutError:
            raise _unreachable("JetStream does not respond") from None
        finally:
            stop()
        return messages

    def watch_record(self, address: str, key: str, changed: Callable[[], None]) -> Stop:
        """Call `changed` when a record gets its final value: its message was handled, deleted or dead-lettered."""

        def came(message: NatsMessage) -> None:
            if header_of(message.headers, _FINAL):
                changed()

        return self.jetstream.client.subscribe(self._subjects.record(address, key), whole(came))


def _headers(record: Record, link: bytes = b"") -> bytes:
    """Return the headers of a record; `link` is empty for a record whose message is gone."""
    lifetime = max(1, int(record.seconds))
    headers = b"Nats-TTL: %ds\r\n%b: %b\r\n" % (lifetime, _VALUE, base64.b64encode(record.value))
    return headers + b"%b: %b\r\n" % (_LINK, link) if link else headers


def _read_value(headers: bytes) -> bytes:
    try:
        return base64.b64decode(header_of(headers, _VALUE), validate=True)
    except ValueError:
        return b""


def _unreachable(problem: str) -> CallError:
    code = ErrorCode.ACCESS_DENIED if isinstance(problem, DeliveryRefused) else ErrorCode.UNAVAILABLE
    return CallError(code, f"the records of stored messages cannot be reached: {problem}", _NOT_EXECUTED)
