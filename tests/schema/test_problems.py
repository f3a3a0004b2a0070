from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from operations import CallError, ErrorCode
from operations.schema import collect_errors, format_value_errors, from_schema, validate_or_throw


def messages(document: Any, value: Any) -> list[str]:
    return format_value_errors(collect_errors(from_schema(document), value)).splitlines()


@pytest.mark.parametrize(
    ("document", "value", "line"),
    [
        ({"type": "string"}, 5, "(value): 5 is not a string"),
        ({"type": ["integer", "null"]}, "x", '(value): "x" is not null or an integer'),
        ({"properties": {"a": {"minimum": 0}}}, {"a": -1}, "/a: -1 is less than the minimum of 0"),
        ({"maximum": 3}, 5, "(value): 5 is greater than the maximum of 3"),
        ({"exclusiveMinimum": 3}, 3, "(value): 3 is not greater than 3"),
        ({"exclusiveMaximum": 3}, 3, "(value): 3 is not less than 3"),
        ({"multipleOf": 5}, 3, "(value): 3 is not a multiple of 5"),
        ({"required": ["a"]}, {}, '(value): missing required property "a"'),
        ({"enum": ["a", "b", "c"]}, "d", '(value): "d" is not one of "a", "b" or "c"'),
        ({"const": {"a": 1}}, 1, '(value): 1 is not {"a": 1}'),
        ({"pattern": "^a"}, "b", '(value): "b" does not match the pattern "^a"'),
        ({"minLength": 2}, "b", '(value): "b" is shorter than 2 characters'),
        ({"maxLength": 2}, "abc", '(value): "abc" is longer than 2 characters'),
        ({"items": {"type": "null"}}, [None, True], "/1: true is not null"),
        ({"minItems": 2}, [1], "(value): has fewer than 2 items"),
        ({"maxItems": 0}, [1], "(value): has more than 0 items"),
        ({"uniqueItems": True}, [1, 1], "(value): has duplicate items"),
        ({"contains": {"const": 1}}, [], "(value): has too few or too many items that match `contains`"),
        ({"minProperties": 1}, {}, "(value): has fewer than 1 properties"),
        ({"maxProperties": 0}, {"a": 1}, "(value): has more than 0 properties"),
        (
            {"properties": {}, "additionalProperties": False},
            {"a": 1},
            '(value): has properties that are not allowed: "a"',
        ),
        ({"unevaluatedProperties": False}, {"a": 1}, '(value): has properties that are not allowed: "a"'),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, '(value): has a property whose name is not allowed: "ab"'),
        ({"not": {"type": "null"}}, None, "(value): null matches a form that is not allowed"),
        (False, 1, "(value): 1 is not allowed here"),
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
            2,
            "(value): 2 matches more than one form: exactly one is allowed",
        ),
        ({"type": "string"}, float("nan"), "(value): NaN is not a JSON number"),
        ({"type": "string"}, 10**100, "(value): a very large integer is not a string"),
        ({"type": "integer"}, b"abc", "(value): 3 bytes is not an integer"),
    ],
)
def test_wording(document: Any, value: Any, line: str) -> None:
    assert messages(document, value) == [line]


def test_every_problem_is_listed_with_its_paths() -> None:
    document = {"type": "object", "properties": {"a/b": {"type": "object", "properties": {"m~n": {"type": "integer"}}}}}
    (problem,) = collect_errors(from_schema(document), {"a/b": {"m~n": "x"}})
    assert problem.path == "/a~1b/m~0n"
    assert problem.schema_path == "/properties/a~1b/properties/m~0n/type"
    assert problem.value == "x"
    assert msgspec.to_builtins(problem)["schemaPath"] == problem.schema_path


def test_a_schema_that_is_explained_step_by_step_has_the_same_pointers() -> None:
    last = {
        "properties": {"a b": {"type": "string"}, "x/y": False},
        "dependentSchemas": {"p/q": {"required": ["m"]}},
    }
    defs: dict[str, Any] = {"d14": last}
    for number in range(14):
        reference = {"$ref": f"#/$defs/d{number + 1}"}
        defs[f"d{number}"] = {"allOf": [reference, reference]}
    schema = from_schema({"$defs": defs, "$ref": "#/$defs/d0"})
    found = {problem.schema_path for problem in schema.errors({"a b": 1, "x/y": 1, "p/q": 1})}
    assert found == {
        "/$defs/d14/properties/a b/type",
        "/$defs/d14/properties/x~1y",
        "/$defs/d14/dependentSchemas/p~1q/required",
    }


