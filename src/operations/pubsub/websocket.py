"""WebSocket links over picows; `websocket_client` opens them, and `websocket_server` accepts them.

Messages that are sent in one iteration of the event loop are combined into few writes, and into few frames if the peer
accepts batches (see `framing`). Received messages are handled in turns, so that one busy peer does not delay others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, cast

from operations.pubsub.connection_errors import require_extra
from operations.pubsub.framing import batches, messages_of, split
from operations.pubsub.limited_log import LimitedLog
from operations.pubsub.link import (
    CLOSE_SECONDS,
    HEADROOM,
    LARGE_MESSAGE,
    MAX_PAYLOAD,
    MAX_UNSENT,
    SLOW_READER,
    Callbacks,
    LargeMessages,
    Turn,
)
from operations.pubsub.protocols import WRITTEN_NOW

try:
    import picows
except ImportError:  # pragma: no cover  # the message is tested in a separate process
    raise require_extra("picows", "ws") from None

_MAX_BACKLOG = 128 << 10
"""Bytes of received messages that may wait to be handled; while there are more, nothing is read from the socket."""
_FRAME_BYTES = 64
"""Memory that a waiting frame takes in addition to its content."""
_READ_BYTES = 32 << 10
_SHORT_READ_BYTES = 256
"""Largest number of bytes of one read: `_SHORT_READ_BYTES` once the peer's turn is over, else `_READ_BYTES`."""
_FREE_READ_BYTES = 512
"""Largest read that does not start a turn, because handling it is cheap: one usual message, or about 80 empty ones."""
_FEWEST_TOGETHER, _MOST_TOGETHER = 8, 32
"""Messages per write: `_FEWEST_TOGETHER` in the first write of an iteration, for low latency, later twice as many each
time, up to `_MOST_TOGETHER`."""
_TEXT, _BINARY = picows.WSMsgType.TEXT, picows.WSMsgType.BINARY
_CLOSE, _PING, _PONG = picows.WSMsgType.CLOSE, picows.WSMsgType.PING, picows.WSMsgType.PONG
_CONTROL = frozenset({_CLOSE, _PING, _PONG})


