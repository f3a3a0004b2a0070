"""Durable requests in Redis streams, delivered at least once. Other workers claim the requests of a dead worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from operations.errors import CallError
from operations.pubsub.protocols import (
    DECODED_FACTOR,
    MOST_HELD,
    Arrival,
    Record,
    Stop,
    Stores,
    StoresKeys,
    Take,
    TooManyRecords,
    Undelivered,
)
from operations.pubsub.redis.connection import (
    SILENT_BEATS,
    RedisConnection,
    Reply,
    ReplyError,
    Script,
    is_refusal,
    pack,
)
from operations.pubsub.redis.connection_epoch import ConnectionEpoch, RedisBus
from operations.pubsub.redis.records import (
    ADD,
    DEAD_LETTER,
    DEAD_LETTER_RECORDED,
    DONE,
    NOTE_RECORDED,
    RELEASE,
    SETTLE_RECORDED,
    STORE_RECORDED,
    TOO_MANY,
    ask_script,
    explain,
    list_namespace,
    record_arguments,
    record_keys,
)

_log = logging.getLogger("operations")
_DEDUP_MILLISECONDS = b"600000"
"""How long the key of a stored request is kept, to drop duplicates."""
_SILENT_MILLISECONDS = b"3600000"
"""How long a consumer without requests may be silent before it is deleted from the group."""
_MOST_AT_ONCE = 16
"""Largest number of requests that one command reads: the reader cannot limit their size."""
_LARGE = 1 << 20
"""After a command that read more bytes than this, the next one reads one request."""
_MOST_DIGITS = 10
"""A stored number of earlier deliveries is invalid if it has this many digits or more."""
_GROUP = b"workers"
"""The consumer group of all workers."""

_STORE = Script(
    ADD + "if not redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) then return 1 end\n"
    "local entry = add(KEYS[1], 'message', ARGV[1], 'before', '0')\n"
    "if type(entry) == 'table' then redis.call('PEXPIRE', KEYS[2], '0'); return entry end\nreturn 1"
)
"""Store a request once. Keys: stream, mark; arguments: the request, the lifetime of the mark."""

_JOIN = Script(
    "local function create() return redis.pcall('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM') end\n"
    "if string.find(create().err or '', 'WRONGTYPE', 1, true) then\n"
    "  redis.call('SET', KEYS[1], '', 'PXAT', '1'); create() end\n"
    "redis.call('PERSIST', KEYS[1])\n"
    "for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], 'workers')) do\n"
    "  local consumer = {}\n"
    "  for i = 1, #raw, 2 do consumer[raw[i]] = raw[i + 1] end\n"
    "  if consumer.pending == 0 and consumer.idle > tonumber(ARGV[1]) then\n"
    "    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'workers', consumer.name)\n"
    "  end\nend\nreturn 1"
)
"""Create the group of a stream, and delete idle consumers that were silent for ARGV[1] milliseconds.

