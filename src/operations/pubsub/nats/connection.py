"""One connection to a NATS server: bytes in both directions, liveness, errors.

What one iteration of the loop sends, or what the messages of one read cause to be sent, is one write.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from operations.errors import CallError, ErrorCode
from operations.pubsub.framing import BATCH_MARKS, QUICK_SECONDS, BatchSizing, batches, join, shares, split
from operations.pubsub.nats.replies import Replies
from operations.pubsub.nats.wire import CRLF, PING, PONG, Full, Message, Operations, Plain, ServerInfo, status_of
from operations.pubsub.protocols import Arrival, Receive, Undelivered

_MSG, _HMSG, _PING, _INFO, _ERR, _OK = b"MHPI-+"
_MOST_UNSENT = 64 << 20
_BATCH_BYTES = 128 << 10
_SMALLEST, _LARGEST = 512, 16 << 10
"""How many bytes are processed at a time: fewer where their messages take long to handle."""
_MOST_UNREAD = 256
_LONGEST_TURN = 0.05
_BEHIND_SECONDS = 0.1
_DENIALS = ("authorization violation", "authentication", "user authentication", "nkey", "account")
Requests = list[tuple[bytes, Undelivered]]


class Reader:
    """Parses a stream of bytes; each message goes to its subscription, as data alone or whole."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self.plain: dict[bytes, Plain] = {}
        self.full: dict[bytes, Full] = {}

    def forget(self, sid: bytes) -> None:
        """Remove a subscription."""
        self.plain.pop(sid, None)
        self.full.pop(sid, None)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes; raise ValueError for anything that is not the protocol."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts = []
        position = self._read(data)
        if position < len(data):
            rest = data[position:] if position else data
            self._parts.append(rest)
            self._have = len(rest)

    def _read(self, data: bytes) -> int:
        """Parse every complete operation; return where the first incomplete one begins."""
        position, length = 0, len(data)
        find, plain = data.find, self.plain
        self._need = 0
        while True:
            end = find(CRLF, position)
            if end < 0:
                return position
            if data[position] == _MSG:
                words = data[position + 4 : end].split()
                start = end + 2
                stop = start + int(words[-1])
                if stop + 2 > length:
                    self._need = stop + 2 - position
                    return position
                receive = plain.get(words[1])
                if receive is not None:
                    receive(data[start:stop], words[0])
                else:
                    self._deliver(words, b"", data[start:stop])
                position = stop + 2
            else:
                following = self._read_other(data, position, end)
                if following < 0:
                    return position
                position = following

    def _read_other(self, data: bytes, position: int, end: int) -> int:
        kind = data[position]
        if kind == _HMSG:
            words = data[position + 5 : end].split()
            middle, stop = end + 2 + int(words[-2]), end + 2 + int(words[-1])
            if stop + 2 > len(data):
                self._need = stop + 2 - position
                return -1
            self._deliver([*words[:-2], words[-1]], data[end + 2 : middle], data[middle:stop])
            return stop + 2
        if kind == _PING:
            if data[position + 1 : position + 2] == b"O":
                self._operations.on_pong()
            else:
                self._operations.on_ping()
        elif kind == _ERR:
            self._operations.on_error(data[position + 4 : end].decode(errors="replace").strip().strip("'"))
        elif kind == _INFO:
            self._operations.on_info(msgspec.json.decode(data[position + 5 : end], type=ServerInfo))
        elif kind != _OK:
            raise ValueError(f"not the NATS protocol: {data[position : position + 40]!r}")
        return end + 2

    def _deliver(self, words: list[bytes], headers: bytes, data: bytes) -> None:
        sid = words[1]
        full = self.full.get(sid)
        if full is not None:
            reply = words[2] if len(words) > 3 else None
            full(Message(words[0], reply, status_of(headers), headers, data))
            return
        receive = self.plain.get(sid)
        if receive is not None:
            receive(data, words[0])


def unbatch(
    receive: Receive, arrivals: Mapping[bytes, Arrival], note: Callable[[bytes], object] | None = None
) -> Plain:
    """Return what hands each message of a batch to `receive`, after its first byte to `note`."""

    def deliver(data: bytes, subject: bytes) -> None:
        mark, arrival = data[:1], arrivals[subject]
        if note is not None:
            note(mark)
        if mark in BATCH_MARKS:
            for message in split(data):
                receive(message, arrival)
        else:
            receive(data, arrival)

    return deliver