class WebSocketLink(picows.WSListener):
    """The client's or the server's end of a WebSocket connection; implements `Link`."""

    def __init__(
        self, callbacks: Callbacks, max_message: int = MAX_PAYLOAD, large: LargeMessages | None = None
    ) -> None:
        self.turn = Turn()
        self.batch_bytes = 0
        self.max_message = max_message
        self.reason = ""
        """Why the connection was closed; empty while it is open, and after a loss without a known reason."""
        self.sent = 0
        """Number of messages that were written."""
        self.received = 0
        """Number of messages that were received."""
        self.unsent = 0
        self._callbacks = callbacks
        self.receive: Callable[[bytes, Any], None] = callbacks.received
        self.source: Any = self
        self._transport: Any = None
        self._write_buffer: list[bytes] = []
        self._is_flush_scheduled = False
        self._together = _FEWEST_TOGETHER
        self.is_slow = False
        self._pong: bytes | None = None
        """The reply to the latest ping, until it is sent."""
        self.large = large or LargeMessages()
        self._backlog: deque[bytes] = deque()
        """Frames whose messages wait to be handled."""
        self._messages: Iterator[bytes] = iter(())
        """The messages of the frame that is being handled."""
        self._backlog_bytes = 0
        """Size of the frames in `_backlog` and of the frame that is being handled."""
        self._handled_bytes = 0
        self._is_handling_scheduled = False
        self._is_paused = False
        self._is_server = large is not None
        self._reader: SocketReader | None = None
        """Limits how much is read from a client; None at the client's end, because the server is trusted."""
        self.unfinished = 0
        self._largest_buffer = 0
        self._fragments = bytearray()
        self._loop = asyncio.get_running_loop()
        self._is_aborted = False
        self._has_ended = False
        self._closing: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self._transport is not None and not self._has_ended

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that wait to be written, a pong included."""
        buffered = sum(map(len, self._write_buffer)) + len(self._pong or b"")
        if self.is_open:
            buffered += self._transport.underlying_transport.get_write_buffer_size()
        return buffered

    @property
    def received_bytes(self) -> int:
        """Bytes of the receive buffer, which picows never shrinks, and of the messages that wait to be handled."""
        return self._largest_buffer + self._backlog_bytes

    def send(self, message: bytes) -> None:
        """Send a message together with the others of this iteration of the event loop."""
        if not self._is_flush_scheduled:
            if self._has_ended or self._transport is None:
                self.unsent += 1
                return
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        self._write_buffer.append(message)
        if len(message) > WRITTEN_NOW:
            self._write()
        elif len(self._write_buffer) >= self._together:
            self._together = min(self._together * 2, _MOST_TOGETHER)
            self._write()

    def _schedule_flush(self) -> None:
        self._is_flush_scheduled = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._together = _FEWEST_TOGETHER
        self._write()
        if self._pong is not None and not self.is_slow and self.is_open:
            pong, self._pong = self._pong, None
            self._transport.send_pong(pong)

    def _write(self) -> None:
        messages, self._write_buffer = self._write_buffer, []
        if not messages:
            return
        frames: Sequence[bytes] = messages
        if self.batch_bytes and len(messages) > 1:
            frames = batches(messages, self.batch_bytes)
        written = 0
        for frame in frames:
            # A lost connection is closing before the loop reports it; each further write would be logged.
            if self._has_ended or self._transport.underlying_transport.is_closing():
                break
            self._transport.send(_TEXT if frame[:1] == b"{" else _BINARY, frame)
            written += 1
        if written < len(frames):
            sent = written if frames is messages else sum(len(split(frame)) for frame in frames[:written])
            self.unsent += len(messages) - sent
            self.sent += sent
            return
        self.sent += len(messages)
        if self.is_slow:
            if self._is_server and self._transport.underlying_transport.get_write_buffer_size() > MAX_UNSENT:
                self.abort(SLOW_READER)
            self._callbacks.backlogged(self, sum(map(len, frames)))

    def abort(self, reason: str) -> None:
        """Close immediately."""
        if self.is_open:
            self.reason = self.reason or reason
            self._is_aborted = True
            self._backlog.clear()
            self._messages = iter(())
            self._fragments.clear()
            self.unsent += len(self._write_buffer)
            self._write_buffer.clear()
            self._transport.disconnect(graceful=False)

    def close(self, reason: str = "") -> None:
        """Write the buffer and close; a peer that does not close its end is disconnected."""
        if self.is_open:
            self._write()
            self.reason = self.reason or reason
            with contextlib.suppress(Exception):
                self._transport.send_close(picows.WSCloseCode.OK, reason.encode()[:120])
            self._transport.disconnect(graceful=True)
            self._closing = self._closing or self._loop.call_later(CLOSE_SECONDS, self.abort, reason)

    async def wait_closed(self) -> None:
        """Return once the connection is closed and all received messages are handled."""
        await asyncio.shield(self._gone)

    def on_ws_connected(self, transport: Any) -> None:
        """Report that the connection is open; called by picows."""
        self._transport = transport
        self._reader = SocketReader(transport.underlying_transport, self) if self._is_server else None
        self._callbacks.opened(self)

    def note_unfinished(self) -> None:
        """Record the size of a message that has not arrived completely, and enforce its limit."""
        if self.unfinished > self._largest_buffer:
            self._largest_buffer = self.unfinished
            if self.unfinished > LARGE_MESSAGE:
                self._callbacks.receiving(self)
                if self.unfinished > self.max_message + 2 * HEADROOM:
                    self.abort("a message exceeds the size limit")

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        """Handle a frame; called by picows."""
        kind = frame.msg_type
        if self._is_aborted:
            return
        self.unfinished = len(self._fragments)
        if kind in _CONTROL:
            self._control(kind, frame)
            return
        data: bytes | None = frame.get_payload_as_bytes()
        if self._fragments or not frame.fin:
            data = self._join_fragments(data, is_last=frame.fin)  # type: ignore[arg-type]
            if data is None:
                return
        size = len(data)  # type: ignore[arg-type]
        if size > self.max_message + HEADROOM:
            self.abort("a message exceeds the size limit")
        elif (
            data[:1] != b"\0"  # type: ignore[index]
            and frame.last_in_buffer
            and not self._is_handling_scheduled
            and (size <= LARGE_MESSAGE or self.large.enter())
        ):
            # The usual case: one message, handled immediately.
            self.received += 1
            self.receive(data, self.source)  # type: ignore[arg-type]
        else:
            self._queue(data, is_last=frame.last_in_buffer)  # type: ignore[arg-type]

    def _control(self, kind: Any, frame: Any) -> None:
        if kind == _CLOSE:
            self.reason = self.reason or f"closed by the peer: {frame.get_close_reason() or 'no reason given'}"
            self._transport.disconnect()
        elif kind == _PING:
            # Only the last of several pings needs a reply. The reply waits here while the peer does not read.
            self._pong = frame.get_payload_as_bytes()
            if not self._is_flush_scheduled:
                self._schedule_flush()

    def _join_fragments(self, fragment: bytes, *, is_last: bool) -> bytes | None:
        """Return the message that ends with this fragment; None if more fragments follow, or if they are too large."""
        self._fragments += fragment
        if len(self._fragments) > self.max_message + HEADROOM:
            self._fragments.clear()
            self.abort("a message in fragments exceeds the size limit")
            return None
        if not is_last:
            self.unfinished = len(self._fragments)
            return None
        message = bytes(self._fragments)
        self._fragments.clear()
        return message

    def _queue(self, frame: bytes, *, is_last: bool) -> None:
        """Handle the messages of a frame in turns."""
        self._backlog.append(frame)
        self._backlog_bytes += len(frame) + _FRAME_BYTES
        if self._backlog_bytes > _MAX_BACKLOG and not self._is_paused:
            self._is_paused = True
            if self._reader is None:
                self._transport.underlying_transport.pause_reading()
            else:
                self._reader.hold()
                self._callbacks.receiving(self)
                if self._is_aborted:
                    return
        if not self._is_handling_scheduled:
            if is_last:
                self._handle_backlog()
            else:
                self._schedule_handling()

    def _schedule_handling(self) -> None:
        self._is_handling_scheduled = True
        self._loop.call_soon(self._handle_backlog)

    def _handle_backlog(self) -> None:
        """Handle the waiting messages of one turn; the others follow in the next iteration of the event loop."""
        self._is_handling_scheduled = False
        messages, turn = self._messages, self.turn
        turn.begin()
        while True:
            for message in messages:
                if len(message) > LARGE_MESSAGE and not self.large.enter():
                    self._messages = itertools.chain((message,), messages)
                    self._schedule_handling()
                    return
                self.received += 1
                self.receive(message, self.source)
                if self._is_aborted:
                    return
                if turn.is_over():
                    self._schedule_handling()
                    return
            self._backlog_bytes -= self._handled_bytes
            self._handled_bytes = 0
            if not self._backlog:
                break
            frame = self._backlog.popleft()
            self._handled_bytes = len(frame) + _FRAME_BYTES
            messages = self._messages = messages_of(frame)
        if self._has_ended:
            self._finish()
        elif self._is_paused:
            self._is_paused = False
            if self._reader is None:
                self._transport.underlying_transport.resume_reading()
            else:
                self._reader.release()

    def pause_writing(self) -> None:
        """Mark the peer as slow; called by picows once the socket's write buffer is full."""
        self.is_slow = True

    def resume_writing(self) -> None:
        """Mark the peer as no longer slow; called by picows once the peer has read most of the unsent data."""
        self.is_slow = False
        if self._pong is not None and not self._is_flush_scheduled:
            self._schedule_flush()
        self._callbacks.drained(self)

    def on_ws_disconnected(self, transport: Any) -> None:
        """Report the end of the connection after the last message; called by picows."""
        self._has_ended = True
        self._write()
        if not self._is_handling_scheduled:
            self._finish()

    def _finish(self) -> None:
        """Report the end, after all messages that arrived before it."""
        if self._closing is not None:
            self._closing.cancel()
        if not self._gone.done():
            self._gone.set_result(None)
            self._callbacks.closed(self, self.reason or "the connection was lost")


