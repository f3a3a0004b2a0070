"""One connection to a NATS server: bytes in both directions, liveness, errors.

All messages that are sent in one iteration of the event loop, or while the messages of one read are handled, are
written together.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.framing import QUICK_SECONDS, BatchSizing, batches, join, shares
from operations.pubsub.nats.parser import LONGEST_TURN, NatsParser
from operations.pubsub.nats.replies import Replies
from operations.pubsub.nats.wire import (
    PING,
    PONG,
    ServerInfo,
)
from operations.pubsub.protocols import CONGESTED_BYTES, Undelivered, report_undelivered

_BATCH_BYTES = 128 << 10
_SMALLEST, _LARGEST = 512, 16 << 10
"""Limits of the number of bytes processed at a time; the number is reduced while messages take long to handle."""
SILENT_BEATS = 3
"""How many heartbeats a server may be silent before it counts as lost."""
_MOST_UNREAD = 256
"""Number of received chunks that may wait to be processed; with more, the socket is not read."""
_BEHIND_SECONDS = 0.1
"""Seconds after which a connection with unprocessed bytes counts as behind."""
_DENIALS = ("authorization violation", "authentication", "user authentication", "nkey", "account")
Requests = list[tuple[bytes, Undelivered]]


class WriteBuffer:
    """The write buffer of a connection, which combines messages into batches.

    Responses to one inbox form few large batches. Requests to one subject form several batches, so that several
    workers share the requests.
    """

    def __init__(self, replies: Replies, sizing: BatchSizing) -> None:
        self.transport: Any = None
        """The asyncio transport of the connection."""
        self.batch_bytes = _BATCH_BYTES
        self.is_scheduled = False
        """Whether a flush will follow, so that none has to be scheduled."""
        self.commands: list[bytes] = []
        self.requests: dict[bytes, Requests] = {}
        self.answers: dict[bytes, list[bytes]] = {}
        self.pongs: deque[Callable[[], object]] = deque()
        """The callback of each PING that the server has not answered."""
        self.replies = replies
        self._sizing = sizing
        self._loop = asyncio.get_running_loop()

    def request(self, subject: bytes, message: bytes, undelivered: Undelivered) -> None:
        """Send a request to one of the workers that share a subject; `undelivered` is called if no worker gets it."""
        requests = self.requests.get(subject)
        if requests is None:
            self.requests[subject] = [(message, undelivered)]
            self._schedule()
        else:
            requests.append((message, undelivered))

    def answer(self, subject: bytes, message: bytes) -> None:
        """Send a response to an inbox."""
        answers = self.answers.get(subject)
        if answers is None:
            self.answers[subject] = [message]
            self._schedule()
        else:
            answers.append(message)

    def publish(self, subject: bytes, message: bytes) -> None:
        """Send a message after the buffered requests: it may refer to one of these requests, as an abort does."""
        self._put_requests()
        self.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(message), message))

    def ping(self, pong: Callable[[], object]) -> None:
        """Send a PING; `pong` is called once the server has processed everything before it."""
        self.pongs.append(pong)
        self.send(PING)

    def send(self, data: bytes) -> None:
        """Send bytes of the client protocol, before the buffered requests and answers."""
        self.commands.append(data)
        self._schedule()

    def _schedule(self) -> None:
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self, seconds: float | None = None) -> None:
        """Write all buffered messages; `seconds` is the time that handling the received messages took.

        A PING follows requests, unless an earlier PING is unanswered. Its PONG means that the requests were delivered.
        """
        self.is_scheduled = False
        if self.transport.is_closing():
            return
        if self.requests:
            self._put_requests()
        if self.answers:
            self._put_answers(seconds)
        commands, replies = self.commands, self.replies
        if not commands:
            return
        replies.written = replies.issued
        if replies.sent and not self.pongs:
            replies.pinged, replies.sent = replies.sent, {}
            self.pongs.append(replies.pinged.clear)
            commands.append(PING)
        self.commands = []
        self.transport.write(b"".join(commands))

    def _put_requests(self) -> None:
        requests, self.requests = self.requests, {}
        for subject, entries in requests.items():
            if len(entries) == 1:
                self._put_request(subject, *entries[0])
                continue
            messages = [message for message, _ in entries]
            for share in shares(messages, self.batch_bytes, quick=self._sizing.is_quick):
                undelivered = functools.partial(report_undelivered, entries[share])
                self._put_request(subject, join(messages[share]), undelivered)

    def _put_request(self, subject: bytes, message: bytes, undelivered: Undelivered) -> None:
        replies = self.replies
        replies.issued = number = replies.issued + 1
        replies.sent[number] = (subject, undelivered)
        self.commands.append(b"PUB %b %b.%d %d\r\n%b\r\n" % (subject, replies.inbox, number, len(message), message))

    def _put_answers(self, seconds: float | None) -> None:
        answers, self.answers = self.answers, {}
        quick = seconds is not None and seconds < QUICK_SECONDS * sum(map(len, answers.values()))
        for subject, messages in answers.items():
            is_batch = quick or len(messages) > 1
            for message in batches(messages, self.batch_bytes, quick=quick) if is_batch else messages:
                self.commands.append(b"PUB %b %d\r\n%b\r\n" % (subject, len(message), message))

    def lost(self, reason: str) -> dict[bytes, list[bytes]]:
        """Handle the loss of the connection: report requests as undelivered, and return the responses to send later."""
        requests, self.requests = self.requests, {}
        answers, self.answers = self.answers, {}
        for entries in requests.values():
            report_undelivered(entries, reason)
        return answers


class NatsConnectionOwner(Protocol):
    """Interface that the user of a connection implements."""

    def info_changed(self, info: ServerInfo) -> None:
        """Handle an INFO of the server: the first, a change of its cluster, or the announcement of its shutdown."""

    def message_refused(self, text: str) -> None:
        """Handle the refusal of a message or a subscription; the connection stays open."""

    def congestion_changed(self) -> None:
        """Handle a change of the connection's `is_congested`."""

    def closed(self, connection: NatsConnection, reason: str) -> None:
        """Handle the loss of the connection."""


