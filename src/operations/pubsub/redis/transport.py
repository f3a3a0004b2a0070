"""RedisTransport: requests through lists that workers take from, everything else through channels."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from operations.errors import CallError
from operations.pubsub import Capabilities, Receive, Refused, Stop, Take, Undelivered
from operations.pubsub.framing import batches, join, shares, split
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.pace import Pace
from operations.pubsub.reconnecting import Reconnecting
from operations.pubsub.redis.address import parse_address
from operations.pubsub.redis.connection import Reply, ReplyError, diagnose, pack
from operations.pubsub.redis.life import Life
from operations.pubsub.redis.names import Names
from operations.pubsub.redis.outbox import Sent
from operations.pubsub.redis.queues import QUEUE_MILLISECONDS, Queues
from operations.pubsub.redis.scripts import PUSH
from operations.pubsub.redis.stored import Stored, explain
from operations.pubsub.redis.topology import Surveyor

_log = logging.getLogger("operations")
HEARTBEAT_SECONDS = 2.0
MAX_PAYLOAD = 16 << 20
"""The largest message by default; Redis cuts off a listener for whom more than 32 MB wait."""
_BATCH_BYTES = 128 << 10
_MOST_PUSHED = 256
_FIRST_WRITE = 32
"""After how many messages to one address a turn's first write comes; each further one after twice as many."""
_MOST_KEPT = 16 << 20
_KEPT_SECONDS = 30.0
_CAPABILITIES = Capabilities(
    knows_no_responders=True, tracks_peers=False, groups=True, ordered=True, identity="none", durable=True
)


