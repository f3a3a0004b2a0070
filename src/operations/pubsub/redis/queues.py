"""The worker's side of the request queues: it registers, takes requests, and returns those that it cannot handle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from operations.errors import CallError
from operations.pubsub.protocols import Arrival, Receive
from operations.pubsub.redis.addresses import Names
from operations.pubsub.redis.connection import SILENT_BEATS, Reply, ReplyError, Script, Then, pack
from operations.pubsub.redis.connection_epoch import ConnectionEpoch
from operations.pubsub.redis.taking import Taker

_log = logging.getLogger("operations")
QUEUE_MILLISECONDS = b"60000"
"""How long requests stay in a queue without a live worker."""
_NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"
_NOBODY = "if redis.call('ZCOUNT', KEYS[1], now, '+inf') == 0 then return 0 end\n"

PUSH = Script(
    _NOW
    + "local workers = redis.call('ZCOUNT', KEYS[1], now, '+inf'); if workers == 0 then return 0 end\n"
    + "local size = redis.call('RPUSH', KEYS[2], unpack(ARGV, 2))\n"
    + "if size == #ARGV - 1 then redis.call('PEXPIRE', KEYS[2], ARGV[1]) end\n"
    + "return workers"
)
"""Queue requests if workers live; return how many do. Keys: workers, queue; arguments: lifetime, requests."""

RETURN = Script(_NOW + _NOBODY + "redis.call('LPUSH', KEYS[2], ARGV[1])\nreturn 1")
"""Return an unhandled request to the front of the queue if there is a live worker. Keys: workers, queue."""

REGISTER = Script(
    _NOW
    + "redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])\n"
    + "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)\n"
    + "redis.call('PEXPIRE', KEYS[1], ARGV[3])\n"
    + "local waiting = redis.call('PEXPIRE', KEYS[2], ARGV[3])\n"
    + "if waiting == 1 then waiting = redis.call('LLEN', KEYS[2]) end\n"
    + "return {redis.call('ZCARD', KEYS[1]), waiting}"
)
"""Register a worker; count workers and queued requests. Keys: workers, queue; arguments: name, lifetimes."""


class Bus(Protocol):
    """What queues need of the transport."""

    epoch: ConnectionEpoch | None
    names: Names
    peer: str
    heartbeat: float

    def write(self) -> None:
        """Write what was sent."""

    def worked(self, *, quickly: bool) -> None:
        """The requests that were taken have been handled."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with the transport."""


