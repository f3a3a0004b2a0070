"""The policy table, row by row, and the rules of stripping, defaults and unions."""

from __future__ import annotations

from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from operations import CallError, ErrorCode
from operations.schema import Policy, Schema, from_schema

USER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "role": {"type": "string", "default": "guest"},
    },
    "required": ["id", "name"],
}


def schemas() -> dict[str, Schema]:
    """Schemas that are cast in different ways."""
    recursive = {**USER, "properties": {**USER["properties"], "friend": {"$ref": "#"}}}
    warm = from_schema(USER)
    for number in range(200):
        warm.cast({"id": str(number), "name": "a"})
    return {"new": from_schema(USER), "warm": warm, "recursive": from_schema(recursive)}


@pytest.mark.parametrize("kind", ["new", "warm", "recursive"])
def test_an_unknown_policy_is_refused(kind: str) -> None:
    schema, unknown, value = schemas()[kind], "zz", {"id": "1", "name": "a"}
    for _ in range(2):
        for call in (schema.cast, schema.normalise):
            with pytest.raises(
                CallError, match="invalid policy 'zz': expected one of cast, total, strict, off"
            ) as raised:
                call(value, unknown)  # type: ignore[arg-type]
            assert raised.value.code is ErrorCode.VALIDATION_ERROR
        assert schema.cast(value) == {"id": 1, "name": "a", "role": "guest"}


def test_a_clean_value_is_returned_itself() -> None:
    schema = from_schema(USER)
    value = {"id": 1, "name": "a", "role": "b"}
    policies: tuple[Policy, ...] = ("cast", "total", "strict", "off")
    for policy in policies:
        result, problems = schema.normalise(value, policy)
        assert result is value
        assert problems == ()


@pytest.mark.parametrize(
    ("policy", "result", "problems"),
    [
        ("cast", {"id": 42, "name": None, "role": "guest"}, ["/name: null is not a string"]),
        ("total", {"id": 42, "name": "", "role": "guest"}, ['/name: null was replaced by ""']),
        ("strict", {"id": 42, "name": None, "role": "guest"}, ["/name: null is not a string"]),
        ("off", {"id": "42", "name": None, "extra": 1}, []),
    ],
)
def test_the_policies(policy: Policy, result: Any, problems: list[str]) -> None:
    got, listed = from_schema(USER).normalise({"id": "42", "name": None, "extra": 1}, policy)
    assert got == result
    assert [str(problem) for problem in listed] == problems


@pytest.mark.parametrize(
    ("document", "value", "result"),
    [
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, "42.0", 42),
        ({"type": "integer"}, "4.5", "4.5"),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "1e3", 1000),
        ({"type": "number"}, "-0", "-0"),
        ({"type": "number"}, "0x10", "0x10"),
        ({"type": "number"}, " 1", " 1"),
        ({"type": "number"}, "1.00000000000000000001", "1.00000000000000000001"),
        ({"type": "string"}, 42, "42"),
        ({"type": "string"}, 42.0, "42"),
        ({"type": "string"}, 0.1, "0.1"),
        ({"type": "string"}, True, True),
        ({"type": "string"}, None, None),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, 1, 1),
        ({"type": "integer"}, True, True),
        ({"type": "integer"}, 42.0, 42.0),
        ({"type": "integer", "minimum": 50}, "42", "42"),
        ({"enum": [1, 2]}, "2", 2),
        ({"const": "5"}, 5, "5"),
        ({"type": ["integer", "null"]}, "7", 7),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "7", 7),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", "7"),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2, "x"], [1, 2, "x"]),
    ],
)
def test_lossless_upcasts(document: Any, value: Any, result: Any) -> None:
    got = from_schema(document).cast(value)
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("document", "result"),
    [
        ({"properties": {"a": {}}}, {"a": 1}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"a": 1, "b": "2", "x1": 3}),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2, "x1": 3}),
        ({"properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}}, {"a": 1, "b": 2, "x1": 3}),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, {"a": 1, "x1": 3}),
        ({"patternProperties": {"^x": {}}}, {"x1": 3}),
        ({"type": "object"}, {"a": 1, "b": "2", "x1": 3}),
        ({"properties": {}}, {}),
        ({"properties": {"a": {}}, "required": ["b"]}, {"a": 1, "b": "2"}),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {"type": "integer"}}}]}, {"a": 1, "b": 2}),
        ({"properties": {"a": {}}, "minProperties": 3}, {"a": 1, "b": "2", "x1": 3}),
        ({"properties": {"a": {}}, "if": {"required": ["b"]}, "then": {"properties": {"b": {}}}}, {"a": 1, "b": "2"}),
        ({"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"x1": {}}}}}, {"a": 1, "x1": 3}),
    ],
)
def test_stripping(document: Any, result: Any) -> None:
    value = {"a": 1, "b": "2", "x1": 3}
    assert from_schema({"type": "object", **document}).cast(value) == result
    assert value == {"a": 1, "b": "2", "x1": 3}


def test_unchanged_parts_are_shared() -> None:
    schema = from_schema({"type": "object", "properties": {"a": {"type": "array"}, "b": USER}})
    value = {"a": [1, [2]], "b": {"id": 1, "name": "x", "role": "y"}, "c": 1}
    for _ in range(3):
        result = schema.cast(value)
        assert result is not value
        assert result["a"] is value["a"]
        assert result["b"] is value["b"]