class RedisTransport(Reconnecting):
    """One end of a bus that is a Redis server, its sentinels or a cluster: `async with RedisTransport(url) as bus:`.

    An address `work.<namespace>` is a list, from which one of the workers that listen in its group takes each message;
    every other address is a channel, and whoever listens there gets everything. Entering waits for the first
    connection: one that the server refuses is raised, a server that is not there yet is waited for.

    `name` begins the name of this peer, and so of its inbox, for permissions; by default it is the URL's user.
    `trusted` says that only trusted code reaches this server: what a caller says of its identity is believed.
    """

    def __init__(
        self,
        url: str = "redis://127.0.0.1:6379",
        *,
        name: str | None = None,
        trusted: bool = False,
        prefix: str = "operations",
        heartbeat: float = HEARTBEAT_SECONDS,
        max_payload: int = MAX_PAYLOAD,
        tls: ssl.SSLContext | None = None,
        shortest_delay: float = 0.05,
        longest_delay: float = 1.0,
    ) -> None:
        self.address = parse_address(url)
        where = f"Redis at {self.address}"
        super().__init__(server=where, shortest_delay=shortest_delay, longest_delay=longest_delay)
        check_seconds(heartbeat=heartbeat)
        check_counts(max_payload=max_payload)
        named = re.sub(r"[^A-Za-z0-9_-]", "_", name if name is not None else self.address.username or "")
        self.peer = f"{named}-{os.urandom(16).hex()}" if named else os.urandom(16).hex()
        self.capabilities = msgspec.structs.replace(
            _CAPABILITIES,
            max_payload=max_payload,
            identity="caller" if trusted else "none",
            claims_identity=trusted,
        )
        self.life: Life | None = None
        self.names = Names(prefix)
        self.heartbeat = heartbeat
        self.reconnects = 0
        self._tls = (tls or ssl.create_default_context()) if self.address.tls else None
        self._surveyor = Surveyor(self.address, self._tls, self.peer)
        self._outbox: dict[str, Sent] = {}
        self._alone: dict[str, bool] = {}
        """Whether there was one worker alone at an address when something was last sent there."""
        self._reading = False
        self._is_fresh = False
        """Whether nothing waited to be written when reading began."""
        self._is_quick = False
        """Whether what waits now was made of what was read, in no time."""
        self._scheduled = False
        self._most_held = _FIRST_WRITE
        self._unsettled = 0
        self._pace = Pace()
        self._inbox = self.names.channel(f"inbox.{self.peer}")
        self._listeners: dict[bytes, list[Receive]] = {}
        self._refusal: Refused | None = None
        self._queues = Queues(self)
        self._stored = Stored(self)
        self._kept: list[bytes] = []
        self._lost_at = 0.0
        self._pulse: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached now."""
        return self.life is not None

    @property
    def behind(self) -> list[str]:
        """The namespaces of which more requests wait at the server than their workers take in a heartbeat."""
        return [address.partition(".")[2] for address in self._queues.behind]

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send with whatever else this turn of the loop sends; while there is no server, only answers are kept."""
        if self.life is None:
            if undelivered is not None:
                undelivered("there is no connection to Redis")
            elif address.startswith("inbox."):
                self._keep(pack(b"PUBLISH", self.names.channel(address), message))
            return
        waiting = self._outbox.get(address)
        if waiting is None:
            if not self._scheduled and not self._reading:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._write_turn)
            waiting = self._outbox[address] = Sent([], [])
        waiting.messages.append(message)
        waiting.tell.append(undelivered)
        if len(waiting.tell) >= self._most_held:
            # Whoever gets these can begin while the rest of the turn is still being made.
            self._most_held *= 2
            self.write()

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Keep a message until it is dealt with, and say so; another one of the same key is the same message."""
        self._stored.store(address, message, key, stored, undelivered)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Be given what is stored at an address, at most `limit` messages at a time, shared with all other takers."""
        return self._stored.take(address, take, limit)

    def _write_turn(self) -> None:
        self._scheduled = False
        self._most_held = _FIRST_WRITE
        self.write()

    async def flush(self) -> None:
        """Return once the servers have read what was sent, and know what is no longer listened to."""
        self.write()
        if self.life is not None:
            with contextlib.suppress(OSError, ReplyError):
                await self.life.catch_up()

    def write(self) -> None:
        """Write what was sent."""
        life = self.life
        if life is None or not self._outbox:
            return
        if self._unsettled and life.topology.is_cluster:
            return  # one server must have taken note before others are sent what relies on it
        outbox, self._outbox = self._outbox, {}
        for address, sent in outbox.items():
            if address.startswith("work."):
                for part in sent.cut(_MOST_PUSHED):
                    self._push(life, address, part)
            else:
                self._publish(life, address, sent.messages)
        life.flush()

    def _push(self, life: Life, address: str, sent: Sent) -> None:
        """Queue requests, if anybody lives to take them; one command for all of one turn."""

        def pushed(reply: Reply) -> None:
            if isinstance(reply, int) and reply > 0:
                self._alone[address] = reply == 1
            else:
                sent.fail(f"no worker listens at {address}" if reply == 0 else explain(reply))

        if self._refusal is not None:
            sent.fail(self._refusal)
            return
        space = self.names.space(address)
        requests = sent.messages
        if self._alone.get(address, False):
            elements = batches(requests, _BATCH_BYTES)
        else:
            # Of several workers, each that waits is woken for more than one request.
            cut = shares(requests, _BATCH_BYTES, quick=self._pace.is_quick)
            elements = [join(requests[share]) for share in cut]
        arguments = [QUEUE_MILLISECONDS, *elements]
        life.put(PUSH, (space.workers, space.queue), arguments, pushed)

    def _publish(self, life: Life, address: str, messages: list[bytes]) -> None:
        again = address.startswith("inbox.")
        channel = self.names.channel(address)
        for batch in batches(messages, _BATCH_BYTES, quick=again and self._is_quick):
            life.main.put(pack(b"PUBLISH", channel, batch), again=again)

    def _keep(self, publication: bytes) -> None:
        """Keep an answer for the next connection: whoever waits for it may still be there, and drops a second one."""
        if sum(map(len, self._kept)) < _MOST_KEPT:
            self._kept.append(publication)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive what is sent to `address`: at `work.…` with a group, of whose members one gets each message."""
        if address.startswith("work.") != (group is not None):
            raise ValueError(f"{address}: a group takes from `work.…`, and everybody hears the other addresses")
        if group is not None:
            self._queues.add(address, receive, self._settling())
            return lambda: self._queues.remove(address, receive)
        channel = self.names.channel(address)
        listeners = self._listeners.setdefault(channel, [])
        listeners.append(receive)
        if len(listeners) == 1 and self.life is not None:
            self._subscribe(self.life, channel)

        def stop() -> None:
            if receive in listeners:
                listeners.remove(receive)
                if not listeners and self._listeners.get(channel) is listeners:
                    del self._listeners[channel]
                    if self.life is not None:
                        self.life.main.run(pack(b"UNSUBSCRIBE", channel))

        return stop

    def _subscribe(self, life: Life, channel: bytes) -> None:
        settle = self._settling()

        def subscribed(reply: Reply) -> None:
            if isinstance(reply, ReplyError):
                refusal = Refused(f"this peer may not listen at {channel.decode()}: {reply}")
                _log.warning("%s", refusal)
                if channel == self.names.channel(f"inbox.{self.peer}"):
                    self._refusal = refusal
            settle(reply)

        life.main.run(pack(b"SUBSCRIBE", channel), subscribed)

    def _settling(self) -> Callable[[Reply], None]:
        """Something that what is sent from now on may rely on; to be called with the server's reply."""
        life = self.life
        if life is None:
            return lambda reply: None
        self._unsettled += 1
        return functools.partial(self._settled, life)

    def _settled(self, life: Life, reply: Reply) -> None:
        if life is self.life:
            self._unsettled -= 1
            if not self._unsettled and not self._reading:
                self.write()

    def begin_reading(self) -> None:
        """Messages are about to be handed out; what they make somebody send goes out together."""
        self._reading = True
        self._is_fresh = not self._outbox

    def worked(self, *, quickly: bool) -> None:
        """What was read for this worker was worked off."""
        self._is_quick = quickly and self._is_fresh

    def end_reading(self) -> None:
        """They were handed out."""
        self._reading = False
        self._most_held = _FIRST_WRITE
        if self._outbox:
            self.write()
        self._is_quick = False

    def pushed(self, channel: bytes, message: bytes) -> None:
        """A message, or several in one, came on a channel."""
        if channel == self._inbox:
            self._pace.note(message)
        listeners = self._listeners.get(channel, ())
        for each in split(message):
            for receive in listeners:
                receive(each)

    def cut(self, reason: str = "cut on purpose") -> None:
        """Drop the connections as a fault would; the transport comes back by itself."""
        if self.life is not None:
            self.life.end(reason)

    async def _stay_connected(self) -> None:
        attempt = 0
        while not self._is_closing:
            life = Life(self, self.address, self._surveyor, self._tls, self.peer)
            try:
                await life.begin()
            except (OSError, EOFError, ReplyError, CallError) as error:
                await life.close(within=0)
                if await self._give_up(error):
                    return
                self._note_failure(error)
                await self._pause(attempt)
                attempt += 1
                continue
            except asyncio.CancelledError:
                await life.close(within=0)
                raise
            begun = asyncio.get_running_loop().time()
            self._begin(life)
            await life.ended
            if self.life is not life:
                return  # it was closed, not lost
            await self._end(life)
            if asyncio.get_running_loop().time() - begun > self._delays[1]:
                attempt = 0
            else:
                # A server that takes connections and drops them is not to be asked without a pause.
                self._note_failure(ConnectionError(life.reason))
                await self._pause(attempt)
                attempt += 1

    async def _diagnose(self, error: Exception) -> CallError | None:
        return await diagnose(self.address, error)

    def _begin(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        self.life = life
        self._unsettled = 0
        self._refusal = None
        for channel in self._listeners:
            self._subscribe(life, channel)
        self._queues.begin(life, self._settling)
        self._stored.begin(life)
        kept, self._kept = self._kept, []
        for publication in kept if loop.time() - self._lost_at < _KEPT_SECONDS else ():
            life.main.put(publication, again=True)
        life.flush()
        self._pulse = loop.call_later(self.heartbeat, self._beat, life)
        if not self._arrive():
            self.reconnects += 1
            self._watchers.up()

    async def _end(self, life: Life) -> None:
        self.life = None
        self._lost_at = asyncio.get_running_loop().time()
        self._stop_pulse()
        self._queues.end()
        outbox, self._outbox = self._outbox, {}
        for address, sent in outbox.items():
            for message, undelivered in zip(sent.messages, sent.tell, strict=True):
                self.send(address, message, undelivered)
        _log.warning("the connection to Redis at %s was lost: %s", self.address, life.reason)
        self._watchers.down(life.reason)
        for publication in await life.close(within=0):
            self._keep(publication)

    def _beat(self, life: Life) -> None:
        if life is self.life:
            self._pulse = asyncio.get_running_loop().call_later(self.heartbeat, self._beat, life)
            self._queues.beat(life)
            self._stored.beat()
            life.beat()

    def _stop_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None

    async def _leave(self) -> None:
        """Take nothing more, give back what was not looked at, write what is buffered, and leave."""
        await self._queues.close()
        life = self.life
        if life is not None:
            self._unsettled = 0
            self.write()
            self.life = None
            self._stop_pulse()
            await life.close(within=1.0)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that is ended when the transport is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
