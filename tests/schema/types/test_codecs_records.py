"""record_codec: a function's parameters as one object, loaded and dumped by field."""

import dataclasses
import datetime
from typing import Any

import msgspec
import pydantic
import pytest

from operations.errors import CallError, ErrorCode
from operations.schema import Field, record_codec

DAY = datetime.date(2020, 1, 2)


class Person(pydantic.BaseModel):
    name: str
    born: datetime.date | None = None


@dataclasses.dataclass
class Point:
    x: int


def test_schema() -> None:
    codec = record_codec(
        [
            Field("count", int, description="how many"),
            Field("day", datetime.date, required=False, default=DAY),
            Field("person", Person),
            Field("points", list[Point], required=False, default=()),
        ]
    )
    document: Any = codec.schema.document
    assert document["properties"]["count"] == {"type": "integer", "description": "how many"}
    assert document["properties"]["day"] == {"type": "string", "format": "date", "default": "2020-01-02"}
    assert document["properties"]["points"]["default"] == []
    assert document["required"] == ["count", "person"]
    assert document["additionalProperties"] is False
    assert "Point" in document["$defs"]
    assert codec.schema.check({"count": 1, "person": {"name": "a"}})
    assert not codec.schema.check({"count": 1, "person": {"name": "a"}, "other": 1})


def test_no_members() -> None:
    codec = record_codec([])
    assert codec.load is None
    assert codec.dump is None
    assert codec.schema.check({})
    assert not codec.schema.check({"a": 1})


def test_a_default_that_json_cannot_express_is_left_out() -> None:
    document: Any = record_codec([Field("a", Any, required=False, default=object())]).schema.document
    assert document["properties"]["a"] == {}


def test_fields_without_conversion_need_no_function() -> None:
    codec = record_codec([Field("a", str), Field("b", dict[str, str]), Field("c", bool)])
    assert codec.load is None
    assert codec.dump is None


def test_load() -> None:
    codec = record_codec([Field("n", int), Field("f", float), Field("d", datetime.date, False), Field("s", str)])
    assert codec.load is not None
    given = {"n": 1, "f": 1.5, "s": "x"}
    assert codec.load(given) is given
    before = {"n": 2.0, "f": 1, "s": "x", "d": "2020-01-02"}
    after = codec.load(before)
    assert after == {"n": 2, "f": 1.0, "s": "x", "d": DAY}
    assert type(after["n"]) is int
    assert type(after["f"]) is float
    assert before["d"] == "2020-01-02"


def test_dump() -> None:
    codec = record_codec([Field("d", datetime.date), Field("p", Person), Field("n", int, False)])
    assert codec.dump is not None
    data = codec.dump({"d": DAY, "p": Person(name="a")})
    assert data == {"d": "2020-01-02", "p": {"name": "a", "born": None}}
    assert codec.load is not None
    assert codec.load(data) == {"d": DAY, "p": Person(name="a")}


def test_extras() -> None:
    codec = record_codec([Field("s", str)], extra=datetime.date)
    assert codec.load is not None
    assert codec.load({"s": "2020-01-02"}) == {"s": "2020-01-02"}
    assert codec.load({"s": "x", "other": "2020-01-02"}) == {"s": "x", "other": DAY}
    document: Any = codec.schema.document
    assert document["additionalProperties"] == {"type": "string", "format": "date"}
    with pytest.raises(CallError) as caught:
        codec.load({"s": "x", "other": "soon"})
    assert [error["path"] for error in caught.value.details["errors"]] == ["/other"]


def test_extras_of_any_type() -> None:
    codec = record_codec([Field("s", str)], extra=Any)
    assert codec.load is None
    document: Any = codec.schema.document
    assert document["additionalProperties"] is True


def test_errors_have_the_members_pointer() -> None:
    codec = record_codec([Field("a/b", list[datetime.date]), Field("p", Person)])
    assert codec.load is not None
    with pytest.raises(CallError) as caught:
        codec.load({"a/b": ["2020-01-02", "soon"], "p": {"name": 1}})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert [error["path"] for error in caught.value.details["errors"]] == ["/a~1b/1", "/p/name"]
    with pytest.raises(CallError) as caught:
        codec.load({"a/b": [], "p": {"name": 1}})
    assert [error["path"] for error in caught.value.details["errors"]] == ["/p/name"]


def test_names_need_not_be_python_names() -> None:
    name = 'it\'s "quoted"\n'
    codec = record_codec([Field(name, int)])
    assert codec.load is not None
    assert codec.load({name: 1.0}) == {name: 1}


def test_definitions_are_shared_by_the_members() -> None:
    codec = record_codec([Field("a", Point), Field("b", list[Point]), Field("c", msgspec.Raw | None, False)][:2])
    document: Any = codec.schema.document
    assert document["properties"]["a"] == {"$ref": "#/$defs/Point"}
    assert list(document["$defs"]) == ["Point"]
