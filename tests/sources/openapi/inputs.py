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
    "url": "https://example.com/",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
}


def fitting_input(schema: Schema) -> Any:
    """The smallest valid input, with strings of the required format."""
    return schema.cast(_Sketch(schema).draw(schema.document), "total")


def full_input(schema: Schema) -> Any:
    """A valid input with every property, except deep inside."""
    return schema.cast(_Sketch(schema, levels=3).draw(schema.document), "total")


class _Sketch:
    """Draws values from a schema; `levels` is how deep optional properties are included."""

    def __init__(self, schema: Schema, levels: int = 0) -> None:
        document = schema.document
        self._definitions = document.get("$defs", {}) if isinstance(document, dict) else {}
        self._levels = levels

    def draw(self, schema: Any, depth: int = 0) -> Any:
        schema = self._target(schema)
        if not isinstance(schema, dict) or depth > 12:
            return None
        if "allOf" in schema and "type" not in schema:
            # The value of a parameter whose type is behind a reference.
            merged = {key: value for part in schema["allOf"] for key, value in (self._target(part) or {}).items()}
            if merged.get("type") not in (None, "object"):
                schema = {**merged, **{key: value for key, value in schema.items() if key != "allOf"}}
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        if schema.get("enum") or schema.get("format") in FORMATS:
            return schema["enum"][0] if schema.get("enum") else FORMATS[schema["format"]]
        choice = schema.get("oneOf") or schema.get("anyOf")
        if choice and not schema.get("properties"):
            drawn = self.draw(choice[0], depth + 1)
            return "text" if drawn is None and self._is_text(choice[0]) else drawn
        if schema.get("type") == "array":
            length = max(schema.get("minItems", 0), int(depth < self._levels and schema.get("maxItems") != 0))
            item = self.draw(schema.get("items"), depth + 1)
            return ["text" if item is None and self._is_text(schema.get("items")) else item] * length
        kinds = schema.get("type", "object")
        members = self._members(schema, depth) if "object" in ([kinds] if isinstance(kinds, str) else kinds) else {}
        return members if members or schema.get("type") == "object" else self._scalar(schema, depth)

    def _is_text(self, schema: Any) -> bool:
        target = self._target(schema)
        return isinstance(target, dict) and target.get("type") == "string"

    def _scalar(self, schema: dict[str, Any], depth: int) -> Any:
        if depth == 0 or depth > self._levels + 1:
            return None
        kinds = schema.get("type")
        examples = schema.get("examples")
        if isinstance(examples, list) and examples and not isinstance(examples[0], (dict, list)):
            return examples[0]
        kind = kinds if isinstance(kinds, str) else kinds[0] if kinds else None
        return {"string": "text", "boolean": True}.get(kind) if kind is not None else None

    def _members(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for part in (schema, *schema.get("allOf", [])):
            target = self._target(part) or {}
            properties = target.get("properties", {})
            wanted = properties if depth < self._levels else target.get("required", ())
            for name in wanted:
                child = self._target(properties.get(name))
                if name in properties and not (isinstance(child, dict) and child.get("readOnly")):
                    members[name] = self.draw(child, depth + 1)
        return members

    def _target(self, schema: Any) -> Any:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._definitions.get(schema["$ref"].rsplit("/", 1)[-1])
        return schema
