"""Schemas with exponentially many paths, and values for them: `python -m tests.schema.hostile NAME` runs one.

Such a schema can use unlimited time and memory, so run it with limits on both.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

from operations.schema import Policy, from_schema

MEMORY = 1 << 30
POLICIES: tuple[Policy, ...] = ("cast", "total", "strict", "off")
LEVELS = (12, 20, 24, 40)
DEPTHS = (8, 30, 390)
Case = tuple[Any, list[Any]]


def chain(levels: int, wrap: Callable[[Any], Any], leaf: Any = None) -> Any:
    """Definitions that each refer to the one before, by what `wrap` makes of the reference."""
    definitions: dict[str, Any] = {"d0": leaf or {"type": "integer"}}
    for level in range(1, levels + 1):
        definitions[f"d{level}"] = wrap({"$ref": f"#/$defs/d{level - 1}"})
    return {"$ref": f"#/$defs/d{levels}", "$defs": definitions}


def nested(levels: int, leaf: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


def in_object(value: Any) -> Any:
    return {"a": value}


def in_array(value: Any) -> Any:
    return [value]


def wide(value: Any) -> Any:
    return {"a": value, **{f"k{index}": index for index in range(20)}}


CHAINS: dict[str, Callable[[Any], Any]] = {
    "oneOf": lambda r: {"oneOf": [r, r]},
    "oneOf and null": lambda r: {"oneOf": [r, {"type": "null"}, {"title": "again", **r}]},
    "anyOf": lambda r: {"anyOf": [{"allOf": [r]}, {"allOf": [r], "minimum": 3}]},
    "allOf": lambda r: {"allOf": [{"anyOf": [r]}, {"anyOf": [r, False]}]},
    "mixed": lambda r: {"allOf": [{"oneOf": [r, False]}], "anyOf": [r, {"not": r}]},
    "not": lambda r: {"allOf": [{"not": r}, {"not": {"not": r}}]},
    "if": lambda r: {"if": r, "then": r, "else": r},
    "properties": lambda r: {"properties": {"a": r}, "patternProperties": {"^a": r}},
    "property of branches": lambda r: {"anyOf": [{"properties": {"a": r}}, {"properties": {"a": r}, "minimum": 0}]},
    "additionalProperties": lambda r: {"additionalProperties": r, "allOf": [{"properties": {"a": r}}]},
    "items": lambda r: {"items": r, "contains": r},
    "prefixItems": lambda r: {"prefixItems": [r], "allOf": [{"items": r}]},
    "contains": lambda r: {"contains": r, "allOf": [{"contains": r, "minContains": 0}]},
    "dependentSchemas": lambda r: {"dependentSchemas": {"a": r, "k1": r}},
    "propertyNames": lambda r: {"propertyNames": r, "allOf": [{"propertyNames": r}, r]},
    "unevaluatedProperties": lambda r: {"anyOf": [r, {"allOf": [r]}], "unevaluatedProperties": False},
    "unevaluatedProperties of properties": lambda r: {
        "anyOf": [{"properties": {"a": r}}, {"properties": {"a": r, "b": r}}],
        "unevaluatedProperties": r,
    },
    "unevaluatedItems": lambda r: {"oneOf": [r, {"prefixItems": [r]}], "unevaluatedItems": r},
    "defaults": lambda r: {"anyOf": [{"properties": {"a": {**r, "default": 1}}}, {"properties": {"a": r}}]},
    "oneOf of objects": lambda r: {
        "oneOf": [
            {"type": "object", "properties": {"a": r, "k": {"const": 1}}, "required": ["a"]},
            {"type": "object", "properties": {"a": r, "k": {"const": 2}}},
        ]
    },
}

NODE = {"$ref": "#/$defs/n"}
BRANCHES: list[Any] = [
    {"type": "object", "properties": {"a": NODE}, "required": ["a"]},
    {"type": "object", "properties": {"a": NODE, "q": {"type": "integer"}}},
    {"type": "array", "items": NODE},
    {"type": "array", "prefixItems": [NODE]},
    {"type": "integer"},
]
LEAF = {"type": ["object", "array", "integer"]}
RECURSIVE: dict[str, Any] = {
    "anyOf": {"anyOf": BRANCHES},
    "oneOf": {"oneOf": BRANCHES},
    "allOf": {"allOf": [{"properties": {"a": NODE}, "items": NODE}, {"properties": {"a": NODE}, "items": NODE}, LEAF]},
    "patternProperties": {"properties": {"a": NODE}, "patternProperties": {"^a": NODE}, **LEAF},
    "not": {"not": {"not": {"properties": {"a": NODE}, "patternProperties": {"a": NODE}, **LEAF}}},
    "if": {"if": {"properties": {"a": NODE}}, "then": {"properties": {"a": NODE}}, **LEAF},
    "contains": {"items": NODE, "contains": NODE, "additionalProperties": NODE, **LEAF},
    "dependentSchemas": {"dependentSchemas": {"a": {"properties": {"a": NODE}}}, "properties": {"a": NODE}, **LEAF},
    "unevaluated": {"anyOf": BRANCHES, "unevaluatedProperties": NODE, "unevaluatedItems": NODE},
    "unevaluated, refused": {"oneOf": BRANCHES, "unevaluatedProperties": False, "unevaluatedItems": False},
    "defaults": {"anyOf": [{**BRANCHES[0], "default": {"a": 1}}, {**BRANCHES[1], "default": {}}, {"type": "integer"}]},
    "in place": {"oneOf": [NODE, {"anyOf": [NODE, {"type": "integer"}]}, {"properties": {"a": NODE}}]},
}

DYNAMIC: dict[str, Any] = {
    "union": {
        "$dynamicAnchor": "n",
        "oneOf": [
            {"type": "object", "properties": {"a": {"$dynamicRef": "#n"}}},
            {"type": ["integer", "object"], "patternProperties": {"a": {"$dynamicRef": "#n"}}},
        ],
    },
    "twice": {
        "$dynamicAnchor": "n",
        "properties": {"a": {"$dynamicRef": "#n"}},
        "patternProperties": {"a": {"$dynamicRef": "#n"}},
        "items": {"$dynamicRef": "#n"},
        "contains": {"$dynamicRef": "#n"},
        **LEAF,
    },
    "recursiveRef": {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$recursiveAnchor": True,
        "properties": {"a": {"$recursiveRef": "#"}},
        "patternProperties": {"a": {"$recursiveRef": "#"}},
        **LEAF,
    },
    "chain": {**chain(30, lambda r: {"oneOf": [r, r]}, {"$dynamicRef": "#n"}), "$dynamicAnchor": "n"},
}


def _ring(count: int, keyword: str, wrap: Callable[[Any], Any]) -> Any:
    """Definitions that each refer to all others."""
    names = [f"d{index}" for index in range(count)]
    references = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    definitions = {
        name: {keyword: [*(wrap(references[other]) for other in names if other != name), {"type": "integer"}]}
        for name in names
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _long(count: int, wrap: Callable[[Any], Any]) -> Any:
    return chain(count, wrap)


OTHERS: dict[str, Callable[[], Any]] = {
    "all to all, in place": lambda: _ring(12, "oneOf", lambda r: r),
    "all to all, below": lambda: _ring(7, "oneOf", lambda r: {"type": "object", "properties": {"a": r}}),
    "long chain of allOf": lambda: _long(2_000, lambda r: {"allOf": [r]}),
    "long chain of oneOf": lambda: _long(2_000, lambda r: {"oneOf": [r, {"type": "null"}]}),
    "long chain of properties": lambda: _long(2_000, lambda r: {"properties": {"a": r}}),
    "chain of unevaluatedProperties": lambda: _long(300, lambda r: {"allOf": [r], "unevaluatedProperties": False}),
    "unevaluated inside unevaluated": lambda: _long(
        25, lambda r: {"allOf": [r], "unevaluatedProperties": False, "unevaluatedItems": False}
    ),
    "chain of 150": lambda: _long(150, lambda r: {"allOf": [r], "properties": {"a": {"type": "integer"}}}),
}


def values(depths: tuple[int, ...]) -> list[Any]:
    made: list[Any] = ["x", 1, None]
    for depth in depths:
        for leaf in (1, "x"):
            made += [nested(depth, leaf, wrap) for wrap in (in_object, in_array, wide)]
    return made


def cases(name: str) -> Iterator[Case]:
    """The schemas of one name, and the values to try with each."""
    family, _, member = name.partition(": ")
    if family == "chain":
        for levels in LEVELS:
            yield chain(levels, CHAINS[member]), values((levels,))
    elif family == "recursive":
        yield {"$ref": "#/$defs/n", "$defs": {"n": RECURSIVE[member]}}, values(DEPTHS)
    elif family == "dynamic":
        yield DYNAMIC[member], values(DEPTHS)
    else:
        yield OTHERS[member](), values((390,))


NAMES = [
    f"{family}: {member}"
    for family, members in (("chain", CHAINS), ("recursive", RECURSIVE), ("dynamic", DYNAMIC), ("other", OTHERS))
    for member in members
]


def run(name: str) -> None:
    """Every verb on every value of the cases of one name."""
    for document, tried in cases(name):
        schema = from_schema(document)
        for value in tried:
            problems = schema.errors(value)
            assert schema.check(value) is (problems == []), (document, value)
            for policy in POLICIES:
                result, complaints = schema.normalise(value, policy)
                assert policy == "off" or schema.check(result) or complaints, (document, value)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    run(sys.argv[1])
