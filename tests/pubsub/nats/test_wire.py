"""The client protocol: the parsed operations do not depend on how the bytes are split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.pubsub.nats.parser import NatsParser
from operations.pubsub.nats.wire import NatsMessage, ServerInfo, publish, status_of, subscribe, unsubscribe, whole


class Told:
    def __init__(self) -> None:
        self.heard: list[object] = []
        self.reader = NatsParser(self)
        self.reader.receivers[b"1"] = lambda words, headers, data: self.heard.append(data)
        self.reader.receivers[b"2"] = whole(self.heard.append)

    def on_info(self, info: ServerInfo) -> None:
        self.heard.append(info)

    def on_ping(self) -> None:
        self.heard.append("ping")

    def on_pong(self) -> None:
        self.heard.append("pong")

    def on_error(self, text: str) -> None:
        self.heard.append(text)


STREAM = (
    b'INFO {"server_id":"x","max_payload":5,"headers":true,"unknown":1} \r\n'
    b"PING\r\nPONG\r\n+OK\r\n-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
    b"MSG a.b 1 5\r\nhe\r\nl\r\n"
    b"MSG a.b 1 reply.to 0\r\n\r\n"
    b"MSG a.b 3 2\r\nno\r\n"
    b"MSG c 2 r 2\r\nhi\r\n"
    b"HMSG c 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"HMSG c 2 r 21 23\r\nNATS/1.0\r\nA: some\r\n\r\nok\r\n"
    b"HMSG a.b 1 12 14\r\nNATS/1.0\r\n\r\nok\r\n"
)
EXPECTED = [
    ServerInfo(server_id="x", max_payload=5, headers=True),
    "ping",
    "pong",
    'Permissions Violation for Publish to "a"',
    b"he\r\nl",
    b"",
    NatsMessage(b"c", b"r", None, b"", b"hi"),
    NatsMessage(b"c", None, 503, b"NATS/1.0 503\r\n\r\n", b""),
    NatsMessage(b"c", b"r", None, b"NATS/1.0\r\nA: some\r\n\r\n", b"ok"),
    b"ok",
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_the_bytes_may_be_split_anywhere(cuts: list[int]) -> None:
    told = Told()
    positions = sorted({0, *cuts, len(STREAM)})
    for start, stop in itertools.pairwise(positions):
        told.reader.feed(STREAM[start:stop])
    assert told.heard == EXPECTED


def test_one_byte_at_a_time() -> None:
    told = Told()
    for index in range(len(STREAM)):
        told.reader.feed(STREAM[index : index + 1])
    assert told.heard == EXPECTED


def test_a_large_message_comes_in_many_pieces() -> None:
    told = Told()
    payload = b"x" * (8 << 20)
    data = b"MSG a 1 %d\r\n%b\r\nPING\r\n" % (len(payload), payload)
    for start in range(0, len(data), 60_000):
        told.reader.feed(data[start : start + 60_000])
    assert told.heard == [payload, "ping"]


def test_other_protocols_are_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Told().reader.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ValueError, match="not the NATS protocol"):
        Told().reader.feed(b"what?\r\n")


def test_commands_are_encoded_as_the_protocol_specifies() -> None:
    assert publish(b"a", b"xy").split() == [b"PUB", b"a", b"2", b"xy"]
    assert publish(b"a", b"xy", b"r").split() == [b"PUB", b"a", b"r", b"2", b"xy"]
    assert publish(b"a", b"xy", b"r", b"K: v\r\n") == b"HPUB a r 18 20\r\nNATS/1.0\r\nK: v\r\n\r\nxy\r\n"
    assert subscribe(b"a.*", b"7").split() == [b"SUB", b"a.*", b"7"]
    assert subscribe(b"a.*", b"7", b"g").split() == [b"SUB", b"a.*", b"g", b"7"]
    assert unsubscribe(b"7") == b"UNSUB 7\r\n"
    assert [status_of(text) for text in (b"", b"NATS/1.0\r\n", b"NATS/1.0 503\r\n", b"x 5")] == [None, None, 503, None]
