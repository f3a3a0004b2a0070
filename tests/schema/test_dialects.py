from __future__ import annotations

from typing import Any

import pytest

from operations.schema import from_schema
from operations.schema.dialects.conversion import convert, draft_number, unique_name


@pytest.mark.parametrize(
    ("dialect", "document", "converted"),
    [
        ("draft4", {"minimum": 3, "exclusiveMinimum": True}, {"minimum": 3, "exclusiveMinimum": 3}),
        ("draft4", {"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ("draft4", {"const": 1, "contains": {}, "if": {}, "propertyNames": {}}, {}),
        (
            "draft7",
            {"items": [{"type": "null"}], "additionalItems": False},
            {"prefixItems": [{"type": "null"}], "items": False},
        ),
        ("draft7", {"items": {"type": "null"}, "additionalItems": False}, {"items": {"type": "null"}}),
        (
            "draft7",
            {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
        ),
        ("draft7", {"prefixItems": [{}], "unevaluatedItems": False, "minContains": 2}, {}),
        ("2019-09", {"prefixItems": [{}], "minContains": 2, "contains": {}}, {"minContains": 2, "contains": {}}),
        (None, {"items": [{"type": "null"}]}, {"prefixItems": [{"type": "null"}]}),
        (
            "draft7",
            {"$ref": "#/definitions/a", "minimum": 3, "definitions": {"a": {"type": "null"}}},
            {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}},
        ),
        (
            "2019-09",
            {"$ref": "#/definitions/a", "minimum": 3, "definitions": {"a": {}}},
            {"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {}}},
        ),
        (None, {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, {}),
        ("https://json-schema.org/draft/2019-09/schema", {"items": [{}]}, {"prefixItems": [{}]}),
    ],
)
def test_older_drafts_are_converted_to_new_keywords(dialect: str | None, document: Any, converted: Any) -> None:
    assert from_schema(document, dialect=dialect).document == converted


@pytest.mark.parametrize(
    ("document", "converted"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"enum": ["a"], "nullable": True}, {"enum": ["a", None]}),
        (
            {"allOf": [{"type": "object"}], "nullable": True, "description": "d"},
            {"description": "d", "anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]},
        ),
        ({"nullable": True}, {}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"minimum": 1, "exclusiveMinimum": 1}),
        ({"type": "string", "example": "x"}, {"type": "string", "examples": ["x"]}),
        ({"type": "object", "discriminator": {"propertyName": "k"}, "xml": {"name": "n"}}, {"type": "object"}),
        (
            {"type": "string", "readOnly": True, "writeOnly": True},
            {"type": "string", "readOnly": True, "writeOnly": True},
        ),
        (
            {"type": "array", "items": {"type": "integer", "nullable": True}},
            {"type": "array", "items": {"type": ["integer", "null"]}},
        ),
    ],
)
def test_openapi_30(document: Any, converted: Any) -> None:
    assert from_schema(document, dialect="openapi-3.0").document == converted


def test_openapi_30_references_ignore_their_siblings() -> None:
    document = {
        "$ref": "#/components/schemas/Pet",
        "nullable": True,
        "components": {"schemas": {"Pet": {"type": "string"}, "Unused": {"type": "nonsense"}}},
    }
    schema = from_schema(document, dialect="openapi-3.0")
    assert schema.document == {"$ref": "#/$defs/Pet", "$defs": {"Pet": {"type": "string"}}}
    assert not schema.check(None)


def test_only_reachable_schemas_are_converted() -> None:
    document = {"type": "object", "components": {"big": [{"type": "nonsense"}] * 10}, "x-note": {"kept": True}}
    assert convert(document).document == {"type": "object", "x-note": {"kept": True}}
    assert convert(document).complaints == ()


def test_a_resource_may_have_its_own_draft() -> None:
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/old",
        "$defs": {
            "old": {
                "$id": "https://example.com/old",
                "$schema": "http://json-schema.org/draft-07/schema#",
                "items": [{"type": "string"}],
                "additionalItems": False,
            }
        },
    }
    schema = from_schema(document)
    assert schema.check(["a"])
    assert not schema.check(["a", "b"])


def test_unknown_dialects_are_reported_and_read_as_the_latest(caplog: pytest.LogCaptureFixture) -> None:
    assert not from_schema({"type": "string"}, dialect="draft99").check(1)
    assert "draft99" in caplog.text


def test_draft_numbers() -> None:
    assert draft_number("http://json-schema.org/draft-07/schema#") == 7
    assert draft_number("2020-12") == 2020
    assert draft_number("nonsense") is None


def test_definition_names_are_safe_and_unique() -> None:
    taken: dict[str, int] = {}
    assert [unique_name(name, taken) for name in ("#/$defs/A", "#/x/A", "#/x/A_2", "A")] == ["A", "A_2", "A_2_2", "A_3"]
    assert unique_name("#/components/schemas/a~1b c%20d", {}) == "a_1b_c_20d"
    assert unique_name("#", {}) == "schema"


def test_dynamic_references_are_exact_when_checking_and_followed_when_casting() -> None:
    document = {
        "$id": "https://example.com/tree",
        "$dynamicAnchor": "node",
        "type": "object",
        "properties": {"data": {"type": "integer"}, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    }
    schema = from_schema(document)
    assert schema.check({"children": [{"data": 1}]})
    assert not schema.check({"children": [{"data": "x"}]})
    assert schema.cast({"children": [{"data": "1", "x": 1}]}) == {"children": [{"data": 1}]}


@pytest.mark.parametrize(
    ("keyword", "value", "kept"),
    [
        ("examples", {"mars": "@mars.jpg"}, ["@mars.jpg"]),
        ("examples", "one", None),
        ("title", 2020, None),
        ("description", None, None),
        ("deprecated", "true", None),
        ("readOnly", 1, None),
        ("format", ["date"], None),
        ("contentMediaType", {}, None),
    ],
)
def test_an_invalid_annotation_does_not_affect_the_schema(keyword: str, value: Any, kept: Any) -> None:
    schema = from_schema({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", keyword: value}}})
    assert not schema.check({})
    assert not schema.check({"a": 1})
    assert isinstance(schema.document, dict)
    assert schema.document["properties"]["a"].get(keyword) == kept
    assert convert({"type": "string", keyword: value}).complaints == ()
