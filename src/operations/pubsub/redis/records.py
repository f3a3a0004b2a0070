"""Records of stored requests in Redis: hashes that outlive their request, listed by owner and bounded in number."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Sequence

from operations.errors import CallError, ErrorCode
from operations.pubsub.protocols import OWNER_LENGTH, Arrival, DeliveryRefused, KeepsRecords, Record, Stop
from operations.pubsub.redis.addresses import NamespaceKeys, RedisKeys
from operations.pubsub.redis.connection import NOW, Reply, ReplyError, Script, is_refusal, is_unknown_script
from operations.pubsub.redis.connection_epoch import ConnectionEpoch, RedisBus

TOO_MANY = -1
"""The reply of `STORE_RECORDED` if the owner has too many records."""
_READ_TOGETHER = 500
"""Largest number of records that one command reads without their bodies."""
_BODIES_TOGETHER = 32
"""Largest number of records that one command reads with their bodies."""
_INDEX_MILLISECONDS = 40 * 86_400_000
"""How long the list of an owner's records is kept after its last change."""
_UNSERVED_MILLISECONDS = 25 * 3_600_000
"""How long requests with records are stored for a namespace that no worker has served."""
_NOT_EXECUTED = {"executed": "no"}
_WHAT = "the records of stored requests"

_REPLACE = (
    "local function replace(record, owned, value, body, lifetime, key)\n"
    "  redis.call('HSET', record, 'value', value, 'body', body)\n"
    "  redis.call('PEXPIRE', record, lifetime)\n"
    "  redis.call('ZADD', owned, now + lifetime, key)\n"
    f"  redis.call('PEXPIRE', owned, '{_INDEX_MILLISECONDS}')\n"
    "end\n"
)

ADD = (
    "local function add(key, ...)\n"
    "  local added = redis.pcall('XADD', key, '*', ...)\n"
    "  if type(added) == 'table' and string.find(added.err or '', 'exhausted', 1, true) then\n"
    "    redis.call('PEXPIRE', key, '0')\n"
    "    added = redis.call('XADD', key, '*', ...)\n"
    "  end\n"
    "  return added\nend\n"
)
"""A Lua function that adds an entry to a stream, or returns the error.

If the stream has the largest possible id, which any caller can write, replace the stream."""

_DELETE = (
    "if redis.call('XACK', KEYS[1], 'workers', ARGV[1]) == 0 then return 0 end\nredis.call('XDEL', KEYS[1], ARGV[1])\n"
)
"""The start of a script: delete the request ARGV[1] from the stream KEYS[1], or return 0 if no worker holds it."""

DONE = Script(_DELETE + "return 1")
"""Delete a handled request that has no record. Key: stream; argument: the request's id."""

STORE_RECORDED = Script(
    NOW
    + ADD
    + "if redis.call('EXISTS', KEYS[2]) == 1 then return 1 end\n"
    + "redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)\n"
    + "local count = redis.call('ZCARD', KEYS[3])\n"
    + f"if tonumber(ARGV[6]) > 0 and count >= tonumber(ARGV[6]) then return {TOO_MANY} end\n"
    + "local expires = redis.call('PTTL', KEYS[1])\n"
    + "local entry = add(KEYS[1], 'message', ARGV[1], 'before', '0', 'record', ARGV[5])\n"
    + "if type(entry) == 'table' then return entry end\n"
    + f"if expires ~= -1 then redis.call('PEXPIRE', KEYS[1], '{_UNSERVED_MILLISECONDS}') end\n"
    + "redis.call('HSET', KEYS[2], 'value', ARGV[2], 'body', ARGV[3], 'entry', entry)\n"
    + "redis.call('PEXPIRE', KEYS[2], ARGV[4])\n"
    + "redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[5])\n"
    + "if count == 0 then\n"
    + f"  redis.call('PEXPIRE', KEYS[3], '{_INDEX_MILLISECONDS}')\n"
    + f"  redis.call('SADD', KEYS[4], string.sub(ARGV[5], 1, {OWNER_LENGTH}))\nend\n"
    + "return 1"
)
"""Store a request with its record, unless the record exists.

Keys: stream, record, the owner's records, owners; arguments: request, value, body, lifetime, key, maximum count."""

