from __future__ import annotations

import base64
import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.sources.openapi.sse import ServerSentEvent, SSEParser

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "sse_vectors.json").read_bytes())["vectors"]

# Parts of streams, including malformed ones; random sequences of them cover the corner cases.
PIECES = st.sampled_from(
    [
        *(b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b"\n\r", b"\0", b":", b" ", b": ", b"x"),
        *(b"data", b"data:", b"data: ", b"data:  ", b"data: x: y\n", b"data:x: y\n", b"data: x\n\n", b"Data: x\n"),
        *(b"event", b"event:", b"event: e\n", b"event: e\ndata: x\n\n", b"id", b"id:", b"id: 7\n", b"id: \0\n"),
        *(b"id: 1\nevent: e\ndata: x\n\n", b"id: 2\ndata: x\n\n", b"id:3\ndata:x\n\n", b": ping\n\n", b"dat"),
        *(b"retry", b"retry:", b"retry: 10\n", b"retry: +5\n", b"retry: 1_0\n", b"retry: \xef\xbc\x95\n"),
        *(
            b"\xef",
            b"\xbb",
            b"\xbf",
            b"\xef\xbb\xbf",
            b"\xc3\xa9",
            b"\xf0\x9f\x8e\x89",
            b"\xe2\x82",
            b"\xff",
            b"\xed\xa0\x80",
        ),
        *(b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xc2\x85", b"\xe2\x80\xa8"),
    ]
)
STREAMS = st.lists(PIECES | st.binary(max_size=3), max_size=30).map(b"".join)


def read(chunks: list[bytes], parser: SSEParser | None = None) -> list[ServerSentEvent]:
    parser = parser or SSEParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    parser.close()
    return events


def outcome(chunks: list[bytes]) -> tuple[list[ServerSentEvent], str, int | None, int]:
    parser = SSEParser()
    return read(chunks, parser), parser.last_event_id, parser.reconnection_time, parser.skipped


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[index : index + 1] for index in range(len(stream))]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


class Standard:
    """The standard's algorithm, step by step, on a whole stream: slow, and independent of the parser."""

    def __init__(self, stream: bytes) -> None:
        self.events: list[ServerSentEvent] = []
        self.data = self.type = self.id = self.last_event_id = ""
        self.retry: int | None = None
        self.reconnection_time: int | None = None
        text = decode(stream).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        for line in text.split("\n")[:-1]:
            self.line(line)

    def line(self, line: str) -> None:
        if not line:
            self.dispatch()
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            self.field(name, value[1:] if value[:1] == " " else value)

    def field(self, name: str, value: str) -> None:
        if name == "event":
            self.type = value
        elif name == "data":
            self.data += value + "\n"
        elif name == "id" and "\0" not in value:
            self.id = value
        elif name == "retry" and value and set(value) <= set("0123456789"):
            self.retry = self.reconnection_time = int(value)

    def dispatch(self) -> None:
        self.last_event_id = self.id
        if self.data:
            self.events.append(ServerSentEvent(self.data[:-1], self.type or "message", self.id, self.retry))
        self.data = self.type = ""
        self.retry = None


def decode(stream: bytes) -> str:
    """The Encoding Standard's UTF-8 decoder, one byte at a time."""
    text: list[str] = []
    point = needed = 0
    lower, upper = 0x80, 0xBF
    for byte in stream:
        if needed and lower <= byte <= upper:
            lower, upper = 0x80, 0xBF
            point, needed = point << 6 | byte & 0x3F, needed - 1
            if not needed:
                text.append(chr(point))
            continue
        if needed:
            text.append("\ufffd")
        needed = 0 if byte < 0xC2 or byte > 0xF4 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        point = byte & (0x3F >> needed)
        lower = {0xE0: 0xA0, 0xF0: 0x90}.get(byte, 0x80)
        upper = {0xED: 0x9F, 0xF4: 0x8F}.get(byte, 0xBF)
        if not needed:
            text.append(chr(byte) if byte < 0x80 else "\ufffd")
    return "".join(text) + ("\ufffd" if needed else "")


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vectors_pass_with_any_chunks(vector: dict[str, Any]) -> None:
    given_chunks = [base64.b64decode(chunk) for chunk in vector["chunks"]]
    stream = b"".join(given_chunks)
    for chunks in (given_chunks, [stream], bytewise(stream)):
        parser = SSEParser()
        found = [
            {"data": event.data, "event": event.type, "id": event.id, "retry": event.retry}
            for event in read(chunks, parser)
        ]
        assert found == vector["expected"]
        assert parser.last_event_id == vector["final"]["last_event_id"]
        assert parser.reconnection_time == vector["final"]["reconnection_time"]


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=8))
def test_any_chunking_gives_the_standard_result(stream: bytes, places: list[int]) -> None:
    standard = Standard(stream)
    whole = outcome([stream])
    assert whole[:3] == (standard.events, standard.last_event_id, standard.reconnection_time)
    assert outcome(cut(stream, places)) == whole
    assert outcome(bytewise(stream)) == whole


