"""Inputs that match a schema, including formats: a server of the same document rejects others."""

from __future__ import annotations

from typing import Any

from operations import Schema

FORMATS = {
    "date": "2024-05-17",
    "date-time": "2024-05-17T12:00:00Z",
    "time": "12:00:00Z",
    "uuid": "3fa85f64-5717-4562-b3fc-2c963f66afa6",
    "email": "ada@example.com",
    "uri": "https://example.com/",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
}


def fitting_input(schema: Schema) -> Any:
    """The smallest valid input, with strings of the required format."""
    document = schema.document
    definitions = document.get("$defs", {}) if isinstance(document, dict) else {}
    return schema.cast(_sketch(document, definitions, 0), "total")


def _sketch(schema: Any, definitions: dict[str, Any], depth: int) -> Any:
    schema = _target(schema, definitions)
    if not isinstance(schema, dict) or depth > 12:
        return None
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum") or schema.get("format") in FORMATS:
        return schema["enum"][0] if schema.get("enum") else FORMATS[schema["format"]]
    choice = schema.get("oneOf") or schema.get("anyOf")
    if choice:
        return _sketch(choice[0], definitions, depth + 1)
    if schema.get("type") == "array":
        return [_sketch(schema.get("items"), definitions, depth + 1)] * schema.get("minItems", 0)
    members = _members(schema, definitions, depth)
    return members if members or schema.get("type") == "object" else None


def _members(schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for part in (schema, *schema.get("allOf", [])):
        target = _target(part, definitions) or {}
        for name in target.get("required", ()):
            if name in target.get("properties", {}):
                members[name] = _sketch(target["properties"][name], definitions, depth + 1)
    return members


def _target(schema: Any, definitions: dict[str, Any]) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = definitions.get(schema["$ref"].rsplit("/", 1)[-1])
    return schema
