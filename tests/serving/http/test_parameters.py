"""Query parameters: how each property of an input is written in a query string."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from operations import from_schema, operation
from operations.serving.http.parameters import QueryParameter, query_parameters


class Point(msgspec.Struct):
    x: int


def parameters_of(schema: Any) -> dict[str, QueryParameter]:
    found = query_parameters(from_schema(schema).document)
    assert found is not None
    return {each.name: each for each in found}


def one(schema: Any, **more: Any) -> QueryParameter:
    return parameters_of({"type": "object", "properties": {"a": schema}, **more})["a"]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string", "minLength": 2}, "string"),
        ({"type": ["integer", "null"]}, "integer"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "boolean"),
        ({"oneOf": [{"type": "null"}, {"type": "number"}]}, "number"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, 2.5]}, "number"),
        ({"const": True}, "boolean"),
        ({"enum": ["a", None]}, "string"),
    ],
)
def test_a_scalar_of_one_type_is_written_as_text(schema: Any, kind: str) -> None:
    found = one(schema)
    assert (found.kind, found.many) == (kind, False)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": "null"},
        {"enum": [1, "a"]},
        {"enum": [True, 1]},
        {"enum": [None]},
        {"type": ["integer", "string"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"type": "array"},
        {"type": "array", "items": {"type": "object"}},
        {"type": "array", "prefixItems": [{"type": "string"}]},
        {"type": "string", "not": {"const": "x"}},
    ],
)
def test_everything_else_is_json_text(schema: Any) -> None:
    found = one(schema)
    assert (found.kind, found.many) == (None, False)


def test_lists_of_scalars_are_repeated_and_cannot_be_empty_where_they_are_required() -> None:
    schema = {"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 3}
    found = one(schema)
    assert (found.kind, found.many, found.required) == ("integer", True, False)
    assert found.schema == {"type": "array", "items": {"type": "integer"}, "maxItems": 3}
    assert one(schema, required=["a"]).schema["minItems"] == 1
    assert one({**schema, "minItems": 2}, required=["a"]).schema["minItems"] == 2


def test_null_and_its_default_are_not_offered() -> None:
    assert one({"type": ["integer", "null"], "default": None, "description": "d"}).schema == {
        "type": "integer",
        "description": "d",
    }
    assert one({"enum": ["a", None]}).schema == {"enum": ["a"]}
    assert one({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3}).schema == {
        "type": "integer",
        "default": 3,
    }


def test_references_are_followed_and_kept() -> None:
    @operation(namespace="a", type="query")
    async def find(colour: Literal["red"], points: list[Point], where: Point) -> int:
        return 0

    found = query_parameters(find.spec.input_schema.document)
    assert found is not None
    assert [(each.name, each.kind, each.many) for each in found] == [
        ("colour", "string", False),
        ("points", None, False),
        ("where", None, False),
    ]
    referred = {"$ref": "#/$defs/C", "$defs": {"C": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    assert parameters_of(referred)["a"].kind == "string"
    shared = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/E"}, "b": {"$ref": "#/$defs/N"}},
        "$defs": {"E": {"enum": ["x"]}, "N": {"type": ["string", "null"]}},
    }
    assert parameters_of(shared)["a"].schema == {"$ref": "#/$defs/E"}
    assert parameters_of(shared)["b"].schema == {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {"type": "array"},
        {"type": ["object", "null"]},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "minProperties": 1},
        {"type": "object", "properties": {"a": {}}, "dependentRequired": {"a": ["b"]}},
        {"type": "object", "required": ["b"]},
        {"type": "object", "properties": {}, "not": {}},
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"$ref": "#"},
    ],
)
def test_inputs_that_a_query_string_cannot_express_take_post_only(schema: Any) -> None:
    assert query_parameters(from_schema(schema).document) is None


def test_bytes_are_base64_text() -> None:
    @operation(namespace="a")
    async def store(content: bytes, more: bytes | None, name: str) -> int:
        return 0

    parameters = query_parameters(store.spec.input_schema.document) or ()
    assert [each.name for each in parameters if each.is_bytes] == ["content", "more"]
