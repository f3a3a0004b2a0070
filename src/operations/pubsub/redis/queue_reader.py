"""QueueReader: takes requests from the queues of a worker's namespaces, on a connection for blocking commands."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from operations.pubsub.framing import QUICK_SECONDS, split
from operations.pubsub.redis.connection import RedisConnection, Reply, ReplyError, Script, is_refusal, pack
from operations.pubsub.redis.connection_epoch import ConnectionEpoch, RedisBus

_MOST_AT_ONCE = 16
_MOST_AMONG_OTHERS = 8
"""Largest number of queue elements per command: `_MOST_AT_ONCE` for the only worker, else `_MOST_AMONG_OTHERS`."""
_BATCH_SECONDS = 0.002
"""Time that handling the requests of one command should take at most; it limits the number of requests."""
_FLUSH_SECONDS = 0.001
"""Time after which the responses to handled requests are written although further requests are still to be handled."""
_LONGEST_TURN = 0.05
"""Time after which the handling of taken requests continues in the next iteration of the event loop."""
_AHEAD_SECONDS = 0.001
"""If there are other workers, the next command is sent early only if handling an element takes less than this time."""
_AT_ONCE_SECONDS = 0.0005
"""A reply within this time is immediate: the request was already queued."""
_LOOK_EVERY = 8
"""Number of immediate replies after which the reader checks whether more requests are queued."""
REPAIR = (
    "local function repair(key, size)\n"
    "  local reply = redis.pcall(size, key)\n"
    "  if type(reply) == 'table' and string.find(reply.err or '', 'WRONGTYPE', 1, true) then\n"
    "    redis.call('SET', key, '', 'PXAT', '1')\n"
    "  end\nend\n"
)
"""A Lua function that deletes a key if it has an unexpected type: any caller can write such a key."""
_REPAIR_QUEUES = Script(REPAIR + "for _, key in ipairs(KEYS) do repair(key, 'LLEN') end\nreturn 1")

OnRequest = Callable[[bytes, bytes], None]
"""Callback for a request that was taken, with the key of its queue."""


class QueueReader:
    """Takes requests with one blocking command after the other.

    The reader starts with one request per command, so that workers share a burst of requests. Whenever the queue had as
    many requests as the command asked for, the reader doubles the number, so that a busy worker needs few commands. It
    takes no more than this worker handles in two milliseconds: a worker with slow handlers leaves requests to other
    workers. If handlers are quick, the reader sends the next command before they end, so that the server and this
    worker run in parallel.
    """

    def __init__(
        self,
        connection: RedisConnection,
        epoch: ConnectionEpoch,
        bus: RedisBus,
        *,
        taken: OnRequest,
        refused: Callable[[str], None],
    ) -> None:
        self.keys: list[bytes] = []
        self.is_alone = True
        """Whether no other worker takes from these queues."""
        self.took: Counter[bytes] = Counter()
        """Number of elements taken from each queue; an element is a request or a batch."""
        self._connection = connection
        self._epoch = epoch
        self._bus = bus
        self._taken = taken
        self._refused = refused
        self._wait = f"{bus.heartbeat:g}".encode()
        self._takes_many = epoch.server_version >= 7
        self._pace = 0.0
        self._is_quick = False
        self._count = 1
        self._asked = False
        self._asked_at = 0.0
        self._quick = 0
        self._rest = False
        self._unhandled: deque[tuple[bytes, Sequence[bytes]]] = deque()
        """The requests that were taken and are not handled yet, with the keys of their queues."""
        self._stopped: asyncio.Future[None] | None = None

    def add(self, keys: Iterable[bytes]) -> None:
        """Take from more queues."""
        self.unblock()
        self.keys += keys
        self.ask()

    def unblock(self) -> None:
        """Make the server reply to the blocking command, so that another one can be sent."""
        if self._asked:
            self._epoch.unblock(self._connection)

    def ask(self) -> None:
        """Send a blocking command, unless one is pending."""
        if self._asked or not self.keys or self._stopped is not None:
            return
        self._asked = True
        self._asked_at = time.perf_counter()
        if self._takes_many:
            source = (b"%d" % len(self.keys), *self.keys, b"LEFT")
            command = pack(b"BLMPOP", self._wait, *source, b"COUNT", b"%d" % self._count)
            self._connection.run(command, self._got_many)
        else:
            self._connection.run(pack(b"BLPOP", *self.keys, self._wait), self._got_one)

    async def stop(self) -> None:
        """Stop taking requests; wait up to two seconds until those that were taken are handled."""
        self._stopped = asyncio.get_running_loop().create_future()
        for _ in range(40):
            if not (self._asked or self._rest or self._unhandled) or not self._connection.is_open:
                return
            self.unblock()
            # The server may process the UNBLOCK before the blocking command: repeat it.
            await asyncio.wait((self._stopped,), timeout=0.05)

    def _adapt(self, taken: int) -> None:
        most = _MOST_AT_ONCE if self.is_alone else _MOST_AMONG_OTHERS
        if self._pace:
            most = max(1, min(most, int(_BATCH_SECONDS / self._pace)))
        self._count = min(most, self._count * 2 if taken >= self._count else taken + 1)

    def _got_many(self, reply: Reply) -> None:
        self._asked = False
        if self._is_unusable(reply):
            return
        if reply is None:
            self._count = 1
        else:
            key, elements = reply
            self._adapt(len(elements))
            requests = _split_all(elements)
            self._ask_ahead(key, len(requests))
            self._deliver(key, requests, len(elements))
        self._go_on()

    def _got_one(self, reply: Reply) -> None:
        self._asked = False
        if self._is_unusable(reply):
            return
        if reply is None:
            self._count = 1
        else:
            key, element = reply
            more = self._more()
            if more and self._stopped is None:
                self._rest = True
                self._connection.put(pack(b"LPOP", key, b"%d" % more), lambda rest: self._got_rest(key, rest))
            requests = split(element)
            self._ask_ahead(key, len(requests))
            self._connection.flush()
            self._deliver(key, requests, 1)
        self._go_on()

    def _more(self) -> int:
        """Return how many further requests to take after one that arrived.

        If a reply was immediate, more requests may be queued: after every `_LOOK_EVERY` such replies, take one more.
        """
        if self._count == 1 and time.perf_counter() - self._asked_at < _AT_ONCE_SECONDS:
            self._quick += 1
            return int(self._quick % _LOOK_EVERY == 0)
        return self._count - 1

    def _got_rest(self, key: bytes, reply: Reply) -> None:
        self._rest = False
        if self._is_unusable(reply):
            return
        if reply:
            self._adapt(len(reply) + 1)
            self._deliver(key, _split_all(reply), len(reply))
        else:
            self._count = 1
        self._go_on()

    def _ask_ahead(self, served: bytes, came: int) -> None:
        """Send the next command before the taken requests are handled, if handlers are quick.

        If handlers are slow, the command is sent after they end, even if no other worker is known: a worker may have
        joined since the last heartbeat, and should get the next request. After a single request the response is written
        first, because its caller may then send the next request.
        """
        if len(self.keys) > 1 and served in self.keys:
            # The server takes from the first queue with requests: rotate the order.
            self.keys.remove(served)
            self.keys.append(served)
        if came > 1 and self._is_quick and (self.is_alone or self._pace < _AHEAD_SECONDS):
            self.ask()

    def _go_on(self) -> None:
        if self._unhandled:
            return
        if not self._rest and not self._asked:
            self._bus.write()  # responses first
            self.ask()
        if self._stopped is not None and not self._asked and not self._rest and not self._stopped.done():
            self._stopped.set_result(None)

    def _deliver(self, key: bytes, requests: Sequence[bytes], elements: int) -> None:
        self.took[key] += elements
        if self._unhandled:
            self._unhandled.append((key, requests))
        else:
            self._handle(key, requests, elements)

    def _handle(self, key: bytes, requests: Sequence[bytes], elements: int) -> None:
        """Handle requests; if that takes long, the rest follows in the next iteration of the event loop.

        This limit is needed because a hostile caller can put very many requests into one element.
        """
        begun = flushed = now = time.perf_counter()
        count = 0
        for request in requests:
            self._taken(key, request)
            count += 1
            now = time.perf_counter()
            if now - flushed > _FLUSH_SECONDS:
                # The response of a slow handler does not wait for the next requests.
                self._bus.write()
                flushed = now
                if now - begun > _LONGEST_TURN:
                    break
        elapsed = now - begun
        self._is_quick = elapsed < QUICK_SECONDS * count
        self._bus.worked(quickly=self._is_quick)
        taken = elapsed / elements
        self._pace += (taken - self._pace) / 4 if self._pace else taken
        if count < len(requests):
            self._unhandled.appendleft((key, requests[count:]))
        if self._unhandled:
            asyncio.get_running_loop().call_soon(self._handle_more)

    def _handle_more(self) -> None:
        self._handle(*self._unhandled.popleft(), 1)
        self._go_on()

    def _is_unusable(self, reply: Any) -> bool:
        if is_refusal(reply):
            self._refused(str(reply))
        elif isinstance(reply, ReplyError) and str(reply).startswith("WRONGTYPE"):
            self._epoch.put(_REPAIR_QUEUES, self.keys, (), lambda reply: self.ask())
            self._epoch.flush()
        elif isinstance(reply, ReplyError):
            self._epoch.end(str(reply))
        return isinstance(reply, ReplyError)


def _split_all(elements: Sequence[bytes]) -> list[bytes]:
    return list(itertools.chain.from_iterable(map(split, elements)))
