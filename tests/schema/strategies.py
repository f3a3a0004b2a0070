"""Hypothesis strategies: schemas of every kind that casting supports, and nearly valid values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b", "c", "kind"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 50),
    st.sampled_from([0.5, -1.5, 2.0, 42.0]),
    st.sampled_from(["", "a", "b", "42", "1.5", "true", "abc", "é"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*NAMES, "extra"]), inner, max_size=4)
    ),
    max_leaves=12,
)

_STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"minLength": st.integers(0, 3), "pattern": st.sampled_from(["^a", "b$", "^[a-z]{2,4}$"])},
)
_NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["number", "integer"])},
    optional={
        "minimum": st.integers(-3, 3),
        "maximum": st.integers(4, 60),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
    },
)
_LEAVES = st.one_of(
    _STRINGS,
    _NUMBERS,
    st.sampled_from(
        [
            True,
            {},
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["string", "null"]},
            {"const": "a"},
            {"const": 42},
            {"enum": ["a", "b", None]},
            {"enum": [1, 2]},
            {"type": "string", "default": "d"},
            {"type": "integer", "default": 7},
            {"type": "object"},
            {"type": "array"},
        ]
    ),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        },
        optional={
            "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "minProperties": st.integers(0, 2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "x"]), inner, max_size=1),
            "default": st.sampled_from([{}, {"a": 1}]),
        },
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 3)},
    )
    tuples = st.fixed_dictionaries(
        {"type": st.just("array"), "prefixItems": st.lists(inner, min_size=1, max_size=2)},
        optional={"items": st.one_of(st.booleans(), inner)},
    )
    return st.one_of(lists, tuples)


def _variants(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Unions of objects with a discriminating literal, as in APIs."""
    return st.dictionaries(st.sampled_from(["a", "b", "abc"]), inner, min_size=2, max_size=3).map(
        lambda members: {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "b": member},
                    "required": ["kind"],
                }
                for kind, member in members.items()
            ]
        }
    )


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        _objects(inner),
        _arrays(inner),
        _variants(inner),
        pairs.map(lambda schemas: {"anyOf": schemas}),
        pairs.map(lambda schemas: {"oneOf": schemas}),
        st.tuples(_objects(inner), _objects(inner)).map(lambda schemas: {"allOf": list(schemas)}),
        st.tuples(_objects(inner), pairs).map(lambda both: {**both[0], "anyOf": both[1]}),
        st.tuples(_objects(inner), inner, inner).map(
            lambda parts: {**parts[0], "if": {"required": ["kind"]}, "then": parts[1], "else": parts[2]}
        ),
        st.tuples(_objects(inner), inner).map(lambda parts: {**parts[0], "dependentSchemas": {"a": parts[1]}}),
    )


SCHEMAS = st.recursive(_LEAVES, _combined, max_leaves=6)


def _with_reference(parts: tuple[Any, Any]) -> dict[str, Any]:
    shared, other = parts
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/shared"}, "b": other, "c": {"$ref": "#"}},
        "$defs": {"shared": shared},
    }


DOCUMENTS = st.one_of(SCHEMAS, st.tuples(SCHEMAS, SCHEMAS).map(_with_reference))