def test_defaults_are_cast_filled_and_not_shared() -> None:
    schema = from_schema(
        {
            "type": "object",
            "properties": {
                "list": {"type": "array", "items": {"type": "integer"}, "default": ["1"]},
                "bad": {"type": "integer", "default": "x"},
                "deep": {"type": "object", "properties": {"n": {"default": 5}}, "default": {}},
            },
        }
    )
    first, second = schema.cast({}), schema.cast({})
    assert first == {"list": [1], "deep": {"n": 5}}
    first["list"].append(2)
    assert second == {"list": [1], "deep": {"n": 5}}
    assert schema.cast({}) == second


def test_an_objects_default_supplies_missing_members() -> None:
    schema = from_schema({"type": "object", "properties": {"a": {}, "b": {}}, "default": {"a": 1, "z": 9}})
    assert schema.cast({"b": 2}) == {"a": 1, "b": 2}


def test_a_default_that_contains_itself_is_not_filled() -> None:
    schema = from_schema({"type": "object", "properties": {"a": {"$ref": "#", "default": {}}}})
    once = schema.cast({"x": 1})
    assert schema.cast(once) == once


SHAPES = {
    "anyOf": [
        {"type": "object", "properties": {"x": {"type": "integer"}}},
        {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["y"]},
        {"type": "string"},
    ]
}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"x": 1, "y": 2}, {"x": 1, "y": 2}),
        ({"x": 1, "z": 2}, {"x": 1}),
        ({"x": 1, "y": 2, "z": 3}, {"x": 1, "y": 2}),
        ({"x": "1", "y": "b"}, {"x": 1}),
        ("s", "s"),
        ([], []),
    ],
)
def test_unions(value: Any, result: Any) -> None:
    assert from_schema(SHAPES).cast(value) == result


def test_the_variant_with_the_matching_literal_is_the_best_match() -> None:
    schema = from_schema(
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"k": {"const": "a"}, "n": {"type": "integer"}, "m": {}},
                    "required": ["k", "n"],
                },
                {
                    "type": "object",
                    "properties": {"k": {"const": "b"}, "s": {"type": "integer"}},
                    "required": ["k", "s"],
                },
            ]
        }
    )
    value = {"k": "b", "n": 1, "m": 2, "s": "no"}
    assert schema.cast(value) == {"k": "b", "s": "no"}
    assert schema.cast(value, "total") == {"k": "b", "s": 0}


@pytest.mark.parametrize(
    ("document", "result"),
    [
        ({"type": "string", "minLength": 3}, "   "),
        ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, "AA-000"),
        ({"type": "string", "pattern": r"^(foo|bar)\.\w+$"}, "foo.a"),
        ({"type": "string", "format": "date-time"}, ""),
        ({"type": "integer", "minimum": 1.5, "multipleOf": 4}, 4),
        ({"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, 3.5),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True}, [0, 1, -1]),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 2}, [5, 5]),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 2}, {"a": 0, "b": None}),
        ({"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"]}}, {"a": {}, "b": {}}),
        (
            {
                "type": "object",
                "required": ["k"],
                "properties": {"k": {"const": 1}},
                "if": {"properties": {"k": {"const": 1}}},
                "then": {"required": ["t"]},
            },
            {"k": 1, "t": {}},
        ),
        ({"allOf": [{"type": "number", "minimum": 2}, {"maximum": 5}]}, 2),
        ({"not": {"type": "null"}}, {}),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 0.5),
        (
            {
                "$ref": "#/$defs/n",
                "$defs": {
                    "n": {
                        "type": "object",
                        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                        "required": ["next"],
                    }
                },
            },
            {"next": None},
        ),
    ],
)
def test_total_builds_a_small_valid_value(document: Any, result: Any) -> None:
    schema = from_schema(document)
    got, problems = schema.normalise(None, "total")
    assert schema.check(got)
    assert got == result or document.get("$ref")
    assert len(problems) == 1


def test_total_names_every_replacement() -> None:
    document = {"type": "array", "items": USER, "maxItems": 2}
    value = [{"id": [], "name": "a"}, {"name": "b"}, 5]
    result, problems = from_schema(document).normalise(value, "total")
    assert result == [{"id": 0, "name": "a", "role": "guest"}, {"id": 0, "name": "b", "role": "guest"}]
    assert [str(problem) for problem in problems] == [
        "/0/id: [] was replaced by 0",
        "/1/id: was missing and is now 0",
        "/2: 5 was removed",
    ]


def test_many_rows_with_excess_are_learned_and_cleaned() -> None:
    schema = from_schema({"type": "array", "items": USER})
    rows = [{"id": i, "name": "n", "role": "r", f"extra{i % 50}": i} for i in range(200)]
    for _ in range(3):
        assert schema.cast(rows) == [{"id": i, "name": "n", "role": "r"} for i in range(200)]
    clean = schema.cast(rows)
    assert schema.cast(clean) == clean
    assert schema.cast(clean) is clean


def test_numbers_and_mappings_of_other_kinds_are_left_alone() -> None:
    schema = from_schema(
        {"type": "object", "properties": {"n": {"type": "number"}, "m": {"type": "object"}, "s": {"type": "string"}}}
    )
    value = {"n": Decimal("1.50"), "m": MappingProxyType({"a": 1}), "s": []}
    assert schema.cast(value, "total") == {"n": Decimal("1.50"), "m": {"a": 1}, "s": ""}
