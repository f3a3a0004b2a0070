from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.schema import UNKNOWN, Schema, from_schema

USER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "admin": {"type": "boolean", "default": False},
    },
    "required": ["id"],
}


def test_building_a_schema_reads_nothing() -> None:
    class Untouchable(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("walked")

        def __getitem__(self, key: str) -> Any:
            raise AssertionError("looked into")

    from_schema(Untouchable(type="object"))


def test_check_and_errors_agree() -> None:
    schema = from_schema(USER)
    assert schema.check({"id": 1})
    assert schema.errors({"id": 1}) == []
    assert not schema.check({"id": "x"})
    assert [problem.path for problem in schema.errors({"id": "x", "name": 1})] == ["/id", "/name"]


def test_unknown_accepts_anything_and_casts_nothing() -> None:
    value = {"a": object()}
    assert UNKNOWN.is_unknown
    assert UNKNOWN.check(value)
    assert UNKNOWN.cast(value) is value
    assert UNKNOWN.normalise(value, "total") == (value, ())
    for foreign in (object(), {1, 2}, value["a"]):
        assert UNKNOWN.check(foreign)
        assert from_schema({"description": "anything"}).check(foreign)
        assert UNKNOWN.errors(foreign) == []


@pytest.mark.parametrize("document", [True, {}, {"title": "x"}, {"description": "d", "default": 1}, {"x-a": {"b": 1}}])
def test_only_annotations_is_unknown(document: Any) -> None:
    assert from_schema(document).is_unknown


@pytest.mark.parametrize(
    "document", [False, {"type": "string"}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}]
)
def test_restrictive_schemas_are_not_unknown(document: Any) -> None:
    assert not from_schema(document).is_unknown


def test_false_refuses_everything() -> None:
    schema = from_schema(False)
    assert not schema.check(1)
    assert len(schema.errors(1)) == 1
    assert schema.normalise(1, "total")[0] == 1


def test_equal_by_document() -> None:
    assert from_schema({"type": "string"}) == Schema({"type": "string"})
    assert from_schema({"minimum": 1, "exclusiveMinimum": True}, dialect="draft4") != from_schema({"minimum": 1})
    assert len({from_schema({"type": "string"}), from_schema({"type": "string"}), UNKNOWN}) == 2
    assert from_schema(True) != True  # noqa: E712


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (True, "Schema(True)"),
        ({"title": "User"}, "Schema('User')"),
        ({"type": "object"}, "Schema('object')"),
        (5, "Schema(<int>)"),
    ],
)
def test_repr_is_short(document: Any, shown: str) -> None:
    assert repr(from_schema(document)) == shown


def test_pickles_before_and_after_use() -> None:
    schema = from_schema(USER)
    assert pickle.loads(pickle.dumps(schema)) == schema
    schema.cast({"id": 1})
    assert pickle.loads(pickle.dumps(schema)).check({"id": 1})


def test_a_read_only_mapping_is_a_document() -> None:
    document = MappingProxyType({"type": "object", "properties": MappingProxyType({"a": {"type": "integer"}})})
    assert from_schema(document).document == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert not from_schema(document).check({"a": "x"})


BROKEN: list[Any] = [
    5,
    None,
    "x",
    [{"type": "string"}],
    {"type": "strange"},
    {"properties": 5},
    {"pattern": "("},
    {"$ref": "#/nowhere"},
    {"$ref": 5},
    {"minimum": "a"},
    {"enum": 5},
    {"anyOf": {}},
    {"const": object()},
    {"const": "\ud800"},
    {"$ref": "https://example.com/elsewhere.json"},
]


@pytest.mark.parametrize("document", BROKEN)
def test_unsupported_schemas_are_unknown_with_one_warning(document: Any, caplog: pytest.LogCaptureFixture) -> None:
    schema = from_schema(document)
    with caplog.at_level(logging.WARNING, "operations.schema"):
        assert schema.check({"any": "thing"})
        assert schema.cast(5) == 5
        assert schema.is_unknown
        assert schema.errors(5) == []
    assert len(caplog.records) == 1


def test_a_broken_part_spares_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    document = {
        "type": "object",
        "properties": {
            "bad": {"$ref": "#/nowhere"},
            "worse": {"pattern": "(", "type": "string"},
            "good": {"type": "integer"},
        },
    }
    schema = from_schema(document)
    assert schema.check({"bad": 1, "worse": "x", "good": 1})
    assert not schema.check({"good": "x"})
    assert not schema.check({"worse": 1})
    assert len(caplog.records) == 1


def test_strict_raises_with_every_problem() -> None:
    schema = from_schema(USER)
    assert schema.cast({"id": "1", "extra": 1}, "strict") == {"id": 1, "admin": False}
    with pytest.raises(CallError) as caught:
        schema.cast({"name": [], "admin": 5}, "strict")
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert {error["path"] for error in caught.value.details["errors"]} == {"", "/name", "/admin"}
    assert schema.normalise({}, "strict")[1]


def test_importing_the_engine_loads_no_heavy_modules() -> None:
    code = "import sys, operations.schema; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "operations.schema.schema" in loaded
    for heavy in (
        "pydantic",
        "operations.schema.casting.policies",
        "operations.schema.casting.repair",
        "operations.schema.casting.generated",
    ):
        assert heavy not in loaded


def test_methods_can_be_stored_before_their_first_use() -> None:
    schema = from_schema(USER)
    check, cast, normalise = schema.check, schema.cast, schema.normalise
    assert check({"id": 1})
    assert cast({"id": "1", "x": 1}) == {"id": 1, "admin": False}
    assert normalise({"id": 1, "admin": True}) == ({"id": 1, "admin": True}, ())
    assert check({"id": 2})