class Queues:
    """The queues that this peer takes requests from, across connections."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._receivers: dict[str, list[Receive]] = {}
        self._left: dict[str, Receive] = {}
        self._arrivals: dict[bytes, Arrival] = {}
        self._takers: dict[int, Taker] = {}
        self._shared: set[bytes] = set()
        self._took: dict[bytes, int] = {}
        self.behind: set[str] = set()
        """The addresses with more queued requests than their workers take between two heartbeats."""
        self._is_refused = False

    def add(self, address: str, receive: Receive, joined: Then) -> None:
        """Take from one more queue."""
        receivers = self._receivers.setdefault(address, [])
        receivers.append(receive)
        self._arrivals[self._bus.names.space(address).queue] = Arrival(address)
        if len(receivers) == 1 and self._bus.epoch is not None:
            self.join(self._bus.epoch, address, joined)

    def remove(self, address: str, receive: Receive) -> None:
        """Stop taking for one receiver; with the last one this peer is no longer a worker of the namespace."""
        receivers = self._receivers.get(address, [])
        if receive in receivers:
            receivers.remove(receive)
            if not receivers:
                del self._receivers[address]
                self.behind.discard(address)
                self._left[address] = receive
                self._leave(address)

    def begin(self, epoch: ConnectionEpoch, joined: Callable[[], Then]) -> None:
        """The connection is established: take from every queue."""
        for address in self._receivers:
            self.join(epoch, address, joined())

    def end(self) -> None:
        """The connection is lost."""
        self._is_refused = False
        self._takers.clear()
        self._took.clear()
        self.behind.clear()

    def beat(self, epoch: ConnectionEpoch) -> None:
        """Send a sign of life."""
        for address in self._receivers if not self._is_refused else ():
            self._register(epoch, address, lambda reply: None)

    def join(self, epoch: ConnectionEpoch, address: str, joined: Then) -> None:
        """Register for a queue and start to take from it."""
        self._left.pop(address, None)
        self._register(epoch, address, joined)
        self._bus.spawn(self._take_from(epoch, address))

    async def close(self) -> None:
        """Stop taking, and return the requests that were in flight."""
        for address, receivers in list(self._receivers.items()):
            for receive in list(receivers):
                self.remove(address, receive)
        epoch = self._bus.epoch
        for taker in list(self._takers.values()):
            if epoch is not None:
                await taker.stop()

    def _leave(self, address: str) -> None:
        epoch, space = self._bus.epoch, self._bus.names.space(address)
        if epoch is None:
            return
        # What was sent before goes out before.
        self._bus.write()
        self._deregister(address)
        taker = self._takers.get(epoch.topology.slot(space.queue))
        if taker is not None and space.queue in taker.keys:
            taker.keys.remove(space.queue)
            taker.wake()

    def _deregister(self, address: str) -> None:
        epoch, workers = self._bus.epoch, self._bus.names.space(address).workers
        if epoch is not None:
            epoch.at(workers).run(pack(b"ZREM", workers, self._bus.peer.encode()))

    def _register(self, epoch: ConnectionEpoch, address: str, then: Then) -> None:
        space = self._bus.names.space(address)
        believed = b"%d" % int(self._bus.heartbeat * SILENT_BEATS * 1000)
        arguments = (self._bus.peer.encode(), believed, QUEUE_MILLISECONDS)

        def registered(reply: Reply) -> None:
            workers, waiting = (1, 0) if isinstance(reply, ReplyError) else reply
            if workers > 1:
                self._shared.add(space.queue)
            else:
                self._shared.discard(space.queue)
            self._note_waiting(epoch, address, workers, waiting)
            for taker in self._takers.values():
                taker.is_alone = self._shared.isdisjoint(taker.keys)
            then(reply)

        epoch.put(REGISTER, (space.workers, space.queue), arguments, registered)
        epoch.flush()

    def _note_waiting(self, epoch: ConnectionEpoch, address: str, workers: int, waiting: int) -> None:
        """Note whether there is a backlog."""
        queue = self._bus.names.space(address).queue
        taker = self._takers.get(epoch.topology.slot(queue))
        took = taker.took[queue] if taker is not None else 0
        lately, self._took[queue] = took - self._took.get(queue, 0), took
        if waiting > lately * workers:
            self.behind.add(address)
        else:
            self.behind.discard(address)

    async def _take_from(self, epoch: ConnectionEpoch, address: str) -> None:
        """Make sure that a queue has a taker: one for all queues, in a cluster one for each slot."""
        queue = self._bus.names.space(address).queue
        slot = epoch.topology.slot(queue)
        if slot not in self._takers:
            try:
                connection = await epoch.open_blocking(queue)
            except (OSError, CallError) as error:
                epoch.end(str(error) or type(error).__name__)
                return
            if epoch is not self._bus.epoch:
                return
            if slot not in self._takers:
                self._takers[slot] = Taker(
                    connection,
                    epoch,
                    taken=self._taken,
                    flush=self._bus.write,
                    worked=self._bus.worked,
                    refused=self._note_refusal,
                    seconds=self._bus.heartbeat,
                )
        taker = self._takers[slot]
        if address in self._receivers and queue not in taker.keys:
            taker.is_alone = taker.is_alone and queue not in self._shared
            taker.add(queue)

    def _note_refusal(self, reason: str) -> None:
        """The server denies this peer to take requests: deregister it."""
        _log.error("this peer may not take requests, so it serves none: %s", reason)
        self._is_refused = True
        for address in self._receivers:
            self._deregister(address)

    def _taken(self, key: bytes, request: bytes) -> None:
        arrival = self._arrivals[key]
        receivers = self._receivers.get(arrival.address)
        if receivers is None:
            self._give_back(arrival, request)
            return
        if len(receivers) > 1:
            receivers.append(receivers.pop(0))
        receivers[0](request, arrival)

    def _give_back(self, arrival: Arrival, request: bytes) -> None:
        """Return a request that arrived after this worker left: to another worker, or to be refused here."""
        address = arrival.address
        epoch, space = self._bus.epoch, self._bus.names.space(address)
        if epoch is None:
            return

        def returned(reply: Reply) -> None:
            if reply != 1:
                self._left[address](request, arrival)

        epoch.put(RETURN, (space.workers, space.queue), (request,), returned)
        epoch.flush()
