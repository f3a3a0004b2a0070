"""Queues: a worker's part in the lists of requests. It registers, takes, and gives back what it cannot look at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from operations.errors import CallError
from operations.pubsub import Receive
from operations.pubsub.redis.connection import SILENT_BEATS, Reply, ReplyError, Then, pack
from operations.pubsub.redis.life import Life
from operations.pubsub.redis.names import Names
from operations.pubsub.redis.scripts import REGISTER, RETURN
from operations.pubsub.redis.taking import Taker

_log = logging.getLogger("operations")
QUEUE_MILLISECONDS = b"60000"
"""How long requests lie in a queue of which no worker lives."""


class Bus(Protocol):
    """What the parts of a transport need of it."""

    life: Life | None
    names: Names
    peer: str
    heartbeat: float

    def write(self) -> None:
        """Write what was sent."""

    def worked(self, *, quickly: bool) -> None:
        """What was taken was worked off."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that the transport ends when it is closed."""


class Queues:
    """The queues that this peer takes from, over one connection after the other."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._receivers: dict[str, list[Receive]] = {}
        self._left: dict[str, Receive] = {}
        self._addresses: dict[bytes, str] = {}
        self._takers: dict[int, Taker] = {}
        self._shared: set[bytes] = set()
        self._took: dict[bytes, int] = {}
        self.behind: set[str] = set()
        """The addresses at which more waits than all their workers take from one heartbeat to the next."""
        self._is_refused = False

    def add(self, address: str, receive: Receive, joined: Then) -> None:
        """Take from one more queue."""
        receivers = self._receivers.setdefault(address, [])
        receivers.append(receive)
        self._addresses[self._bus.names.space(address).queue] = address
        if len(receivers) == 1 and self._bus.life is not None:
            self.join(self._bus.life, address, joined)

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

    def begin(self, life: Life, joined: Callable[[], Then]) -> None:
        """The servers were connected to: take from every queue."""
        for address in self._receivers:
            self.join(life, address, joined())

    def end(self) -> None:
        """They were lost."""
        self._is_refused = False
        self._takers.clear()
        self._took.clear()
        self.behind.clear()

    def beat(self, life: Life) -> None:
        """Say that this worker lives."""
        for address in self._receivers if not self._is_refused else ():
            self._register(life, address, lambda reply: None)

    def join(self, life: Life, address: str, joined: Then) -> None:
        """Register for a queue and begin to take from it."""
        self._left.pop(address, None)
        self._register(life, address, joined)
        self._bus.spawn(self._take_from(life, address))

    async def close(self) -> None:
        """Take nothing more, and give back what was on its way here."""
        for address, receivers in list(self._receivers.items()):
            for receive in list(receivers):
                self.remove(address, receive)
        life = self._bus.life
        for taker in list(self._takers.values()):
            if life is not None:
                await taker.stop()

    def _leave(self, address: str) -> None:
        life, space = self._bus.life, self._bus.names.space(address)
        if life is None:
            return
        # What was sent before goes out before.
        self._bus.write()
        self._deregister(address)
        taker = self._takers.get(life.topology.slot(space.queue))
        if taker is not None and space.queue in taker.keys:
            taker.keys.remove(space.queue)
            taker.wake()

    def _deregister(self, address: str) -> None:
        life, workers = self._bus.life, self._bus.names.space(address).workers
        if life is not None:
            life.at(workers).run(pack(b"ZREM", workers, self._bus.peer.encode()))

    def _register(self, life: Life, address: str, then: Then) -> None:
        space = self._bus.names.space(address)
        believed = b"%d" % int(self._bus.heartbeat * SILENT_BEATS * 1000)
        arguments = (self._bus.peer.encode(), believed, QUEUE_MILLISECONDS)

        def registered(reply: Reply) -> None:
            workers, waiting = (1, 0) if isinstance(reply, ReplyError) else reply
            if workers > 1:
                self._shared.add(space.queue)
            else:
                self._shared.discard(space.queue)
            self._note_waiting(life, address, workers, waiting)
            for taker in self._takers.values():
                taker.is_alone = self._shared.isdisjoint(taker.keys)
            then(reply)

        life.put(REGISTER, (space.workers, space.queue), arguments, registered)
        life.flush()

    def _note_waiting(self, life: Life, address: str, workers: int, waiting: int) -> None:
        """Know whether the last of so many requests will wait for long."""
        queue = self._bus.names.space(address).queue
        taker = self._takers.get(life.topology.slot(queue))
        took = taker.took[queue] if taker is not None else 0
        lately, self._took[queue] = took - self._took.get(queue, 0), took
        if waiting > lately * workers:
            self.behind.add(address)
        else:
            self.behind.discard(address)

    async def _take_from(self, life: Life, address: str) -> None:
        """Have a taker for a queue: one for all of them, and in a cluster one for each slot."""
        queue = self._bus.names.space(address).queue
        slot = life.topology.slot(queue)
        if slot not in self._takers:
            try:
                connection = await life.open_blocking(queue)
            except (OSError, CallError) as error:
                life.end(str(error) or type(error).__name__)
                return
            if life is not self._bus.life:
                return
            if slot not in self._takers:
                self._takers[slot] = Taker(
                    connection,
                    life,
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
        """The server does not let this peer take: nobody is to wait for it."""
        _log.error("this peer may not take requests, so it serves none: %s", reason)
        self._is_refused = True
        for address in self._receivers:
            self._deregister(address)

    def _taken(self, key: bytes, request: bytes) -> None:
        address = self._addresses[key]
        receivers = self._receivers.get(address)
        if receivers is None:
            self._give_back(address, request)
            return
        if len(receivers) > 1:
            receivers.append(receivers.pop(0))
        receivers[0](request)

    def _give_back(self, address: str, request: bytes) -> None:
        """A request that was on its way when this worker left: for another one, or to be refused here."""
        life, space = self._bus.life, self._bus.names.space(address)
        if life is None:
            return

        def returned(reply: Reply) -> None:
            if reply != 1:
                self._left[address](request)

        life.put(RETURN, (space.workers, space.queue), (request,), returned)
        life.flush()