If the key has another type, replace it: any peer with access to the stream can write such a key."""

_CLAIM = Script(
    "local found = redis.call('XAUTOCLAIM', KEYS[1], 'workers', ARGV[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4])\n"
    "local claimed = {}\n"
    "for _, entry in ipairs(found[2]) do if entry then\n"
    "  local held = redis.call('XPENDING', KEYS[1], 'workers', entry[1], entry[1], 1)\n"
    "  claimed[#claimed + 1] = {entry[1], entry[2], held[1][4]}\n"
    "end end\nreturn {found[1], claimed}"
)
"""Claim requests that others held for too long. Key: stream; arguments: consumer, milliseconds, cursor, count."""

_STORE_KEY = Script(
    "local held = redis.call('HGET', KEYS[1], 'entry')\n"
    "if held then return held == ARGV[2] and held ~= '' and 1 or 0 end\n"
    "redis.call('HSET', KEYS[1], 'entry', ARGV[2])\n"
    "redis.call('PEXPIRE', KEYS[1], ARGV[1])\nreturn 1"
)
"""Store a key; return 0 if it is stored already, unless for the same entry. Arguments: its lifetime, the entry."""

_DELETE_KEY = Script(
    "if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'entry') ~= ARGV[1] then return 0 end\n"
    "redis.call('PEXPIRE', KEYS[1], '0')\nreturn 1"
)
"""Delete a key, unless it is stored for another entry. Key: the key; argument: the entry, empty for any entry."""


class DurableStreams(Stores, StoresKeys):
    """The streams that this peer stores requests in and takes them from, and the keys that all peers share."""

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._readers: dict[str, DurableStreamReader] = {}
        self._listed: dict[str, ConnectionEpoch] = {}
        """By address: the epoch in which this peer added the namespace to `RedisKeys.record_namespaces`."""

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
        """Store a request unless one with the same key, or with the same record, was stored."""
        epoch, keys = self._bus.epoch, self._bus.keys.of_namespace(address)
        if epoch is None:
            undelivered("there is no connection to Redis")
            return

        def done(reply: Reply) -> None:
            if reply == 1:
                stored()
            elif reply == TOO_MANY:
                undelivered(TooManyRecords("its owner has too many records"))
            else:
                undelivered(explain(reply))

        if record is None:
            epoch.put(_STORE, (keys.stored, keys.seen(key)), (message, _DEDUP_MILLISECONDS), done)
        else:
            arguments = (message, *record_arguments(record), b"%d" % record.most)
            epoch.put(STORE_RECORDED, (keys.stored, *record_keys(keys, record), keys.owners), arguments, done)
            if self._listed.get(address) is not epoch:
                self._listed[address] = epoch
                list_namespace(epoch, self._bus.keys, address)
        epoch.flush_soon()

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take the requests that are stored at an address; raise a ValueError if this transport takes them already."""
        if address in self._readers:
            raise ValueError(f"this transport already receives stored messages at {address}")
        reader = self._readers[address] = DurableStreamReader(self._bus, address, take, limit)
        if self._bus.epoch is not None:
            reader.begin(self._bus.epoch)

        def stop() -> None:
            if self._readers.get(address) is reader:
                del self._readers[address]
                reader.stop()

        return stop

    async def store_key(self, key: str, seconds: float, entry: str = "") -> bool:
        """Store a key for all peers of the bus; return False if it is already stored, unless for the same `entry`."""
        keys, arguments = (self._bus.keys.shared_key(key),), (b"%d" % int(seconds * 1000), entry.encode())
        return bool(await ask_script(self._bus.epoch, _STORE_KEY, keys, arguments, "the record of requests"))

    def delete_key(self, key: str, entry: str = "") -> None:
        """Delete a key, unless it is stored for another entry; needed because a released message gets a new entry."""
        if self._bus.epoch is not None:
            keys = (self._bus.keys.shared_key(key),)
            self._bus.epoch.put(_DELETE_KEY, keys, (entry.encode(),), lambda reply: None)

    def begin(self, epoch: ConnectionEpoch) -> None:
        """Begin to read with new connections."""
        for reader in self._readers.values():
            reader.begin(epoch)

    def beat(self) -> None:
        """Renew the hold on requests, and claim a request of a dead worker."""
        for reader in self._readers.values():
            reader.beat()


