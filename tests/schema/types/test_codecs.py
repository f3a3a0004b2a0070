"""codec_for: values from JSON-like data and back, for types of any library."""

import collections
import collections.abc as abc
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import annotated_types as at
import msgspec
import pydantic
import pytest
import typing_extensions as te
from hypothesis import given
from hypothesis import strategies as st

from operations.errors import CallError, ErrorCode
from operations.schema import UNKNOWN, codec_for

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    HALF = 0.5


class Side(enum.Flag):
    LEFT = 1
    RIGHT = 2


class Permission(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("must be positive")
        if self.value == 13:
            raise LookupError("unlucky")


class Struct(msgspec.Struct, rename="camel"):
    first_name: str
    points: list[Point] = []
    colour: Colour = Colour.RED


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    name: str


class User(TypedDict):
    name: str
    born: te.NotRequired[datetime.date]


class Pair(NamedTuple):
    left: int
    right: datetime.date | None = None


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field("0", alias="zip")


class Person(pydantic.BaseModel):
    name: str
    address: Address | None = None
    born: datetime.date | None = None

    @pydantic.field_validator("name")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value:
            raise ValueError("a person has a name")
        return value


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: datetime.datetime
    colour: Colour


class Picture(pydantic.BaseModel):
    data: bytes
    others: list[bytes | None] = []
    either: bytes | str = ""


@pydantic.dataclasses.dataclass
class Order:
    id: int
    when: datetime.date


@dataclasses.dataclass
class Holder:
    person: Person
    pets: list[Cat | Dog]
    either: Person | int = 0
    where: pathlib.Path = pathlib.Path()


class Crate(msgspec.Struct, rename="camel", tag=True):
    main_person: Person
    either: Person | Point | None = None


class Report(pydantic.BaseModel):
    point: Point
    points: list[Point] = []


class Mixed(TypedDict):
    person: Person
    cat: te.NotRequired[Cat]


class Row(msgspec.Struct, array_like=True, tag="row"):
    person: Person
    count: int = 0


class PairOfModels(NamedTuple):
    person: Person
    number: int = 3


@dataclasses.dataclass
class Derived:
    given: int
    seed: dataclasses.InitVar[int]
    made: int = dataclasses.field(init=False)

    def __post_init__(self, seed: int) -> None:
        self.made = self.given + seed


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@dataclasses.dataclass
class Node:
    value: int
    children: list["Node"] = dataclasses.field(default_factory=list)
    person: Person | None = None


@dataclasses.dataclass
class A:
    shared: int


@dataclasses.dataclass
class B:
    shared: int
    own: str


class UserId(str):
    __slots__ = ()


Json = te.TypeAliasType("Json", "dict[str, Json] | list[Json] | datetime.date | None")

NOON = datetime.datetime(2020, 1, 2, 12, tzinfo=datetime.UTC)
DAY = datetime.date(2020, 1, 2)
ID = uuid.UUID(int=7)
ANN = Person(name="Ann", address=Address(street="s", zip="1"))
ANN_DATA = {"name": "Ann", "address": {"street": "s", "zip": "1"}, "born": None}

CASES: list[tuple[Any, Any, Any]] = [
    (int, 1, 1),
    (float, 1.5, 1.5),
    (bytes, b"\xff", b"\xff"),
    (datetime.datetime, NOON, "2020-01-02T12:00:00Z"),
    (datetime.date, DAY, "2020-01-02"),
    (datetime.time, datetime.time(1, 2), "01:02:00"),
    (datetime.timedelta, datetime.timedelta(hours=1), "PT3600S"),
    (uuid.UUID, ID, str(ID)),
    (decimal.Decimal, decimal.Decimal("1.50"), "1.50"),
    (pathlib.Path, pathlib.Path("a/b"), "a/b"),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4"), "1.2.3.4"),
    (Colour, Colour.GREEN, "green"),
    (Level, Level.HIGH, 2),
    (Odd, Odd.PAIR, [1, 2]),
    (Odd, Odd.HALF, 0.5),
    (Permission, Permission.READ | Permission.WRITE, 3),
    (Side, Side.LEFT | Side.RIGHT, 3),
    (Side, Side(0), 0),
    (Literal["a", 1], 1, 1),
    (list[datetime.date], [DAY], ["2020-01-02"]),
    (set[int], {1}, [1]),
    (frozenset[Colour], frozenset({Colour.RED}), ["red"]),
    (tuple[int, ...], (1, 2), [1, 2]),
    (tuple[int, datetime.date], (1, DAY), [1, "2020-01-02"]),
    (abc.Sequence[datetime.date], [DAY], ["2020-01-02"]),
    (abc.Iterable[datetime.date], [DAY], ["2020-01-02"]),
    (abc.Set[int], {1}, [1]),
    (collections.deque[int], collections.deque([1]), [1]),
    (dict[str, datetime.date], {"a": DAY}, {"a": "2020-01-02"}),
    (dict[int, int], {1: 2}, {"1": 2}),
    (dict[Colour, Point], {Colour.RED: Point(1)}, {"red": {"x": 1, "y": 0.0}}),
    (dict[datetime.date, Person], {DAY: ANN}, {"2020-01-02": ANN_DATA}),
    (abc.Mapping[str, Point], {"a": Point(1)}, {"a": {"x": 1, "y": 0.0}}),
    (datetime.date | None, None, None),
    (datetime.date | None, DAY, "2020-01-02"),
    (datetime.date | int, DAY, "2020-01-02"),
    (datetime.date | str, "hello", "hello"),
    (datetime.date | str, DAY, "2020-01-02"),
    (bytes | str, "aGVs", "aGVs"),
    (bytes | str, b"a", b"a"),
    (Annotated[datetime.date, "a day"], DAY, "2020-01-02"),
    (Annotated[int, at.Ge(1), {"unhashable": 1}], 3, 3),
    (NewType("Day", datetime.date), DAY, "2020-01-02"),
    (UserId, UserId("u"), "u"),
    (Json, {"a": [DAY, {"b": None}]}, {"a": ["2020-01-02", {"b": None}]}),
    (Point, Point(1, 2.5), {"x": 1, "y": 2.5}),
    (Struct, Struct("a", [Point(1)], Colour.GREEN), {
        "firstName": "a", "points": [{"x": 1, "y": 0.0}], "colour": "green",
    }),
    (Cat | Dog, Dog("d"), {"type": "dog", "name": "d"}),
    (list[Cat | Dog | None], [Dog("d"), None], [{"type": "dog", "name": "d"}, None]),
    (User, {"name": "a", "born": DAY}, {"name": "a", "born": "2020-01-02"}),
    (Pair, Pair(1, DAY), [1, "2020-01-02"]),
    (Person, ANN, ANN_DATA),
    (list[Person], [ANN], [ANN_DATA]),
    (Person | None, None, None),
    (list[Person | int], [ANN, 3], [ANN_DATA, 3]),
    (Person | Cat, Cat("c"), {"type": "cat", "name": "c"}),
    (Person | Cat, ANN, ANN_DATA),
    (dict[str, Person | Point], {"a": Point(1)}, {"a": {"x": 1, "y": 0.0}}),
    (Strict, Strict(when=NOON, colour=Colour.RED), {"when": "2020-01-02T12:00:00Z", "colour": "red"}),
    (Picture, Picture(data=b"\xff", others=[b"\xfe", None], either="e"), {
        "data": b"\xff", "others": [b"\xfe", None], "either": "e",
    }),
    (Order, Order(1, DAY), {"id": 1, "when": "2020-01-02"}),
    (Report, Report(point=Point(1)), {"point": {"x": 1, "y": 0.0}, "points": []}),
    (Holder, Holder(ANN, [Cat("c")], ANN, pathlib.Path("p")), {
        "person": ANN_DATA, "pets": [{"type": "cat", "name": "c"}], "either": ANN_DATA, "where": "p",
    }),
    (Crate, Crate(ANN, Point(1)), {"type": "Crate", "mainPerson": ANN_DATA, "either": {"x": 1, "y": 0.0}}),
    (dict[str, Crate], {"c": Crate(ANN)}, {"c": {"type": "Crate", "mainPerson": ANN_DATA, "either": None}}),
    (Mixed, {"person": ANN, "cat": Cat("c")}, {"person": ANN_DATA, "cat": {"type": "cat", "name": "c"}}),
    (Row, Row(ANN, 2), ["row", ANN_DATA, 2]),
    (PairOfModels, PairOfModels(ANN), [ANN_DATA, 3]),
    (tuple[Person, Cat], (ANN, Cat("c")), [ANN_DATA, {"type": "cat", "name": "c"}]),
    (set[Cat | int] | None, None, None),
    (Box[datetime.date], Box(DAY), {"content": "2020-01-02"}),
    (Box[Person | Cat], Box(Cat("c")), {"content": {"type": "cat", "name": "c"}}),
    (Node, Node(1, [Node(2, [], ANN)]), {
        "value": 1, "children": [{"value": 2, "children": [], "person": ANN_DATA}], "person": None,
    }),
    (A | B, B(1, "x"), {"shared": 1, "own": "x"}),
    (A | B, A(1), {"shared": 1}),
    (list[A | B | int], [B(1, "x"), 2], [{"shared": 1, "own": "x"}, 2]),
]  # fmt: skip


def dumped(codec: Any, value: Any) -> Any:
    return value if codec.dump is None else codec.dump(value)


def loaded(codec: Any, data: Any) -> Any:
    return data if codec.load is None else codec.load(data)


@pytest.mark.parametrize(("tp", "value", "data"), CASES)
def test_both_ways(tp: Any, value: Any, data: Any) -> None:
    codec = codec_for(tp)
    assert dumped(codec, value) == data
    back = loaded(codec, data)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("tp", "value", "data"), [case for case in CASES if b"\xff" not in str(case).encode()])