SETTLE_RECORDED = Script(
    NOW
    + _REPLACE
    + _DELETE
    # A request may name the record of another request. That record has another entry, and must not be replaced.
    + "if redis.call('HGET', KEYS[2], 'entry') ~= ARGV[1] then return 0 end\n"
    + "replace(KEYS[2], KEYS[3], ARGV[2], ARGV[3], ARGV[4], ARGV[5])\n"
    + "redis.call('HDEL', KEYS[2], 'entry')\n"
    + "redis.call('PUBLISH', ARGV[6], ARGV[5])\nreturn 1"
)
"""Delete a handled or dead-lettered request, and replace its record.

Keys: stream, record, the owner's records; arguments: the request's id, value, body, lifetime, key, channel."""

RELEASE = Script(
    ADD + _DELETE + "local entry = add(KEYS[1], 'message', ARGV[2], 'before', ARGV[3], 'record', ARGV[4])\n"
    "if redis.call('HGET', KEYS[2], 'entry') == ARGV[1] then redis.call('HSET', KEYS[2], 'entry', entry) end\nreturn 1"
)
"""Store a request again for another worker. Keys: stream, record; arguments: the request's id, the request, the number
of earlier deliveries, the record's key, which is empty without a record."""

DEAD_LETTER = Script(
    _DELETE
    + "redis.call('XADD', KEYS[2], 'MAXLEN', '~', '100000', '*', 'message', ARGV[2], 'reason', ARGV[3])\nreturn 1"
)
"""Move a request to the dead letters. Keys: stream, dead letters; arguments: the request's id, the request, reason."""

DEAD_LETTER_RECORDED = Script(
    NOW
    + _REPLACE
    + _DELETE
    + "redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)\n"
    + "if redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[6]) then\n"
    + "  redis.call('XADD', KEYS[5], 'MAXLEN', '~', '100000', '*', 'message', ARGV[7], 'reason', ARGV[8])\n"
    + "  return 1\nend\n"
    + "replace(KEYS[2], KEYS[3], ARGV[2], ARGV[3], ARGV[4], ARGV[5])\n"
    + f"redis.call('SADD', KEYS[4], string.sub(ARGV[5], 1, {OWNER_LENGTH}))\nreturn 1"
)
"""Delete a request that has no record and write a record for it.

If its owner has too many records, write the request to the stream of dead letters instead.

Keys: stream, record, the owner's records, owners, dead letters; arguments: the request's id, value, body, lifetime,
key, maximum number of records, request, reason.
"""

NOTE_RECORDED = Script(
    "local held = redis.call('XPENDING', KEYS[1], 'workers', ARGV[1], ARGV[1], 1)\n"
    "if not held[1] or held[1][2] ~= ARGV[2] or redis.call('HGET', KEYS[2], 'entry') ~= ARGV[1] then return 0 end\n"
    "redis.call('HSET', KEYS[2], 'value', ARGV[3])\nreturn 1"
)
"""Replace the value of a record while a consumer holds its request. Keys: stream, record; arguments: the request's id,
consumer, value."""

_END = Script(
    NOW
    + _REPLACE
    + "local entry = redis.call('HGET', KEYS[2], 'entry')\nif not entry then return 0 end\n"
    + "redis.call('XACK', KEYS[1], 'workers', entry)\nredis.call('XDEL', KEYS[1], entry)\n"
    + "replace(KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4])\n"
    + "redis.call('HDEL', KEYS[2], 'entry')\n"
    + "redis.call('PUBLISH', ARGV[5], ARGV[4])\nreturn 1"
)
"""Delete the request of a record and replace the record.

Keys: stream, record, the owner's records; arguments: value, body, lifetime, key, channel."""

