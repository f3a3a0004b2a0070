"""Unrolled recursive schemas, limited to a few levels, so that the recursion of the native engine is bounded.

The unrolled form accepts only valid values. A value that it rejects may be valid but deeper: the caller then measures
the depth and uses the recursive form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from operations.schema.checking.compiling import compiled_form
from operations.schema.checking.costs import Costs
from operations.schema.dialects.traversal import (
    Definition,
    components,
    definitions_of,
    native_form,
    schemas_in,
    targets_of,
)

_LEVELS = 24
_MAX_SCHEMAS = 150
_NEGATING = ("not", "if", "oneOf", "contains", "propertyNames")


def unrolled(definitions: Mapping[str, Definition]) -> dict[str, Any] | None:
    """Return a document with its cycles unrolled; None if the result would be large or accept invalid values."""
    edges = {pointer: definition.targets for pointer, definition in definitions.items()}
    groups = components(definitions, edges.__getitem__)
    cyclic = {pointer for group in groups for pointer in group if len(group) > 1 or pointer in edges[pointer]}
    size = sum(1 for pointer in cyclic for _ in schemas_in(definitions[pointer].schema, ()))
    if not cyclic or size > _MAX_SCHEMAS or any(_negates(definition.schema) for definition in definitions.values()):
        return None
    return _Unroller(definitions, cyclic).document()


def compiled_shallow(definitions: Mapping[str, Definition]) -> jsonschema_rs.Validator | None:
    """Return a native validator of the first levels of a document; None if unrolling is impossible or too costly."""
    shallow = unrolled(definitions)
    if shallow is None or not Costs(made := definitions_of(shallow)).affordable:
        return None
    return compiled_form(native_form(made))


class _Unroller:
    """Writes a copy of each cyclic definition for each level."""

    def __init__(self, definitions: Mapping[str, Definition], cyclic: set[str]) -> None:
        self._definitions = {pointer: definition.schema for pointer, definition in definitions.items()}
        self._cyclic = cyclic

    def document(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for pointer, schema in self._definitions.items():
            if pointer in self._cyclic:
                for level in range(_LEVELS):
                    made[_name(pointer, level)] = self._copy(schema, level + 1)
                made[_name(pointer, _LEVELS)] = False
            elif pointer != "#":
                made[_name(pointer, 0)] = self._copy(schema, 0)
        root = {"$ref": f"#/$defs/{_name('#', 0)}"} if "#" in self._cyclic else self._copy(self._definitions["#"], 0)
        return {**root, "$defs": made}

    def _copy(self, schema: Any, level: int) -> Any:
        if isinstance(schema, list):
            return [self._copy(item, level) for item in schema]
        if not isinstance(schema, dict):
            return schema
        out = {key: self._copy(value, level) for key, value in schema.items() if key not in ("$defs", "$ref")}
        if isinstance(schema.get("$ref"), str):
            target = schema["$ref"]
            out["$ref"] = f"#/$defs/{_name(target, level if target in self._cyclic else 0)}"
        elif "$ref" in schema:
            out["$ref"] = self._copy(schema["$ref"], level)
        return out


def _name(pointer: str, level: int) -> str:
    return f"{level}.{pointer[8:]}"


def _negates(schema: Any) -> bool:
    """Whether a reference is below a keyword such as `not`, under which a stricter schema accepts more values."""
    nodes = schemas_in(schema, ()) if isinstance(schema, dict) else ()
    negated = (node[keyword] for node in nodes for keyword in _NEGATING if keyword in node)
    return any(targets_of({"allOf": part} if isinstance(part, list) else part) for part in negated)