def test_dumped_values_match_the_schema(tp: Any, value: Any, data: Any) -> None:
    if "b'" not in str(data):
        assert codec_for(tp).schema.check(data)
        assert codec_for(tp, mode="input").schema.check(data)


@pytest.mark.parametrize(
    "tp", [str, bool, None, Any, list[str], dict[str, str], dict[str, list[bool]], str | None, Literal["a"], list[Any]]
)
def test_types_that_need_no_loading(tp: Any) -> None:
    assert codec_for(tp).load is None


@pytest.mark.parametrize(
    "tp", [str, int, float, bool, None, bytes, list[str], dict[str, int], list[int | None], Literal["a", 1]]
)
def test_types_that_need_no_dumping(tp: Any) -> None:
    assert codec_for(tp).dump is None


@pytest.mark.parametrize("tp", [Any, list[Any], dict[str, object], abc.Sequence[str], list, dict])
def test_values_of_any_type_may_need_dumping(tp: Any) -> None:
    dump = codec_for(tp).dump
    assert dump is not None
    assert dump([(1,), Point(1)]) == [[1], {"x": 1, "y": 0.0}]


@pytest.mark.parametrize(
    ("tp", "data", "expected"),
    [
        (int, 1.0, 1),
        (float, 1, 1.0),
        (list[int], [1.0, 2], [1, 2]),
        (dict[str, int], {"a": 1.0}, {"a": 1}),
        (int | None, 1.0, 1),
        (int | str, 1.0, 1),
        (Point, {"x": 1.0, "y": 2}, Point(1, 2.0)),
        (list[Point], [{"x": 1.0}], [Point(1)]),
        (Level, 1.0, Level.LOW),
        (list[Level], [2.0], [Level.HIGH]),
        (list[Literal[1, 2]], [1.0], [1]),
        (dict[int, int], {"1": 2.0}, {1: 2}),
        (bytes, "aGVs", b"hel"),
        (bytearray, "aGVs", bytearray(b"hel")),
        (list[bytes], ["aGVs", b"x"], [b"hel", b"x"]),
        (Picture, {"data": "aGVs", "others": ["aGVs", None]}, Picture(data=b"hel", others=[b"hel", None])),
        (Picture, {"data": "aGVs", "either": "aGVs"}, Picture(data=b"hel", either="aGVs")),
        (Holder, {"person": {"name": "A"}, "pets": [], "either": 2.0}, Holder(Person(name="A"), [], 2)),
        (Derived, {"given": 1, "seed": 2}, Derived(1, 2)),
        (Box, {"content": [1]}, Box([1])),
        (User, {"name": "a", "more": 1}, {"name": "a"}),
        (Mixed, {"person": {"name": "A"}, "more": 1}, {"person": Person(name="A")}),
    ],
)
def test_values_with_another_json_form_are_loaded(tp: Any, data: Any, expected: Any) -> None:
    result = loaded(codec_for(tp), data)
    assert result == expected
    assert repr(result) == repr(expected)