def test_the_closest_form_of_a_union_is_explained() -> None:
    shapes = {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
                "required": ["kind", "r"],
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "box"}, "w": {"type": "number"}},
                "required": ["kind", "w"],
            },
        ]
    }
    assert messages(shapes, {"kind": "box", "w": "wide"}) == ['/w: "wide" is not a number (in the closest of 2 forms)']
    assert messages(shapes, {"kind": "box"}) == ['(value): missing required property "w" (in the closest of 2 forms)']


def test_a_union_of_types_names_them() -> None:
    document = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert messages(document, 5) == ["(value): 5 matches none of the 2 allowed forms: a string or null"]


def test_long_values_are_truncated_in_messages_and_whole_in_the_problem() -> None:
    (problem,) = collect_errors(from_schema({"type": "integer"}), "x" * 10_000)
    assert len(problem.message) < 150
    assert problem.value == "x" * 10_000
    (problem,) = collect_errors(from_schema({"type": "integer"}), {f"key{i}": list(range(100)) for i in range(1000)})
    assert len(problem.message) < 200


SECRETS = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "password": {"type": "string", "format": "password", "minLength": 8},
        "nested": {"$ref": "#/$defs/credentials"},
        "many": {"type": "array", "items": {"type": "string", "writeOnly": True, "maxLength": 3}},
        "either": {"anyOf": [{"type": "null"}, {"type": "integer", "writeOnly": True}]},
    },
    "maxProperties": 9,
    "$defs": {
        "credentials": {
            "type": "object",
            "properties": {"token": {"writeOnly": True, "pattern": "^t"}},
            "maxProperties": 1,
        }
    },
}


@pytest.mark.parametrize(
    "value",
    [
        {"password": "hunter2"},
        {"nested": {"token": "hunter2"}},
        {"nested": {"token": "hunter2", "more": 1}},
        {"many": ["hunter2"]},
        {"either": "hunter2"},
        {"user": {"password": 1}, "password": "hunter2"},
        {"password": "hunter2hunter2", **{f"k{i}": i for i in range(9)}},
    ],
)
def test_secrets_are_never_printed(value: Any) -> None:
    schema = from_schema(SECRETS)
    problems = collect_errors(schema, value)
    assert problems
    assert "hunter2" not in repr(problems)
    assert "hunter2" not in repr(schema.normalise(value, "total")[1])
    with pytest.raises(CallError) as caught:
        validate_or_throw(schema, value, "bad input")
    assert "hunter2" not in repr(caught.value) + str(caught.value.details)


def test_validate_or_throw() -> None:
    schema = from_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]})
    validate_or_throw(schema, {"b": 1}, "unused")
    with pytest.raises(CallError, match="the input is not right") as caught:
        validate_or_throw(schema, {"a": datetime.now(UTC)}, "the input is not right")
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert [error["path"] for error in caught.value.details["errors"]] == ["/a", ""]


def test_foreign_objects_are_reported_with_their_path() -> None:
    schema = from_schema({"type": "object", "properties": {"at": {"type": "string"}, "ids": {"type": "array"}}})
    value = {"at": datetime.now(UTC), "ids": {1, 2}}
    assert not schema.check(value)
    assert {str(problem) for problem in schema.errors(value)} == {
        "/at: a value of type datetime is not JSON",
        "/ids: a value of type set is not JSON",
    }


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_are_strings(data: Any) -> None:
    schema = from_schema({"type": "object", "properties": {"file": {"type": "string", "maxLength": 3}}})
    assert schema.check({"file": data})
    assert schema.cast({"file": data, "extra": 1})["file"] is data
    assert not from_schema({"type": "integer"}).check(data)


@pytest.mark.parametrize("data", [b"a/b", bytearray(b"a/b"), memoryview(b"a/b")])
def test_a_pattern_applies_to_the_content_of_bytes(data: Any) -> None:
    """Otherwise a caller could send bytes where a pattern excludes some characters of strings."""
    schema = from_schema({"type": "object", "properties": {"name": {"type": "string", "pattern": "^[^/]+$"}}})
    assert schema.check({"name": b"ab"})
    assert not schema.check({"name": data})
    assert [str(problem) for problem in schema.errors({"name": data})] == [
        '/name: 3 bytes does not match the pattern "^[^/]+$"'
    ]
    named = from_schema({"type": "object", "propertyNames": {"maxLength": 9}, "additionalProperties": schema.document})
    assert not named.check({"one": {"name": "ab"}, "other": {"name": data}})
    assert not from_schema({"enum": ["a/b"]}).check(data)
    assert not from_schema({"const": "a/b"}).check(data)
