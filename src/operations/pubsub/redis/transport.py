"""RedisTransport: requests go through lists that workers take from, everything else through channels."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from operations.errors import CallError
from operations.pubsub.framing import BatchSizing, batches, join, shares, split
from operations.pubsub.limits import check_counts, check_name, check_seconds
from operations.pubsub.protocols import (
    HEARTBEAT_SECONDS,
    MOST_UNSENT,
    TOO_SLOW,
    WRITTEN_NOW,
    Arrival,
    Capabilities,
    DeliveryRefused,
    Flushes,
    Receive,
    ReportsBacklog,
    Stop,
    Undelivered,
    report_undelivered,
)
from operations.pubsub.reconnect import ReconnectingTransport
from operations.pubsub.redis.addresses import RedisKeys, parse_address
from operations.pubsub.redis.connection import Reply, ReplyError, pack
from operations.pubsub.redis.connection_epoch import ConnectionEpoch
from operations.pubsub.redis.durable_streams import DurableStreams
from operations.pubsub.redis.records import RedisRecords, explain
from operations.pubsub.redis.request_queues import PUSH, QUEUE_MILLISECONDS, RequestQueues
from operations.pubsub.redis.servers import RedisServers

_log = logging.getLogger("operations")
MAX_PAYLOAD = 16 << 20
"""The largest message by default; Redis disconnects a listener with more than 32 MB of unread messages."""
_BATCH_BYTES = 128 << 10
_MOST_PUSHED = 256
_FIRST_WRITE = 32
"""Number of messages to one address that are combined into the first write of an iteration of the event loop.