@pytest.mark.parametrize(
    ("tp", "data", "paths"),
    [
        (int, 1.5, [""]),
        (int, "1", [""]),
        (float, True, [""]),
        (datetime.date, "soon", [""]),
        (list[datetime.date], ["2020-01-02", "soon"], ["/1"]),
        (dict[str, list[datetime.date]], {"a/b": ["soon"]}, ["/a~1b/0"]),
        (dict[int, int], {"x": 1}, ["/x"]),
        (Struct, {"firstName": "a", "points": [{"x": 1}, {"x": "1"}]}, ["/points/1/x"]),
        (Struct, {"points": []}, ["/firstName"]),
        (list[Struct], [{"firstName": 1, "colour": "pink"}], ["/0/firstName", "/0/colour"]),
        (dict[str, Positive], {"a": {"value": -1}}, ["/a"]),
        (list[Positive], [{"value": 13}], ["/0"]),
        (Cat | Dog, {"type": "cow", "name": "c"}, ["/type"]),
        (tuple[int, int], [1], [""]),
        (tuple[int, int], [1, "x"], ["/1"]),
        (Person, {"name": ""}, ["/name"]),
        (Person, {"name": "a", "address": {"zip": 1}}, ["/address/street", "/address/zip"]),
        (list[Person | int], [{"name": ""}], ["/0/name", "/0"]),
        (Holder, {"person": {"name": ""}, "pets": [{"type": "cat"}]}, ["/person/name", "/pets/0/name"]),
        (dict[str, Crate], {"a": {"type": "Crate", "mainPerson": {}}}, ["/a/mainPerson/name"]),
        (dict[str, Crate], {"a": {"type": "Other", "mainPerson": {"name": "a"}}}, ["/a/type"]),
        (Mixed, {"cat": {"name": 1}}, ["/person", "/cat/name"]),
        (Colour, "pink", [""]),
        (Literal["a"], "b", None),
        (Picture, {"data": "&&&"}, ["/data"]),
        (
            Node,
            {"value": 1, "children": [{"value": 1, "children": [{"value": None}]}]},
            ["/children/0/children/0/value"],
        ),
        (set[Colour], ["pink"], ["/0"]),
        (list[Person], 3, [""]),
        (list[Cat], {}, [""]),
        (dict[str, Cat], [], [""]),
        (Point, [], [""]),
        (Pair, {"a": 1}, [""]),
        (ipaddress.IPv4Address, "1.2", [""]),
    ],
)
def test_errors_name_their_paths(tp: Any, data: Any, paths: list[str] | None) -> None:
    codec = codec_for(tp)
    if paths is None:
        assert codec.load is None  # the schema has said so before
        return
    with pytest.raises(CallError) as caught:
        loaded(codec, data)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert [error["path"] for error in caught.value.details["errors"]] == paths
    assert all(error["message"] for error in caught.value.details["errors"])