class SocketReader(asyncio.BufferedProtocol):
    """Passes data from the transport of a connection to the protocol of picows, a limited number of bytes at a time.

    picows doubles its read buffer whenever a read fills it, and handles all frames of a read together. Without the
    limit, a million empty frames in one read would delay other connections for seconds.
    """

    def __init__(self, transport: asyncio.Transport, link: WebSocketLink) -> None:
        self._transport = transport
        self._link = link
        self._inner = cast("Any", transport.get_protocol())
        self._is_held = False
        """Whether `hold` was called."""
        self._waits = False
        """Whether reading continues in the next iteration of the event loop."""
        transport.set_protocol(self)

    def hold(self) -> None:
        """Read nothing until `release` is called."""
        self._is_held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Continue to read."""
        self._is_held = False
        self._resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer of the next read."""
        buffer: memoryview = self._inner.get_buffer(sizehint)
        return buffer[: _SHORT_READ_BYTES if perf_counter() > self._link.turn.end else _READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames of a read; if this takes long, the next read waits for the next iteration."""
        link = self._link
        link.unfinished += nbytes
        if nbytes > _FREE_READ_BYTES:
            link.turn.begin()
        self._inner.buffer_updated(nbytes)
        if perf_counter() > link.turn.end and not self._waits:
            self._waits = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._continue)
        if link.unfinished:
            link.note_unfinished()

    def _continue(self) -> None:
        self._waits = False
        self._resume()

    def _resume(self) -> None:
        if not self._is_held and not self._waits and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        """Forward the end of the data to picows; called by asyncio."""
        return cast("bool | None", self._inner.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward the loss to picows; called by asyncio. This breaks the reference cycle with the protocol."""
        inner, self._inner = self._inner, None
        inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Forward to picows that the write buffer is full; called by asyncio."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forward to picows that the write buffer has space; called by asyncio."""
        self._inner.resume_writing()


def settings(heartbeat: float, max_payload: int) -> dict[str, Any]:
    """Return the settings of picows that both ends use."""
    return {
        "disconnect_on_exception": False,
        "enable_auto_pong": False,  # the link replies: picows would buffer any number of pongs
        "enable_auto_ping": True,
        # A silent peer is pinged after 1.5 heartbeats, and then has 1.5 heartbeats to reply.
        "auto_ping_idle_timeout": 1.5 * heartbeat,
        "auto_ping_reply_timeout": 1.5 * heartbeat,
        "max_frame_size": max_payload + HEADROOM,
        "logger_name": LimitedLog(logging.getLogger("operations.websocket"), "WebSocket connections"),
    }
