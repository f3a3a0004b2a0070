"""from_type: the JSON Schema of each kind of Python type."""

import collections
import collections.abc as abc
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import subprocess
import sys
import typing
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union

import annotated_types as at
import msgspec
import pydantic
import pytest
import typing_extensions as te

from operations.schema import UNKNOWN, from_type
from operations.schema.types import codec_for

T = TypeVar("T")
K = TypeVar("K")

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
NULL = {"type": "null"}


def document(tp: Any, **options: Any) -> Any:
    return from_type(tp, **options).document


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(enum.IntEnum):
    HIGH = 3
    LOW = 1


class Odd(enum.Enum):
    PAIR = (1, 2)
    TEXT = "text"
    HALF = 0.5


class Permission(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    """A place on the plane.

    The rest of the docstring is for readers of the code.
    """

    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)


class User(TypedDict):
    name: str
    age: te.NotRequired[int]


class Partial(TypedDict, total=False):
    name: te.Required[str]
    age: int


class Extended(te.TypedDict):
    name: te.ReadOnly[str]
    age: te.NotRequired[te.ReadOnly[int]]


class Pair(NamedTuple):
    left: int
    right: str = "x"


class Shape(msgspec.Struct, tag=True):
    size: int


class Circle(Shape, tag="circle"):
    """A round one."""

    line_width: Annotated[float, msgspec.Meta(ge=0)] = 1.0


class Square(Shape, tag="square"):
    pass


class Strict(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    first_name: str
    last_name: str | msgspec.UnsetType = msgspec.UNSET


class Row(msgspec.Struct, array_like=True):
    a: int
    b: str = "b"


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field("0", alias="zip")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.street} {self.zip_code}"


class Person(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=1, description="how to call them")]
    address: Address | None = None


