"""The NATS client protocol: the messages of a server, and the encoding of a client's commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

CRLF = b"\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"
_HEADERS = b"NATS/1.0"


class ServerInfo(msgspec.Struct, frozen=True):
    """INFO, the server's description of itself."""

    server_id: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = 1 << 20
    jetstream: bool = False
    tls_required: bool = False
    nonce: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False


class NatsMessage(NamedTuple):
    """A message with its subject, reply subject and headers."""

    subject: bytes
    reply: bytes | None
    status: int | None
    """The status of a message that the server itself made: 503 means that there is no responder."""
    headers: bytes
    data: bytes


class ServerEvents(Protocol):
    """Handlers of everything that a server sends except messages."""

    def on_info(self, info: ServerInfo) -> None:
        """Handle an INFO message."""

    def on_ping(self) -> None:
        """Handle a PING, which requires a PONG."""

    def on_pong(self) -> None:
        """Handle a PONG: the server has processed everything before the oldest unanswered PING."""

    def on_error(self, text: str) -> None:
        """Handle an error that the server reports."""


Rest = Iterator[object]
"""The remaining messages of a batch: each step of the iterator handles one message."""
Receiver = Callable[[list[bytes], bytes, bytes], Rest | None]
"""Called with the words of a message's first line, its headers and its data.

The words are the subject, the id of the subscription, the reply subject if there is one, and the size. The result is
the rest of a batch that takes long, or None.
"""
ReceiveMessage = Callable[[NatsMessage], None]


def whole(receive: ReceiveMessage) -> Receiver:
    """Return a receiver that passes each message to `receive` as a NatsMessage."""

    def deliver(words: list[bytes], headers: bytes, data: bytes) -> None:
        reply = words[2] if len(words) > 3 else None
        receive(NatsMessage(words[0], reply, status_of(headers), headers, data))

    return deliver


def status_of(headers: bytes) -> int | None:
    """Return the status in the first line of the headers, or None."""
    first = headers.partition(CRLF)[0].split()
    return int(first[1]) if len(first) > 1 and first[0] == _HEADERS and first[1].isdigit() else None


def header_of(headers: bytes, name: bytes) -> bytes:
    """Return the value of a header (`name: value`); empty if the header is missing."""
    _, found, rest = headers.partition(b"\r\n" + name + b": ")
    return rest.partition(CRLF)[0] if found else b""


def publish(subject: bytes, data: bytes, reply: bytes = b"", headers: bytes = b"") -> bytes:
    """Encode a message to a subject; `headers` are lines that each end in CRLF."""
    if headers:
        block = b"%b\r\n%b\r\n" % (_HEADERS, headers)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(block), len(block) + len(data), block, data)
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)


def subscribe(subject: bytes, sid: bytes, group: bytes = b"") -> bytes:
    """Encode a subscription, alone or in a queue group."""
    return b"SUB %b %b %b\r\n" % (subject, group, sid)


def unsubscribe(sid: bytes) -> bytes:
    """Encode the end of a subscription."""
    return b"UNSUB %b\r\n" % sid