def test_the_message_of_a_validator_is_kept() -> None:
    with pytest.raises(CallError, match="/0/name: Value error, a person has a name"):
        loaded(codec_for(list[Person]), [{"name": ""}])
    with pytest.raises(CallError, match=r"/0: must be positive"):
        loaded(codec_for(list[Positive]), [{"value": -1}])


@dataclasses.dataclass
class Sold:
    count: int

    def __post_init__(self) -> None:
        if not self.count:
            raise CallError("SOLD_OUT", "nothing left")


def test_a_domain_error_of_a_constructor_passes() -> None:
    for tp in (Sold, list[Sold], Annotated[Sold | int, "x"]):
        with pytest.raises(CallError) as caught:
            loaded(codec_for(tp), [{"count": 0}] if tp == list[Sold] else {"count": 0})
        assert caught.value.code == "SOLD_OUT"


@dataclasses.dataclass
class Loose:
    name: str
    tags: list[str]


@pytest.mark.parametrize("tp", [Loose, list[Loose], Loose | None, dict[str, Loose]])
def test_results_that_differ_from_their_type_are_still_json(tp: Any) -> None:
    codec = codec_for(tp)
    assert dumped(codec, Loose("a", ("x",))) == {"name": "a", "tags": ["x"]}  # type: ignore[arg-type]
    assert dumped(codec, [Loose("a", ["x"]), {"b": b"\xff"}]) == [{"name": "a", "tags": ["x"]}, {"b": b"\xff"}]
    assert dumped(codec, (Loose("a", []),)) == [{"name": "a", "tags": []}]
    assert dumped(codec, []) == []
    assert dumped(codec, None) is None


