"""jsonable: any Python value as JSON-like data, or one error."""

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import math
import pathlib
import types
import uuid
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.schema import jsonable


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Pair(NamedTuple):
    left: int
    right: Any


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


class Struct(msgspec.Struct, rename="camel", tag="s"):
    first_name: str
    any_value: Any = msgspec.UNSET


class Model(pydantic.BaseModel):
    first_name: str = pydantic.Field(alias="firstName")
    data: bytes = b""
    extra: Any = None
    when: datetime.datetime | None = None
    secret: pydantic.SecretStr = pydantic.SecretStr("s")
    site: pydantic.AnyUrl | None = None


class Small(pydantic.BaseModel):
    a: int
    when: datetime.date = datetime.date(2020, 1, 1)


@pydantic.dataclasses.dataclass
class PydanticPoint:
    x: int


NOON = datetime.datetime(2020, 1, 2, 12, tzinfo=datetime.UTC)
ID = uuid.UUID(int=7)


@pytest.mark.parametrize("value", ["a", 1, 1.5, True, None, b"\xff", math.inf])
def test_scalars_are_returned_as_they_are(value: Any) -> None:
    assert jsonable(value) is value


@pytest.mark.parametrize("value", [[], {}, [1, [2, {"a": b"x"}]], {"a": {"b": [None, True, 1.5]}}])
def test_json_shaped_containers_are_returned_as_they_are(value: Any) -> None:
    assert jsonable(value) is value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({"a": [(1,), {2}]}, {"a": [[1], [2]]}),
        (frozenset({1}), [1]),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ([bytearray(b"x"), memoryview(b"y"), b"z"], [b"x", b"y", b"z"]),
        (NOON, "2020-01-02T12:00:00Z"),
        (NOON.date(), "2020-01-02"),
        (NOON.time(), "12:00:00"),
        (datetime.timedelta(seconds=5), "PT5S"),
        (ID, str(ID)),
        (decimal.Decimal("1.50"), "1.50"),
        (Colour.RED, "red"),
        ([Colour.PAIR], [[1, 2]]),
        (Text("t"), "t"),
        ([Number(3), Text("t")], [3, "t"]),
        (collections.deque([1, (2,)]), [1, [2]]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.keys(), ["a"]),
        (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (ipaddress.ip_address("::1"), "::1"),
        (Pair(1, (2,)), [1, [2]]),
        (Point(1, Point(2)), {"x": 1, "y": {"x": 2, "y": None}}),
        (Struct("a"), {"type": "s", "firstName": "a"}),
        (Struct("a", (1, b"\xff")), {"type": "s", "firstName": "a", "anyValue": [1, b"\xff"]}),
        ({1: 1}, {"1": 1}),
        ({True: 1}, {"true": 1}),
        ({1.5: 1}, {"1.5": 1}),
        ({None: 1}, {"null": 1}),
        ({Colour.RED: 1}, {"red": 1}),
        ({ID: 1, NOON.date(): 2}, {str(ID): 1, "2020-01-02": 2}),
        ({Text("k"): Text("v")}, {"k": "v"}),
        (Small(a=1), {"a": 1, "when": "2020-01-01"}),
        ([Small(a=1), {"m": Small(a=2)}], [{"a": 1, "when": "2020-01-01"}, {"m": {"a": 2, "when": "2020-01-01"}}]),
        (Point(1, Small(a=1)), {"x": 1, "y": {"a": 1, "when": "2020-01-01"}}),
        (PydanticPoint(1), {"x": 1}),
        ([PydanticPoint(1)], [{"x": 1}]),
        (pydantic.SecretStr("s"), "**********"),
        ([pydantic.AnyUrl("https://a.b/c")], ["https://a.b/c"]),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    assert jsonable(value) == expected
    assert jsonable([value]) == [expected]
    assert type(jsonable(value)) is type(expected)


def test_pydantic_keeps_bytes_and_writes_the_rest_as_text() -> None:
    model = Model(firstName="a", data=b"\xff", extra={"t": (1, b"\xfe")}, when=NOON, site="https://a.b")  # type: ignore[arg-type]
    assert jsonable({"m": model}) == {
        "m": {
            "firstName": "a",
            "data": b"\xff",
            "extra": {"t": [1, b"\xfe"]},
            "when": "2020-01-02T12:00:00Z",
            "secret": "**********",
            "site": "https://a.b/",
        }
    }


def test_the_value_is_never_changed() -> None:
    inner = [(1, 2)]
    value = {"a": inner}
    jsonable(value)
    assert value == {"a": [(1, 2)]}
    assert value["a"] is inner


class Opaque:
    pass


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


@dataclasses.dataclass
class Evil:
    x: int

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


class EvilMapping(collections.abc.Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("no item")

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


class Silent(collections.abc.Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise SilentError

    def __iter__(self) -> Any:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Opaque(), "(the value itself)"),
        ([1, Opaque()], "/1"),
        ({"a": {"b": [Opaque()]}}, "/a/b/0"),
        ({"a/b": {"~": Opaque()}}, "/a~1b/~0"),
        (Point(1, [Opaque()]), "/y/0"),
        (Struct("a", {"k": Opaque()}), "/anyValue/k"),
        ({"a": {(1, 2): 3}}, "/a"),
        ([Opaque], "/0"),
        ([Hostile()], "/0"),
        ([Evil(1)], "/0"),
        ([EvilMapping()], "/0"),
        ([Silent()], "/0"),
        ([(n for n in "ab")], "/0"),
        ([ValueError("x")], "/0"),
        ([1j], "/0"),
        (Model(firstName="a", extra={"deep": [Opaque()]}), "/extra/deep/0"),
    ],
)
def test_conversion_errors_name_the_path(value: Any, place: str) -> None:
    with pytest.raises(CallError) as caught:
        jsonable(value)
    assert caught.value.code is ErrorCode.EXECUTION_ERROR
    assert f"at {place}: " in caught.value.message
    assert "cannot be converted to JSON" in caught.value.message


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: Point(1, v)])
def test_too_deep(wrap: Any) -> None:
    assert jsonable(nested(200, wrap)) is not None
    with pytest.raises(CallError, match="nested deeper than") as caught:
        jsonable(nested(5000, wrap))
    assert caught.value.code is ErrorCode.EXECUTION_ERROR


def test_circular() -> None:
    row: list[Any] = []
    row.extend([row, row])
    table: dict[str, Any] = {}
    table["a"] = table
    for value in (row, table):
        with pytest.raises(CallError, match="is circular"):
            jsonable(value)
    point = Point(1)
    point.y = [point]
    with pytest.raises(CallError, match="is circular"):
        jsonable(point)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
values = st.recursive(
    scalars | st.datetimes() | st.dates() | st.uuids() | st.decimals(allow_nan=False) | st.sampled_from(Colour),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(json_values)
def test_json_values_come_back_unchanged(value: Any) -> None:
    assert jsonable(value) == value


def is_json(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    if type(value) is list:
        return all(is_json(item) for item in value)
    return value is None or type(value) in (str, int, float, bool, bytes)


@given(values)
def test_everything_becomes_json(value: Any) -> None:
    data = jsonable(value)
    assert is_json(data)
    assert jsonable(data) is data