class NatsConnection(asyncio.Protocol):
    """A connection to one server; `NatsServers.connect` opens it."""

    def __init__(self, owner: NatsConnectionOwner, replies: Replies, sizing: BatchSizing) -> None:
        self.info = ServerInfo()
        self.reason = ""
        self.is_congested = False
        """Whether many bytes are unsent."""
        self.reader = NatsParser(self)
        self.buffer = WriteBuffer(replies, sizing)
        self._silent = 0
        """Number of heartbeats since the server's last message."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._unread: deque[bytes] = deque()
        self._portion = _LARGEST
        self._position = 0
        self._behind_since = 0.0
        self._is_paused = False
        self.informed: asyncio.Future[ServerInfo] = self._loop.create_future()
        """Future of the server's first INFO."""
        self._refused: CallError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None and not self._gone.done()

    @property
    def is_behind(self) -> bool:
        """Whether received messages have been waiting to be handled for a while."""
        return self._has_unread and time.monotonic() - self._behind_since > _BEHIND_SECONDS

    @property
    def _has_unread(self) -> bool:
        """Whether received messages are still to be handled; if so, `_read_on` is scheduled."""
        return bool(self._unread) or self.reader.rest is not None

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be written to the socket."""
        return self._transport.get_write_buffer_size() if self.is_open else 0

    def beat(self) -> None:
        """Ping an idle server, and abort the connection if the server stays silent.

        Silence is counted in heartbeats, because a number of seconds would include time in which this process was
        stopped or busy.
        """
        self._silent += 1
        if self._silent > SILENT_BEATS:
            self.abort("the NATS server does not respond")
        elif self._silent > 1 or self.buffer.pongs:
            self.buffer.ping(lambda: None)

    def abort(self, reason: str) -> None:
        """Abort the connection immediately."""
        if self.is_open:
            self.reason = self.reason or reason
            self._transport.abort()

    async def close(self) -> None:
        """Write the buffer and close; abort the connection if that takes more than a second."""
        if not self.is_open:
            return
        self.buffer.flush()
        self.reason = self.reason or "closed"
        self._transport.close()
        await asyncio.wait((self._gone,), timeout=1.0)
        self.abort("closed")

    async def wait_closed(self) -> None:
        """Return once the connection is closed."""
        await asyncio.shield(self._gone)

    async def processed(self) -> None:
        """Wait until the server has processed everything that was sent; raise a CallError if the connection is lost."""
        answered = self._loop.create_future()
        self.buffer.ping(lambda: None if answered.done() else answered.set_result(None))
        await asyncio.wait((answered, self._gone), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()
            raise self._refused or CallError(ErrorCode.UNAVAILABLE, f"the server closed the connection: {self.reason}")

    async def start_tls(self, context: ssl.SSLContext, server_name: str | None) -> None:
        """Continue over TLS."""
        self._transport.set_write_buffer_limits()  # unsent bytes are counted before encryption
        transport = await self._loop.start_tls(
            self._transport, self, context, server_side=False, server_hostname=server_name
        )
        self.connection_made(transport)

    def connection_made(self, transport: Any) -> None:
        """Store the asyncio transport of a new connection, or the one that TLS adds."""
        transport.set_write_buffer_limits(high=CONGESTED_BYTES)
        self._transport = self.buffer.transport = transport

    def pause_writing(self) -> None:
        """Report congestion; called by asyncio when many bytes are unsent."""
        self.is_congested = True
        self._owner.congestion_changed()

    def resume_writing(self) -> None:
        """Report the end of congestion; called by asyncio when most of the unsent bytes are sent."""
        self.is_congested = False
        self._owner.congestion_changed()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, or store them behind earlier ones that are still to be handled; called by asyncio."""
        if self._has_unread:
            self._unread.append(data)
            if len(self._unread) > _MOST_UNREAD and not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()
        elif len(data) <= self._portion:
            self._read(data)
            if self.reader.rest is not None:
                self._behind_since = time.monotonic()
                self._loop.call_soon(self._read_on)
        else:
            self._unread.append(data)
            self._behind_since = time.monotonic()
            self._read_on()

    def _read_on(self) -> None:
        """Process received bytes in portions, so that other tasks run in between if messages take long to handle.

        The rest is buffered here, because a server disconnects a client that does not read.
        """
        end = time.monotonic() + LONGEST_TURN
        while self._has_unread and self.is_open:
            before = time.monotonic()
            if before > end:
                self._loop.call_soon(self._read_on)
                return
            self._read(self._next_portion() if self.reader.rest is None else b"")
            is_slow = time.monotonic() - before > LONGEST_TURN / 4
            self._portion = max(_SMALLEST, self._portion // 2) if is_slow else min(_LARGEST, self._portion * 2)
        self._unread.clear()

    def _next_portion(self) -> bytes:
        data, start = self._unread[0], self._position
        self._position += self._portion
        if self._position >= len(data):
            self._position = 0
            self._unread.popleft()
            if self._is_paused and len(self._unread) < _MOST_UNREAD:
                self._is_paused = False
                self._transport.resume_reading()
        return data[start : start + self._portion]

    def _read(self, data: bytes) -> None:
        buffer = self.buffer
        was_scheduled, buffer.is_scheduled = buffer.is_scheduled, True
        self._silent, began = 0, time.monotonic()
        try:
            self.reader.feed(data)
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            self._unread.clear()
            self.abort(f"the server does not use the NATS protocol: {error}")
        finally:
            buffer.is_scheduled = was_scheduled
        if not was_scheduled and (buffer.commands or buffer.answers or buffer.requests):
            # The buffer was empty before: these messages caused everything in it.
            buffer.flush(time.monotonic() - began)

    def connection_lost(self, error: Exception | None) -> None:
        """Report the loss of the connection to the owner; called by asyncio."""
        if self._gone.done():
            return
        self.reason = self.reason or (str(error) if error is not None else "") or "the connection was lost"
        self._gone.set_result(None)
        if not self.informed.done():
            self.informed.set_exception(
                CallError(ErrorCode.UNAVAILABLE, f"the server closed the connection: {self.reason}")
            )
            self.informed.exception()  # mark it as retrieved
        self._owner.closed(self, self.reason)

    def on_info(self, info: ServerInfo) -> None:
        """Handle an INFO of the server: the first, a change of its cluster, or the announcement of its shutdown."""
        self.info = info
        self.buffer.batch_bytes = min(_BATCH_BYTES, info.max_payload)
        if not self.informed.done():
            self.informed.set_result(info)
        self._owner.info_changed(info)

    def on_ping(self) -> None:
        """Respond to the server's PING."""
        self.buffer.send(PONG)

    def on_pong(self) -> None:
        """Handle a PONG: the server has processed everything before the oldest PING."""
        if self.buffer.pongs:
            self.buffer.pongs.popleft()()

    def on_error(self, text: str) -> None:
        """Handle an error. It refuses one message or subscription, or it ends the connection."""
        lower = text.lower()
        if lower.startswith(("permissions violation", "invalid subject")):
            self._owner.message_refused(text)
            return
        self.reason = text
        if lower.startswith(_DENIALS):
            self._refused = CallError(ErrorCode.ACCESS_DENIED, f"the NATS server refused the connection: {text}")