class WriteBuffer:
    """What a connection sends next: answers to one inbox are one batch, requests to one subject a few together."""

    def __init__(self, replies: Replies, sizing: BatchSizing) -> None:
        self.transport: Any = None
        """The loop's transport."""
        self.batch_bytes = _BATCH_BYTES
        self.is_scheduled = False
        """Whether a flush follows by itself."""
        self.outbox: list[bytes] = []
        self.requests: dict[bytes, Requests] = {}
        self.answers: dict[bytes, list[bytes]] = {}
        self.pongs: deque[Callable[[], object]] = deque()
        """What to call for each PING that the server has not answered."""
        self._replies = replies
        self._sizing = sizing
        self._loop = asyncio.get_running_loop()

    def request(self, subject: bytes, message: bytes, undelivered: Undelivered) -> None:
        """Send to one of the workers that share a subject; the server says when there is none."""
        requests = self.requests.get(subject)
        if requests is None:
            self.requests[subject] = [(message, undelivered)]
            self._schedule()
        else:
            requests.append((message, undelivered))

    def answer(self, subject: bytes, message: bytes) -> None:
        """Send to an inbox."""
        answers = self.answers.get(subject)
        if answers is None:
            self.answers[subject] = [message]
            self._schedule()
        else:
            answers.append(message)

    def publish(self, subject: bytes, message: bytes) -> None:
        """Send a message that may concern the requests before it."""
        self._put_requests()
        self.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(message), message))

    def ping(self, pong: Callable[[], object]) -> None:
        """Send a PING; `pong` is called once the server has processed everything before it."""
        self.pongs.append(pong)
        self.send(PING)

    def send(self, data: bytes) -> None:
        """Send bytes of the client protocol, before the buffered requests and answers."""
        self.outbox.append(data)
        self._schedule()

    def _schedule(self) -> None:
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self, seconds: float | None = None) -> None:
        """Write everything; `seconds` is how long the messages took to handle that caused all of it.

        A PING follows requests, because its PONG means that somebody got them.
        """
        self.is_scheduled = False
        if self.transport.is_closing():
            return
        if self.requests:
            self._put_requests()
        if self.answers:
            self._put_answers(seconds)
        outbox, replies = self.outbox, self._replies
        if not outbox:
            return
        replies.written = replies.issued
        if replies.sent and not self.pongs:
            replies.pinged, replies.sent = replies.sent, {}
            self.pongs.append(replies.pinged.clear)
            outbox.append(PING)
        self.outbox = []
        self.transport.write(b"".join(outbox))

    def _put_requests(self) -> None:
        requests, self.requests = self.requests, {}
        for subject, entries in requests.items():
            if len(entries) == 1:
                self._put_request(subject, *entries[0])
                continue
            messages = [message for message, _ in entries]
            for share in shares(messages, self.batch_bytes, quick=self._sizing.is_quick):
                tell = functools.partial(_tell_all, entries[share])
                self._put_request(subject, join(messages[share]), tell)

    def _put_request(self, subject: bytes, message: bytes, undelivered: Undelivered) -> None:
        replies = self._replies
        replies.issued = number = replies.issued + 1
        replies.sent[number] = (subject, undelivered)
        self.outbox.append(b"PUB %b %b.%d %d\r\n%b\r\n" % (subject, replies.inbox, number, len(message), message))

    def _put_answers(self, seconds: float | None) -> None:
        answers, self.answers = self.answers, {}
        quick = seconds is not None and seconds < QUICK_SECONDS * sum(map(len, answers.values()))
        for subject, messages in answers.items():
            is_batch = quick or len(messages) > 1
            for message in batches(messages, self.batch_bytes, quick=quick) if is_batch else messages:
                self.outbox.append(b"PUB %b %d\r\n%b\r\n" % (subject, len(message), message))

    def lost(self, reason: str) -> dict[bytes, list[bytes]]:
        """The connection is gone: requests were not delivered; the answers are returned, to be kept."""
        requests, self.requests = self.requests, {}
        answers, self.answers = self.answers, {}
        for entries in requests.values():
            _tell_all(entries, reason)
        return answers


def _tell_all(entries: Requests, reason: str) -> None:
    for _, undelivered in entries:
        undelivered(reason)


