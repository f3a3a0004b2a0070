"""Streams, and calls with their progress, as server-sent events with ids, heartbeats and resumption.

`EventConnection` sends the events. The last event of a stream is `operations.complete` or `operations.problem`. If
neither arrives, the connection was lost.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Awaitable
from typing import Any

import msgspec

from operations.deadlines import TimerWheel
from operations.dispatch import Dispatcher, Request
from operations.envelope import MCPResponseMeta, ResponseEnvelope, SSEEvent
from operations.errors import CallError, ErrorCode
from operations.failures import aborted, too_large
from operations.identity.rate_limits import ConcurrencyLimits
from operations.identity.tokens import Principal
from operations.serving.asgi import REQUEST_ID_HEADER, Headers, Receive, Send, wait_for_disconnect
from operations.serving.http.problems import encode_problem, problem
from operations.serving.http.responses import write_json
from operations.serving.http.routes import Route
from operations.serving.limits import Limits
from operations.serving.refusals import RefusedError

COMPLETE = "operations.complete"
PROBLEM = "operations.problem"
PROGRESS = "operations.progress"
_DEFAULT_TYPE = "message"
_OWN_TYPES = "operations."
_MAX_EVENTS = 256
_MAX_BYTES = 1 << 20
_MAX_STREAMS = 10_000
_MAX_ID_LENGTH = 512
_MAX_MESSAGE = 4_096
MEDIA_TYPE = "text/event-stream"
_HEADERS: Headers = [
    (b"content-type", MEDIA_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_RETRY = b"retry: 2000\n\n"
_HEARTBEAT = b":\n\n"
_MAX_BUFFERED = 64 << 10
_MAX_PUSHED = 64
"""Number of unsent events at which a handler must wait before it sends more; `_MAX_BUFFERED` is the limit in bytes."""


class StreamRequest(msgspec.Struct, kw_only=True):
    """A request for a stream."""

    route: Route
    request: Request
    owner: str
    """The key (`Caller.key`) of the caller whose limit of streams includes this stream."""
    principal: Principal | None = None
    """The verified credentials of the caller."""
    fingerprint: bytes
    """A hash of the body or query string: only a request with the same hash can resume the stream."""
    envelopes: bool = False
    last_event_id: str | None = None


class EventStreams:
    """The streams of one application."""

    def __init__(self, dispatcher: Dispatcher, limits: Limits) -> None:
        self.dispatcher = dispatcher
        self._limits = limits
        self._open = ConcurrencyLimits(limits.streams, "open streams")
        self._resumable: dict[str, _Stream] = {}
        """Resumable streams by name."""

    async def serve(self, wanted: StreamRequest, receive: Receive, send: Send) -> str:
        """Send a stream until it ends or its client disconnects; return its outcome code, or `OK` if it still runs.

        Raise a CallError for a failure before the response has begun; a later failure is sent as an event.
        """
        wheel = self.dispatcher.registry.wheel
        connection = EventConnection(send, wheel, self._limits.heartbeat_seconds, wanted.request.id)
        if wanted.last_event_id is not None and not wanted.route.is_resumable:
            stream = self._find(wanted, wanted.last_event_id)
            await stream.attach(connection, _number(wanted.last_event_id))
        else:
            stream = await self._begin(wanted, connection)
        try:
            await wait_for_disconnect(receive)
        finally:
            connection.close()
            stream.detach(connection)
        return stream.code

    async def _begin(self, wanted: StreamRequest, connection: EventConnection) -> _Stream:
        self._open.acquire(wanted.owner)
        replays = self._limits.replay_seconds > 0 and not wanted.route.is_resumable
        replays = replays and len(self._resumable) < _MAX_STREAMS
        stream = _Stream(self, wanted, connection, self._limits.replay_seconds if replays else 0.0)
        wanted.request.progress = stream.report_progress
        try:
            self.dispatcher.start(wanted.request, stream.ended, stream.emit if wanted.route.has_stream else None)
            stream.running = wanted.request
        except CallError:
            self._open.release(wanted.owner)
            raise
        if replays:
            self._resumable[stream.name] = stream
        # A failure before the first suspension becomes an HTTP status, a later one an event.
        await asyncio.sleep(0)
        if not wanted.route.operation.spec.input_schema.check(wanted.request.input):
            await stream.first
        await stream.open()
        return stream

    def _find(self, wanted: StreamRequest, last_event_id: str) -> _Stream:
        stream = self._resumable.get(last_event_id.rpartition("-")[0])
        number = _number(last_event_id)
        if stream is None or not stream.is_same(wanted) or not stream.has_after(number):
            message = f"{wanted.route.id}: cannot resume the stream after this Last-Event-ID; start a new stream"
            raise RefusedError(410, ErrorCode.UNAVAILABLE, message, "STREAM_GONE")
        return stream

    def can_resume(self, stream: _Stream) -> bool:
        """Whether a client can resume a stream."""
        return stream.name in self._resumable

    def forget(self, stream: _Stream) -> None:
        """Make a stream impossible to resume. If it has ended, it no longer counts towards its caller's limit."""
        self._resumable.pop(stream.name, None)
        if stream.is_over and stream.is_counted:
            stream.is_counted = False
            self._open.release(stream.wanted.owner)

    def expire_later(self, stream: _Stream) -> None:
        """Schedule the end of a stream whose client disconnected, unless it is resumed within `replay_seconds`."""
        self.dispatcher.registry.wheel.add(_Expiry(stream, stream.changes), self._limits.replay_seconds)

    @property
    def max_bytes(self) -> int:
        """The maximum size of an event."""
        return self._limits.response_bytes


