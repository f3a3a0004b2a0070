"""from_type and codec_for with postponed annotations, where every annotation is a string."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import annotated_types as at
import msgspec
import pydantic
import pytest
import typing_extensions as te

from operations.schema import codec_for, from_type

T = TypeVar("T")


class Model(pydantic.BaseModel):
    when: datetime.date


@dataclasses.dataclass
class Data(Generic[T]):
    content: T
    count: Annotated[int, at.Ge(1), "how many"] = 1
    seed: dataclasses.InitVar[int] = 0


class Struct(msgspec.Struct):
    model: Model | None = None
    following: Struct | None = None


class Plain(TypedDict):
    name: te.Required[str]
    when: te.NotRequired[datetime.date]


class Partial(te.TypedDict, total=False):
    name: te.Required[str]
    when: te.ReadOnly[datetime.date]


class Pair(NamedTuple):
    left: datetime.date
    right: int = 0


DAY = datetime.date(2020, 1, 2)


@pytest.mark.parametrize(
    ("tp", "value", "data"),
    [
        (Data[datetime.date], Data(DAY), {"content": "2020-01-02", "count": 1}),
        (Struct, Struct(Model(when=DAY), Struct()), {
            "model": {"when": "2020-01-02"}, "following": {"model": None, "following": None},
        }),
        (Plain, {"name": "a", "when": DAY}, {"name": "a", "when": "2020-01-02"}),
        (Partial, {"name": "a", "when": DAY}, {"name": "a", "when": "2020-01-02"}),
        (Pair, Pair(DAY), ["2020-01-02", 0]),
    ],
)  # fmt: skip
def test_both_ways(tp: Any, value: Any, data: Any) -> None:
    codec = codec_for(tp)
    assert codec.load is not None
    assert codec.dump is not None
    assert codec.dump(value) == data
    assert codec.load(data) == value
    assert codec.schema.check(data)


@pytest.mark.parametrize("tp", [Plain, Partial])
def test_marks_that_were_text_count(tp: Any) -> None:
    document: Any = from_type(tp).document
    assert document["required"] == ["name"]


def test_notes_that_were_text_count() -> None:
    document: Any = from_type(Data[int], mode="input").document
    assert document["properties"]["count"] == {"type": "integer", "minimum": 1, "description": "how many", "default": 1}
    assert document["properties"]["seed"] == {"type": "integer", "default": 0}
