"""OpenAPI 3.0's schema objects as draft 4 would say them: `nullable`, `example`, what only documents.

Swagger 2.0 has the same objects, and says `x-nullable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DOCUMENTATION = frozenset({"discriminator", "xml", "externalDocs", "nullable", "x-nullable", "example"})


def from_openapi30(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """One schema object, its sub-schemas untouched, with OpenAPI's own keywords replaced or dropped."""
    if "$ref" in schema:
        return schema
    nullable = schema.get("nullable") is True or schema.get("x-nullable") is True
    if not nullable and not any(keyword in schema for keyword in _DOCUMENTATION):
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
    """A schema with no type of its own that also accepts null; what describes it stays outside."""
    described: dict[str, Any] = {}
    for keyword in ("title", "description", "default", "examples"):
        if keyword in schema:
            described[keyword] = schema.pop(keyword)
    return {**described, "anyOf": [schema, {"type": "null"}]} if schema else described