class _Stream:
    """A running stream and the recent events that a client may request again."""

    def __init__(
        self, streams: EventStreams, wanted: StreamRequest, connection: EventConnection, replay_seconds: float
    ) -> None:
        self.wanted = wanted
        self.name = os.urandom(8).hex()
        self.running: Request | None = None
        self.code = "OK"
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is done at the first item or at the end of the stream."""
        self._streams = streams
        self._connection: EventConnection | None = connection
        self._replays = replay_seconds > 0
        self.is_over = False
        self.is_counted = True
        """Whether the stream counts towards the limit of its caller."""
        self._error: CallError | None = None
        """The error of a failed stream; None while it runs or if it completed."""
        self._count = 0
        self._log: deque[tuple[int, bytes]] = deque()
        self._log_bytes = 0
        self.changes = 0
        """Number of connects and disconnects of clients."""

    def emit(self, envelope: ResponseEnvelope[Any]) -> Awaitable[None] | None:
        """Send one item. Return an awaitable if the handler must wait; without a connected client, it never waits."""
        if not self.first.done():
            self.first.set_result(None)
        self._count += 1
        chunk = self._write(envelope)
        if self._replays:
            self._keep(chunk)
        return self._connection.push(chunk) if self._connection is not None else None

    def report_progress(self, progress: float, total: float | None, message: str | None) -> Awaitable[None] | None:
        """Send the progress that the handler reports.

        Progress is dropped if the client reads too slowly, because handlers do not wait while they report. It is not
        sent again to a client that resumes the stream.
        """
        connection = self._connection
        if not math.isfinite(progress) or (total is not None and not math.isfinite(total)):
            return None
        if connection is None or connection.is_full:
            return None
        report = {"progress": progress, "total": total, "message": None if message is None else message[:_MAX_MESSAGE]}
        return connection.push(
            b"event: %s\ndata: %s\n\n" % (PROGRESS.encode(), write_json(report, self.wanted.route.id))
        )

    def ended(self, envelope: ResponseEnvelope[Any] | None, error: CallError | None) -> None:
        """Send the result of a call (`envelope`), if there is one; store the outcome, and send the last event."""
        if envelope is not None:
            try:
                self.emit(envelope)
            except CallError as unwritable:
                error = unwritable
        self.is_over, self._error = True, error
        self.code = "OK" if error is None else str(error.code)
        if not self.first.done():
            self.first.set_result(None)
        if not self._streams.can_resume(self):
            self._streams.forget(self)
        if self._connection is not None and self._connection.has_begun:
            self._connection.finish_later(self._last_event())

    async def open(self) -> None:
        """Send the head of the response, or all of it if the stream has completed; raise the error if it has failed."""
        connection = self._connection
        if connection is None or connection.has_begun:
            return
        if not self.is_over:
            await connection.open()
        elif self._error is not None:
            self._streams.forget(self)
            raise self._error
        else:
            await connection.finish(self._last_event())

    async def attach(self, connection: EventConnection, number: int) -> None:
        """Continue the stream on another connection, from the event after `number`."""
        if self._connection is not None:
            self._connection.finish_later(b"")
        self._connection = connection
        self.changes += 1
        missed = b"".join(chunk for count, chunk in self._log if count > number)
        if not self.is_over:
            await connection.write(missed)
        else:
            await connection.finish(missed + self._last_event())

    def detach(self, connection: EventConnection) -> None:
        """Handle the disconnect of a client: stop the stream, or if it can be resumed, wait for the client."""
        if self._connection is not connection:
            return
        self._connection = None
        if self._replays and (not self.is_over or not connection.is_finished):
            self.changes += 1
            self._streams.expire_later(self)
        else:
            self.stop()

    def stop(self) -> None:
        """Stop the stream."""
        self._streams.forget(self)
        if not self.is_over and self.running is not None:
            self.running.stop(aborted(self.wanted.route.id, "the client closed the connection"))

    def is_same(self, wanted: StreamRequest) -> bool:
        """Whether a request has the caller, operation and input of this stream, and credentials that are as strong."""
        own = self.wanted
        is_same = (
            own.owner == wanted.owner and own.route.id == wanted.route.id and own.fingerprint == wanted.fingerprint
        )
        return is_same and _is_as_strong(wanted.principal, own.principal)

    def has_after(self, number: int) -> bool:
        """Whether all events after `number` are still stored."""
        oldest = self._log[0][0] if self._log else self._count + 1
        return 0 <= number <= self._count and number + 1 >= oldest

    def _keep(self, chunk: bytes) -> None:
        self._log.append((self._count, chunk))
        self._log_bytes += len(chunk)
        while len(self._log) > _MAX_EVENTS or (self._log_bytes > _MAX_BYTES and self._log):
            self._log_bytes -= len(self._log.popleft()[1])

    def _write(self, envelope: ResponseEnvelope[Any]) -> bytes:
        """Return an item as an event."""
        operation_id = self.wanted.route.id
        data = envelope.to_json() if self.wanted.envelopes else write_json(envelope.data, operation_id)
        if len(data) > self._streams.max_bytes:
            raise too_large(operation_id, "event", len(data), self._streams.max_bytes, "yes")
        meta = envelope.meta
        event: SSEEvent | None = None if isinstance(meta, MCPResponseMeta) else meta.event
        if event is None:
            return b"id: %s-%d\ndata: %s\n\n" % (self.name.encode(), self._count, data)
        identifier = f"{self.name}-{self._count}"
        if self.wanted.route.is_resumable:
            identifier = _line(event.id) if event.id is not None else ""
        lines = [f"id: {identifier}"] if identifier else []
        # A source must not be able to send the last event of the protocol.
        if event.type != _DEFAULT_TYPE and not event.type.startswith(_OWN_TYPES):
            lines.append(f"event: {_line(event.type)}")
        lines.append("data: ")
        return b"%s%s\n\n" % ("\n".join(lines).encode(errors="replace"), data)

    def _last_event(self) -> bytes:
        if self._error is None:
            return b"event: %s\ndata: {}\n\n" % COMPLETE.encode()
        members = problem(self._error, self.wanted.request.id, self.wanted.route.operation)
        return b"event: %s\ndata: %s\n\n" % (PROBLEM.encode(), encode_problem(members))


class _Expiry(msgspec.Struct, eq=False):
    """Stops a stream whose client did not reconnect in time."""

    stream: _Stream
    changes: int

    def expire(self) -> None:
        if self.stream.changes == self.changes:
            self.stream.stop()


def _is_as_strong(resuming: Principal | None, first: Principal | None) -> bool:
    """Whether a resuming client's credentials have the same rights as the first ones, and expire no earlier."""
    if resuming is None or first is None:
        return resuming is first
    one, other = resuming.identity, first.identity
    has_rights = set(one.scopes) == set(other.scopes) and one.resources == other.resources
    return has_rights and (resuming.expires_at or math.inf) >= (first.expires_at or math.inf)


