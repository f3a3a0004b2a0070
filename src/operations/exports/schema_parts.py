"""SchemaParts: the schemas that apply to one value, merged into one schema or as separate branches of its unions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
OF_OBJECTS = ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties")
OF_ARRAYS = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")
_MAX_MERGED = 200
_MAX_UNION_DEPTH = 8


class SchemaParts:
    """Follows the references of one document, whose definitions are in its `$defs`."""

    def __init__(self, document: Mapping[str, Any] | bool) -> None:
        self._root = document
        self._definitions: Mapping[str, Any] = {} if isinstance(document, bool) else document.get("$defs", {})

    def target(self, reference: str) -> Any:
        """Return the target of a reference."""
        return self._root if reference == "#" else self._definitions.get(reference.removeprefix("#/$defs/"), {})

    def merged(self, schema: Any) -> dict[str, Any]:
        """Return a schema with its reference followed and its `allOf` merged into it."""
        pending, found, steps = [schema], dict[str, Any](), 0
        while pending and steps < _MAX_MERGED:
            node = pending.pop(0)
            steps += 1
            if not isinstance(node, Mapping):
                continue
            reference = node.get("$ref")
            if isinstance(reference, str):
                pending.insert(0, self.target(reference))
            pending.extend(node.get("allOf", ()))
            for keyword, value in node.items():
                if keyword == "properties":
                    found["properties"] = {**found.get("properties", {}), **value}
                elif keyword == "required":
                    found["required"] = list(dict.fromkeys([*found.get("required", ()), *value]))
                elif keyword not in ("$ref", "allOf", "$defs"):
                    found.setdefault(keyword, value)
        return found

    def variants(self, schema: Any) -> Iterator[dict[str, Any]]:
        """Yield a merged schema and, recursively, the merged branches of its unions."""
        pending, steps = [schema], 0
        while pending and steps < _MAX_MERGED:
            node = self.merged(pending.pop(0))
            steps += 1
            yield node
            pending.extend(each for key in ("anyOf", "oneOf") for each in node.get(key, ()))

    def accepts_null(self, schema: Any, depth: int = 0) -> bool:
        """Whether a schema accepts null; only the types of the schema and of its union branches are considered."""
        node = self.merged(schema)
        if not node or depth > _MAX_UNION_DEPTH:
            return True
        branches = [each for key in ("anyOf", "oneOf") for each in node.get(key, ())]
        if any(self.accepts_null(each, depth + 1) for each in branches):
            return True
        return "null" in kinds_of(node) or not (kinds_of(node) or branches)


def kinds_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the JSON types that a schema names or implies; an empty list if the schema does not restrict the type."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, (list, tuple)):
        return [each for each in _TYPES if each in kind]
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        found = {type_of(value) for value in values}
        return [each for each in _TYPES if each in found]
    if any(keyword in schema for keyword in OF_OBJECTS):
        return ["object"]
    return ["array"] if any(keyword in schema for keyword in OF_ARRAYS) else []


def type_of(value: object) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