Each further write of the iteration has twice as many.
"""
Unsent = list[tuple[bytes, Undelivered | None]]
"""Messages to one address, each with its `undelivered` callback."""
_CAPABILITIES = Capabilities(
    tracks_peers=False,
    identity="none",
    shares_control=True,
    durable=True,
)


class RedisTransport(ReconnectingTransport, Flushes, ReportsBacklog):
    """A peer's connection to a bus over a Redis server, sentinels or a cluster.

    `async with RedisTransport(url) as bus:`

    An address `work.<namespace>` is a list, from which one worker of the group takes each message. Every other address
    is a channel, of which all listeners get every message. Entering the block waits for the first connection. It raises
    an error if the server refuses the credentials, and keeps trying while the server does not respond. `name` is the
    first part of this peer's name and of its inbox, for permissions; by default the URL's user, or `anyone` without a
    user. `trusted` states that only trusted code reaches this server, so that the identities that callers claim are
    accepted.
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
        name = name or self.address.username or "anyone"
        check_name(name)
        self.peer = f"{name}.{os.urandom(16).hex()}"
        self.capabilities = msgspec.structs.replace(
            _CAPABILITIES,
            max_payload=max_payload,
            identity="caller" if trusted else "none",
            claims_identity=trusted,
            heartbeat=heartbeat,
            bus=f"redis {self.address.database} {prefix}",
        )
        self.epoch: ConnectionEpoch | None = None
        self.keys = RedisKeys(prefix)
        self.heartbeat = heartbeat
        context = (tls or ssl.create_default_context()) if self.address.tls else None
        self._servers = RedisServers(self.address, context, self.peer)
        self._unsent: dict[str, Unsent] = {}
        """The messages that wait for the next write, by address."""
        self._has_one_worker: dict[str, bool] = {}
        """By address: whether there was only one worker when a message was last sent."""
        self._reading = False
        self._was_empty = False
        """Whether the write buffer was empty at the last `begin_reading`; if so, later messages are responses."""
        self._is_quick = False
        """Whether the buffered messages are immediate responses to received ones."""
        self._scheduled = False
        self._most_held = _FIRST_WRITE
        self._unsettled = 0
        self._sizing = BatchSizing()
        self._inbox = self.keys.channel(f"inbox.{self.peer}")
        self._listeners: dict[bytes, tuple[Arrival, list[Receive]]] = {}
        """The listeners of each channel."""
        self._refusal: DeliveryRefused | None = None
        self._queues = RequestQueues(self)
        self._stored = DurableStreams(self)
        self._records = RedisRecords(self)
        self._parts = (self._stored, self._records, self)
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached now."""
        return self.epoch is not None

    def backlog(self) -> list[str]:
        """Return the namespaces with more queued requests than their workers take between two heartbeats."""
        return [address.partition(".")[2] for address in self._queues.backlogged]

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Send a message, in few writes with the other messages of this iteration of the event loop.

        Without a connection, a response is kept until the next connection. Any other message is dropped, and
        `undelivered` is called if it was given. While too many bytes are unsent, messages with `undelivered` are not
        sent either.
        """
        if self.epoch is None:
            if undelivered is not None:
                undelivered("there is no connection to Redis")
            elif address.startswith("inbox."):
                self._keep(pack(b"PUBLISH", self.keys.channel(address), message))
            else:
                self.unsent += 1
            return
        if self._is_congested and undelivered is not None and self.epoch.unsent_bytes > MOST_UNSENT:
            undelivered(TOO_SLOW)
            return
        waiting = self._unsent.get(address)
        if waiting is None:
            if not self._scheduled and not self._reading:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._write_turn)
            waiting = self._unsent[address] = []
        waiting.append((message, undelivered))
        if len(message) > WRITTEN_NOW:
            self.write()
        elif len(waiting) >= self._most_held:
            # The receiver can start while this iteration sends more.
            self._most_held *= 2
            self.write()

    def _write_turn(self) -> None:
        self._scheduled = False
        self._most_held = _FIRST_WRITE
        self.write()

    async def flush(self) -> None:
        """Return once the servers have processed all sent messages and unsubscriptions, or once a connection fails."""
        self.write()
        if self.epoch is not None:
            with contextlib.suppress(OSError, ReplyError):
                await self.epoch.catch_up()

    def write(self) -> None:
        """Write the buffered messages, in a cluster only if no subscription or registration is pending."""
        epoch = self.epoch
        if epoch is None or not self._unsent:
            return
        if self._unsettled and epoch.topology.is_cluster:
            return  # pending subscriptions and registrations have to be confirmed first
        unsent, self._unsent = self._unsent, {}
        for address, sent in unsent.items():
            if address.startswith("work."):
                for start in range(0, len(sent), _MOST_PUSHED):
                    self._push(epoch, address, sent[start : start + _MOST_PUSHED])
            else:
                self._publish(epoch, address, [message for message, _ in sent])
        epoch.flush()

    def _push(self, epoch: ConnectionEpoch, address: str, sent: Unsent) -> None:
        """Queue requests with one command, if there are live workers."""

        def pushed(reply: Reply) -> None:
            if isinstance(reply, int) and reply > 0:
                self._has_one_worker[address] = reply == 1
            else:
                report_undelivered(sent, f"no worker listens at {address}" if reply == 0 else explain(reply))

        if self._refusal is not None:
            report_undelivered(sent, self._refusal)
            return
        keys = self.keys.of_namespace(address)
        requests = [message for message, _ in sent]
        if self._has_one_worker.get(address, False):
            elements = batches(requests, _BATCH_BYTES)
        else:
            # Each element wakes one of several workers, and should therefore have more than one request.
            cut = shares(requests, _BATCH_BYTES, quick=self._sizing.is_quick)
            elements = [join(requests[share]) for share in cut]
        arguments = [QUEUE_MILLISECONDS, *elements]
        epoch.put(PUSH, (keys.workers, keys.queue), arguments, pushed)

    def _publish(self, epoch: ConnectionEpoch, address: str, messages: list[bytes]) -> None:
        again = address.startswith("inbox.")
        channel = self.keys.channel(address)
        for batch in batches(messages, _BATCH_BYTES, quick=again and self._is_quick):
            epoch.main.put(pack(b"PUBLISH", channel, batch), again=again)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive the messages to `address`.

        `work.…` needs a group: each message goes to only one listener of the group.
        """
        if address.startswith("work.") != (group is not None):
            raise ValueError(f"invalid listener at {address}: expected a group for `work.…` and none elsewhere")
        if group is not None:
            self._queues.add(address, receive, self._settling())
            return lambda: self._queues.remove(address, receive)
        channel = self.keys.channel(address)
        _, receivers = self._listeners.setdefault(channel, (Arrival(address), []))
        receivers.append(receive)
        if len(receivers) == 1 and self.epoch is not None:
            self._subscribe(self.epoch, channel)

        def stop() -> None:
            if receive in receivers:
                receivers.remove(receive)
                if not receivers:
                    del self._listeners[channel]
                    if self.epoch is not None:
                        self.epoch.main.run(pack(b"UNSUBSCRIBE", channel))

        return stop

    def _subscribe(self, epoch: ConnectionEpoch, channel: bytes) -> None:
        settle = self._settling()

        def subscribed(reply: Reply) -> None:
            if isinstance(reply, ReplyError):
                refusal = DeliveryRefused(f"this peer may not listen at {channel.decode()}: {reply}")
                _log.warning("%s", refusal)
                if channel == self.keys.channel(f"inbox.{self.peer}"):
                    self._refusal = refusal
            settle(reply)

        epoch.main.run(pack(b"SUBSCRIBE", channel), subscribed)

    def _settling(self) -> Callable[[Reply], None]:
        """In a cluster, hold messages back until a command is answered; return the function to call with the reply."""
        epoch = self.epoch
        if epoch is None:
            return lambda reply: None
        self._unsettled += 1
        return functools.partial(self._settled, epoch)

    def _settled(self, epoch: ConnectionEpoch, reply: Reply) -> None:
        if epoch is self.epoch:
            self._unsettled -= 1
            if not self._unsettled and not self._reading:
                self.write()

    def begin_reading(self) -> None:
        """Combine the messages sent until `end_reading` into one write."""
        self._reading = True
        self._was_empty = not self._unsent

    def worked(self, *, quickly: bool) -> None:
        """Store whether the requests that this worker took were handled quickly."""
        self._is_quick = quickly and self._was_empty

    def end_reading(self) -> None:
        """Write the messages that were sent since `begin_reading`."""
        self._reading = False
        self._most_held = _FIRST_WRITE
        if self._unsent:
            self.write()
        self._is_quick = False

    def pushed(self, channel: bytes, message: bytes) -> None:
        """Handle a message or batch that was published to a channel."""
        if channel == self._inbox:
            self._sizing.note(message)
        listeners = self._listeners.get(channel)
        if listeners is None:
            return
        arrival, receivers = listeners
        for each in split(message):
            for receive in receivers:
                receive(each, arrival)

    def drop_connection(self, reason: str = "dropped on purpose") -> None:
        """Abort the connections, to test faults; the transport reconnects."""
        if self.epoch is not None:
            self.epoch.end(reason)

    async def _connect(self) -> None:
        epoch = ConnectionEpoch(self, self._servers)
        try:
            await epoch.begin()
        except BaseException:
            await epoch.close(within=0)
            raise
        self._begin(epoch)

    async def _wait_lost(self) -> None:
        epoch = self.epoch
        if epoch is not None:
            await epoch.ended
            if self.epoch is epoch:  # lost, not closed
                await self._end(epoch)

    async def _diagnose(self, error: Exception) -> CallError | None:
        return await self._servers.diagnose(error)

    def _begin(self, epoch: ConnectionEpoch) -> None:
        self.epoch = epoch
        self._unsettled = 0
        self._refusal = None
        for channel in self._listeners:
            self._subscribe(epoch, channel)
        self._queues.begin(epoch, self._settling)
        self._stored.begin(epoch)
        self._records.begin()
        for publication in self._take_kept():
            epoch.main.put(publication, again=True)
        epoch.flush()
        self._heartbeat_timer = asyncio.get_running_loop().call_later(self.heartbeat, self._beat, epoch)

    def congestion_changed(self) -> None:
        """Report whether the current connections are congested."""
        self._note_congestion(self.epoch is not None and self.epoch.is_congested)

    async def _end(self, epoch: ConnectionEpoch) -> None:
        self.epoch = None
        self._stop_heartbeat()
        self._queues.end()
        unsent, self._unsent = self._unsent, {}
        for address, sent in unsent.items():
            for message, undelivered in sent:
                self.send(address, message, undelivered)
        _log.warning("the connection to Redis at %s was lost: %s", self.address, epoch.reason)
        self._note_loss(epoch.reason)
        for publication in await epoch.close(within=0):
            self._keep(publication)

    def _beat(self, epoch: ConnectionEpoch) -> None:
        if epoch is self.epoch:
            self._heartbeat_timer = asyncio.get_running_loop().call_later(self.heartbeat, self._beat, epoch)
            self._queues.beat(epoch)
            self._stored.beat()
            epoch.beat()

    def _stop_heartbeat(self) -> None:
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None

    async def _leave(self) -> None:
        """Stop taking requests, return unhandled ones, write the buffer, and disconnect."""
        await self._queues.close()
        epoch = self.epoch
        if epoch is not None:
            self._unsettled = 0
            self.write()
            self.epoch = None
            self._stop_heartbeat()
            await epoch.close(within=1.0)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with the transport."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
