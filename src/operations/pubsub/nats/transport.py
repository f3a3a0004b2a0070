"""NatsTransport: one end of a bus over a NATS server or cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import time
from collections.abc import Callable

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.framing import BatchSizing
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.nats.connection import Connection, unbatch
from operations.pubsub.nats.queues import Queues
from operations.pubsub.nats.replies import Replies
from operations.pubsub.nats.servers import Server, ServerPool, Settings, diagnose, open_connection
from operations.pubsub.nats.subjects import Arrivals, Subjects
from operations.pubsub.nats.wire import Full, Message, Plain, ServerInfo, subscribe, unsubscribe
from operations.pubsub.protocols import (
    Capabilities,
    Flushes,
    Receive,
    Refused,
    Remembers,
    ReportsBacklog,
    Stop,
    Stores,
    Take,
    Undelivered,
)
from operations.pubsub.reconnecting import Reconnecting

_log = logging.getLogger("operations")
HEARTBEAT_SECONDS = 2.0
_LOST_AFTER = 3
_MOST_ADDRESSES = 8_192
_MOST_KEPT = 4 << 20
_NO_RESPONDERS = 503
_HARMLESS = ("inbox.", "peer.", "control.")


class Subscription:
    """One subscription, renewed at each connection."""

    __slots__ = ("full", "group", "receive", "sid", "subject")

    def __init__(self, sid: bytes, subject: bytes, group: bytes, receive: Plain | None, full: Full | None) -> None:
        self.sid = sid
        self.subject = subject
        self.group = group
        self.receive = receive
        self.full = full


class NatsTransport(Reconnecting, Stores, Remembers, Flushes, ReportsBacklog):
    """One end of a NATS bus: `async with connect("nats://…") as transport:`.

    Entering waits for the first connection; a refusal is raised, a server that is not running yet is waited for. A lost
    connection is renewed at any server of the cluster. Meanwhile requests are undelivered; answers and aborts are kept,
    since repeating them is harmless.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str | None = None,
        prefix: str = "calls.v1",
        trusted: bool = False,
        heartbeat: float = HEARTBEAT_SECONDS,
        timeout: float = 5.0,
        shortest_delay: float = 0.05,
        longest_delay: float = 2.0,
        ack_wait: float = 6.0,
        replicas: int = 1,
    ) -> None:
        super().__init__(server="NATS", shortest_delay=shortest_delay, longest_delay=longest_delay)
        check_seconds(heartbeat=heartbeat, timeout=timeout, ack_wait=ack_wait)
        check_counts(replicas=replicas)
        self._subjects = Subjects(prefix, name or settings.user or "anyone")
        self.peer = f"{self._subjects.name}.{os.urandom(16).hex()}"
        self.capabilities = Capabilities(
            knows_no_responders=True,
            tracks_peers=False,
            groups=True,
            ordered=True,
            identity="caller" if trusted else "none",
            claims_identity=trusted,
            addresses_operations=True,
            addresses_workers=True,
            heartbeat=heartbeat,
        )
        self.reconnects = -1
        self.dropped = 0
        """How many messages were dropped whose sender is not told."""
        self._settings = settings
        self._pool = ServerPool(settings.servers)
        self._tried = settings.servers[0]
        """The server at which connecting failed last."""
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._connection: Connection | None = None
        self._addresses: dict[str, bytes | None] = {}
        self._arrivals = Arrivals(prefix)
        self._subscriptions: dict[bytes, Subscription] = {}
        self._sids = itertools.count(1)
        inbox = self._subjects.filter(f"inbox.{self.peer}")
        self.replies = Replies(inbox)
        """The replies that this end waits for."""
        self.subscribe(inbox + b".*", full=self._replied)
        self._sizing = BatchSizing()
        self._kept: list[tuple[bytes, bytes]] = []
        self._kept_bytes = 0
        self._queues = Queues(self, self._subjects, ack_wait=ack_wait, replicas=replicas)
        self._pulse: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached now."""
        return self._connection is not None

    def backlog(self) -> list[str]:
        """All namespaces that this end serves, while requests wait here to be read."""
        if self._connection is None or not self._connection.is_behind:
            return []
        groups = [subscription.group for subscription in self._subscriptions.values() if subscription.group]
        return [group.decode().partition(".")[2] for group in groups]

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Publish to whoever listens at `address`; with `undelivered`, the server reports that nobody does."""
        try:
            subject = self._addresses[address]
        except KeyError:
            subject = self._resolve(address)
        connection = self._connection
        if connection is None or subject is None or len(message) > connection.info.max_payload:
            self._not_sent(address, subject, message, undelivered)
        elif undelivered is not None:
            connection.buffer.request(subject, message, undelivered)
        elif address.startswith("inbox."):
            connection.buffer.answer(subject, message)
        else:
            connection.buffer.publish(subject, message)

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive what is sent to `address`; the listeners of one group, on all machines, share it."""
        receiver = self._receiver(address, receive)
        stop = self.subscribe(self._subjects.filter(address), group or "", receiver)
        if group is None or not address.startswith("work."):
            return stop
        stop_direct = self.subscribe(self._subjects.direct_filter(address, self.peer), receive=receiver)

        def stop_both() -> None:
            stop()
            stop_direct()

        return stop_both

    def _receiver(self, address: str, receive: Receive) -> Plain:
        """Return what hands each message to `receive`; at an inbox and at `work.…` messages may come in batches."""
        arrivals = self._arrivals
        if address.startswith("work."):
            return unbatch(receive, arrivals)
        if address.startswith("inbox."):
            return unbatch(receive, arrivals, self._sizing.marks.append)
        return lambda data, subject: receive(data, arrivals[subject])

    def store(
        self, address: str, message: bytes, *, key: str, stored: Callable[[], None], undelivered: Undelivered
    ) -> None:
        """Keep a message in JetStream until it is handled."""
        self._queues.store(address, message, key, stored, undelivered)

    def take(self, address: str, take: Take, *, limit: int) -> Stop:
        """Take what JetStream keeps at an address, at most `limit` messages at a time."""
        return self._queues.take(address, take, limit)

    async def remember(self, key: str, seconds: float) -> bool:
        """Note a key for all ends of the bus; False where it was noted already. Without JetStream nothing is noted."""
        return await self._queues.remember(key, seconds) if self.capabilities.durable else True

    def forget(self, key: str) -> None:
        """Do nothing: JetStream delivers a released message again, and says so."""

    async def flush(self) -> None:
        """Return once the server has processed what was sent so far, and what it sent before has been received."""
        if self._connection is not None:
            self._connection.buffer.flush()
            with contextlib.suppress(CallError):
                await self._connection.processed()

    async def _leave(self) -> None:
        self._queues.close()
        if self._pulse is not None:
            self._pulse.cancel()
        if self._connection is not None:
            await self._connection.close()

    def cut(self, reason: str = "cut on purpose") -> None:
        """Drop the connection as a fault would; the transport reconnects."""
        if self._connection is not None:
            self._connection.abort(reason)

    def publish(self, data: bytes) -> bool:
        """Send bytes of the client protocol; return False without a connection."""
        if self._connection is None:
            return False
        self._connection.buffer.send(data)
        return True

    def _resolve(self, address: str) -> bytes | None:
        if len(self._addresses) >= _MOST_ADDRESSES:
            self._addresses.clear()
        subject = self._addresses[address] = self._subjects.target(address)
        return subject

    def _not_sent(self, address: str, subject: bytes | None, message: bytes, undelivered: Undelivered | None) -> None:
        if undelivered is not None:
            undelivered(self._explain(address, subject, message))
        elif self._connection is None and subject is not None and address.startswith(_HARMLESS):
            # A late answer or abort is dropped by its receiver; a missing one would be waited for.
            self._keep(subject, message)
        else:
            self.dropped += 1
            if self._connection is not None:
                _log.warning("a message was not sent: %s", self._explain(address, subject, message))

    def _keep(self, subject: bytes, message: bytes) -> None:
        if self._kept_bytes + len(message) <= _MOST_KEPT:
            self._kept.append((subject, message))
            self._kept_bytes += len(message)
        else:
            self.dropped += 1

    def _explain(self, address: str, subject: bytes | None, message: bytes) -> str:
        if subject is None:
            return Refused(f"{address!r} cannot be a NATS subject")
        if self._connection is None:
            return f"there is no connection to the NATS server: {self._why_down or 'not connected yet'}"
        return Refused(f"a message of {len(message):,} bytes is larger than the server accepts")

    def subscribe(
        self, subject: bytes, group: str = "", receive: Plain | None = None, full: Full | None = None
    ) -> Stop:
        """Subscribe to a subject across connections, for data alone or for whole messages."""
        subscription = Subscription(b"%d" % next(self._sids), subject, group.encode(), receive, full)
        self._subscriptions[subscription.sid] = subscription
        if self._connection is not None:
            self._attach(self._connection, subscription)
        return lambda: self._unsubscribe(subscription)

    def _attach(self, connection: Connection, subscription: Subscription) -> None:
        if subscription.receive is not None:
            connection.reader.plain[subscription.sid] = subscription.receive
        elif subscription.full is not None:
            connection.reader.full[subscription.sid] = subscription.full
        connection.buffer.send(subscribe(subscription.subject, subscription.sid, subscription.group))

    def _unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.sid, None) is None or self._connection is None:
            return
        self._connection.buffer.send(unsubscribe(subscription.sid))
        # Messages that the server sent before it read this still belong to the subscription.
        self._connection.buffer.ping(functools.partial(self._connection.reader.forget, subscription.sid))

    def _replied(self, message: Message) -> None:
        """Handle a reply to one message: nobody got it, or JetStream answers."""
        token = message.subject.rpartition(b".")[2]
        if message.status == _NO_RESPONDERS:
            self.replies.nobody(token)
        else:
            self.replies.answered(token, message)

    async def _stay_connected(self) -> None:
        attempt = 0
        while not self._is_closing:
            server = self._pool.next()
            try:
                connection = await self._dial(server)
            except CallError as error:
                self._tried = server
                if await self._give_up(error):
                    return
                self._note_failure(error)
                attempt += 1
                if attempt % self._pool.size == 0:
                    await self._pause(attempt // self._pool.size - 1)
                continue
            attempt = 0
            self._arrive()
            await connection.wait_closed()

    async def _diagnose(self, error: Exception) -> CallError | None:
        return await diagnose(self._tried, self._settings, error)

    async def _dial(self, server: Server) -> Connection:
        connection = Connection(self, self.replies, self._sizing)
        await open_connection(
            connection, server, self._settings, name=self.peer, host=self._pool.host, timeout=self._timeout
        )
        for subscription in self._subscriptions.values():
            self._attach(connection, subscription)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.processed()
        except TimeoutError:
            connection.abort("it did not answer")
            raise CallError(ErrorCode.UNAVAILABLE, "the NATS server did not answer") from None
        except asyncio.CancelledError:
            connection.abort("cancelled")
            raise
        info = connection.info
        self.capabilities = msgspec.structs.replace(
            self.capabilities, max_payload=info.max_payload, durable=info.jetstream
        )
        self._up(connection)
        return connection

    def _up(self, connection: Connection) -> None:
        for subscription in self._subscriptions.values():
            if subscription.sid not in connection.reader.plain and subscription.sid not in connection.reader.full:
                self._attach(connection, subscription)
        self._connection = connection
        self.reconnects += 1
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for subject, message in kept:
            connection.buffer.publish(subject, message)
        self._pulse = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)
        self._queues.regained()
        self._watchers.up()

    def _beat(self) -> None:
        connection = self._connection
        if connection is None:
            return
        silent = time.monotonic() - connection.heard
        if silent > self._heartbeat * _LOST_AFTER:
            connection.abort("the NATS server gives no sign of life")
            return
        if silent >= self._heartbeat * 0.9 or connection.buffer.pongs:
            connection.buffer.ping(lambda: None)
        self._pulse = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)

    def told(self, info: ServerInfo) -> None:
        """Learn the servers of the cluster."""
        self._pool.learn(info.connect_urls)

    def complained(self, text: str) -> None:
        """Handle the refusal of a message or a subscription; the sender of the message is told."""
        subject = text.partition('"')[2].partition('"')[0].encode()
        if not self.replies.refused(subject, Refused(f"the NATS server refused it: {text}")):
            _log.warning("the NATS server refused something: %s", text)

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""
        if self._connection is not connection:
            return
        self._connection = None
        self._why_down = reason
        if self._pulse is not None:
            self._pulse.cancel()
        explained = f"there is no connection to the NATS server: {reason}"
        for subject, messages in connection.buffer.lost(explained).items():
            for message in messages:
                self._keep(subject, message)
        self.replies.lost(explained)
        self._queues.lost()
        self._watchers.down(reason)
        if not self._is_closing:
            _log.info("the connection to NATS was lost: %s", reason)
