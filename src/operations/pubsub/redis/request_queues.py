"""The worker's side of the request queues: it registers, takes requests, and returns those that it cannot handle."""

from __future__ import annotations

import logging
from collections.abc import Callable

from operations.errors import CallError
from operations.pubsub.protocols import Arrival, Receive
from operations.pubsub.redis.connection import NOW, SILENT_BEATS, OnReply, Reply, ReplyError, Script, pack
from operations.pubsub.redis.connection_epoch import ConnectionEpoch, RedisBus
from operations.pubsub.redis.queue_reader import REPAIR, QueueReader

_log = logging.getLogger("operations")
QUEUE_MILLISECONDS = b"60000"
"""How long requests stay in a queue without a live worker."""
_UNLESS_WORKERS = "if redis.call('ZCOUNT', KEYS[1], now, '+inf') == 0 then return 0 end\n"

PUSH = Script(
    NOW
    + "local workers = redis.call('ZCOUNT', KEYS[1], now, '+inf'); if workers == 0 then return 0 end\n"
    + "local size = redis.call('RPUSH', KEYS[2], unpack(ARGV, 2))\n"
    + "if size == #ARGV - 1 then redis.call('PEXPIRE', KEYS[2], ARGV[1]) end\n"
    + "return workers"
)
"""Queue requests if there are live workers; return the number of live workers.

Keys: workers, queue; arguments: lifetime, requests."""

RETURN = Script(NOW + _UNLESS_WORKERS + "redis.call('LPUSH', KEYS[2], ARGV[1])\nreturn 1")
"""Return an unhandled request to the front of the queue if there is a live worker.

Keys: workers, queue; argument: the request."""

REGISTER = Script(
    NOW
    + REPAIR
    + "repair(KEYS[1], 'ZCARD'); repair(KEYS[2], 'LLEN')\n"
    + "redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])\n"
    + "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)\n"
    + "redis.call('PEXPIRE', KEYS[1], ARGV[3])\n"
    + "local waiting = redis.call('PEXPIRE', KEYS[2], ARGV[3])\n"
    + "if waiting == 1 then waiting = redis.call('LLEN', KEYS[2]) end\n"
    + "return {redis.call('ZCARD', KEYS[1]), waiting}"
)
"""Register a worker; count workers and queued requests. Keys: workers, queue; arguments: name, lifetimes."""


