"""NatsTransport: a peer's connection to a bus over a NATS server or cluster."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.framing import BatchSizing
from operations.pubsub.limited_log import LimitedLog
from operations.pubsub.limits import check_counts, check_seconds
from operations.pubsub.nats.connection import NatsConnection
from operations.pubsub.nats.durable_queues import DurableQueues
from operations.pubsub.nats.parser import DuplicateFilter, unbatch
from operations.pubsub.nats.replies import Replies
from operations.pubsub.nats.servers import NatsServers, read_settings
from operations.pubsub.nats.subjects import Arrivals, Subjects
from operations.pubsub.nats.wire import (
    NatsMessage,
    Receiver,
    ServerInfo,
    publish,
    subscribe,
    unsubscribe,
    whole,
)
from operations.pubsub.protocols import (
    HEARTBEAT_SECONDS,
    MOST_UNSENT,
    TOO_SLOW,
    WRITTEN_NOW,
    Capabilities,
    DeliveryRefused,
    Flushes,
    Receive,
    ReportsBacklog,
    Stop,
    Undelivered,
)
from operations.pubsub.reconnect import ReconnectingTransport

_log = logging.getLogger("operations")
_limited_log = LimitedLog(_log, "messages to NATS")
_MOST_ADDRESSES = 8_192
_NO_RESPONDERS = 503
_HARMLESS = ("inbox.", "peer.", "control.")
"""Addresses of messages that are buffered while there is no connection: receiving them twice does no harm."""


class Subscription(NamedTuple):
    """One subscription, renewed at each connection."""

    sid: bytes
    subject: bytes
    group: bytes
    receive: Receiver


class NatsTransport(ReconnectingTransport, Flushes, ReportsBacklog):
    """A peer's connection to a NATS bus: `async with NatsTransport("nats://a,nats://b", user=…, password=…) as bus:`.

    Entering the block waits for the first connection. It raises an error if the server refuses the credentials, and
    keeps trying while the server does not respond. A lost connection is replaced by a connection to any server of the
    cluster. Until then requests are undelivered; responses and aborts are buffered, since repeating them is harmless.

    `credentials` is a `.creds` file, `nkey_seed` a seed or a file that contains one. `name` is this peer's token in
    subjects; by default the user's name, or `anyone` without a user.
    """

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        *,
        servers: Iterable[str] = (),
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | Path | None = None,
        nkey_seed: str | Path | None = None,
        tls: ssl.SSLContext | None = None,
        tls_first: bool = False,
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
        settings = read_settings(
            url,
            servers=servers,
            user=user,
            password=password,
            token=token,
            credentials=credentials,
            nkey_seed=nkey_seed,
            tls=tls,
            tls_first=tls_first,
        )
        self._subjects = Subjects(prefix, name or settings.user or "anyone")
        self.peer = f"{self._subjects.name}.{os.urandom(16).hex()}"
        self.capabilities = Capabilities(
            tracks_peers=False,
            identity="caller" if trusted else "none",
            claims_identity=trusted,
            addresses_operations=True,
            addresses_workers=True,
            heartbeat=heartbeat,
            bus=f"nats {prefix}",
        )
        self._servers = NatsServers(settings, name=self.peer, timeout=timeout)
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._connection: NatsConnection | None = None
        self._addresses: dict[str, bytes | None] = {}
        self._arrivals = Arrivals(prefix)
        self._subscriptions: dict[bytes, Subscription] = {}
        self._sids = itertools.count(1)
        inbox = b"%b.%b" % (self._subjects.filter(f"inbox.{self.peer}"), os.urandom(8).hex().encode())
        self.replies = Replies(inbox)
        """The replies that this peer waits for.

        Their subjects contain a secret, because any peer that stores a message can make JetStream send its response to
        any subject.
        """
        self._retiring: NatsConnection | None = None
        """The connection to a server that is about to shut down, while the transport moves to another one."""
        self._moving: asyncio.Task[None] | None = None
        self.subscribe(inbox + b".*", whole(self._replied))
        self._sizing = BatchSizing()
        self._queues = DurableQueues(self, self._subjects, ack_wait=ack_wait, replicas=replicas)
        self._parts = (self._queues, self._queues.records, self)
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @property
    def is_up(self) -> bool:
        """Whether the server can be reached now."""
        return self._connection is not None

    def backlog(self) -> list[str]:
        """Return the namespaces of this peer if received messages have been waiting for a while; otherwise none."""
        if self._connection is None or not self._connection.is_behind:
            return []
        groups = [subscription.group for subscription in self._subscriptions.values() if subscription.group]
        return [group.decode().partition(".")[2] for group in groups]

    def send(self, address: str, message: bytes, undelivered: Undelivered | None = None) -> None:
        """Publish to the listeners at `address`; `undelivered` is called with the reason if no listener gets it."""
        try:
            subject = self._addresses[address]
        except KeyError:
            subject = self._resolve(address)
        connection = self._connection
        if connection is None or subject is None or len(message) > connection.info.max_payload:
            self._not_sent(address, subject, message, undelivered)
        elif undelivered is not None:
            if self._is_congested and connection.unsent_bytes > MOST_UNSENT:
                undelivered(TOO_SLOW)
                return
            connection.buffer.request(subject, message, undelivered)
        elif address.startswith("inbox."):
            connection.buffer.answer(subject, message)
        else:
            connection.buffer.publish(subject, message)
        if len(message) > WRITTEN_NOW and connection is not None:
            connection.buffer.flush()

    def listen(self, address: str, receive: Receive, *, group: str | None = None) -> Stop:
        """Receive the messages to `address`; they are divided among the listeners of one group, on all machines."""
        receiver = self._receiver(address, receive)
        stop = self.subscribe(self._subjects.filter(address), receiver, group or "")
        if group is None or not address.startswith("work."):
            return stop
        stop_direct = self.subscribe(self._subjects.direct_filter(address, self.peer), receiver)

        def stop_both() -> None:
            stop()
            stop_direct()

        return stop_both

    def _receiver(self, address: str, receive: Receive) -> Receiver:
        """Return a receiver that passes each message to `receive`.

        It splits batches of messages, which arrive only at the addresses `inbox.…` and `work.…`.
        """
        arrivals = self._arrivals
        if address.startswith("work."):
            return unbatch(receive, arrivals)
        if address.startswith("inbox."):
            return unbatch(receive, arrivals, self._sizing.marks.append)
        return lambda words, headers, data: receive(data, arrivals[words[0]])

    async def flush(self) -> None:
        """Return once the server has processed everything that was sent, or the connection is lost."""
        if self._connection is not None:
            self._connection.buffer.flush()
            with contextlib.suppress(CallError):
                await self._connection.processed()

    async def _leave(self) -> None:
        self._queues.close()
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait((self._moving,))
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        if self._connection is not None:
            await self._connection.close()

    def drop_connection(self, reason: str = "dropped on purpose") -> None:
        """Abort the connection, to test faults; the transport reconnects."""
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
            # The receiver drops a late response or abort, but would wait for a missing one.
            self._keep(publish(subject, message))
        else:
            self.unsent += 1
            if self._connection is not None:
                _limited_log.warning("a message was not sent: %s", self._explain(address, subject, message))

    def _explain(self, address: str, subject: bytes | None, message: bytes) -> str:
        if subject is None:
            return DeliveryRefused(f"{address!r} cannot be a NATS subject")
        if self._connection is None:
            return f"there is no connection to the NATS server: {self._why_down or 'not connected yet'}"
        return DeliveryRefused(f"a message of {len(message):,} bytes is larger than the server accepts")

    def subscribe(self, subject: bytes, receive: Receiver, group: str = "") -> Stop:
        """Subscribe to a subject, on this connection and on later ones."""
        subscription = Subscription(b"%d" % next(self._sids), subject, group.encode(), receive)
        self._subscriptions[subscription.sid] = subscription
        if self._connection is not None:
            self._attach(self._connection, subscription)
        return lambda: self._unsubscribe(subscription)

    def _attach(self, connection: NatsConnection, subscription: Subscription) -> None:
        connection.reader.receivers[subscription.sid] = subscription.receive
        connection.buffer.send(subscribe(subscription.subject, subscription.sid, subscription.group))

    def _stop_filtering(self, connection: NatsConnection) -> None:
        """End the filter for duplicates on a connection."""
        for subscription in self._subscriptions.values():
            connection.reader.receivers[subscription.sid] = subscription.receive

    def _unsubscribe(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.sid, None) is None:
            return
        for connection in (self._connection, self._retiring):
            if connection is not None:
                connection.buffer.send(unsubscribe(subscription.sid))
                # The subscription also gets the messages that the server sent before it read this command.
                connection.buffer.ping(functools.partial(connection.reader.forget, subscription.sid))

    def _replied(self, message: NatsMessage) -> None:
        """Handle a reply to one message: no responders, or a response of JetStream."""
        token = message.subject.rpartition(b".")[2]
        if message.status == _NO_RESPONDERS:
            for replies in self._all_replies():
                replies.no_responders(token)
        else:
            self.replies.answered(token, message)

    async def _connect(self) -> None:
        connection = await self._open_connection()
        self._use(connection)
        for command in self._take_kept():
            connection.buffer.send(command)
        self._heartbeat_timer = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)
        self._queues.regained()

    async def _wait_lost(self) -> None:
        while self._connection is not None:  # a move to another server sets a new connection
            await self._connection.wait_closed()

    async def _pause(self, attempt: int) -> None:
        """Wait if all servers were tried since the last wait."""
        rounds, rest = divmod(attempt, self._servers.size)
        if not rest:
            await super()._pause(rounds)

    async def _diagnose(self, error: Exception) -> CallError | None:
        return await self._servers.diagnose(error)

    async def _open_connection(self, old: NatsConnection | None = None) -> NatsConnection:
        """Connect and subscribe; a message that arrives on this connection and on `old` is received once."""
        # During a move to another server, the present connection still uses `self.replies`.
        replies = self.replies if self._connection is None else Replies(self.replies.inbox)
        connection = NatsConnection(self, replies, self._sizing)
        await self._servers.connect(connection)
        shared = [each.sid for each in self._subscriptions.values() if not each.group]
        duplicates = DuplicateFilter()
        if old is not None:
            duplicates.watch(old.reader, shared)
        for subscription in self._subscriptions.values():
            self._attach(connection, subscription)
        if old is not None:
            duplicates.watch(connection.reader, shared)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.processed()
        except TimeoutError:
            connection.abort("the NATS server did not respond")
            raise CallError(ErrorCode.UNAVAILABLE, "the NATS server did not respond") from None
        except asyncio.CancelledError:
            connection.abort("cancelled")
            raise
        info = connection.info
        self.capabilities = msgspec.structs.replace(
            self.capabilities, max_payload=info.max_payload, durable=info.jetstream
        )
        return connection

    def _use(self, connection: NatsConnection) -> None:
        """Send through a connection from now on."""
        for subscription in self._subscriptions.values():
            if subscription.sid not in connection.reader.receivers:
                self._attach(connection, subscription)
        self._connection = connection
        self.congestion_changed()

    async def _move(self, old: NatsConnection) -> None:
        """Move to another server of the cluster, because the server of `old` is about to shut down."""
        _log.info("the NATS server is about to shut down: connecting to another one")
        attempt = 0
        try:
            while self._connection is old:
                connection = await self._open_other(old)
                if connection is None:
                    attempt += 1
                    await asyncio.sleep(min(self._delays[1], self._delays[0] * 2**attempt))
                elif self._connection is old:
                    await self._replace(old, connection)
                else:  # the old connection was lost before, and another one was opened
                    connection.abort("there is another connection")
        finally:
            self._moving = None

    async def _open_other(self, old: NatsConnection) -> NatsConnection | None:
        """Connect to a server that is not about to shut down; return None if that fails."""
        try:
            connection = await self._open_connection(old)
            if not connection.info.ldm:
                return connection
            connection.abort("the server is about to shut down")
        except CallError:
            pass
        self._stop_filtering(old)
        return None

    async def _replace(self, old: NatsConnection, connection: NatsConnection) -> None:
        """Use another connection, and close the old one a heartbeat later.

        Other servers need a moment to learn of the new subscriptions. Until then messages may arrive on either
        connection or on both.
        """
        old.buffer.flush()
        self._retiring = old
        self.replies = connection.buffer.replies = self.replies.successor()
        self._use(connection)
        self.reconnects += 1
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(old.wait_closed(), self._heartbeat)
            for sid in self._subscriptions:
                old.buffer.send(unsubscribe(sid))
            with contextlib.suppress(CallError, TimeoutError):
                await asyncio.wait_for(old.processed(), self._timeout)
            await old.close()
        finally:
            old.abort("moved to another server")
            self._retiring = None
            self._stop_filtering(connection)

    def _all_replies(self) -> list[Replies]:
        return [self.replies] if self._retiring is None else [self.replies, self._retiring.buffer.replies]

    def _beat(self) -> None:
        connection = self._connection
        if connection is None:
            return
        connection.beat()
        self._heartbeat_timer = asyncio.get_running_loop().call_later(self._heartbeat, self._beat)

    def info_changed(self, info: ServerInfo) -> None:
        """Learn the servers of the cluster; move away from a server that announces its shutdown (lame duck mode)."""
        self._servers.learn(info.connect_urls)
        connection = self._connection
        if info.ldm and self._moving is None and connection is not None and connection.info is info:
            self._moving = asyncio.get_running_loop().create_task(self._move(connection))

    def message_refused(self, text: str) -> None:
        """Handle the refusal of a message or a subscription: report it to the message's sender, or log it."""
        subject = text.partition('"')[2].partition('"')[0].encode()
        reason = DeliveryRefused(f"the NATS server refused the message: {text}")
        if not sum(replies.refused(subject, reason) for replies in self._all_replies()):
            _log.warning("the NATS server reported an error: %s", text)

    def congestion_changed(self) -> None:
        """Report whether the current connection is congested; a connection that is being replaced does not count."""
        self._note_congestion(self._connection is not None and self._connection.is_congested)

    def closed(self, connection: NatsConnection, reason: str) -> None:
        """Handle the loss of the current connection; ignore the loss of a replaced one."""
        if self._connection is not connection:
            return
        self._connection = None
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        explained = f"there is no connection to the NATS server: {reason}"
        for subject, messages in connection.buffer.lost(explained).items():
            for message in messages:
                self._keep(publish(subject, message))
        self.replies.lost(explained)
        self._queues.lost()
        self._note_loss(reason)
        if not self._is_closing:
            _log.info("the connection to NATS was lost: %s", reason)
