"""Traversal of a converted document: its schemas, and the targets of its references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from operations.schema.dialects.keywords import ASSERTING, SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS

_MAX_STEPS = 50
_POINTER = "#/$defs/"


def schemas_in(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every object schema of a document once, the document first."""
    pending: list[Any] = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(schemas_below(node))


def schemas_below(node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the direct sub-schemas of a schema."""
    for key, value in node.items():
        if key in SCHEMA:
            yield value
        elif key in SCHEMA_LISTS and isinstance(value, list):
            yield from value
        elif (key in SCHEMA_MAPS or key == "$defs") and isinstance(value, dict):
            yield from value.values()


def target_in(definitions: Mapping[str, Any], schema: Any) -> Any:
    """Return the target of a schema that is only a reference, else the schema itself; `#` stays a reference."""
    for _ in range(_MAX_STEPS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith(_POINTER):
            break
        if len(schema) > 1 and len(schema.keys() & ASSERTING) > 1:
            break
        schema = definitions.get(reference[len(_POINTER) :], True)
    return schema


def parts_of(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas that apply in addition to a schema's own keywords."""
    if "$ref" in schema:
        yield {"$ref": schema["$ref"]}
    yield from schema.get("allOf", ())
