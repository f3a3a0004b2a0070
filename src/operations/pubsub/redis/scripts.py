"""The Lua scripts: what must be one step at the server, so that nobody sees half of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from operations.pubsub.redis.connection import Connection, Reply, ReplyError, Then, pack

_NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
_NOBODY = "if redis.call('ZCOUNT', KEYS[1], now, '+inf') == 0 then return 0 end\n"
GROUP = b"workers"
"""The one group of consumers of a stream."""


class Script:
    """One script: run by its digest, and sent whole to a server that does not know it."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def put(self, connection: Connection, keys: Sequence[bytes], arguments: Sequence[bytes], then: Then) -> None:
        """Add a run to the next write."""

        def check(reply: Reply) -> None:
            if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
                connection.run(pack(b"EVAL", self.source, *rest), then)
            else:
                then(reply)

        rest = (b"%d" % len(keys), *keys, *arguments)
        connection.put(pack(b"EVALSHA", self.digest, *rest), check)


PUSH = Script(
    _NOW
    + "local workers = redis.call('ZCOUNT', KEYS[1], now, '+inf'); if workers == 0 then return 0 end\n"
    + "local size = redis.call('RPUSH', KEYS[2], unpack(ARGV, 2))\n"
    + "if size == #ARGV - 1 then redis.call('PEXPIRE', KEYS[2], ARGV[1]) end\n"
    + "return workers"
)
"""Queue requests if workers live, and say how many: keys workers, queue; arguments how long it may lie, requests."""

RETURN = Script(_NOW + _NOBODY + "redis.call('LPUSH', KEYS[2], ARGV[1])\nreturn 1")
"""Put a request that was taken but not looked at back in front, if another worker lives: keys workers, queue."""

REGISTER = Script(
    _NOW
    + "redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])\n"
    + "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)\n"
    + "redis.call('PEXPIRE', KEYS[1], ARGV[3])\n"
    + "local waiting = redis.call('PEXPIRE', KEYS[2], ARGV[3])\n"
    + "if waiting == 1 then waiting = redis.call('LLEN', KEYS[2]) end\n"
    + "return {redis.call('ZCARD', KEYS[1]), waiting}"
)
"""A worker lives, one of how many, and so much waits: keys workers, queue; arguments its name, how long they last."""

STORE = Script(
    "if redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[2]) then\n"
    "redis.call('XADD', KEYS[1], '*', 'message', ARGV[1], 'before', '0') end\nreturn 1"
)
"""Store a request once: keys stream, what says that it was stored; arguments the request, how long that is known."""

JOIN = Script(
    "pcall(redis.call, 'XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM')\n"
    "for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], 'workers')) do\n"
    "  local consumer = {}\n"
    "  for i = 1, #raw, 2 do consumer[raw[i]] = raw[i + 1] end\n"
    "  if consumer.pending == 0 and consumer.idle > tonumber(ARGV[1]) then\n"
    "    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'workers', consumer.name)\n"
    "  end\nend\nreturn 1"
)
"""Make the group of a stream, and forget consumers that have nothing and were silent for ARGV[1] milliseconds."""

CLAIM = Script(
    "local found = redis.call('XAUTOCLAIM', KEYS[1], 'workers', ARGV[1], ARGV[2], ARGV[3], 'COUNT', ARGV[4])\n"
    "local claimed = {}\n"
    "for _, entry in ipairs(found[2]) do if entry then\n"
    "  local held = redis.call('XPENDING', KEYS[1], 'workers', entry[1], entry[1], 1)\n"
    "  claimed[#claimed + 1] = {entry[1], entry[2], held[1][4]}\n"
    "end end\nreturn {found[1], claimed}"
)
"""Take over what others held for too long: key stream; arguments consumer, for how long, where to go on, how many."""

SETTLE = Script(
    "if redis.call('XACK', KEYS[1], 'workers', ARGV[1]) == 0 then return 0 end\n"
    "redis.call('XDEL', KEYS[1], ARGV[1])\n"
    "if ARGV[2] == 'release' then redis.call('XADD', KEYS[1], '*', 'message', ARGV[3], 'before', ARGV[4])\n"
    "elseif ARGV[2] == 'bury' then\n"
    "  redis.call('XADD', KEYS[2], 'MAXLEN', '~', '100000', '*', 'message', ARGV[3], 'reason', ARGV[4])\n"
    "end\nreturn 1"
)
"""Be done with a stored request: keys stream, dead letters; arguments its id, what becomes of it, itself, a note."""
