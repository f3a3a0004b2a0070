"""Loader of unions: selects the member type that a JSON-like value matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from operations.errors import CallError
from operations.schema.schema import Schema, from_schema
from operations.schema.types.documents import describe_type
from operations.schema.types.mismatch import mismatch

Load = Callable[[Any], Any]

_KINDS: Mapping[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"integer", "number"}),
    list: frozenset({"array"}),
    tuple: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
    bytes: frozenset({"bytes"}),
}
_ALL = frozenset().union(*_KINDS.values())


class Variant:
    """A member of a union: its schema, and its loader."""

    def __init__(self, tp: Any, load: Load) -> None:
        self.load = load
        self._type = tp

    @cached_property
    def schema(self) -> Schema:
        """The member's schema."""
        return from_schema(describe_type(self._type, mode="input"))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The JSON types that the member accepts."""
        return _kinds_of(self._document, self._document)

    @property
    def _document(self) -> Any:
        return self.schema.document

    def loses(self, value: Any) -> bool:
        """Whether the member would drop a property of `value` that it does not declare."""
        if not isinstance(value, dict) or not isinstance(self._document, Mapping):
            return False
        known = self._document.get("properties")
        return known is not None and not self._document.get("additionalProperties") and not value.keys() <= known.keys()

    def checks(self, value: Any) -> bool:
        """Whether `value` matches the schema; true if the value cannot be checked, for example because it has bytes."""
        try:
            return self.schema.check(value)
        except (ValueError, TypeError):
            return True


def make_union_load(members: Sequence[tuple[Any, Load]]) -> Load:
    """Return a loader that tries the members whose schema matches a value, else all members of the value's JSON type.

    Members that declare every property of the value are tried first.
    """
    variants = [Variant(tp, load) for tp, load in members if tp is not None and tp is not type(None)]
    nullable = len(variants) < len(members)
    if nullable and len(variants) == 1:
        only = variants[0].load
        return lambda value: None if value is None else only(value)

    def load(value: Any) -> Any:
        if value is None and nullable:
            return None
        kinds = _KINDS.get(type(value), _ALL)
        candidates = [variant for variant in variants if kinds & variant.kinds]
        if len(candidates) > 1:
            candidates = [variant for variant in candidates if variant.checks(value)] or candidates
            candidates.sort(key=lambda variant: _rank(variant, value))
        return _first_that_loads(candidates, value)

    return load


def _rank(variant: Variant, value: Any) -> tuple[bool, bool]:
    # Almost any string is valid base64, so bytes come last.
    return variant.loses(value), isinstance(value, str) and "bytes" in variant.kinds


def _first_that_loads(variants: Sequence[Variant], value: Any) -> Any:
    failed: CallError | None = None
    for variant in variants:
        try:
            return variant.load(value)
        except CallError as error:
            failed = failed or error
    raise failed or mismatch([("", "matches no member of the union")])


def _kinds_of(node: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema accepts; all types if the keywords do not restrict the types."""
    if not isinstance(node, Mapping) or depth > 20:
        return _ALL
    if "$ref" in node:
        return _kinds_of(root.get("$defs", {}).get(node["$ref"].rpartition("/")[2]), root, depth + 1)
    if "enum" in node or "const" in node:
        values = node.get("enum") or [node.get("const")]
        return frozenset().union(*(_KINDS.get(type(value), _ALL) for value in values))
    options = node.get("anyOf") or node.get("oneOf")
    if options:
        return frozenset().union(*(_kinds_of(option, root, depth + 1) for option in options))
    if "type" not in node:
        return _ALL
    named = node["type"] if isinstance(node["type"], list) else [node["type"]]
    return frozenset(named) | ({"bytes"} if node.get("contentEncoding") == "base64" else frozenset())
