"""JetStream, the storage of NATS: its API, acknowledged publishing, and the streams that this library needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from operations.pubsub.nats.replies import Replies
from operations.pubsub.nats.wire import NatsMessage, ReceiveMessage, Receiver, publish
from operations.pubsub.protocols import Capabilities, DeliveryRefused, Stop, Undelivered

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
    capabilities: Capabilities

    def subscribe(self, subject: bytes, receive: Receiver) -> Stop:
        """Subscribe to a subject; the subscription is renewed at each reconnect."""

    def publish(self, data: bytes) -> bool:
        """Send bytes of the client protocol; return False without a connection."""


class JetStreamError(msgspec.Struct, frozen=True):
    """An error of JetStream, or the reason why it did not respond."""

    code: int = 0
    """0 if JetStream did not respond."""
    err_code: int = 0
    description: str = ""


class StreamState(msgspec.Struct, frozen=True):
    """The state of a stream."""

    last_seq: int = 0
    """The sequence number of its last message."""


class JetStreamReply(msgspec.Struct, frozen=True):
    """A response of JetStream."""

    error: JetStreamError | None = None
    duplicate: bool = False
    seq: int = 0
    """The position of the stored message in its stream; of a duplicate, that of the first message."""
    name: str = ""
    """The name of the consumer that was created."""
    num_pending: int = 0
    """Number of messages that the created consumer has to deliver."""
    total: int = 0
    """Number of subjects of a stream that match the filter."""
    state: StreamState = StreamState()


StreamKind = Literal["queues", "keys", "records"]
"""What streams store: messages and dead letters, the keys of requests, or the records of stored messages."""


class JetStream:
    """JetStream at the server of one peer; missing streams are created."""

    def __init__(self, client: NatsClient, prefix: str, *, replicas: int) -> None:
        self.client = client
        self.stream = prefix.replace(".", "_")
        self.record_stream = f"{self.stream}_records"
        self._replicas = replicas
        self._streams = _describe_streams(prefix, self.stream)
        self._made: dict[StreamKind, asyncio.Task[str | None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def max_payload(self) -> int:
        """The largest message, with its headers, that the server accepts; 0 before the first connection."""
        return self.client.capabilities.max_payload or 0

    async def make(self, kind: StreamKind) -> str | None:
        """Create the streams of one kind if they are missing; return the problem, or None."""
        made = self._made.get(kind)
        if made is None or (made.done() and made.result() is not None):
            made = self._made[kind] = self.spawn(self._make(kind))
        return await asyncio.shield(made)

    async def _make(self, kind: StreamKind) -> str | None:
        for name, options in self._streams[kind].items():
            if (await self.ask(f"STREAM.INFO.{name}", {})).error is None:
                continue
            common = {"name": name, "storage": "file", "num_replicas": self._replicas}
            answer = await self.ask(f"STREAM.CREATE.{name}", {**common, **options})
            if answer.error is not None:
                return answer.error.description
        return None

    async def ask(self, what: str, options: dict[str, Any]) -> JetStreamReply:
        """Make a request to JetStream's API."""
        return await self.request(f"$JS.API.{what}".encode(), msgspec.json.encode(options))

    async def request(self, subject: bytes, data: bytes, key: str = "", *, headers: bytes = b"") -> JetStreamReply:
        """Publish a message and wait for JetStream's response; JetStream drops a message whose key was used before."""
        if key:
            headers += b"Nats-Msg-Id: %b\r\n" % key.encode()
        reply = await self.fetch(subject, data, headers)
        return _read_reply(reply)

    async def fetch(self, subject: bytes, data: bytes, headers: bytes = b"") -> NatsMessage | str:
        """Publish a message and return JetStream's response without decoding it, or the reason why there is none."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[NatsMessage | str] = loop.create_future()

        def settle(answer: NatsMessage | str) -> None:
            if not answered.done():
                answered.set_result(answer)

        def failed(reason: str) -> None:
            settle("JetStream is not enabled" if "no listener" in reason else reason)

        stop = self._send(subject, data, headers, settle, failed)
        timer = loop.call_later(ANSWER_SECONDS, settle, "JetStream does not respond")
        try:
            return await answered
        finally:
            timer.cancel()
            stop()

    def publish(
        self,
        subject: bytes,
        data: bytes,
        headers: bytes,
        then: Callable[[JetStreamReply], None],
    ) -> None:
        """Publish a message; call `then` with JetStream's acknowledgement, or with the reason why there is none."""

        def received(message: NatsMessage) -> None:
            stop()
            then(_read_reply(message))

        stop = self._send(subject, data, headers, received, lambda reason: then(_read_reply(reason)))

    def _send(
        self, subject: bytes, data: bytes, headers: bytes, received: ReceiveMessage, undelivered: Undelivered
    ) -> Stop:
        size, most = len(data) + len(headers) + _HEADER_BLOCK, self.max_payload
        if size > most:  # the server would close the connection
            undelivered(DeliveryRefused(f"the message has {size:,} bytes; the server accepts at most {most:,}"))
            return lambda: None
        reply, stop = self.client.replies.request(subject, received, undelivered)
        if not self.client.publish(publish(subject, data, reply, headers)):
            stop()
            undelivered("there is no connection to the NATS server")
        return stop

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


def _describe_streams(prefix: str, name: str) -> dict[StreamKind, dict[str, dict[str, Any]]]:
    """Return the options of the streams of each kind, by the name of the stream."""
    windows = {"hour": (HOUR + _SLACK) * SECOND, "day": 25 * HOUR * SECOND}
    return {
        "queues": {
            name: {
                "subjects": [f"{prefix}.queue.>", f"{prefix}.suspect.>"],
                "retention": "workqueue",
                "duplicate_window": DUPLICATES_SECONDS * SECOND,
                "max_age": STORED_SECONDS * SECOND,
            },
            f"{name}_dead": {"subjects": [f"{prefix}.dead.>"], "retention": "limits", "max_age": DEAD_SECONDS * SECOND},
        },
        "keys": {
            f"{name}_once_{kind}": {"subjects": [f"{prefix}.once.{kind}"], "max_age": size, "duplicate_window": size}
            for kind, size in windows.items()
        },
        "records": {
            f"{name}_records": {
                "subjects": [f"{prefix}.record.>"],
                "max_msgs_per_subject": 1,
                "max_age": RECORD_SECONDS * SECOND,
                "allow_direct": True,
                "allow_msg_ttl": True,
            }
        },
    }


def _read_reply(message: NatsMessage | str) -> JetStreamReply:
    """Return a response of JetStream; `message` may also be the reason why there is none."""
    if not isinstance(message, NatsMessage):
        return JetStreamReply(JetStreamError(description=message))
    try:
        return msgspec.json.decode(message.data, type=JetStreamReply)
    except msgspec.DecodeError:
        return JetStreamReply(JetStreamError(500, 0, "the response cannot be decoded"))
