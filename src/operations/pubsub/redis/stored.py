"""Stored requests: streams with a group of consumers, at least once. What a dead worker held is taken over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from operations.errors import CallError
from operations.pubsub import Refused, Stop, Take, Undelivered
from operations.pubsub.redis.connection import SILENT_BEATS, Connection, Reply, ReplyError, is_refusal, pack
from operations.pubsub.redis.life import Life
from operations.pubsub.redis.names import Space
from operations.pubsub.redis.queues import Bus
from operations.pubsub.redis.scripts import CLAIM, GROUP, JOIN, SETTLE, STORE
from operations.pubsub.redis.taking import wake

_log = logging.getLogger("operations")
_KNOWN_MILLISECONDS = b"600000"
"""How long a request is known as stored, so that it is not stored again."""
_SILENT_MILLISECONDS = b"3600000"
_MOST_AT_ONCE = 64


class Stored:
    """The streams that this peer stores requests in and takes them from."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._takers: dict[str, StoredTaker] = {}

    def store(
        self, address: str, message: bytes, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store a request, unless one with the same key was."""
        life, space = self._bus.life, self._bus.names.space(address)
        if life is None:
            undelivered("there is no connection to Redis")
            return

        def done(reply: Reply) -> None:
            if reply == 1:
                stored()
            else:
                undelivered(explain(reply))

        life.put(STORE, (space.stored, space.seen(key)), (message, _KNOWN_MILLISECONDS), done)
        life.flush()

    def take(self, address: str, take: Take, limit: int) -> Stop:
        """Take what is stored at an address."""
        if address in self._takers:
            raise ValueError(f"{address} is taken from already")
        taker = self._takers[address] = StoredTaker(self._bus, self._bus.names.space(address), take, limit)
        if self._bus.life is not None:
            taker.begin(self._bus.life)

        def stop() -> None:
            if self._takers.get(address) is taker:
                del self._takers[address]
                taker.stop()

        return stop

    def begin(self, life: Life) -> None:
        """The servers were connected to."""
        for taker in self._takers.values():
            taker.begin(life)

    def beat(self) -> None:
        """Say that what is held is held, and take over what others no longer hold."""
        for taker in self._takers.values():
            taker.beat()


class StoredTaker:
    """Reads one stream, and holds at most so many of its requests at a time."""

    def __init__(self, bus: Bus, space: Space, take: Take, limit: int) -> None:
        self._bus = bus
        self._space = space
        self._take = take
        self._limit = limit
        self._held: dict[bytes, StoredDelivery] = {}
        self._life: Life | None = None
        self._connection: Connection | None = None
        self._asked = False
        self._stopped = False
        self._cursor = b"0-0"
        self._claiming = False
        self._suspect: bytes | None = None

    def begin(self, life: Life) -> None:
        """The servers were connected to: join the group, and read on a connection that may wait."""
        self._life = life
        self._asked = self._claiming = False
        life.put(JOIN, (self._space.stored,), (_SILENT_MILLISECONDS,), lambda reply: None)
        life.flush()
        self._bus.spawn(self._open(life))

    async def _open(self, life: Life) -> None:
        try:
            self._connection = await life.open_blocking(self._space.stored)
        except (OSError, CallError) as error:
            life.end(str(error) or type(error).__name__)
            return
        self._ask()

    def stop(self) -> None:
        """Take no more; what is held stays so until it is settled."""
        self._stopped = True
        if self._life is not None and self._connection is not None and self._asked:
            wake(self._life, self._connection)

    def beat(self) -> None:
        """Keep what is held, and claim what nobody keeps."""
        life = self._life
        if life is None or not life.is_on:
            return
        stream = self._space.stored
        consumer = self._bus.peer.encode()
        if self._held:
            life.at(stream).run(pack(b"XCLAIM", stream, GROUP, consumer, b"0", *self._held, b"JUSTID"))
        self._claim(life)

    def _claim(self, life: Life) -> None:
        """Take over what another worker held: one at a time, for it may be what that worker died of.

        Whatever else had been claimed with it would count as tried once more, and in the end be set aside as well.
        """
        if self._claiming or self._suspect is not None or self._stopped or len(self._held) >= self._limit:
            return
        self._claiming = True
        idle = b"%d" % int(self._bus.heartbeat * SILENT_BEATS * 1000)
        life.put(CLAIM, (self._space.stored,), (self._bus.peer.encode(), idle, self._cursor, b"1"), self._claimed)
        life.flush()

    def settle(self, delivery: StoredDelivery, becomes: bytes, note: bytes = b"") -> None:
        """Be done with a request; without a connection the server is not told, and it is delivered again."""
        if self._held.pop(delivery.entry, None) is None:
            return
        was_suspect = delivery.entry == self._suspect
        if was_suspect:
            self._suspect = None
        life = self._bus.life
        if life is not None:
            arguments = (delivery.entry, becomes, delivery.message, note)
            life.put(SETTLE, (self._space.stored, self._space.dead), arguments, lambda reply: None)
            life.flush()
            if was_suspect:
                self._claim(life)
        self._ask()

    def _ask(self) -> None:
        room = min(_MOST_AT_ONCE, self._limit - len(self._held))
        life, connection = self._life, self._connection
        if self._asked or self._stopped or room <= 0 or life is None or not life.is_on or connection is None:
            return
        self._asked = True
        wait = b"%d" % int(self._bus.heartbeat * 1000)
        source = (b"BLOCK", wait, b"STREAMS", self._space.stored, b">")
        connection.run(
            pack(b"XREADGROUP", b"GROUP", GROUP, self._bus.peer.encode(), b"COUNT", b"%d" % room, *source),
            lambda reply: self._read(life, reply),
        )

    def _read(self, life: Life, reply: Reply) -> None:
        self._asked = False
        if isinstance(reply, ReplyError):
            self._recover(life, reply)
            return
        if self._stopped and self._connection is not None:
            self._bus.spawn(life.close_blocking(self._connection))
        for _, entries in reply.items() if isinstance(reply, dict) else reply or ():
            for entry, fields in entries:
                self._deliver(entry, fields, 1)
        self._ask()

    def _recover(self, life: Life, problem: ReplyError) -> None:
        if is_refusal(problem):
            _log.error("this peer may not take stored requests: %s", problem)
            return
        text = str(problem)
        if not text.startswith("NOGROUP"):
            life.end(text)
            return
        # Somebody deleted the stream: it is made again.
        life.put(JOIN, (self._space.stored,), (_SILENT_MILLISECONDS,), lambda reply: self._ask())
        life.flush()

    def _claimed(self, reply: Reply) -> None:
        self._claiming = False
        if isinstance(reply, ReplyError):
            return
        self._cursor, entries = reply
        for entry, fields, number in entries:
            self._suspect = entry
            self._deliver(entry, fields, int(number))

    def _deliver(self, entry: bytes, fields: Any, number: int) -> None:
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        before = int(values.get(b"before", b"0"))
        delivery = StoredDelivery(self, entry, values.get(b"message", b""), before + number)
        self._held[entry] = delivery
        if self._stopped:
            delivery.release()
        else:
            self._take(delivery.message, delivery)


class StoredDelivery:
    """A stored request in the hands of this worker."""

    __slots__ = ("_taker", "entry", "message", "number")

    def __init__(self, taker: StoredTaker, entry: bytes, message: bytes, number: int) -> None:
        self._taker = taker
        self.entry = entry
        self.message = message
        self.number = number
        """How many times it was delivered, this one included."""

    def done(self) -> None:
        """It was dealt with, and is forgotten."""
        self._taker.settle(self, b"done")

    def release(self) -> None:
        """Give it to somebody else, as if it had not been delivered here."""
        self._taker.settle(self, b"release", b"%d" % (self.number - 1))

    def bury(self, reason: str) -> None:
        """Set it aside, with the reason."""
        self._taker.settle(self, b"bury", reason.encode())


def explain(reply: Reply) -> str:
    """Why the server did not take something."""
    if is_refusal(reply):
        return Refused(f"Redis refused the request: {reply}")
    return f"Redis did not take the request: {reply}"
