"""Plain schemas have a shorter conversion, with the same results as the general one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.schema import from_schema
from operations.schema.casting.closed_form import Closer
from operations.schema.casting.nodes import Nodes
from operations.schema.checking.costs import Costs
from operations.schema.dialects.conversion import convert
from operations.schema.dialects.plain import closed_plain, convert_plain
from operations.schema.dialects.traversal import definitions_of

_NAMES = st.sampled_from(["a", "b", "c"])
_LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])},
    optional={
        "title": st.just("A title"),
        "default": st.sampled_from([None, True, 1, 1.5, "a"]),
        "enum": st.lists(_NAMES, max_size=2),
        "minLength": st.integers(0, 3),
        "minimum": st.integers(-2, 2) | st.floats(-2, 2),
    },
)


def _objects(members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    below = members | st.booleans()
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]),
            "properties": st.dictionaries(_NAMES, below, max_size=3),
            "required": st.lists(_NAMES, max_size=2, unique=True),
            "additionalProperties": below,
            "items": below,
        },
    )


SCHEMAS = st.recursive(_LEAVES, _objects, max_leaves=8)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 1.0, "a", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.just("d"), inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS)
def test_a_plain_schema_is_converted_and_closed_as_any_other(document: dict[str, Any]) -> None:
    plain = convert_plain(document)
    assert plain is not None
    general = convert(document)
    assert plain.plain
    assert not general.plain
    assert plain[:4] == general[:4]
    assert Costs(definitions_of(plain.document)).affordable
    closed = closed_plain(plain.document)
    assert closed is None or closed == Closer(Nodes(plain.document), definitions_of(plain.document)).form()["#"].schema


@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["cast", "total", "off"]))
def test_values_are_normalised_as_by_any_other_schema(document: dict[str, Any], values: list[Any], policy: Any) -> None:
    plain, general = from_schema(document), from_schema({**document, "$comment": "not plain"})
    assert [plain.check(value) for value in values] == [general.check(value) for value in values]
    for value in values:
        assert plain.normalise(value, policy) == general.normalise(value, policy)


def test_the_document_is_a_copy() -> None:
    source: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    schema = from_schema(source)
    assert schema.document == source
    assert isinstance(schema.document, dict)
    assert schema.document["properties"] is not source["properties"]
    assert schema.document["required"] is not source["required"]


@pytest.mark.parametrize(
    "document",
    [
        True,
        {"$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"type": "string", "pattern": "^a"},
        {"type": ["string", "null"]},
        {"type": "text"},
        {"type": "string", "default": float("nan")},
        {"type": "object", "properties": {"a": 5}},
        {"properties": {"\ud800": {}}},
        {"minLength": -1},
        {"anyOf": [{}]},
        {5: {}},
    ],
)
def test_other_documents_need_conversion(document: Any) -> None:
    assert convert_plain(document) is None
