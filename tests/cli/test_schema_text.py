"""Schemas as text: what is shown of each kind, and schemas that refer to themselves."""

from __future__ import annotations

from typing import Any

import pytest

from operations.cli.schema_text import schema_lines
from operations.schema import from_schema


def shown(document: object, limit: int = 50) -> list[str]:
    return [" ".join(line.split()) for line in schema_lines(document, limit=limit, more="more")]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["null", "integer"], "minimum": 3}, "integer|null at least 3"),
        ({"enum": ["a", "b"]}, "a|b"),
        ({"type": "array", "items": {"type": ["string", "null"]}, "minItems": 1}, "(string|null)[] at least 1 item"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"type": "string", "format": "binary"}, "bytes"),
        ({"exclusiveMinimum": 0, "type": "number", "multipleOf": 5}, "number above 0, multiple of 5"),
        (True, "anything"),
        ({"enum": list("abcdefgh"), "type": "string"}, "string one of a, b, c, d, e, f, … (8)"),
    ],
)
def test_a_value_is_one_line_with_its_limits(schema: object, text: str) -> None:
    assert shown(schema) == [text]


def test_too_many_rows_are_dropped_by_depth_and_then_by_number() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "string"}}}
    document = {"type": "object", "properties": dict.fromkeys("abc", inner), "required": ["c"]}
    assert shown(document) == ["* c object", "x string", "a object", "x string", "b object", "x string", "* required"]
    assert shown(document, limit=3) == ["* c object", "a object", "b object", "… 3 more: more", "* required"]
    assert shown(document, limit=1)[:2] == ["* c object", "… 5 more: more"]


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
}


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}]},
        {"allOf": [{"$ref": "#"}], "properties": {"a": {"$ref": "#"}}},
        {"$ref": "#"},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
        {"anyOf": [{"anyOf": [{"$ref": "#"}] * 20}] * 20},
        {"properties": [], "required": 3, "items": 4, "enum": "no", "type": {}},
    ],
)
def test_a_schema_that_refers_to_itself_or_is_none_ends(schema: dict[str, Any]) -> None:
    assert len(shown(from_schema(schema).document)) < 60