_STORE_AGAIN = Script(
    NOW
    + ADD
    + _REPLACE
    + "if redis.call('EXISTS', KEYS[2]) == 0 or redis.call('HEXISTS', KEYS[2], 'entry') == 1 then return 0 end\n"
    + "local entry = add(KEYS[1], 'message', ARGV[1], 'before', '0', 'record', ARGV[5])\n"
    + "if type(entry) == 'table' then return entry end\n"
    + "redis.call('HSET', KEYS[2], 'entry', entry)\n"
    + "replace(KEYS[2], KEYS[3], ARGV[2], ARGV[3], ARGV[4], ARGV[5])\nreturn 1"
)
"""Store the request of a record again after it was deleted. Keys and arguments: as `STORE_RECORDED`."""

_READ = Script(
    "local found = {}\n"
    "for i, key in ipairs(KEYS) do found[i] = redis.call('HMGET', key, 'value', 'body') end\nreturn found"
)
_READ_VALUES = Script(
    "local values = {}\nfor i, key in ipairs(KEYS) do values[i] = redis.call('HGET', key, 'value') end\nreturn values"
)
_MEMBERS = Script("return redis.call('SMEMBERS', KEYS[1])")
_OWNED = Script("return redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', ARGV[1], 'LIMIT', '0', ARGV[2])")
_LIST_NAMESPACE = Script("return redis.call('SADD', KEYS[1], ARGV[1])")


_Read = tuple[bytes, "asyncio.Future[Sequence[bytes | None]]"]
"""The key of a record, and the future of its value and body."""


