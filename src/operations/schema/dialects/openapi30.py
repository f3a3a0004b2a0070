"""Conversion of OpenAPI 3.0 schema objects to draft 4: `nullable`, `example`, documentation keywords.

Swagger 2.0 has the same objects, with `x-nullable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.schema.dialects.keywords import TYPES

_MISSPELLED = {
    **dict.fromkeys(("int", "int32", "int64", "long", "short", "integers"), "integer"),
    **dict.fromkeys(("float", "double", "decimal", "numeric", "int or float"), "number"),
    **dict.fromkeys(("bool", "boolen"), "boolean"),
    **dict.fromkeys(("str", "text", "char", "file", "date", "datetime", "date-time", "time", "timestamp"), "string"),
    **dict.fromkeys(("uuid", "guid", "email", "url", "uri", "byte", "binary", "base64", "enum", "strings"), "string"),
    **dict.fromkeys(("list", "arrays"), "array"),
    **dict.fromkeys(("map", "dict", "dictionary", "hash", "json", "obj"), "object"),
    **{kind: kind for kind in TYPES},
}
"""JSON types by the misspelled and foreign names that documents use."""
_DOCUMENTATION = frozenset({"discriminator", "xml", "externalDocs", "nullable", "x-nullable", "example"})


def from_openapi30(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema object with OpenAPI's own keywords replaced or dropped; sub-schemas stay unchanged."""
    if "$ref" in schema:
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and kind not in TYPES and (meant := _MISSPELLED.get(kind.strip().lower())):
        schema = {**schema, "type": meant}
    nullable = schema.get("nullable") is True or schema.get("x-nullable") is True
    if not nullable and _DOCUMENTATION.isdisjoint(schema):
        return schema
    out = {keyword: value for keyword, value in schema.items() if keyword not in _DOCUMENTATION}
    if "example" in schema:
        out.setdefault("examples", [schema["example"]])
    return _with_null(out) if nullable else out


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and None not in choices:
        schema["enum"] = [*choices, None]
    if isinstance(kind, str):
        schema["type"] = [kind, "null"] if kind != "null" else kind
        if not any(keyword in schema for keyword in ("allOf", "anyOf", "oneOf", "not")):
            return schema
        schema["type"] = kind
    elif choices is not None:
        return schema
    return _or_null(schema)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts null, for a schema without a type; annotations stay outside the union."""
    described: dict[str, Any] = {}
    for keyword in ("title", "description", "default", "examples"):
        if keyword in schema:
            described[keyword] = schema.pop(keyword)
    return {**described, "anyOf": [schema, {"type": "null"}]} if schema else described