@given(st.lists(st.sampled_from([b"data: x\n\n", b"event: e\ndata: y\n\n", b"id: 1\ndata: z\n\n", b"data:w\n\n"])))
def test_the_chunking_does_not_change_the_events(blocks: list[bytes]) -> None:
    assert outcome(blocks) == outcome([b"".join(blocks)])


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_arbitrary_bytes_raise_nothing(chunks: list[bytes]) -> None:
    assert outcome(chunks) == outcome([b"".join(chunks)])


@given(STREAMS, st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 12), st.integers(1, 12))
def test_the_limits_do_not_depend_on_the_chunks(
    stream: bytes, places: list[int], max_line: int, max_event: int
) -> None:
    def limited(chunks: list[bytes]) -> tuple[list[ServerSentEvent], str, str]:
        parser = SSEParser(max_line=max_line, max_event=max_event)
        events: list[ServerSentEvent] = []
        try:
            for chunk in chunks:
                events += parser.feed(chunk)
            parser.close()
        except CallError as error:
            return events, error.message, parser.last_event_id
        return events, "", parser.last_event_id

    whole = limited([stream])
    assert limited(cut(stream, places)) == whole
    assert limited(bytewise(stream)) == whole
    assert all(len(event.data) <= max_event for event in whole[0])


@given(
    st.lists(st.sampled_from([b"\xc3", b"\xe2", b"\xed", b"\xf0", b"\xf4", b"\x80", b"\x9f", b"\xa0", b"\xbf", b"x"]))
)
def test_invalid_utf8_is_replaced_as_the_encoding_standard_says(parts: list[bytes]) -> None:
    value = b"".join(parts)
    expected = decode(value)
    for chunks in ([b"data: " + value + b"\n\n"], bytewise(b"data: " + value + b"\n\n")):
        assert [event.data for event in read(chunks)] == [expected]


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\r"])
def test_long_lines_in_large_chunks(separator: bytes) -> None:
    data = [letter * 5000 for letter in "abcé"]
    stream = b"".join(b"data: " + text.encode() + separator * 2 for text in data)
    for size in (len(stream), 7000, 4096, 100):
        chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [event.data for event in read(chunks)] == data


def test_events_are_frozen_values() -> None:
    event = ServerSentEvent("x")
    assert event == ServerSentEvent(data="x", type="message", id="", retry=None)
    with pytest.raises(AttributeError):
        event.data = "y"  # type: ignore[misc]
    assert msgspec.to_builtins(event) == {"data": "x", "type": "message", "id": "", "retry": None}


def test_an_event_is_dispatched_by_the_cr_that_ends_its_block() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: x\r\n\r") == [ServerSentEvent("x")]
    assert parser.feed(b"\ndata: y\n\n") == [ServerSentEvent("y")]


def test_retry_applies_from_its_line_on() -> None:
    parser = SSEParser()
    parser.feed(b"retry: 70\n")
    assert parser.reconnection_time == 70
    parser.close()
    assert parser.reconnection_time == 70


@pytest.mark.parametrize("field", [b"id: a\0b", b"retry: +5", b"retry", b"retry: " + b"9" * 5000])
def test_ignored_values_are_counted(field: bytes) -> None:
    parser = SSEParser()
    assert parser.feed(field + b"\ndata: x\n\n") == [ServerSentEvent("x")]
    assert parser.skipped == 1
    assert parser.reconnection_time is None