class Owner(Protocol):
    """Whoever uses a connection."""

    def told(self, info: ServerInfo) -> None:
        """The server sent a new description: its cluster changed."""

    def complained(self, text: str) -> None:
        """The server refused a message or a subscription, and the connection stays open."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""


class Connection(asyncio.Protocol):
    """A connection to one server; `servers.open_connection` makes it."""

    def __init__(self, owner: Owner, replies: Replies, sizing: BatchSizing) -> None:
        self.info = ServerInfo()
        self.reason = ""
        self.reader = Reader(self)
        self.buffer = WriteBuffer(replies, sizing)
        self.heard = 0.0
        """When the server last sent anything, by `time.monotonic`."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._unread: deque[bytes] = deque()
        self._portion = _LARGEST
        self._position = 0
        self._behind_since = 0.0
        self._is_paused = False
        self.informed: asyncio.Future[ServerInfo] = self._loop.create_future()
        """The server's first description."""
        self._refused: CallError | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None and not self._gone.done()

    @property
    def is_behind(self) -> bool:
        """Whether received bytes have been waiting to be processed for a while."""
        return bool(self._unread) and time.monotonic() - self._behind_since > _BEHIND_SECONDS

    def abort(self, reason: str) -> None:
        """Abort the connection at once."""
        if self.is_open:
            self.reason = self.reason or reason
            self._transport.abort()

    async def close(self) -> None:
        """Write what is buffered, close, and wait until it is."""
        if not self.is_open:
            return
        self.buffer.flush()
        self.reason = self.reason or "closed"
        self._transport.close()
        await asyncio.wait((self._gone,), timeout=1.0)
        self.abort("closed")

    async def wait_closed(self) -> None:
        """Return once the connection is gone."""
        await asyncio.shield(self._gone)

    async def processed(self) -> None:
        """Return once the server has processed what was sent so far; raise if the connection is lost before."""
        answered = self._loop.create_future()
        self.buffer.ping(lambda: None if answered.done() else answered.set_result(None))
        await asyncio.wait((answered, self._gone), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            answered.cancel()
            raise self._refused or CallError(ErrorCode.UNAVAILABLE, f"the server hung up: {self.reason}")

    async def start_tls(self, context: ssl.SSLContext, server_name: str | None) -> None:
        """Continue over TLS."""
        self._transport.set_write_buffer_limits()  # what is unsent is counted before it is encrypted
        transport = await self._loop.start_tls(
            self._transport, self, context, server_side=False, server_hostname=server_name
        )
        self.connection_made(transport)

    def connection_made(self, transport: Any) -> None:
        """Called by the loop."""
        transport.set_write_buffer_limits(high=_MOST_UNSENT)
        self._transport = self.buffer.transport = transport

    def pause_writing(self) -> None:
        """Called by the loop: too much is unsent."""
        self.abort("the server reads too slowly")

    def data_received(self, data: bytes) -> None:
        """Called by the loop: handle the messages, then write at once what they caused to be sent."""
        if not self._unread and len(data) <= self._portion:
            self._read(data)
            return
        self._unread.append(data)
        if len(self._unread) == 1:
            self._behind_since = time.monotonic()
            self._read_on()
        elif len(self._unread) > _MOST_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Process in portions, so that the loop runs in between when messages take long to handle.

        The rest is buffered here, because a server disconnects a client that does not read.
        """
        end = time.monotonic() + _LONGEST_TURN
        while self._unread and self.is_open:
            before = time.monotonic()
            if before > end:
                self._loop.call_soon(self._read_on)
                return
            self._read(self._next_portion())
            is_slow = time.monotonic() - before > _LONGEST_TURN / 4
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
        self.heard = began = time.monotonic()
        try:
            self.reader.feed(data)
        except (ValueError, IndexError, msgspec.DecodeError) as error:
            self._unread.clear()
            self.abort(f"the server speaks no NATS: {error}")
        finally:
            buffer.is_scheduled = was_scheduled
        if not was_scheduled and (buffer.outbox or buffer.answers or buffer.requests):
            # Nothing waited before: everything in the buffer was caused by these messages.
            buffer.flush(time.monotonic() - began)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the loop."""
        if self._gone.done():
            return
        self.reason = self.reason or (str(error) if error is not None else "") or "the connection was lost"
        self._gone.set_result(None)
        if not self.informed.done():
            self.informed.set_exception(CallError(ErrorCode.UNAVAILABLE, f"the server hung up: {self.reason}"))
            self.informed.exception()  # nobody may be waiting any more
        self._owner.closed(self, self.reason)

    def on_info(self, info: ServerInfo) -> None:
        """The first description opens the handshake, later ones announce changes."""
        self.info = info
        self.buffer.batch_bytes = min(_BATCH_BYTES, info.max_payload)
        if not self.informed.done():
            self.informed.set_result(info)
        self._owner.told(info)

    def on_ping(self) -> None:
        """The server checks whether this end is alive."""
        self.buffer.send(PONG)

    def on_pong(self) -> None:
        """The server has processed what was sent before the oldest PING."""
        if self.buffer.pongs:
            self.buffer.pongs.popleft()()

    def on_error(self, text: str) -> None:
        """Handle an error: of one message or subscription, or one that ends the connection."""
        lower = text.lower()
        if lower.startswith(("permissions violation", "invalid subject")):
            self._owner.complained(text)
            return
        self.reason = text
        if lower.startswith(_DENIALS):
            self._refused = CallError(ErrorCode.ACCESS_DENIED, f"the NATS server refused the connection: {text}")
