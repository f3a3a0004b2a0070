import datetime
import decimal
import enum
import math
import uuid
from collections import OrderedDict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import CallError, ErrorCode
from operations.wire import decode_json, decode_msgpack, encode_json, encode_msgpack, portable
from tests.strategies import json_values


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def same(left: Any, right: Any) -> bool:
    """Equality that distinguishes 1, 1.0 and True."""
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return type(left) is type(right) and left == right


@given(json_values)
def test_json_round_trips(value: Any) -> None:
    assert same(decode_json(encode_json(value)), value)


@given(json_values)
def test_json_as_text_reads_like_json_as_bytes(value: Any) -> None:
    assert same(decode_json(encode_json(value).decode()), value)


@given(json_values)
def test_msgpack_round_trips(value: Any) -> None:
    assert same(decode_msgpack(encode_msgpack(value)), value)


def test_bytes_are_marked_in_json() -> None:
    assert encode_json({"a": b"\x00\xff"}) == b'{"a":{"$bytes":"AP8="}}'


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_every_kind_of_bytes_arrives_as_bytes(kind: Any) -> None:
    assert decode_json(encode_json([kind(b"ab")])) == [b"ab"]


def test_a_real_mapping_with_the_markers_key_is_escaped() -> None:
    assert encode_json({"$bytes": "AA=="}) == b'{"$$bytes":"AA=="}'
    assert decode_json(b'{"$$bytes":"AA=="}') == {"$bytes": "AA=="}
    assert encode_json({"$bytes": "AA==", "other": 1}) == b'{"$bytes":"AA==","other":1}'


@pytest.mark.parametrize("text", [b'{"$bytes":"not base64!"}', b'{"$bytes":5}', b'{"$bytes":null}'])
def test_a_mapping_that_only_looks_marked_is_kept(text: bytes) -> None:
    assert list(decode_json(text)) == ["$bytes"]


def test_a_marker_with_an_escaped_dollar_is_read() -> None:
    assert decode_json(b'{"\\u0024bytes":"AP8="}') == b"\x00\xff"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_without_a_json_form_is_rejected_with_its_path(number: float) -> None:
    with pytest.raises(CallError, match="/rows/1/x~1y") as caught:
        encode_json({"rows": [0, {"x/y": number}]})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert decode_msgpack(encode_msgpack([math.inf])) == [math.inf]


@pytest.mark.parametrize("value", [{1: "a"}, {None: 1}, object(), {"a": {1, 2}}, {"a": nested(100_000)}, "\ud800"])
def test_values_that_json_cannot_encode_raise_a_validation_error(value: Any) -> None:
    with pytest.raises(CallError) as caught:
        encode_json(value)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("value", [object(), nested(100_000), "\ud800", {"a": object(), "b": 2**99}])
def test_values_that_msgpack_cannot_encode_raise_a_validation_error(value: Any) -> None:
    with pytest.raises(CallError) as caught:
        encode_msgpack(value)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a":}', b"\xff\xfe", b"[" * 100_000, b"NaN", b'"\xc3("', b"1" * 5_000, "nonsense"]
)
def test_malformed_json_is_one_clear_error(text: bytes | str) -> None:
    with pytest.raises(CallError, match="malformed JSON") as caught:
        decode_json(text)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x91" * 100_000, b"\xc7\x01\x05\x00"])
def test_malformed_msgpack_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(CallError, match="malformed MessagePack"):
        decode_msgpack(data)


def test_subclasses_are_encoded_as_their_base_type() -> None:
    from collections import OrderedDict
    from enum import IntEnum, StrEnum

    class Colour(StrEnum):
        RED = "red"

    class Level(IntEnum):
        HIGH = 3

    assert decode_json(encode_json(OrderedDict(a=Colour.RED, b=[Level.HIGH, (1, 2)]))) == {"a": "red", "b": [3, [1, 2]]}


class _Text(str):
    __slots__ = ()


class _Float(float):
    pass


class _Colour(enum.IntEnum):
    RED = 1


_odd = st.sampled_from(
    [
        _Text("text"),
        _Float(1.5),
        _Colour.RED,
        OrderedDict(a=1),
        (1, "two"),
        bytearray(b"b"),
        math.nan,
        math.inf,
        {1: 2},
        {_Text("key"): 1},
        {1, 2},
        deque([1]),
        decimal.Decimal("1.5"),
        uuid.UUID(int=1),
        datetime.date(2026, 1, 1),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.timedelta(1),
        object,
        1j,
        "\ud800",
    ]
)
_odd_values: st.SearchStrategy[Any] = st.recursive(
    _odd | json_values,
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text("ab$/~", max_size=2), children, max_size=3)
    ),
    max_leaves=6,
)


@given(_odd_values)
def test_the_sendable_values_do_not_depend_on_the_format(value: Any) -> None:
    def outcome(write: Any, read: Any) -> Any:
        try:
            return read(write(value))
        except CallError as error:
            return error.code, error.message, error.details

    packed = outcome(lambda value: encode_msgpack(portable(value)), decode_msgpack)
    assert packed == outcome(encode_json, decode_json)


def test_portable_values_are_not_copied() -> None:
    nested = {"a": 1.5, "b": [{"c": 2.0, "d": (1, 2.5)}, []]}
    for value in ({"a": 1, "b": b"b", "c": None}, [1, "two", b"3"], "text", 2**70, b"b", {}, 1.5, nested):
        assert portable(value) is value


@pytest.mark.parametrize("value", [[1.0, math.nan], {"a": {"b": math.inf}}, {"a": [{1: 2.0}]}, [{"a": object()}]])
def test_nested_values_that_cannot_be_sent_are_found(value: Any) -> None:
    with pytest.raises(CallError):
        portable(value)
    with pytest.raises(CallError):
        encode_json(value)