def test_retry_may_have_any_number_of_leading_zeros() -> None:
    assert read([b"retry: " + b"0" * 5000 + b"7\ndata: x\n\n"]) == [ServerSentEvent("x", retry=7)]


def test_an_earlier_last_event_id_is_kept() -> None:
    parser = SSEParser()
    parser.last_event_id = "41"
    assert parser.feed(b"data: x\n\nid: 42\n\ndata: y\n\n") == [
        ServerSentEvent("x", id="41"),
        ServerSentEvent("y", id="42"),
    ]


def test_a_closed_parser_reads_another_stream() -> None:
    parser = SSEParser()
    parser.feed(b"id: 1\ndata: a\n\nid: 2\nretry: 5\nevent: lost\ndata: lo")
    parser.close()
    assert (parser.last_event_id, parser.reconnection_time) == ("1", 5)
    assert parser.feed(b"\xef\xbb\xbfdata: b\n\n") == [ServerSentEvent("b", id="1")]


class TestLimits:
    def test_a_line_may_have_its_limit_and_no_more(self) -> None:
        for chunks in ([b"data: 456\n\n"], bytewise(b"data: 456\n\n")):
            assert read(chunks, SSEParser(max_line=9)) == [ServerSentEvent("456")]
            with pytest.raises(CallError, match="exceeds 8 bytes") as raised:
                read(chunks, SSEParser(max_line=8))
            assert raised.value.code is ErrorCode.EXECUTION_ERROR

    @pytest.mark.parametrize("stream", [b"data: 12345\n\n", b"data: 12\ndata: 45\n\n", b"data: \xc3\xa9\xc3\xa9x\n\n"])
    def test_an_event_may_have_its_limit_and_no_more(self, stream: bytes) -> None:
        for chunks in ([stream], bytewise(stream)):
            assert len(read(chunks, SSEParser(max_event=5))) == 1
            with pytest.raises(CallError, match="exceeds 4 bytes"):
                read(chunks, SSEParser(max_event=4))

    def test_comments_and_unknown_fields_are_ignored(self) -> None:
        parser = SSEParser(max_event=10)
        for _ in range(100):
            assert parser.feed(b": keep-alive\nunknown: field\n") == []
        assert parser.feed(b"data: x\n\n") == [ServerSentEvent("x")]

    def test_events_before_the_excess_are_returned_first(self) -> None:
        parser = SSEParser(max_line=20)
        assert parser.feed(b"data: a\n\ndata: " + b"x" * 20) == [ServerSentEvent("a")]
        with pytest.raises(CallError):
            parser.feed(b"data: b\n\n")
        with pytest.raises(CallError):
            parser.feed(b"data: c\n\n")
        parser.close()
        assert parser.feed(b"data: d\n\n") == [ServerSentEvent("d")]

    def test_an_error_that_was_not_raised_yet_is_raised_by_close(self) -> None:
        parser = SSEParser(max_line=20)
        parser.feed(b"data: a\n\ndata: " + b"x" * 20)
        with pytest.raises(CallError):
            parser.close()
        parser.close()

    def test_an_id_is_not_committed_by_an_event_that_is_too_large(self) -> None:
        parser = SSEParser(max_event=5)
        with pytest.raises(CallError):
            parser.feed(b"id: 1\ndata: abc\ndata: def\n\n")
        assert parser.last_event_id == ""

    @pytest.mark.parametrize("chunk", [b"x" * 10_000, b"data: " + b"x" * 50 + b"\n", b"data\n"])
    def test_memory_stays_bounded(self, chunk: bytes) -> None:
        parser = SSEParser(max_line=50_000, max_event=50_000)
        chunks = [chunk] * 60_000
        tracemalloc.start()
        try:
            with pytest.raises(CallError):
                read(chunks, parser)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 500_000

    def test_a_long_line_may_arrive_byte_by_byte(self) -> None:
        assert read(bytewise(b"data: " + b"x" * 200_000 + b"\n\n")) == [ServerSentEvent("x" * 200_000)]