class DurableStreamReader:
    """Reads one stream, and holds its requests up to a number and an amount of memory.

    One command may exceed the amount: the size of the requests that it will read is not known.
    """

    def __init__(self, bus: RedisBus, address: str, take: Take, limit: int) -> None:
        self._bus = bus
        self._arrival = Arrival(address)
        self.keys = bus.keys.of_namespace(address)
        self._take = take
        self._limit = limit
        self._held: dict[bytes, RedisDelivery] = {}
        self._memory = 0
        """The memory of the requests that are held."""
        self._count = _MOST_AT_ONCE
        """Number of requests that the next command may read."""
        self._epoch: ConnectionEpoch | None = None
        self._connection: RedisConnection | None = None
        self._asked = False
        self._stopped = False
        self._cursor = b"0-0"
        self._claiming = False
        self._suspect: bytes | None = None

    def begin(self, epoch: ConnectionEpoch) -> None:
        """Join the group, and read on a connection for blocking commands."""
        self._epoch = epoch
        self._asked = self._claiming = False
        _STORE.load(epoch.connection_for(self.keys.stored))
        epoch.put(_JOIN, (self.keys.stored,), (_SILENT_MILLISECONDS,), lambda reply: None)
        list_namespace(epoch, self._bus.keys, self._arrival.address)
        epoch.flush()
        self._bus.spawn(self._open(epoch))

    async def _open(self, epoch: ConnectionEpoch) -> None:
        try:
            self._connection = await epoch.open_blocking(self.keys.stored)
        except (OSError, CallError) as error:
            epoch.end(str(error) or type(error).__name__)
            return
        self._ask()

    def stop(self) -> None:
        """Stop reading; this worker keeps the requests that it holds until they are handled or released."""
        self._stopped = True
        if self._epoch is not None and self._connection is not None and self._asked:
            self._epoch.unblock(self._connection)

    def beat(self) -> None:
        """Renew the hold on requests, and claim a request of a dead worker."""
        epoch = self._epoch
        if epoch is None or not epoch.is_active:
            return
        stream = self.keys.stored
        consumer = self._bus.peer.encode()
        if self._held:
            epoch.connection_for(stream).run(pack(b"XCLAIM", stream, _GROUP, consumer, b"0", *self._held, b"JUSTID"))
        self._claim(epoch)

    def _claim(self, epoch: ConnectionEpoch) -> None:
        """Claim one request of a dead worker at a time: the request may have crashed that worker.

        If this worker crashed as well, all requests that were claimed together would count one more delivery, and might
        become dead letters.
        """
        if self._claiming or self._suspect is not None or self._stopped or self._is_full:
            return
        self._claiming = True
        idle = b"%d" % int(self._bus.heartbeat * SILENT_BEATS * 1000)
        epoch.put(_CLAIM, (self.keys.stored,), (self._bus.peer.encode(), idle, self._cursor, b"1"), self._claimed)
        epoch.flush()

    def settle(
        self, delivery: RedisDelivery, script: Script, keys: Iterable[bytes] = (), arguments: Iterable[bytes] = ()
    ) -> None:
        """End the hold on a request, with a script that deletes, releases or dead-letters the request.

        The first key of the script is the stream, and the first argument is the request's id. Without a connection, the
        server is not notified and delivers the request again.
        """
        held = self._held.pop(delivery.id, None)
        if held is None:
            return
        self._memory -= held.memory
        was_suspect = delivery.id == self._suspect
        if was_suspect:
            self._suspect = None
        epoch = self._bus.epoch
        if epoch is not None:
            epoch.put(script, (self.keys.stored, *keys), (delivery.id, *arguments), lambda reply: None)
            epoch.flush_soon()
            if was_suspect:
                self._claim(epoch)
        self._ask()

    def note(self, delivery: RedisDelivery, record: Record) -> None:
        """Replace the value of a record while this worker holds the record's request."""
        epoch = self._bus.epoch
        if epoch is not None and delivery.id in self._held:
            arguments = (delivery.id, self._bus.peer.encode(), record.value)
            names = (self.keys.stored, self.keys.record(record.key))
            epoch.put(NOTE_RECORDED, names, arguments, lambda reply: None)
            epoch.flush_soon()

    def weigh(self, delivery: RedisDelivery, memory: int) -> None:
        """Store how much memory a request takes."""
        if self._held.get(delivery.id) is delivery:
            self._memory += memory - delivery.memory
            delivery.memory = memory

    @property
    def _is_full(self) -> bool:
        return len(self._held) >= self._limit or self._memory >= MOST_HELD

    def _ask(self) -> None:
        epoch, connection = self._epoch, self._connection
        if self._asked or self._stopped or self._is_full or epoch is None or not epoch.is_active or connection is None:
            return
        self._asked = True
        count = b"%d" % min(self._count, self._limit - len(self._held))
        wait = b"%d" % int(self._bus.heartbeat * 1000)
        source = (b"COUNT", count, b"BLOCK", wait, b"STREAMS", self.keys.stored, b">")
        command = pack(b"XREADGROUP", b"GROUP", _GROUP, self._bus.peer.encode(), *source)
        connection.run(command, lambda reply: self._read(epoch, reply))

    def _read(self, epoch: ConnectionEpoch, reply: Reply) -> None:
        self._asked = False
        if isinstance(reply, ReplyError):
            self._recover(epoch, reply)
            return
        if self._stopped and self._connection is not None:
            self._bus.spawn(epoch.close_blocking(self._connection))
        streams = reply.items() if isinstance(reply, dict) else reply or ()
        # Count all requests before the first one is handled, because the end of a request sends the next command.
        held = [self._hold(entry, fields, 1) for _, entries in streams for entry, fields in entries]
        self._count = 1 if sum(len(delivery.message) for delivery in held) > _LARGE else _MOST_AT_ONCE
        for delivery in held:
            self._deliver(delivery)
        self._ask()

    def _recover(self, epoch: ConnectionEpoch, problem: ReplyError) -> None:
        if is_refusal(problem):
            _log.error("this peer may not take stored requests: %s", problem)
            return
        text = str(problem)
        if not text.startswith(("NOGROUP", "UNBLOCKED", "WRONGTYPE")):
            epoch.end(text)
            return
        # A peer with access to the stream deleted or replaced it: create it again.
        epoch.put(_JOIN, (self.keys.stored,), (_SILENT_MILLISECONDS,), lambda reply: self._ask())
        epoch.flush()

    def _claimed(self, reply: Reply) -> None:
        self._claiming = False
        if isinstance(reply, ReplyError):
            return
        self._cursor, entries = reply
        for entry, fields, number in entries:
            self._suspect = entry
            self._deliver(self._hold(entry, fields, int(number)))

    def _hold(self, entry: bytes, fields: Any, number: int) -> RedisDelivery:
        values = dict(zip(fields[::2], fields[1::2], strict=True))
        before = _count(values.get(b"before", b""))
        message, record = values.get(b"message", b""), values.get(b"record", b"")
        delivery = RedisDelivery(self, entry, message, record, before + number, is_redelivered=number > 1)
        replaced = self._held.get(entry)
        if replaced is not None:
            self._memory -= replaced.memory
        self._held[entry] = delivery
        self._memory += delivery.memory
        return delivery

    def _deliver(self, delivery: RedisDelivery) -> None:
        if self._stopped:
            delivery.release()
        else:
            self._take(delivery.message, delivery, self._arrival)


