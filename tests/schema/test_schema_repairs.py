"""Contradictions in published descriptions: unsatisfiable parts are repaired, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from operations import Schema, from_schema
from operations.schema.dialects.conversion import convert
from operations.schema.dialects.schema_repairs import SchemaRepairs

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
ASKING = {"required": ["b"], "properties": {"b": {"type": "integer"}}}


def repair_schema(document: Any) -> None:
    assert isinstance(document, dict)
    SchemaRepairs().repair(document)


def repaired(schema: dict[str, Any], **definitions: Any) -> Schema:
    document = convert({**schema, "$defs": definitions} if definitions else schema).document
    repair_schema(document)
    return from_schema(document)


@pytest.mark.parametrize(
    ("schema", "fitting", "refused"),
    [
        ({"type": "integer", "enum": ["1", "2"]}, [1, 2], ["1", 3]),
        ({"type": "number", "enum": ["1.5", "2"]}, [1.5, 2], ["2"]),
        ({"type": "boolean", "enum": ["true", "False"]}, [True, False], ["true"]),
        ({"type": "string", "enum": [1, 2.5, True]}, ["1", "2.5", "true"], [1]),
        ({"type": ["integer", "null"], "enum": ["1", None]}, [1, None], ["1"]),
        ({"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]}, [[], ["b", "a"]], ["a", ["c"]]),
        ({"type": "array", "items": {"type": "integer"}, "enum": ["1"]}, [[1]], [["1"], [2]]),
        ({"type": "array", "items": {"enum": ["a"]}, "enum": ["a", "b"]}, [["a"]], [["b"]]),
        ({"type": "array"} | {"enum": ["a"]}, [["a"]], [["b"]]),
        # Satisfiable schemas stay unchanged, and so do contradictions that cannot be repaired.
        ({"type": "string", "enum": ["a", 1]}, ["a"], [1, "1"]),
        ({"type": "array", "enum": [["a"]]}, [["a"]], [[], "a"]),
        ({"type": "integer", "enum": ["one"]}, [], [1, "one"]),
    ],
)
def test_choices_of_another_type(schema: dict[str, Any], fitting: list[Any], refused: list[Any]) -> None:
    made = repaired(schema)
    assert [value for value in fitting if not made.check(value)] == []
    assert [value for value in refused if made.check(value)] == []


@pytest.mark.parametrize(
    ("pattern", "fitting", "refused"),
    [
        ("/^[a-z.]+$/", ["a.b"], ["/a/", "A"]),
        ("/^3[A-Z]{3,}$/i", ["3abc"], ["/3ABC/i", "4ABC"]),
        ("/^a.b$/gs", ["a\nb"], ["ab"]),
        ("/^a/", ["ab"], ["/a/", "ba"]),
        ("/foo/", ["/foo/", "x/foo/y"], ["foo"]),
        ("^/$/x", [], ["/"]),
    ],
)
def test_patterns_between_slashes(pattern: str, fitting: list[str], refused: list[str]) -> None:
    made = repaired({"type": "string", "pattern": pattern})
    assert [value for value in fitting if not made.check(value)] == []
    assert [value for value in refused if made.check(value)] == []
    if fitting:
        assert made.check(made.cast(None, "total"))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [CLOSED, ASKING]},
        {"allOf": [{"$ref": "#/$defs/Closed"}, ASKING]},
        {"allOf": [{"allOf": [{"$ref": "#/$defs/Closed"}]}], **ASKING},
        {"$ref": "#/$defs/Closed", **ASKING},
        {"$ref": "#/$defs/Whole"},
        {"allOf": [{"$ref": "#/$defs/Whole"}]},
    ],
)
def test_parts_that_are_closed_to_each_other_are_closed_together(schema: dict[str, Any]) -> None:
    whole = {"allOf": [{"$ref": "#/$defs/Closed"}, ASKING]}
    made = repaired({"type": "object", "properties": {"inner": schema, "own": {"$ref": "#/$defs/Closed"}}},
                  Closed=CLOSED, Whole=whole)  # fmt: skip
    assert made.check({"inner": {"a": "x", "b": 1}})
    assert not made.check({"inner": {"b": 1, "c": 1}})
    assert not made.check({"inner": {"a": "x"}})
    assert not made.check({"own": {"b": 1}})  # where it is no part of another, it is closed as before


def test_a_part_whose_other_members_are_of_another_type() -> None:
    made = repaired({"allOf": [{"additionalProperties": {"type": "object"}}, ASKING]})
    assert made.check({"b": 1, "more": {}})
    assert not made.check({"b": 1, "more": 1})


def test_a_closed_object_with_an_undeclared_required_property_is_opened() -> None:
    made = repaired({**CLOSED, "required": ["A"]})
    assert made.check({"A": 1})
    assert not made.check({"a": "x"})


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [CLOSED, {"required": ["a"]}]},
        {"allOf": [{**CLOSED, "patternProperties": {"^b": {}}}, ASKING]},
        {"allOf": [{"additionalProperties": {"type": "number"}}, ASKING]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]},
        {"oneOf": [{"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in range(3)]},
        {"oneOf": [{**CLOSED, "properties": {name: {}}} for name in "ab"]},
        {"oneOf": [{"not": {"type": "string"}}, {"type": "string"}]},
    ],
)
def test_satisfiable_schemas_are_unchanged(schema: dict[str, Any]) -> None:
    before = convert(schema).document
    after = convert(schema).document
    repair_schema(after)
    assert after == before


@pytest.mark.parametrize(
    ("branches", "value"),
    [
        ([{"type": "string", "format": "asset-id"}, {"type": "string", "format": "upload-id"}], "x"),
        ([{"type": "integer"}, {"type": "number"}], 1),
        ([{"type": "string", "enum": ["a", "b"]}, {"type": "string"}], "a"),
        ([{"type": "object", "properties": {"at": {}}}, {"type": "object", "properties": {"at_id": {}}}], {"at_id": 1}),
        ([{"allOf": [{"$ref": "#/$defs/Base"}]}, {"allOf": [{"$ref": "#/$defs/Base"}], "title": "other"}], {"e": 1}),
        ([{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {}}], ["x"]),
        ([True, {"type": "string"}], "x"),
        ([CLOSED, CLOSED], {"a": "x"}),
    ],
)
def test_ambiguous_branches(branches: list[Any], value: Any) -> None:
    made = repaired({"oneOf": branches}, Base={"type": "object", "required": ["e"]})
    assert made.check(value)
    beside = repaired({"anyOf": [{}], "oneOf": branches}, Base={"type": "object", "required": ["e"]})
    assert beside.check(value)


def test_branches_joined_of_the_schema_they_are_branches_of() -> None:
    pet = {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"type": "string"}},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    }
    cat, dog = (
        {"allOf": [{"$ref": "#/$defs/Pet"}, {"type": "object", "required": [name], "properties": {name: {}}}]}
        for name in ("mews", "barks")
    )
    made = repaired({"$ref": "#/$defs/Pet"}, Pet=pet, Cat=cat, Dog=dog)
    assert made.check({"kind": "cat", "mews": 1})
    assert not made.check({"kind": "cat"})
    assert not made.check({"mews": 1})
    assert made.check(made.cast({}, "total"))


def test_a_schema_is_not_changed_by_the_repair_of_another() -> None:
    document = convert({"allOf": [{"$ref": "#/$defs/C"}, ASKING], "$defs": {"C": CLOSED}}).document
    repair_schema(document)
    assert isinstance(document, dict)
    assert document["$defs"]["C"] == CLOSED
