"""Server-Sent Events: a parser from bytes to events by the HTML standard; independent of HTTP and envelopes."""

from __future__ import annotations

from io import BytesIO
from typing import NoReturn

import msgspec

from operations.errors import CallError, ErrorCode

MAX_LINE = 1024 * 1024
MAX_EVENT = 16 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_NUL, _LF, _CR = 0, 10, 13  # `10 in chunk` takes a sixth of the time of `b"\n" in chunk`
_D, _E, _I, _SPACE = b"dei "
_MAX_DIGITS = 640  # within any limit that a process can set for `int`
_LONG_LINE = "a line of the event stream exceeds {} bytes"
_LARGE_EVENT = "the data of an event exceeds {} bytes"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """A dispatched event: its data, type and `retry`, and the last event id when it was dispatched."""

    data: str
    type: str = "message"
    id: str = ""
    retry: int | None = None


class SSEParser:
    """Incremental parser: converts chunks of any size to events, with bounded memory.

    A line has at most `max_line` bytes, and the data of an event `max_event` bytes. A longer line or event ends the
    stream with a `CallError`. `feed` first returns the earlier events of the same chunk; the next `feed` or `close`
    raises the error.

    `last_event_id` and `reconnection_time` (milliseconds) are for a reconnection. `close` does not change them. After
    `close`, the parser can read another stream. `skipped` counts ignored `id` and `retry` fields.
    """

    __slots__ = (
        "_at_block_start",
        "_data",
        "_extra_lines",
        "_failure",
        "_id",
        "_max_event",
        "_max_line",
        "_may_continue",
        "_partial_line",
        "_prefix",
        "_raise_next",
        "_retry",
        "_safe_length",
        "_type",
        "last_event_id",
        "reconnection_time",
        "skipped",
    )

    def __init__(self, *, max_line: int = MAX_LINE, max_event: int = MAX_EVENT) -> None:
        self.last_event_id = ""
        self.reconnection_time: int | None = None
        self.skipped = 0
        self._max_line = max_line
        self._max_event = max_event
        self._safe_length = min(max_line, max_event)
        self._start()

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Parse the next bytes of the stream; return the events that they complete."""
        # Fast path: servers usually send one event per chunk, in one of a few forms.
        if self._at_block_start and len(chunk) <= self._safe_length:
            event = self._only_event(chunk) if _CR not in chunk else self._only_line(chunk)
            if event is not None:
                return [event]
        events: list[ServerSentEvent] = []
        try:
            self._take(self._strip_rest(chunk) if self._may_continue else chunk, events)
        except CallError as error:
            self._start()
            self._failure = error.message
            self._raise_next = bool(events)
            if not events:
                raise
        return events

    def _only_event(self, chunk: bytes) -> ServerSentEvent | None:
        """Return the event of a chunk that is an optional id, an optional type and one line of data; else None."""
        id_, type_ = self.last_event_id, "message"
        line, _, rest = chunk.partition(b"\n")
        if not line.startswith(b"data:"):
            name, _, value = line.partition(b": ")
            if name == b"id" and _NUL not in value:
                id_ = value.decode("utf-8", "replace")
                line, _, rest = rest.partition(b"\n")
                name, _, value = line.partition(b": ")
            if name == b"event":
                type_ = value.decode("utf-8", "replace") or type_
                line, _, rest = rest.partition(b"\n")
            if not line.startswith(b"data:"):
                return None
        if rest != b"\n":
            return None
        self.last_event_id = id_
        value = line[6:] if line.startswith(b"data: ") else line[5:]
        return ServerSentEvent(value.decode("utf-8", "replace"), type_, id_)

    def _only_line(self, chunk: bytes) -> ServerSentEvent | None:
        """Return the event of a chunk that is one line of data with carriage returns; None for any other chunk."""
        if not (chunk.startswith(b"data:") and chunk.endswith(b"\r\n\r\n")):
            return None
        value = chunk[6 if chunk[5] == _SPACE else 5 : -4]
        if _CR in value or _LF in value:
            return None
        return ServerSentEvent(value.decode("utf-8", "replace"), "message", self.last_event_id)

    def close(self) -> None:
        """End the stream: drop unfinished data, and raise a failure that was not raised yet."""
        raise_next = self._failure if self._raise_next else ""
        self._start()
        if raise_next:
            _fail(raise_next)

    def _start(self) -> None:
        self._prefix: bytes | None = b""  # first bytes of the stream, until a byte order mark is ruled out
        self._may_continue = True  # whether the next chunk may start with the rest of a BOM or CRLF
        self._at_block_start = False  # whether the next chunk starts a block, without such a rest
        self._partial_line: bytes | bytearray = b""  # unfinished line
        self._data: bytes | bytearray | None = None  # this and the next four describe the unfinished block
        self._extra_lines: list[bytes] = []  # further lines of data
        self._type = "message"
        self._id: str | None = None
        self._retry: int | None = None
        self._failure = ""
        self._raise_next = False  # whether the failure has not been raised yet

    def _strip_rest(self, chunk: bytes) -> bytes:
        """Return the chunk without the rest of a BOM or CRLF that began in an earlier chunk."""
        if self._failure:
            _fail(self._failure)
        if self._prefix is None:
            self._may_continue = not chunk
            return chunk.removeprefix(b"\n")
        chunk = self._prefix + chunk
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._prefix = chunk
            return b""
        self._prefix = None
        self._may_continue = False
        return chunk.removeprefix(_BOM)

    def _take(self, chunk: bytes, events: list[ServerSentEvent]) -> None:
        """Parse the lines that the chunk completes; buffer the rest."""
        if _CR in chunk:
            ending, lines = b"", chunk.splitlines()
            last = chunk[-1]
            rest = b"" if last in (_LF, _CR) else lines.pop()
            # A CR at the end of a chunk ends its line immediately: no event waits for a possible LF.
            self._may_continue = last == _CR
        elif _LF in chunk:
            ending, lines = b"\n", list(BytesIO(chunk))  # takes half the time of `split`; the lines keep their LF
            rest = b"" if chunk[-1] == _LF else lines.pop()
        else:
            self._buffer_line(chunk)
            return
        length = len(chunk)
        if partial := self._partial_line:
            lines[0] = b"".join((partial, lines[0]))
            length += len(partial)
        if length <= self._safe_length:
            self._read(lines, ending, events)
        else:
            self._read_long(lines, ending, events)
            if len(rest) > self._max_line:
                _fail(_LONG_LINE.format(self._max_line))
        self._partial_line = rest
        self._at_block_start = not rest and lines[-1] == ending and not self._may_continue

    def _buffer_line(self, part: bytes) -> None:
        """Add to the unfinished line, in a growing buffer."""
        if len(self._partial_line) + len(part) > self._max_line:
            _fail(_LONG_LINE.format(self._max_line))
        if isinstance(self._partial_line, bytes):
            self._partial_line = bytearray(self._partial_line)
        self._partial_line += part
        self._at_block_start = False

    def _read_long(self, lines: list[bytes], ending: bytes, events: list[ServerSentEvent]) -> None:
        """Interpret lines when one of them may exceed a limit."""
        if max(map(len, lines)) - len(ending) <= self._safe_length:
            self._read(lines, ending, events)
            return
        for line in lines:
            if len(line) - len(ending) > self._max_line:
                _fail(_LONG_LINE.format(self._max_line))
            self._read([line], ending, events)
            if self._data is not None and len(self._data) > self._max_event:
                _fail(_LARGE_EVENT.format(self._max_event))

    def _read(self, lines: list[bytes], ending: bytes, events: list[ServerSentEvent]) -> None:
        """Interpret lines with the same ending: common ones inline, for speed, others in `_read_field`."""
        stop = -1 if ending else None
        data, extra_lines = self._data, self._extra_lines
        type_, id_, retry, last_id = self._type, self._id, self._retry, self.last_event_id
        type_line, known_type = b"", "message"
        for line in lines:
            if line == ending:
                data = self._joined(data) if extra_lines and data is not None else data
                self.last_event_id = last_id = last_id if id_ is None else id_
                if data is not None:
                    try:
                        text = data.decode()  # a quarter faster than with arguments
                    except UnicodeDecodeError:
                        text = data.decode("utf-8", "replace")
                    events.append(ServerSentEvent(text, type_, last_id, retry))
                    data = None
                type_, id_, retry = "message", None, None
                continue
            if line.startswith(b"data: "):
                value = line[6:stop]
            elif (first := line[0]) == _D and (line.startswith(b"data:") or line[:stop] == b"data"):
                value = line[5:stop]
            elif first == _E and line.startswith(b"event: "):
                # Most events have the type of the event before.
                type_ = known_type if line == type_line else line[7:stop].decode("utf-8", "replace") or "message"
                type_line, known_type = line, type_
                continue
            elif first == _I and line.startswith(b"id: ") and _NUL not in line:
                id_ = line[4:stop].decode("utf-8", "replace")
                continue
            else:
                self._type, self._id, self._retry = type_, id_, retry
                self._read_field(line[:stop])
                type_, id_, retry = self._type, self._id, self._retry
                continue
            if data is None:
                data = value
            else:
                extra_lines.append(value)
        self._data = self._joined(data) if extra_lines and data is not None else data
        self._type, self._id, self._retry = type_, id_, retry

    def _read_field(self, line: bytes) -> None:
        """Interpret a line that `_read` does not handle inline: a rare field, or no space after the colon."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._type = value.decode("utf-8", "replace") or "message"
        elif name == b"id":
            self._read_id(value)
        elif name == b"retry":
            self._read_retry(value)

    def _read_id(self, value: bytes) -> None:
        if _NUL in value:
            self.skipped += 1
        else:
            self._id = value.decode("utf-8", "replace")

    def _read_retry(self, value: bytes) -> None:
        digits = value.lstrip(b"0")
        if value.isdigit() and len(digits) <= _MAX_DIGITS:  # bytes.isdigit() is ASCII only
            self._retry = self.reconnection_time = int(digits or b"0")
        else:
            self.skipped += 1

    def _joined(self, data: bytes | bytearray) -> bytearray:
        """Append the lines in `_extra_lines` to `data`, the first line of an event or an earlier result; return all."""
        joined = data if isinstance(data, bytearray) else bytearray(data)
        joined += b"\n"
        joined += b"\n".join(self._extra_lines)
        self._extra_lines.clear()
        if len(joined) > self._max_event:
            _fail(_LARGE_EVENT.format(self._max_event))
        return joined


def _fail(message: str) -> NoReturn:
    raise CallError(ErrorCode.EXECUTION_ERROR, message)
