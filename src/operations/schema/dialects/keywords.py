"""The vocabulary of JSON Schema: keywords with schemas, assertions, and the form of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

SCHEMA: Final = frozenset(
    {
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "items",
        "unevaluatedItems",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
    }
)
"""Keywords whose value is one schema."""
SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
SCHEMA_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords whose value maps names to schemas."""
LITERALS: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is data, which is not searched for references."""
ANNOTATIONS: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "$comment",
        "$schema",
        "$id",
        "id",
        "$anchor",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$vocabulary",
        "$defs",
        "definitions",
    }
)
"""Keywords that describe a value and never reject one."""
TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def _is_count(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool) and value >= 0) or (
        isinstance(value, float) and value >= 0 and value.is_integer()
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value == value and value not in (float("inf"), float("-inf"))


def _is_divisor(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(name, str) and name in TYPES for name in value)
    )


def _is_name_lists(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_name_list(names) for names in value.values())


ASSERTIONS: Final[dict[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list | tuple),
    "const": lambda value: True,
    "multipleOf": _is_divisor,
    "maximum": _is_number,
    "exclusiveMaximum": _is_number,
    "minimum": _is_number,
    "exclusiveMinimum": _is_number,
    "maxLength": _is_count,
    "minLength": _is_count,
    "pattern": _is_text,
    "maxItems": _is_count,
    "minItems": _is_count,
    "uniqueItems": _is_flag,
    "maxContains": _is_count,
    "minContains": _is_count,
    "maxProperties": _is_count,
    "minProperties": _is_count,
    "required": _is_name_list,
    "dependentRequired": _is_name_lists,
}
"""Assertion keywords without schemas, with a check of their values."""

FORMS: Final[dict[str, Callable[[Any], bool]]] = {
    **ASSERTIONS,
    **dict.fromkeys(("title", "description", "format", "contentEncoding", "contentMediaType", "$comment"), _is_text),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), _is_flag),
    "examples": lambda value: isinstance(value, list | tuple),
}
"""Checks of keyword values, annotations included: an engine rejects a schema with an invalid annotation, too."""

ASSERTING: Final = (ASSERTIONS.keys() | SCHEMA | SCHEMA_LISTS | SCHEMA_MAPS | {"$ref"}) - {"contentSchema"}
"""Keywords of a converted schema that can reject a value; a schema without them accepts every value."""

SINCE_DRAFT: Final = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "unevaluatedProperties": 2019,
    "unevaluatedItems": 2019,
    "minContains": 2019,
    "maxContains": 2019,
    "prefixItems": 2020,
}
"""The draft that introduced a keyword; keywords that every draft has are not listed."""