class RequestQueues:
    """The queues from which this peer takes requests.

    When the connection is lost, the list of queues is kept, and the queues are joined again with the next connection.
    """

    def __init__(self, bus: RedisBus) -> None:
        self._bus = bus
        self._receivers: dict[str, list[Receive]] = {}
        self._left: dict[str, Receive] = {}
        self._arrivals: dict[bytes, Arrival] = {}
        self._readers: dict[int, QueueReader] = {}
        self._opening: set[int] = set()
        """The slots whose readers were opened, or are being opened, in this epoch."""
        self._shared: set[bytes] = set()
        self._took: dict[bytes, int] = {}
        self.backlogged: set[str] = set()
        """The addresses with more queued requests than their workers take between two heartbeats."""
        self._is_refused = False

    def add(self, address: str, receive: Receive, joined: OnReply) -> None:
        """Add a receiver of a queue; the first one makes this peer a worker that takes requests from the queue."""
        receivers = self._receivers.setdefault(address, [])
        receivers.append(receive)
        self._arrivals[self._bus.keys.of_namespace(address).queue] = Arrival(address)
        if len(receivers) == 1 and self._bus.epoch is not None:
            self.join(self._bus.epoch, address, joined)

    def remove(self, address: str, receive: Receive) -> None:
        """Remove a receiver of a queue. After the last one, this peer is no longer a worker of the namespace."""
        receivers = self._receivers.get(address, [])
        if receive in receivers:
            receivers.remove(receive)
            if not receivers:
                del self._receivers[address]
                self.backlogged.discard(address)
                self._left[address] = receive
                self._leave(address)

    def begin(self, epoch: ConnectionEpoch, joined: Callable[[], OnReply]) -> None:
        """Start to take requests from every queue, after the connection is established."""
        for address in self._receivers:
            self.join(epoch, address, joined())

    def end(self) -> None:
        """Forget the readers and the backlog, after the connection is lost."""
        self._is_refused = False
        self._readers.clear()
        self._opening.clear()
        self._took.clear()
        self.backlogged.clear()

    def beat(self, epoch: ConnectionEpoch) -> None:
        """Register for every queue again, as a heartbeat, unless the server refused to let this peer take requests."""
        for address in self._receivers if not self._is_refused else ():
            self._register(epoch, address, lambda reply: None)

    def join(self, epoch: ConnectionEpoch, address: str, joined: OnReply) -> None:
        """Register for a queue and start to take requests from it."""
        self._left.pop(address, None)
        PUSH.load(epoch.connection_for(self._bus.keys.of_namespace(address).queue))
        self._register(epoch, address, joined)
        self._take_from(epoch, address)

    async def close(self) -> None:
        """Stop taking requests. A request that still arrives is queued for another worker, or refused."""
        for address, receivers in list(self._receivers.items()):
            for receive in list(receivers):
                self.remove(address, receive)
        epoch = self._bus.epoch
        for reader in list(self._readers.values()):
            if epoch is not None:
                await reader.stop()

    def _leave(self, address: str) -> None:
        epoch, keys = self._bus.epoch, self._bus.keys.of_namespace(address)
        if epoch is None:
            return
        # Write earlier messages first.
        self._bus.write()
        self._deregister(address)
        reader = self._readers.get(epoch.topology.slot(keys.queue))
        if reader is not None and keys.queue in reader.keys:
            reader.keys.remove(keys.queue)
            reader.unblock()

    def _deregister(self, address: str) -> None:
        epoch, workers = self._bus.epoch, self._bus.keys.of_namespace(address).workers
        if epoch is not None:
            epoch.connection_for(workers).run(pack(b"ZREM", workers, self._bus.peer.encode()))

    def _register(self, epoch: ConnectionEpoch, address: str, then: OnReply) -> None:
        keys = self._bus.keys.of_namespace(address)
        alive_for = b"%d" % int(self._bus.heartbeat * SILENT_BEATS * 1000)
        arguments = (self._bus.peer.encode(), alive_for, QUEUE_MILLISECONDS)

        def registered(reply: Reply) -> None:
            workers, waiting = (1, 0) if isinstance(reply, ReplyError) else reply
            if workers > 1:
                self._shared.add(keys.queue)
            else:
                self._shared.discard(keys.queue)
            self._note_waiting(epoch, address, workers, waiting)
            for reader in self._readers.values():
                reader.is_alone = self._shared.isdisjoint(reader.keys)
            then(reply)

        epoch.put(REGISTER, (keys.workers, keys.queue), arguments, registered)
        epoch.flush()

    def _note_waiting(self, epoch: ConnectionEpoch, address: str, workers: int, waiting: int) -> None:
        """Store whether a queue has more requests than its workers take between two heartbeats."""
        queue = self._bus.keys.of_namespace(address).queue
        reader = self._readers.get(epoch.topology.slot(queue))
        took = reader.took[queue] if reader is not None else 0
        recently, self._took[queue] = took - self._took.get(queue, 0), took
        if waiting > recently * workers:
            self.backlogged.add(address)
        else:
            self.backlogged.discard(address)

    def _take_from(self, epoch: ConnectionEpoch, address: str) -> None:
        """Add a queue to its reader; open the reader if it is missing, unless it is being opened.

        One reader takes from all queues; in a cluster, each slot has a reader for its queues.
        """
        queue = self._bus.keys.of_namespace(address).queue
        slot = epoch.topology.slot(queue)
        if slot in self._readers:
            self._add_to_reader(slot, [queue])
        elif slot not in self._opening:
            self._opening.add(slot)
            self._bus.spawn(self._open_reader(epoch, slot, queue))

    async def _open_reader(self, epoch: ConnectionEpoch, slot: int, queue: bytes) -> None:
        """Open the reader of a slot, and add all queues that were joined meanwhile."""
        try:
            connection = await epoch.open_blocking(queue)
        except (OSError, CallError) as error:
            epoch.end(str(error) or type(error).__name__)
            return
        if epoch is self._bus.epoch:
            self._readers[slot] = QueueReader(
                connection, epoch, self._bus, taken=self._taken, refused=self._note_refusal
            )
            queues = [self._bus.keys.of_namespace(address).queue for address in self._receivers]
            self._add_to_reader(slot, [each for each in queues if epoch.topology.slot(each) == slot])

    def _add_to_reader(self, slot: int, queues: list[bytes]) -> None:
        reader = self._readers[slot]
        new = [queue for queue in queues if queue not in reader.keys]
        if new:
            reader.is_alone = reader.is_alone and self._shared.isdisjoint(new)
            reader.add(new)

    def _note_refusal(self, reason: str) -> None:
        """Deregister this peer: the server does not allow it to take requests."""
        _log.error("this peer may not take requests, so it serves none: %s", reason)
        self._is_refused = True
        for address in self._receivers:
            self._deregister(address)

    def _taken(self, key: bytes, request: bytes) -> None:
        arrival = self._arrivals[key]
        receivers = self._receivers.get(arrival.address)
        if receivers is None:
            self._return_request(arrival, request)
            return
        if len(receivers) > 1:
            receivers.append(receivers.pop(0))
        receivers[0](request, arrival)

    def _return_request(self, arrival: Arrival, request: bytes) -> None:
        """Return a request that arrived after this worker left: queue it for another worker, or refuse it here."""
        address = arrival.address
        epoch, keys = self._bus.epoch, self._bus.keys.of_namespace(address)
        if epoch is None:
            return

        def returned(reply: Reply) -> None:
            if reply != 1:
                self._left[address](request, arrival)

        epoch.put(RETURN, (keys.workers, keys.queue), (request,), returned)
        epoch.flush()