def check_last_event_id(header: bytes) -> str:
    """Return the value of `Last-Event-ID`; raise RefusedError if it is too long or contains NUL."""
    text = header.strip().decode("utf-8", errors="replace")
    if len(text) > _MAX_ID_LENGTH or "\0" in text:
        message = f"invalid Last-Event-ID: expected at most {_MAX_ID_LENGTH} characters without NUL"
        raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "LAST_EVENT_ID")
    return text


def _line(text: str) -> str:
    """Replace NUL, and line breaks, which would begin another field of the event."""
    return text.replace("\r", " ").replace("\n", " ").replace("\0", " ")


def _number(last_event_id: str) -> int:
    digits = last_event_id.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 18 else -1


class EventConnection:
    """The response that a stream is written to."""

    def __init__(self, send: Send, wheel: TimerWheel, heartbeat: float, request_id: str) -> None:
        self.is_open = False
        self.is_finished = False
        self._is_closed = False
        self._send = send
        self._wheel = wheel
        self._heartbeat = heartbeat
        self._request_id = request_id
        self._lock = asyncio.Lock()
        self._was_written = False
        self._task: asyncio.Task[None] | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._flushing: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether data was sent or is about to be sent."""
        return self.is_open or self._flushing is not None

    def push(self, chunk: bytes) -> Awaitable[None] | None:
        """Send an event, together with other events of the same loop iteration.

        If too much is unsent, return an awaitable, for which the stream waits before the next item; else None.
        """
        if self._is_closed:
            return None
        self._buffer.append(chunk)
        self._buffered += len(chunk)
        flushing = self._flushing
        if flushing is None:
            flushing = self._flushing = asyncio.get_running_loop().create_task(self._flush())
        return asyncio.shield(flushing) if self.is_full else None

    @property
    def is_full(self) -> bool:
        """Whether so much is unsent that the handler waits before it sends more."""
        return self._buffered > _MAX_BUFFERED or len(self._buffer) >= _MAX_PUSHED

    async def open(self) -> None:
        """Send the head of the response."""
        await self.write(b"")

    async def write(self, chunk: bytes) -> None:
        """Send events; return when the server has accepted them."""
        async with self._lock:
            await self._write(chunk)

    async def finish(self, chunk: bytes) -> None:
        """Send the last events and end the response."""
        async with self._lock:
            await self._write(self._take_buffer() + chunk, more=False)

    def finish_later(self, chunk: bytes) -> None:
        """End the response in a separate task."""
        if not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self.finish(chunk))

    def close(self) -> None:
        """Discard further events: the client disconnected, or the response is complete."""
        self._is_closed = True

    def expire(self) -> None:
        """Send a comment if no event was sent since the last check, so that proxies keep the connection open."""
        if self._is_closed or self.is_finished:
            return
        self._wheel.add(self, self._heartbeat)
        if not self._was_written and not self._lock.locked():
            self._task = asyncio.get_running_loop().create_task(self.write(_HEARTBEAT))
        self._was_written = False

    async def _flush(self) -> None:
        try:
            async with self._lock:
                while self._buffer:
                    await self._write(self._take_buffer())
        finally:
            self._flushing = None

    def _take_buffer(self) -> bytes:
        """Return and clear the buffer."""
        taken = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        return taken

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        if self._is_closed or self.is_finished:
            return
        self._was_written = chunk is not _HEARTBEAT
        self.is_finished = not more
        try:
            if not self.is_open:
                self.is_open = True
                headers = [*_HEADERS, (REQUEST_ID_HEADER, self._request_id.encode())]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                self._wheel.add(self, self._heartbeat)
                chunk = _RETRY + chunk
            await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
        except OSError:  # the client disconnected, which `receive` reports too
            self._is_closed = True
