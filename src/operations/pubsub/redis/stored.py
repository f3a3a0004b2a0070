"""Stored requests: streams with a consumer group, at least once. Other workers claim what a dead worker held."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.pubsub.protocols import Arrival, Refused, Stop, Take, Undelivered
from operations.pubsub.redis.connection import SILENT_BEATS, Connection, Reply, ReplyError, Script, is_refusal, pack
from operations.pubsub.redis.connection_epoch import ConnectionEpoch
from operations.pubsub.redis.queues import Bus
from operations.pubsub.redis.taking import wake

_log = logging.getLogger("operations")
_KNOWN_MILLISECONDS = b"600000"
"""How long the key of a stored request is remembered, to drop duplicates."""
_SILENT_MILLISECONDS = b"3600000"
_MOST_AT_ONCE = 64
_ANSWER_SECONDS = 5.0
_NOT_EXECUTED = {"executed": "no"}
_GROUP = b"workers"
"""The one group of consumers of a stream."""

_STORE = Script(
    "if redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) then\n"
    "redis.call('XADD', KEYS[1], '*', 'message', ARGV[1], 'before', '0') end\nreturn 1"
)
"""Store a request once. Keys: stream, mark; arguments: the request, the lifetime of the mark."""

_JOIN = Script(
    "pcall(redis.call, 'XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM')\n"
    "for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], 'workers')) do\n"
    "  local consumer = {}\n"
    "  for i = 1, #raw, 2 do consumer[raw[i]] = raw[i + 1] end\n"
    "  if consumer.pending == 0 and consumer.idle > tonumber(ARGV[1]) then\n"
    "    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'workers', consumer.name)\n"
    "  end\nend\nreturn 1"
)
"""Create the group of a stream, and delete idle consumers that were silent for ARGV[1] milliseconds."""

_CLAIM = Script(
    "local found = redis.call('XAUTOCLAIM', KEYS[1], 'workers', ARGV[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4])\n"
    "local claimed = {}\n"
    "for _, entry in ipairs(found[2]) do if entry then\n"
    "  local held = redis.call('XPENDING', KEYS[1], 'workers', entry[1], entry[1], 1)\n"
    "  claimed[#claimed + 1] = {entry[1], entry[2], held[1][4]}\n"
    "end end\nreturn {found[1], claimed}"
)
"""Claim what others held for too long. Key: stream; arguments: consumer, milliseconds, cursor, count."""

_SETTLE = Script(
    "if redis.call('XACK', KEYS[1], 'workers', ARGV[1]) == 0 then return 0 end\n"
    "redis.call('XDEL', KEYS[1], ARGV[1])\n"
    "if ARGV[2] == 'release' then redis.call('XADD', KEYS[1], '*', 'message', ARGV[3], 'before', ARGV[4])\n"
    "elseif ARGV[2] == 'bury' then\n"
    "  redis.call('XADD', KEYS[2], 'MAXLEN', '~', '100000', '*', 'message', ARGV[3], 'reason', ARGV[4])\n"
    "end\nreturn 1"
)
"""Settle a stored request. Keys: stream, dead letters; arguments: its id, the outcome, the request, a note."""


_REMEMBER = Script("return redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) and 1 or 0")
"""Note a key, unless it is there. Key: what is noted; argument: its lifetime."""

_FORGET = Script("redis.call('SET', KEYS[1], '1', 'PX', '1')\nreturn 1")
"""Let a key expire."""


class Stored:
    """The streams that this peer stores requests in and takes them from."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._takers: dict[str, StoredTaker] = {}

    def store(
        self, address: str, message: bytes, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Store a request unless one with the same key was stored."""
        epoch, space = self._bus.epoch, self._bus.names.space(address)
        if epoch is None:
            undelivered("there is no connection to Redis")
            return

        def done(reply: Reply) -> None:
            if reply == 1:
                stored()
            else:
                undelivered(explain(reply))

        epoch.put(_STORE, (space.stored, space.seen(key)), (message, _KNOWN_MILLISECONDS), done)
        epoch.flush()

    def take(self, address: str, take: Take, limit: int) -> Stop:
        """Take what is stored at an address."""
        if address in self._takers:
            raise ValueError(f"{address} is taken from already")
        taker = self._takers[address] = StoredTaker(self._bus, address, take, limit)
        if self._bus.epoch is not None:
            taker.begin(self._bus.epoch)

        def stop() -> None:
            if self._takers.get(address) is taker:
                del self._takers[address]
                taker.stop()

        return stop

    async def remember(self, key: bytes, seconds: float) -> bool:
        """Note a key for all ends of the bus; False where it was noted already."""
        epoch = self._bus.epoch
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if epoch is not None:
            lifetime = b"%d" % int(seconds * 1000)
            epoch.put(_REMEMBER, (key,), (lifetime,), functools.partial(_settle_future, answered))
            epoch.flush()
            await asyncio.wait((answered,), timeout=_ANSWER_SECONDS)
        if not answered.done() or not isinstance(answered.result(), int):
            reason = explain(answered.result()) if answered.done() else "Redis does not answer"
            raise CallError(ErrorCode.UNAVAILABLE, f"the record of requests is out of reach: {reason}", _NOT_EXECUTED)
        return bool(answered.result())

    def forget(self, key: bytes) -> None:
        """Take a key out again."""
        if self._bus.epoch is not None:
            self._bus.epoch.put(_FORGET, (key,), (), lambda reply: None)

    def begin(self, epoch: ConnectionEpoch) -> None:
        """The connection is established."""
        for taker in self._takers.values():
            taker.begin(epoch)

    def beat(self) -> None:
        """Renew the hold on requests, and claim those of dead workers."""
        for taker in self._takers.values():
            taker.beat()


class StoredTaker:
    """Reads one stream, and holds a limited number of its requests."""

    def __init__(self, bus: Bus, address: str, take: Take, limit: int) -> None:
        self._bus = bus
        self._arrival = Arrival(address)
        self._space = bus.names.space(address)
        self._take = take
        self._limit = limit
        self._held: dict[bytes, StoredDelivery] = {}
        self._epoch: ConnectionEpoch | None = None
        self._connection: Connection | None = None
        self._asked = False
        self._stopped = False
        self._cursor = b"0-0"
        self._claiming = False
        self._suspect: bytes | None = None

    def begin(self, epoch: ConnectionEpoch) -> None:
        """The connection is established: join the group, and read on a connection for blocking commands."""
        self._epoch = epoch
        self._asked = self._claiming = False
        epoch.put(_JOIN, (self._space.stored,), (_SILENT_MILLISECONDS,), lambda reply: None)
        epoch.flush()
        self._bus.spawn(self._open(epoch))

    async def _open(self, epoch: ConnectionEpoch) -> None:
        try:
            self._connection = await epoch.open_blocking(self._space.stored)
        except (OSError, CallError) as error:
            epoch.end(str(error) or type(error).__name__)
            return
        self._ask()

    def stop(self) -> None:
        """Stop reading; requests that are held stay held until they are settled."""
        self._stopped = True
        if self._epoch is not None and self._connection is not None and self._asked:
            wake(self._epoch, self._connection)

    def beat(self) -> None:
        """Renew the hold on requests, and claim those of dead workers."""
        epoch = self._epoch
        if epoch is None or not epoch.is_on:
            return
        stream = self._space.stored
        consumer = self._bus.peer.encode()
        if self._held:
            epoch.at(stream).run(pack(b"XCLAIM", stream, _GROUP, consumer, b"0", *self._held, b"JUSTID"))
        self._claim(epoch)

    def _claim(self, epoch: ConnectionEpoch) -> None:
        """Claim one request of a dead worker at a time, for it may be what killed that worker.

        Requests claimed together with it would count one more delivery, and finally become dead letters as well.
        """
        if self._claiming or self._suspect is not None or self._stopped or len(self._held) >= self._limit:
            return
        self._claiming = True
        idle = b"%d" % int(self._bus.heartbeat * SILENT_BEATS * 1000)
        epoch.put(_CLAIM, (self._space.stored,), (self._bus.peer.encode(), idle, self._cursor, b"1"), self._claimed)
        epoch.flush()

    def settle(self, delivery: StoredDelivery, becomes: bytes, note: bytes = b"") -> None:
        """Settle a request; without a connection the server is not told, and the request is delivered again."""
        if self._held.pop(delivery.entry, None) is None:
            return
        was_suspect = delivery.entry == self._suspect
        if was_suspect:
            self._suspect = None
        epoch = self._bus.epoch
        if epoch is not None:
            arguments = (delivery.entry, becomes, delivery.message, note)
            epoch.put(_SETTLE, (self._space.stored, self._space.dead), arguments, lambda reply: None)
            epoch.flush()
            if was_suspect:
                self._claim(epoch)
        self._ask()

    def _ask(self) -> None:
        room = min(_MOST_AT_ONCE, self._limit - len(self._held))
        epoch, connection = self._epoch, self._connection
        if self._asked or self._stopped or room <= 0 or epoch is None or not epoch.is_on or connection is None:
            return
        self._asked = True
        wait = b"%d" % int(self._bus.heartbeat * 1000)
        source = (b"BLOCK", wait, b"STREAMS", self._space.stored, b">")
        connection.run(
            pack(b"XREADGROUP", b"GROUP", _GROUP, self._bus.peer.encode(), b"COUNT", b"%d" % room, *source),
            lambda reply: self._read(epoch, reply),
        )

    def _read(self, epoch: ConnectionEpoch, reply: Reply) -> None:
        self._asked = False
        if isinstance(reply, ReplyError):
            self._recover(epoch, reply)
            return
        if self._stopped and self._connection is not None:
            self._bus.spawn(epoch.close_blocking(self._connection))
        for _, entries in reply.items() if isinstance(reply, dict) else reply or ():
            for entry, fields in entries:
                self._deliver(entry, fields, 1)
        self._ask()

    def _recover(self, epoch: ConnectionEpoch, problem: ReplyError) -> None:
        if is_refusal(problem):
            _log.error("this peer may not take stored requests: %s", problem)
            return
        text = str(problem)
        if not text.startswith("NOGROUP"):
            epoch.end(text)
            return
        # The stream was deleted: create it again.
        epoch.put(_JOIN, (self._space.stored,), (_SILENT_MILLISECONDS,), lambda reply: self._ask())
        epoch.flush()

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
        delivery = StoredDelivery(self, entry, values.get(b"message", b""), before + number, is_redelivered=number > 1)
        self._held[entry] = delivery
        if self._stopped:
            delivery.release()
        else:
            self._take(delivery.message, delivery, self._arrival)


class StoredDelivery:
    """A stored request that this worker holds."""

    __slots__ = ("_taker", "entry", "is_redelivered", "message", "number")

    def __init__(self, taker: StoredTaker, entry: bytes, message: bytes, number: int, *, is_redelivered: bool) -> None:
        self._taker = taker
        self.entry = entry
        self.message = message
        self.number = number
        """How many times it was delivered, this one included; whoever may store requests may say more."""
        self.is_redelivered = is_redelivered

    def done(self) -> None:
        """The request was handled; forget it."""
        self._taker.settle(self, b"done")

    def release(self) -> None:
        """Release it for another worker; this delivery does not count."""
        self._taker.settle(self, b"release", b"%d" % (self.number - 1))

    def bury(self, reason: str) -> None:
        """Move it to the dead letters, with the reason."""
        self._taker.settle(self, b"bury", reason.encode())


def _settle_future(answered: asyncio.Future[Reply], reply: Reply) -> None:
    if not answered.done():
        answered.set_result(reply)


def explain(reply: Reply) -> str:
    """Return why the server did not accept a request."""
    if is_refusal(reply):
        return Refused(f"Redis refused the request: {reply}")
    return f"Redis did not take the request: {reply}"
