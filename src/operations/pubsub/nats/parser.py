"""NatsParser: reads the client protocol from a stream of bytes, and passes each message to its subscription."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from operations.pubsub.framing import BATCH_MARKS, split
from operations.pubsub.nats.wire import CRLF, Receiver, Rest, ServerEvents, ServerInfo
from operations.pubsub.protocols import Arrival, Receive

LONGEST_TURN = 0.05
"""Seconds after which the processing of received bytes continues in the next iteration of the event loop."""
_MSG, _HMSG, _PING, _INFO, _ERR, _OK = b"MHPI-+"


class NatsParser:
    """Parses a stream of bytes, and passes each message to the receiver of its subscription."""

    def __init__(self, operations: ServerEvents) -> None:
        self._operations = operations
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self.receivers: dict[bytes, Receiver] = {}
        """The receiver of each subscription, by its id."""
        self.rest: Rest | None = None
        """The handling of a batch that takes long; `feed` continues it before it parses further bytes."""

    def forget(self, sid: bytes) -> None:
        """Remove a subscription."""
        self.receivers.pop(sid, None)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes; raise ValueError, IndexError or DecodeError if they are not the protocol.

        After a batch that takes long, return early: call again while there is a `rest`, with bytes or without.
        """
        if self.rest is not None:
            self.rest = handle_some(self.rest)
            if self.rest is not None:
                if data:
                    self._parts.append(data)
                    self._have += len(data)
                return
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
        """Parse messages until one is incomplete or takes long to handle; return where the unparsed bytes begin."""
        position, length = 0, len(data)
        find, receivers = data.find, self.receivers
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
                receive = receivers.get(words[1])
                position = stop + 2
                if receive is not None and (rest := receive(words, b"", data[start:stop])) is not None:
                    self.rest = rest
                    return position
            else:
                following = self._read_other(data, position, end)
                if following < 0:
                    return position
                position = following
                if self.rest is not None:
                    return position

    def _read_other(self, data: bytes, position: int, end: int) -> int:
        kind = data[position]
        if kind == _HMSG:
            words = data[position + 5 : end].split()
            middle, stop = end + 2 + int(words[-2]), end + 2 + int(words[-1])
            if stop + 2 > len(data):
                self._need = stop + 2 - position
                return -1
            receive = self.receivers.get(words[1])
            if receive is not None:
                self.rest = receive([*words[:-2], words[-1]], data[end + 2 : middle], data[middle:stop])
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


def unbatch(
    receive: Receive, arrivals: Mapping[bytes, Arrival], note: Callable[[bytes], object] | None = None
) -> Receiver:
    """Return a receiver that passes each message to `receive`, and divides a batch into its messages.

    The first byte of each batch or single message is passed to `note`.
    """

    def deliver(words: list[bytes], headers: bytes, data: bytes) -> Rest | None:
        mark, arrival = data[:1], arrivals[words[0]]
        if note is not None:
            note(mark)
        if mark in BATCH_MARKS:
            return handle_some(map(receive, split(data), itertools.repeat(arrival)))
        receive(data, arrival)
        return None

    return deliver


def handle_some(handling: Rest) -> Rest | None:
    """Handle messages of a batch for at most `LONGEST_TURN` seconds; return the rest, or None if all are handled.

    This limit is needed because a hostile peer can put very many messages into one batch.
    """
    end = time.monotonic() + LONGEST_TURN
    for _ in handling:
        if time.monotonic() > end:
            return handling
    return None


class DuplicateFilter:
    """Drops the second copy of a message that arrives on both connections during a move to another server.

    Equal messages are counted, because a sender may send the same message twice.
    """

    def __init__(self) -> None:
        self._passed: Counter[int] = Counter()

    def watch(self, reader: NatsParser, sids: list[bytes]) -> None:
        """Filter the messages of these subscriptions on one of the connections."""
        arrived: Counter[int] = Counter()

        def pass_first(receive: Receiver, words: list[bytes], headers: bytes, data: bytes) -> Rest | None:
            key = hash((*words, headers, data))
            arrived[key] += 1
            if arrived[key] <= self._passed[key]:
                return None
            self._passed[key] += 1
            return receive(words, headers, data)

        for sid in sids:
            if sid in reader.receivers:
                reader.receivers[sid] = functools.partial(pass_first, reader.receivers[sid])