def test_a_model_may_be_given_as_plain_data() -> None:
    for tp in (Person, Struct, Point, User):
        dump = codec_for(tp).dump
        assert dump is not None
        assert dump({"name": "x", "when": NOON}) == {"name": "x", "when": "2020-01-02T12:00:00Z"}


def test_results_may_be_of_a_subclass_or_another_class() -> None:
    class Teacher(Person):
        school: str

    dump = codec_for(Person).dump
    assert dump is not None
    assert dump(Teacher(name="T", school="S"))["name"] == "T"
    assert dump(Cat("c")) == {"type": "cat", "name": "c"}
    with pytest.raises(CallError, match="cannot be converted to JSON"):
        dump(object())


def test_dataclass_defaults_are_members_of_the_instance() -> None:
    point = loaded(codec_for(Point), {"x": 1})
    assert vars(point) == {"x": 1, "y": 0.0}
    assert dumped(codec_for(Point), point) == {"x": 1, "y": 0.0}


def test_codecs_are_kept_and_frozen() -> None:
    codec = codec_for(list[Point])
    assert codec_for(list[Point]) is codec
    assert codec_for(list[Point], mode="input") is not codec
    assert codec.type == list[Point]
    assert codec.schema is codec.schema
    with pytest.raises(AttributeError, match="frozen"):
        codec.load = None
    assert "list" in repr(codec)
    assert codec_for(Any).schema is UNKNOWN


