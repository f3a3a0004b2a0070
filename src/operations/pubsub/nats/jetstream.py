"""JetStream, NATS's store: asking its API, publishing what it answers, and making the two streams of the queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from operations.pubsub import Stop, Undelivered
from operations.pubsub.nats.receipts import Receipts
from operations.pubsub.nats.wire import Full, Message, publish

DUPLICATES_SECONDS = 120
"""How long JetStream knows the key of a message that it has been given."""
DEAD_SECONDS = 30 * 86_400
ANSWER_SECONDS = 5.0
SECOND = 1_000_000_000
"""One second in JetStream's unit of time."""


class Link(Protocol):
    """The connection, as far as queues need it."""

    receipts: Receipts

    def subscribe(self, subject: bytes, *, full: Full) -> Stop:
        """Subscribe to a subject, over any number of connections."""

    def publish(self, data: bytes) -> bool:
        """Send what is already in the client protocol; False where there is no connection."""


class Failure(msgspec.Struct, frozen=True):
    """An error of JetStream."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What JetStream says to anything."""

    error: Failure | None = None
    duplicate: bool = False


class JetStream:
    """The store of one end's server; streams are made where they are missing."""

    def __init__(self, link: Link, prefix: str, *, replicas: int) -> None:
        self._link = link
        self._prefix = prefix
        self._replicas = replicas
        self.stream = prefix.replace(".", "_")
        self._made: asyncio.Task[str | None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def make_streams(self) -> str | None:
        """Make the two streams where they are missing; what went wrong, or None."""
        if self._made is None or (self._made.done() and self._made.result() is not None):
            self._made = self.spawn(self._make_streams())
        return await asyncio.shield(self._made)

    async def _make_streams(self) -> str | None:
        common = {"storage": "file", "num_replicas": self._replicas}
        prefix = self._prefix
        work = {"retention": "workqueue", "duplicate_window": DUPLICATES_SECONDS * SECOND, **common}
        dead = {"retention": "limits", "max_age": DEAD_SECONDS * SECOND, **common}
        subjects = [f"{prefix}.queue.>", f"{prefix}.suspect.>"]
        return await self._make_stream(self.stream, subjects, work) or await self._make_stream(
            f"{self.stream}_dead", [f"{prefix}.dead.>"], dead
        )

    async def _make_stream(self, name: str, subjects: list[str], options: dict[str, Any]) -> str | None:
        answer = await self.ask(f"STREAM.INFO.{name}", {})
        if answer.error is None:
            return None
        answer = await self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **options})
        return None if answer.error is None else answer.error.description

    async def ask(self, what: str, options: dict[str, Any]) -> Answer:
        """Ask JetStream's API for something."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def settle(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        def nobody(reason: str) -> None:
            settle(Answer(Failure(503, 0, "JetStream is not enabled" if "nobody" in reason else reason)))

        subject = f"$JS.API.{what}".encode()
        self.publish(subject, msgspec.json.encode(options), b"", settle, nobody)
        await asyncio.wait((answered,), timeout=ANSWER_SECONDS)
        nobody("JetStream does not answer")
        return answered.result()

    def publish(
        self,
        subject: bytes,
        data: bytes,
        headers: bytes,
        answered: Callable[[Answer], None],
        undelivered: Undelivered,
    ) -> None:
        """Publish what JetStream answers once."""
        receipts = self._link.receipts

        def read(message: Message) -> None:
            stop()
            try:
                answer = msgspec.json.decode(message.data, type=Answer)
            except msgspec.DecodeError:
                answer = Answer(Failure(500, 0, "an answer that is not JetStream's"))
            answered(answer)

        reply, stop = receipts.request(subject, read, undelivered)
        if not self._link.publish(publish(subject, data, reply, headers)):
            stop()
            undelivered("there is no connection to the NATS server")

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run something until it is done or this end is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """End what was spawned."""
        for task in self._tasks:
            task.cancel()