def _count(digits: bytes) -> int:
    """Return the number of earlier deliveries; 0 if a peer wrote something that is not such a number."""
    return int(digits) if digits.isdigit() and len(digits) < _MOST_DIGITS else 0


class RedisDelivery:
    """A stored request that this worker holds."""

    __slots__ = ("_reader", "_size", "entry", "id", "is_redelivered", "memory", "message", "number", "record_key")

    def __init__(
        self,
        reader: DurableStreamReader,
        entry: bytes,
        message: bytes,
        record: bytes,
        number: int,
        *,
        is_redelivered: bool,
    ) -> None:
        self._reader = reader
        self.id = entry
        self.entry = entry.decode(errors="replace")
        """The id of the stream's entry, which the server generates."""
        self.message = message
        self._size = len(message) + len(record)
        self.memory = self._size * DECODED_FACTOR
        """The memory of the request, which counts for the limit of the reader."""
        self.number = number
        """Number of deliveries, this one included; a peer that may store requests can set a higher number."""
        self.is_redelivered = is_redelivered
        self.record_key = record.decode(errors="replace")
        """The key of the request's record; empty if it has no record."""

    def weigh(self, decoded: int) -> None:
        """State how much memory the decoded request takes."""
        self._reader.weigh(self, self._size + decoded)

    def done(self, record: Record | None = None) -> None:
        """Delete the request, which was handled; if `record` is given, it replaces the request's record."""
        if record is None:
            self._reader.settle(self, DONE)
        else:
            self._replace_record(record)

    def _replace_record(self, record: Record) -> None:
        keys = self._reader.keys
        arguments = (*record_arguments(record), keys.changes)
        self._reader.settle(self, SETTLE_RECORDED, record_keys(keys, record), arguments)

    def note(self, record: Record) -> None:
        """Replace the value of the request's record."""
        self._reader.note(self, record)

    def release(self) -> None:
        """Release the request for another worker; this delivery does not count."""
        keys = (self._reader.keys.record(self.record_key),)
        arguments = (self.message, b"%d" % (self.number - 1), self.record_key.encode())
        self._reader.settle(self, RELEASE, keys, arguments)

    def dead_letter(self, reason: str, record: Record | None = None) -> None:
        """Move the message to the dead letters, with the reason.

        If `record` is given, it is stored as the dead letter instead of the message. But if the request has no record
        yet and the owner of `record` has too many records, the message itself is moved.
        """
        letter, keys = (self.message, reason.encode()), self._reader.keys
        if record is None:
            self._reader.settle(self, DEAD_LETTER, (keys.dead,), letter)
        elif self.record_key:
            self._replace_record(record)
        else:
            arguments = (*record_arguments(record), b"%d" % record.most, *letter)
            names = (*record_keys(keys, record), keys.owners, keys.dead)
            self._reader.settle(self, DEAD_LETTER_RECORDED, names, arguments)