def deep(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


class DeepModel(pydantic.BaseModel):
    a: "DeepModel | None" = None


class DeepStruct(msgspec.Struct):
    a: "DeepStruct | None" = None


@dataclasses.dataclass
class DeepData:
    a: "DeepData | None" = None


@pytest.mark.parametrize("tp", [DeepModel, DeepStruct, DeepData, Json, list[DeepStruct | DeepData]])
def test_data_nested_too_deeply_is_an_error_of_the_data(tp: Any) -> None:
    with pytest.raises(CallError) as caught:
        loaded(codec_for(tp), [deep(100_000)] if tp == list[DeepStruct | DeepData] else deep(100_000))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


class Unfinished(pydantic.BaseModel):
    part: "Missing"  # type: ignore[name-defined]  # noqa: F821


def test_an_unfinished_model_is_rejected() -> None:
    with pytest.raises(TypeError, match="undefined types"):
        codec_for(Unfinished)


class Encoded(pydantic.BaseModel):
    data: pydantic.Base64Bytes


def test_a_type_that_decodes_its_own_text_is_left_to_it() -> None:
    model = loaded(codec_for(Encoded), {"data": "aGVs"})
    assert model.data == b"hel"
    assert loaded(codec_for(Encoded), dumped(codec_for(Encoded), model)) == model


def test_the_order_of_a_union_counts() -> None:
    assert loaded(codec_for(list[datetime.date | str]), ["2020-01-02"]) == [DAY]
    assert loaded(codec_for(list[str | datetime.date]), ["2020-01-02"]) == ["2020-01-02"]


def test_equal_but_different_types_are_kept_apart() -> None:
    assert loaded(codec_for(Literal[1, 2]), 1) == 1
    assert codec_for(Literal[True]).schema.document == {"enum": [True]}
    assert codec_for(Literal[1]).schema.document == {"enum": [1]}


points = st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False))
structs = st.builds(Struct, st.text(), st.lists(points, max_size=3), st.sampled_from(Colour))
addresses = st.builds(Address, street=st.text(), zip=st.text())
people = st.builds(Person, name=st.text(min_size=1), address=st.none() | addresses, born=st.none() | st.dates())
pets = st.builds(Cat, st.text()) | st.builds(Dog, st.text())
holders = st.builds(Holder, people, st.lists(pets, max_size=3), people | st.integers(), st.just(pathlib.Path("a")))
nodes = st.recursive(
    st.builds(Node, st.integers()),
    lambda inner: st.builds(Node, st.integers(), st.lists(inner, max_size=3)),
    max_leaves=8,
)
crates = st.builds(Crate, people, st.none() | points | people)


STRATEGIES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Point, points),
    (Struct, structs),
    (Person, people),
    (Holder, holders),
    (Node, nodes),
    (Crate, crates),
    (dict[str, Crate], st.dictionaries(st.text(), crates, max_size=3)),
    (list[Person | Point | int], st.lists(people | points | st.integers(), max_size=3)),
    (tuple[datetime.datetime, uuid.UUID], st.tuples(st.datetimes(), st.uuids())),
    (set[datetime.date], st.sets(st.dates())),
]


@given(st.one_of([st.tuples(st.just(tp), strategy) for tp, strategy in STRATEGIES]))
def test_round_trips(case: tuple[Any, Any]) -> None:
    tp, value = case
    codec = codec_for(tp)
    data = dumped(codec, value)
    assert codec.schema.check(data)
    assert loaded(codec, data) == value


@pytest.mark.parametrize(
    ("tp", "message"),
    [
        (datetime.date, "is not a date (expected YYYY-MM-DD)"),
        (datetime.datetime, "is not a date-time (expected RFC 3339, such as 2026-01-31T09:30:00Z)"),
        (datetime.time, "is not a time (expected hh:mm:ss)"),
        (datetime.timedelta, "is not a duration (expected ISO 8601, such as PT90S)"),
        (uuid.UUID, "is not a UUID"),
    ],
)
def test_text_of_another_form_is_described_in_the_style_of_other_problems(tp: type, message: str) -> None:
    for annotation, value, path in ((tp, "soon", ""), (dict[str, list[tp]], {"days": ["soon"]}, "/days/0")):  # type: ignore[valid-type]
        load = codec_for(annotation).load
        assert load is not None
        with pytest.raises(CallError) as caught:
            load(value)
        assert caught.value.details["errors"] == [{"path": path, "message": message}]
