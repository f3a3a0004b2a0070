"""Plain schemas: types, properties and items in draft 2020-12, without references, unions and patterns.

Most Python functions have such schemas. They need no conversion and no estimate of their cost, and their closed form
only forbids undeclared properties. Other schemas need the modules `conversion`, `checking.costs` and
`casting.closed_form`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from operations.schema.dialects.keywords import TYPES

if TYPE_CHECKING:
    from operations.schema.dialects.traversal import Definition

_MAX_DEPTH = 16
_TEXTS = frozenset({"title", "description", "format"})
_BOUNDS = frozenset({"minimum", "maximum"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})


class Conversion(NamedTuple):
    """A converted document, and facts that the conversion found."""

    document: dict[str, Any] | bool
    complaints: tuple[str, ...]
    """The parts of the document that were omitted, with the reasons."""
    exact: bool
    """Whether the converted document accepts the same values as the original."""
    recursive: bool
    """Whether the schema can recurse to any depth."""
    plain: bool = False
    """Whether the document is a plain schema."""
    shared: Mapping[str, Definition] = MappingProxyType({})
    """The definitions of the document by pointer, if other schemas share them."""


class _NotPlainError(Exception):
    """A schema has a part that is not plain."""


def convert_plain(document: Any) -> Conversion | None:
    """Return the conversion of a plain schema; None if the document is not plain."""
    try:
        return Conversion(_copied(document, 0), (), True, False, plain=True)
    except _NotPlainError:
        return None


def closed_plain(schema: Any) -> Any:
    """Return the closed form of a plain schema, which forbids undeclared properties; None if there are defaults."""
    try:
        return _closed(schema)
    except _NotPlainError:
        return None


def _copied(schema: Any, depth: int) -> Any:
    if isinstance(schema, bool) and depth:
        return schema
    if type(schema) is not dict or depth > _MAX_DEPTH:
        raise _NotPlainError
    return {keyword: _keyword(keyword, value, depth) for keyword, value in schema.items()}


def _keyword(keyword: Any, value: Any, depth: int) -> Any:
    kind = type(value)
    if keyword == "properties" and kind is dict and all(map(_is_text, value)):
        return {name: _copied(item, depth + 1) for name, item in value.items()}
    if keyword in ("items", "additionalProperties"):
        return _copied(value, depth + 1)
    if keyword in ("required", "enum") and kind is list and all(map(_is_text, value)):
        return list(value)
    if (
        (keyword == "type" and kind is str and value in TYPES)
        or (keyword in _TEXTS and _is_text(value))
        or (keyword in _COUNTS and kind is int and value >= 0)
        or (keyword in _BOUNDS and _is_number(value))
        or (keyword == "default" and (value is None or kind is bool or _is_text(value) or _is_number(value)))
    ):
        return value
    raise _NotPlainError


def _closed(schema: Any) -> Any:
    if isinstance(schema, bool):
        return schema
    if "default" in schema:
        raise _NotPlainError
    out = {**schema}
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            out[keyword] = _closed(schema[keyword])
    if "properties" in schema:
        members = {name: _closed(item) for name, item in schema["properties"].items()}
        if "additionalProperties" not in schema:
            out["additionalProperties"] = False
            members = {**dict.fromkeys(schema.get("required", ()), True), **members}
        out["properties"] = members
    return out


def _is_text(value: Any) -> bool:
    return type(value) is str and value.isascii()


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and isfinite(value))