@pydantic.dataclasses.dataclass
class Order:
    id: int
    note: str = ""


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (int, INTEGER),
        (str, STRING),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, NULL),
        (type(None), NULL),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (bytearray, {"type": "string", "contentEncoding": "base64"}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (datetime.timedelta, {"type": "string", "format": "duration"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (decimal.Decimal, {"type": "string", "format": "decimal"}),
        (pathlib.Path, STRING),
        (pathlib.PurePosixPath, STRING),
        (ipaddress.IPv4Address, {"type": "string", "format": "ipv4"}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (tuple, {"type": "array"}),
        (set, {"type": "array", "uniqueItems": True}),
        (list[int], {"type": "array", "items": INTEGER}),
        (list[Any], {"type": "array"}),
        (set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (frozenset[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (abc.Sequence[int], {"type": "array", "items": INTEGER}),
        (typing.Sequence[int], {"type": "array", "items": INTEGER}),
        (abc.Iterable[int], {"type": "array", "items": INTEGER}),
        (collections.deque[int], {"type": "array", "items": INTEGER}),
        (abc.Set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": INTEGER}),
        (
            tuple[int, str],
            {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [INTEGER, STRING], "items": False},
        ),
        (tuple[()], {"type": "array", "minItems": 0, "maxItems": 0}),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (dict[str, Any], {"type": "object"}),
        (dict[int, str], {"type": "object", "additionalProperties": STRING}),
        (dict[Literal["a", "b"], int], {
            "type": "object", "additionalProperties": INTEGER, "propertyNames": {"enum": ["a", "b"]},
        }),
        (abc.Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Literal["b", "a", 1, None], {"enum": ["b", "a", 1, None]}),
        (Optional[int], {"anyOf": [INTEGER, NULL]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [INTEGER, STRING]}),  # noqa: UP007
        (int | str | None, {"anyOf": [INTEGER, STRING, NULL]}),
        (NewType("UserId", int), INTEGER),
        (typing.Never, {"not": {}}),
        (T, True),
        (typing.LiteralString, STRING),
    ],
)  # fmt: skip
def test_plain_types(tp: Any, expected: Any) -> None:
    assert document(tp) == expected
    assert document(tp, mode="input") == expected


@pytest.mark.parametrize("tp", [Any, object])
def test_a_schema_without_constraints_is_unknown(tp: Any) -> None:
    assert from_type(tp) is UNKNOWN


def test_no_annotation_is_unknown() -> None:
    import inspect

    assert from_type(inspect.Parameter.empty) is UNKNOWN
    assert from_type(inspect.Signature.empty) is UNKNOWN


def test_a_union_with_anything_is_unknown() -> None:
    assert from_type(int | Any) is UNKNOWN


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (Annotated[int, msgspec.Meta(gt=1, le=9)], {**INTEGER, "exclusiveMinimum": 1, "maximum": 9}),
        (Annotated[int, at.Gt(1)], {**INTEGER, "exclusiveMinimum": 1}),
        (Annotated[int, at.Ge(1)], {**INTEGER, "minimum": 1}),
        (Annotated[int, at.Lt(1)], {**INTEGER, "exclusiveMaximum": 1}),
        (Annotated[int, at.Le(1)], {**INTEGER, "maximum": 1}),
        (Annotated[int, at.Interval(ge=1, lt=4)], {**INTEGER, "minimum": 1, "exclusiveMaximum": 4}),
        (Annotated[int, at.MultipleOf(3)], {**INTEGER, "multipleOf": 3}),
        (Annotated[str, at.MinLen(1)], {**STRING, "minLength": 1}),
        (Annotated[str, at.MaxLen(5)], {**STRING, "maxLength": 5}),
        (Annotated[list[int], at.Len(1, 3)], {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3}),
        (Annotated[dict[str, int], at.MinLen(1)], {
            "type": "object", "additionalProperties": INTEGER, "minProperties": 1,
        }),
        (Annotated[str | None, at.MinLen(1)], {"anyOf": [{**STRING, "minLength": 1}, NULL]}),
        (Annotated[str, msgspec.Meta(pattern="^a", title="t", examples=["ab"])], {
            **STRING, "pattern": "^a", "title": "t", "examples": ["ab"],
        }),
        (Annotated[str, msgspec.Meta(extra_json_schema={"format": "email"})], {**STRING, "format": "email"}),
        (Annotated[int, "how many"], {**INTEGER, "description": "how many"}),
        (Annotated[int, te.Doc("how many")], {**INTEGER, "description": "how many"}),
        (Annotated[int, object(), {"a": 1}], INTEGER),
        (Annotated[Annotated[int, at.Ge(1)], at.Le(3)], {**INTEGER, "minimum": 1, "maximum": 3}),
        (Annotated[int, pydantic.Field(ge=1, description="d")], {**INTEGER, "minimum": 1, "description": "d"}),
        (Annotated[int, pydantic.Field(ge=1), "d"], {**INTEGER, "minimum": 1, "description": "d"}),
        (Annotated[int, te.Doc("d"), pydantic.Field(ge=1)], {**INTEGER, "minimum": 1, "description": "d"}),
        (Annotated[int, pydantic.Field(description="d"), "other"], {**INTEGER, "description": "d"}),
        (list[Annotated[int, at.Ge(1)]], {"type": "array", "items": {**INTEGER, "minimum": 1}}),
    ],
)  # fmt: skip
def test_annotations(tp: Any, expected: Any) -> None:
    assert document(tp) == expected


def test_pydantic_notes_on_a_type_that_pydantic_does_not_know() -> None:
    tp = Annotated[list[Shape], pydantic.Field(min_length=1, description="shapes")]
    assert {"minItems": 1, "description": "shapes"}.items() <= document(tp).items()


def test_a_description_of_a_pydantic_model_as_a_field() -> None:
    class Order(pydantic.BaseModel):
        """An order."""

        number: int

    class Basket(msgspec.Struct):
        order: Annotated[Order, "the last order"]
        others: Annotated[list[Order], te.Doc("earlier orders")]

    properties = document(Basket)["properties"]
    assert properties["order"] == {**document(Order), "description": "the last order"}
    assert properties["others"]["description"] == "earlier orders"
    assert document(Annotated[Order, "the last order"]) == {**document(Order), "description": "the last order"}


def test_enums_keep_their_order() -> None:
    assert document(Colour) == {"title": "Colour", "enum": ["red", "green", "blue"]}
    assert document(Level) == {"title": "Level", "enum": [3, 1]}
    assert document(Odd) == {"title": "Odd", "enum": [[1, 2], "text", 0.5]}
    assert document(Permission) == {"title": "Permission", "type": "integer"}


def test_dataclass() -> None:
    assert document(Point) == {
        "title": "Point",
        "description": "A place on the plane.",
        "type": "object",
        "properties": {
            "x": INTEGER,
            "y": {**INTEGER, "default": 0},
            "tags": {"type": "array", "items": STRING, "default": []},
        },
        "required": ["x"],
    }


@dataclasses.dataclass
class Derived:
    given: int
    seed: dataclasses.InitVar[int]
    made: int = dataclasses.field(init=False)
    limit: typing.ClassVar[int] = 3

    def __post_init__(self, seed: int) -> None:
        self.made = self.given + seed


def test_dataclass_fields_of_one_direction_only() -> None:
    assert list(document(Derived, mode="input")["properties"]) == ["given", "seed"]
    assert list(document(Derived, mode="output")["properties"]) == ["given", "made"]


@pytest.mark.parametrize(("tp", "required"), [(User, ["name"]), (Partial, ["name"]), (Extended, ["name"])])
def test_typed_dicts(tp: Any, required: list[str]) -> None:
    found = document(tp)
    assert found["properties"] == {"name": STRING, "age": INTEGER}
    assert found["required"] == required
    assert "additionalProperties" not in found


def test_named_tuple() -> None:
    assert document(Pair) == {
        "title": "Pair",
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "prefixItems": [INTEGER, {**STRING, "default": "x"}],
        "items": False,
    }


def test_structs() -> None:
    assert document(Strict) == {
        "title": "Strict",
        "type": "object",
        "properties": {"firstName": STRING, "lastName": STRING},
        "required": ["firstName"],
        "additionalProperties": False,
    }
    assert document(Row)["prefixItems"] == [INTEGER, {**STRING, "default": "b"}]


def test_tagged_union() -> None:
    found = document(Circle | Square)
    assert found["anyOf"] == [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]
    circle = found["$defs"]["Circle"]
    assert circle["properties"]["type"] == {"enum": ["circle"]}
    assert circle["properties"]["line_width"] == {"type": "number", "minimum": 0, "default": 1.0}
    assert circle["required"] == ["type", "size"]
    assert circle["description"] == "A round one."


def test_pydantic_model_by_direction() -> None:
    assert list(document(Address, mode="input")["properties"]) == ["street", "zip"]
    assert list(document(Address, mode="output")["properties"]) == ["street", "zip", "label"]
    assert set(document(Person)["$defs"]) == {"Address"}
    assert document(Person)["properties"]["name"]["minLength"] == 1
    assert document(Order)["properties"]["id"]["type"] == "integer"


class Picture(pydantic.BaseModel):
    data: bytes


def test_pydantic_bytes_are_base64_as_everywhere() -> None:
    for mode in ("input", "output"):
        data = document(Picture, mode=mode)["properties"]["data"]
        assert data == {"title": "Data", "type": "string", "contentEncoding": "base64"}


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    more: list[T] | None = None


@dataclasses.dataclass
class Labelled(Box[list[K]], Generic[K]):
    label: K | None = None


class Page(msgspec.Struct, Generic[T]):
    items: list[T]


class Answer(pydantic.BaseModel, Generic[T]):
    value: T


class Entry(te.TypedDict, Generic[T]):
    value: T


def test_generic_classes() -> None:
    assert document(Box[int])["properties"]["content"] == INTEGER
    assert document(Box[int])["properties"]["more"]["anyOf"][0] == {"type": "array", "items": INTEGER}
    assert document(Box)["properties"]["content"] == {}
    assert document(Page[str])["properties"]["items"] == {"type": "array", "items": STRING}
    assert document(Answer[int])["properties"]["value"]["type"] == "integer"
    assert document(Entry[int])["properties"]["value"] == INTEGER


def test_generic_bases_are_filled_in_through_the_subclass() -> None:
    properties = document(Labelled[int])["properties"]
    assert properties["content"] == {"type": "array", "items": INTEGER}
    assert properties["label"] == {"anyOf": [INTEGER, NULL], "default": None}


def test_two_specialisations_are_two_definitions() -> None:
    found = document(tuple[Box[int], Box[str], Box[int]])
    assert set(found["$defs"]) == {"Box_int", "Box_str"}
    assert found["prefixItems"][0] == found["prefixItems"][2]


@dataclasses.dataclass
class Node:
    value: int
    children: list["Node"] = dataclasses.field(default_factory=list)


class Tree(pydantic.BaseModel):
    value: int
    children: list["Tree"] = []


class Chain(msgspec.Struct):
    tree: Tree | None = None
    following: "Chain | None" = None


@pytest.mark.parametrize("tp", [Node, Tree, Chain, list[Node], Node | None, dict[str, Tree]])
def test_recursive_types(tp: Any) -> None:
    schema = from_type(tp)
    assert isinstance(schema.document, dict)
    schema.check({"value": 1, "children": [{"value": 2, "children": []}]})


def test_a_recursive_root_keeps_its_type_in_sight() -> None:
    found = document(Node)
    assert found["type"] == "object"
    assert from_type(Node).check({"value": 1, "children": [{"value": 2, "children": []}]})
    assert not from_type(Node).check({"value": 1, "children": [{"value": "x", "children": []}]})


Json = te.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | None")
Ids = te.TypeAliasType("Ids", list[int])
Many = te.TypeAliasType("Many", list[T], type_params=(T,))


def test_type_aliases() -> None:
    assert document(Ids)["items"] == INTEGER
    assert document(Many[str])["items"] == STRING
    assert from_type(Json).check({"a": [{"b": "c"}, None]})
    assert not from_type(Json).check({"a": [1]})


def test_definitions_of_the_same_name_are_kept_apart() -> None:
    def make(tp: Any) -> Any:
        @dataclasses.dataclass
        class Item:
            value: tp

        return Item

    one, two = make(int), make(str)
    found = document(tuple[one, two])  # type: ignore[valid-type]
    assert found["prefixItems"] == [{"$ref": "#/$defs/Item"}, {"$ref": "#/$defs/Item2"}]
    assert found["$defs"]["Item"]["properties"]["value"] == INTEGER
    assert found["$defs"]["Item2"]["properties"]["value"] == STRING


def test_clashing_pydantic_definitions_are_renamed_with_their_references() -> None:
    def make(tp: Any) -> Any:
        inner = pydantic.create_model("Inner", value=(tp, ...))
        return pydantic.create_model("Outer", inner=(inner, ...))

    first, second = make(int), make(str)

    both = msgspec.defstruct("Both", [("first", first), ("second", second), ("shape", Shape)])
    schema = from_type(both)
    good = {
        "first": {"inner": {"value": 1}},
        "second": {"inner": {"value": "x"}},
        "shape": {"type": "Shape", "size": 1},
    }
    assert schema.check(good)
    assert not schema.check({**good, "second": {"inner": {"value": 1}}})
    assert not schema.check({**good, "first": {"inner": {"value": "x"}}})


@dataclasses.dataclass
class Holder:
    person: Person
    shapes: list[Circle | Square]


class Report(pydantic.BaseModel):
    point: Point
    points: list[Point] = []


class Crate(msgspec.Struct):
    person: Person
    either: Person | int
    where: pathlib.Path


class Mixed(TypedDict):
    person: Person
    point: Point


@pytest.mark.parametrize("tp", [Holder, Report, Crate, Mixed, list[Person | int], dict[str, Crate], Person | Shape])
def test_mixed_types_make_a_schema(tp: Any) -> None:
    schema = from_type(tp)
    assert isinstance(schema.document, dict)
    schema.check({})


class Plain:
    pass


@pytest.mark.parametrize(
    "tp",
    [
        Plain,
        list[Plain],
        int | Plain,
        abc.Callable[[], int],
        type[int],
        abc.Iterator[int],
        tuple[int, *tuple[str, ...]],
        "int",
        3,
        complex,
    ],
)
def test_unsupported_types_are_rejected_with_a_reason(tp: Any) -> None:
    reason = r"(unsupported type; use one of|unresolved name|a tuple with an unpacked part)"
    with pytest.raises(TypeError, match=rf"cannot make a JSON Schema from .*: {reason}"):
        codec_for(tp)


def test_an_unknown_name_is_reported() -> None:
    @dataclasses.dataclass
    class Lost:
        value: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="'Nowhere'"):
        from_type(Lost)


@dataclasses.dataclass
class Defaults:
    colour: Colour = Colour.GREEN
    when: datetime.date = datetime.date(2020, 1, 2)
    raw: bytes = b"\xff"
    size: float = float("nan")
    other: Any = dataclasses.field(default=Plain)
    nothing: int | None = None


def test_defaults_that_json_can_express() -> None:
    properties = document(Defaults)["properties"]
    assert properties["colour"] == {"$ref": "#/$defs/Colour", "default": "green"}
    assert properties["when"]["default"] == "2020-01-02"
    assert "default" not in properties["raw"]
    assert "default" not in properties["size"]
    assert "default" not in properties["other"]
    assert properties["nothing"]["default"] is None


def test_unhashable_annotations_work() -> None:
    assert document(list[Annotated[int, {"unhashable": 1}]]) == {"type": "array", "items": INTEGER}


def test_importing_does_not_import_pydantic() -> None:
    code = (
        "import sys, dataclasses, operations.schema as s\n"
        "before = set(sys.modules)\n"
        "P = dataclasses.make_dataclass('P', [('x', int)])\n"
        "s.from_type(P).document, s.codec_for(list[P]).load([{'x': 1}]), s.jsonable([P(1)])\n"
        "assert 'pydantic' not in sys.modules and 'pydantic_core' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