class RedisRecords(KeepsRecords):
    """The records that this peer reads, replaces and watches."""

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._watched: dict[str, dict[str, list[Callable[[], None]]]] = {}
        """Callbacks for changes of a record, by namespace and key."""
        self._stops: dict[str, Stop] = {}
        self._reads: dict[str, list[_Read]] = {}
        """The reads of this iteration of the event loop that one command can still combine, by address."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def read_record(self, address: str, key: str) -> tuple[bytes, bytes] | None:
        """Return the value and body of a record; None if there is no record.

        The reads of one iteration of the event loop are combined into few commands.
        """
        loop = asyncio.get_running_loop()
        reads = self._reads.get(address)
        if reads is None or len(reads) >= _BODIES_TOGETHER:
            reads = self._reads[address] = []
            task = loop.create_task(self._read_together(address, reads))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        found: asyncio.Future[Sequence[bytes | None]] = loop.create_future()
        reads.append((self._bus.keys.of_namespace(address).record(key), found))
        value, body = await found
        return None if value is None else (value, body or b"")

    async def _read_together(self, address: str, reads: list[_Read]) -> None:
        if self._reads.get(address) is reads:
            del self._reads[address]
        try:
            values = await self._ask(_READ, [key for key, _ in reads])
        except CallError as error:
            for _, found in reads:
                if not found.done():
                    found.set_exception(error)
            return
        for (_, found), value in zip(reads, values, strict=True):
            if not found.done():
                found.set_result(value)

    async def list_records(self, owner: str | None, most: int) -> list[tuple[str, str, bytes]]:
        """Return the address, key and value of at most `most` records: those of `owner`, or of all owners if None."""
        found: list[tuple[str, str, bytes]] = []
        for namespace in await self._ask(_MEMBERS, [self._bus.keys.record_namespaces]):
            address = f"queue.{namespace.decode()}"
            keys = self._bus.keys.of_namespace(address)
            owners = [owner.encode()] if owner is not None else await self._ask(_MEMBERS, [keys.owners])
            for each in owners:
                found += await self._list_owned(address, keys, each.decode(), most - len(found))
        return found

    async def _list_owned(
        self, address: str, keys: NamespaceKeys, owner: str, most: int
    ) -> list[tuple[str, str, bytes]]:
        now = b"%d" % int(time.time() * 1000)
        owned = [] if most <= 0 else await self._ask(_OWNED, [keys.owned(owner)], (now, b"%d" % most))
        found = []
        for start in range(0, len(owned), _READ_TOGETHER):
            names = [key.decode() for key in owned[start : start + _READ_TOGETHER]]
            values = await self._ask(_READ_VALUES, [keys.record(name) for name in names])
            found += [(address, name, value) for name, value in zip(names, values, strict=True) if value is not None]
        return found

    async def end_record(self, address: str, record: Record) -> bool:
        """Delete the request of a record and replace the record; return False if the request is gone."""
        keys = self._bus.keys.of_namespace(address)
        arguments = (*record_arguments(record), keys.changes)
        return bool(await self._ask(_END, (keys.stored, *record_keys(keys, record)), arguments))

    async def store_again(self, address: str, message: bytes, record: Record, *, sender: str) -> None:
        """Store the request of a record again."""
        keys = self._bus.keys.of_namespace(address)
        if not await self._ask(
            _STORE_AGAIN, (keys.stored, *record_keys(keys, record)), (message, *record_arguments(record))
        ):
            raise CallError(ErrorCode.UNAVAILABLE, "no such record, or its request is already stored", _NOT_EXECUTED)

    def watch_record(self, address: str, key: str, changed: Callable[[], None]) -> Stop:
        """Call `changed` when a record is replaced because its request is gone."""
        namespace = address.partition(".")[2]
        watched = self._watched.setdefault(namespace, {})
        watched.setdefault(key, []).append(changed)
        if namespace not in self._stops:
            receive = functools.partial(self._changed, watched)
            self._stops[namespace] = self._bus.listen(f"records.{namespace}", receive)

        def stop() -> None:
            callbacks = watched.get(key, [])
            if changed in callbacks:
                callbacks.remove(changed)
            if not callbacks:
                watched.pop(key, None)
            if not watched and self._watched.get(namespace) is watched:
                del self._watched[namespace]
                self._stops.pop(namespace)()

        return stop

    def begin(self) -> None:
        """Call every watcher: changes may have been missed while the connection was lost."""
        for watched in list(self._watched.values()):
            for callbacks in list(watched.values()):
                for changed in list(callbacks):
                    changed()

    def _changed(self, watched: dict[str, list[Callable[[], None]]], message: bytes, arrival: Arrival) -> None:
        for changed in list(watched.get(message.decode(errors="replace"), ())):
            changed()

    async def _ask(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes] = ()) -> Reply:
        return await ask_script(self._bus.epoch, script, keys, arguments, _WHAT, refused=ErrorCode.ACCESS_DENIED)


async def ask_script(
    epoch: ConnectionEpoch | None,
    script: Script,
    keys: Sequence[bytes],
    arguments: Sequence[bytes],
    what: str,
    *,
    refused: ErrorCode = ErrorCode.UNAVAILABLE,
) -> Reply:
    """Run a script and return its reply; raise a CallError if that fails.

    Its code is `refused` if this user may not run the script, otherwise `UNAVAILABLE`.
    """
    reply = ReplyError("there is no connection to Redis") if epoch is None else await epoch.ask(script, keys, arguments)
    if isinstance(reply, ReplyError):
        code = refused if is_refusal(reply) else ErrorCode.UNAVAILABLE
        raise CallError(code, f"{what} cannot be reached: {reply}", _NOT_EXECUTED)
    return reply


def explain(reply: Reply) -> str:
    """Return why the server did not accept a request."""
    if is_unknown_script(reply):
        return "no worker has been connected to Redis since the server started"
    if is_refusal(reply):
        return DeliveryRefused(f"Redis refused the request: {reply}")
    return f"Redis did not accept the request: {reply}"


def record_keys(keys: NamespaceKeys, record: Record) -> Iterable[bytes]:
    """Return the keys of a record and of its owner's records, as the scripts above expect them."""
    return keys.record(record.key), keys.owned(record.owner)


def record_arguments(record: Record) -> Iterable[bytes]:
    """Return the value, body, lifetime and key of a record, as the scripts above expect them."""
    return record.value, record.body, b"%d" % int(record.seconds * 1000), record.key.encode()


def list_namespace(epoch: ConnectionEpoch, keys: RedisKeys, address: str) -> None:
    """Add the namespace of an address to the namespaces that `list_records` reads."""
    namespace = address.partition(".")[2].encode()
    epoch.put(_LIST_NAMESPACE, (keys.record_namespaces,), (namespace,), lambda reply: None)
