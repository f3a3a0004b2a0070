"""JetStream, the storage of NATS: its API, acknowledged publishing, and the streams that this library needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from operations.pubsub.nats.replies import Replies
from operations.pubsub.nats.wire import NatsMessage, ReceiveMessage, publish
from operations.pubsub.protocols import DeliveryRefused, Stop, Undelivered

DUPLICATES_SECONDS = 120
"""How long JetStream stores the key of a message, to drop duplicates."""
DEAD_SECONDS = 30 * 86_400
STORED_SECONDS = 7 * 86_400
"""How long a message waits for a worker before JetStream deletes it."""
RECORD_SECONDS = 40 * 86_400
"""How long the record of a stored message is kept at most."""
ANSWER_SECONDS = 5.0
"""Seconds within which JetStream has to respond."""
HOUR = 3_600
_SLACK = 60
_HEADER_BLOCK = 14
"""Size of the framing of a message's headers."""
SECOND = 1_000_000_000
"""One second in JetStream's unit of time."""


class NatsClient(Protocol):
    """The part of the transport that queues use."""

    replies: Replies

    @property
    def max_payload(self) -> int:
        """The largest message, with its headers, that the server accepts."""

    def subscribe(self, subject: bytes, *, full: ReceiveMessage) -> Stop:
        """Subscribe to a subject; the subscription is renewed at each reconnect."""

    def publish(self, data: bytes) -> bool:
        """Send bytes of the client protocol; return False without a connection."""


class JetStreamError(msgspec.Struct, frozen=True):
    """An error of JetStream."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class JetStreamReply(msgspec.Struct, frozen=True):
    """A response of JetStream."""

    error: JetStreamError | None = None
    duplicate: bool = False
    seq: int = 0
    name: str = ""
    """The name of the consumer that was created."""
    num_pending: int = 0
    """Number of messages that the created consumer has to deliver."""
    total: int = 0
    """Number of subjects of a stream that match the filter."""


class JetStream:
    """JetStream at the server of one peer; missing streams are created."""

    def __init__(self, client: NatsClient, prefix: str, *, replicas: int) -> None:
        self.client = client
        self._prefix = prefix
        self._replicas = replicas
        self.stream = prefix.replace(".", "_")
        self._made: asyncio.Task[str | None] | None = None
        self._records: asyncio.Task[str | None] | None = None
        self.record_stream = f"{self.stream}_records"
        self._job_records: asyncio.Task[str | None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def make_streams(self) -> str | None:
        """Create the two streams for durable queues if they are missing; return the problem, or None."""
        if self._made is None or (self._made.done() and self._made.result() is not None):
            self._made = self.spawn(self._make_streams())
        return await asyncio.shield(self._made)

    async def _make_streams(self) -> str | None:
        common = {"storage": "file", "num_replicas": self._replicas}
        prefix = self._prefix
        work = {
            "retention": "workqueue",
            "duplicate_window": DUPLICATES_SECONDS * SECOND,
            "max_age": STORED_SECONDS * SECOND,
            **common,
        }
        dead = {"retention": "limits", "max_age": DEAD_SECONDS * SECOND, **common}
        subjects = [f"{prefix}.queue.>", f"{prefix}.suspect.>"]
        return await self._make_stream(self.stream, subjects, work) or await self._make_stream(
            f"{self.stream}_dead", [f"{prefix}.dead.>"], dead
        )

    async def make_records(self) -> str | None:
        """Create the two streams for keys if they are missing; return the problem, or None."""
        if self._records is None or (self._records.done() and self._records.result() is not None):
            self._records = self.spawn(self._make_records())
        return await asyncio.shield(self._records)

    async def _make_records(self) -> str | None:
        for kind, seconds in (("hour", HOUR + _SLACK), ("day", 25 * HOUR)):
            window = seconds * SECOND
            options = {"storage": "file", "num_replicas": self._replicas, "max_age": window, "duplicate_window": window}
            problem = await self._make_stream(f"{self.stream}_once_{kind}", [f"{self._prefix}.once.{kind}"], options)
            if problem is not None:
                return problem
        return None

    async def make_job_records(self) -> str | None:
        """Create the stream for records of stored messages if it is missing; return the problem, or None."""
        if self._job_records is None or (self._job_records.done() and self._job_records.result() is not None):
            options = {
                "storage": "file",
                "num_replicas": self._replicas,
                "max_msgs_per_subject": 1,
                "max_age": RECORD_SECONDS * SECOND,
                "allow_direct": True,
                "allow_msg_ttl": True,
            }
            subjects = [f"{self._prefix}.record.>"]
            self._job_records = self.spawn(self._make_stream(self.record_stream, subjects, options))
        return await asyncio.shield(self._job_records)

    async def _make_stream(self, name: str, subjects: list[str], options: dict[str, Any]) -> str | None:
        answer = await self.ask(f"STREAM.INFO.{name}", {})
        if answer.error is None:
            return None
        answer = await self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **options})
        return None if answer.error is None else answer.error.description

    async def ask(self, what: str, options: dict[str, Any]) -> JetStreamReply:
        """Make a request to JetStream's API."""
        return await self.request(f"$JS.API.{what}".encode(), msgspec.json.encode(options))

    async def request(self, subject: bytes, data: bytes, key: str = "", *, headers: bytes = b"") -> JetStreamReply:
        """Publish a message and wait for JetStream's response; a message with the same key is a duplicate."""
        answered: asyncio.Future[JetStreamReply] = asyncio.get_running_loop().create_future()

        def settle(answer: JetStreamReply) -> None:
            if not answered.done():
                answered.set_result(answer)

        def failed(reason: str) -> None:
            settle(
                JetStreamReply(
                    JetStreamError(503, 0, "JetStream is not enabled" if "no listener" in reason else reason)
                )
            )

        if key:
            headers += b"Nats-Msg-Id: %b\r\n" % key.encode()
        self.publish(subject, data, headers, settle, failed)
        await asyncio.wait((answered,), timeout=ANSWER_SECONDS)
        failed("JetStream does not respond")
        return answered.result()

    def publish(
        self,
        subject: bytes,
        data: bytes,
        headers: bytes,
        answered: Callable[[JetStreamReply], None],
        undelivered: Undelivered,
    ) -> None:
        """Publish a message that JetStream acknowledges."""
        size, most = len(data) + len(headers) + _HEADER_BLOCK, self.client.max_payload
        if size > most:  # the server would close the connection
            undelivered(DeliveryRefused(f"the message has {size:,} bytes; the server accepts {most:,}"))
            return

        def read(message: NatsMessage) -> None:
            stop()
            try:
                answer = msgspec.json.decode(message.data, type=JetStreamReply)
            except msgspec.DecodeError:
                answer = JetStreamReply(JetStreamError(500, 0, "unexpected response: it is not JetStream's"))
            answered(answer)

        reply, stop = self.client.replies.request(subject, read, undelivered)
        if not self.client.publish(publish(subject, data, reply, headers)):
            stop()
            undelivered("there is no connection to the NATS server")

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a task that is cancelled when this transport closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Cancel the tasks."""
        for task in self._tasks:
            task.cancel()
