"""The NATS client protocol: parses what a server sends, and encodes what a client sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

CRLF = b"\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"
_MSG, _HMSG, _PING, _PONG, _INFO, _ERR, _OK = (ord(letter) for letter in "MHPpI-+")
_HEADERS = b"NATS/1.0"


class ServerInfo(msgspec.Struct, frozen=True):
    """How a server describes itself."""

    server_id: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = 1 << 20
    jetstream: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False


class Message(NamedTuple):
    """A message with its subject, reply subject and headers."""

    subject: bytes
    reply: bytes | None
    status: int | None
    """The status of a message that the server itself made: 503 means that nobody responds."""
    headers: bytes
    data: bytes


class Operations(Protocol):
    """What a server sends apart from messages."""

    def on_info(self, info: ServerInfo) -> None:
        """The server described itself."""

    def on_ping(self) -> None:
        """The server checks whether this end is alive."""

    def on_pong(self) -> None:
        """The server has processed whatever was sent before the oldest unanswered PING."""

    def on_error(self, text: str) -> None:
        """The server reports an error."""


Plain = Callable[[bytes, bytes], None]
"""Given the data and the subject of a message."""
Full = Callable[[Message], None]


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


def status_of(headers: bytes) -> int | None:
    """Return the status in the first line of the headers, or None."""
    first = headers.partition(CRLF)[0].split()
    return int(first[1]) if len(first) > 1 and first[0] == _HEADERS and first[1].isdigit() else None


def publish(subject: bytes, data: bytes, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """A message to a subject; `headers` are lines that each end in CRLF."""
    if headers:
        block = b"%b\r\n%b\r\n" % (_HEADERS, headers)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(block), len(block) + len(data), block, data)
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)


def subscribe(subject: bytes, sid: bytes, group: bytes = b"") -> bytes:
    """A subscription, alone or in a queue group."""
    return b"SUB %b %b %b\r\n" % (subject, group, sid)


def unsubscribe(sid: bytes) -> bytes:
    """The end of a subscription."""
    return b"UNSUB %b\r\n" % sid
