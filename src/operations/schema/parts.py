"""SchemaParts: merges the schemas that apply to one value into one schema, or yields each branch of a union separately.

`Fields` finds schemas by the path of the value. The schemas are converted documents of `operations.schema`, whose
references are pointers into `$defs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
OF_OBJECTS = ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties")
OF_ARRAYS = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")
_MAX_MERGED = 200
_MAX_UNION_DEPTH = 8

FieldPath = Sequence[str | int]


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
        return merge(schema, self.target)

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


class Fields(SchemaParts):
    """The fields of a schema document by path, for parsing input, completion and examples."""

    def at(self, path: FieldPath = ()) -> list[dict[str, Any]]:
        """Return every schema that applies at a path: references resolved, each branch of a union separate."""
        nodes = list(self.variants(self._root))
        for step in path:
            found = (each for node in nodes for each in self.variants(_child(node, step)))
            nodes = list(islice(found, _MAX_MERGED))
        return nodes

    def names(self, path: FieldPath = ()) -> list[str]:
        """Return the declared fields of the object at a path, required ones first."""
        nodes = self.at(path)
        declared = dict.fromkeys(name for node in nodes for name in node.get("properties", ()))
        required = {name for node in nodes for name in node.get("required", ())}
        return sorted(declared, key=lambda name: name not in required)

    def is_open(self, path: FieldPath = ()) -> bool:
        """Whether the object at a path allows undeclared fields."""
        return not any(
            node.get("additionalProperties") is False or node.get("unevaluatedProperties") is False
            for node in self.at(path)
        )

    def types(self, path: FieldPath) -> set[str]:
        """Return the JSON types allowed at a path; empty if the schema does not specify any."""
        return {kind for node in self.at(path) for kind in kinds_of(node)}

    def choices(self, path: FieldPath) -> list[Any]:
        """Return the values that `enum` and `const` list at a path; empty without these keywords."""
        listed: list[Any] = []
        for node in self.at(path):
            listed += node.get("enum", ())
            if "const" in node:
                listed.append(node["const"])
        return listed

    def is_binary(self, path: FieldPath) -> bool:
        """Whether the value at a path is bytes."""
        return any(map(_is_binary, self.at(path)))

    def branches(self, node: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the branches of a union, except null."""
        branches = [*node.get("oneOf", ()), *node.get("anyOf", ())][:_MAX_MERGED]
        return [each for each in map(self.merged, branches) if each.get("type") != "null"]


def _child(node: Mapping[str, Any], step: str | int) -> Any:
    """Return the schema of an item or of a property; None if no schema describes it."""
    if isinstance(step, int):
        prefix = node.get("prefixItems", ())
        return prefix[step] if step < len(prefix) else node.get("items")
    properties = node.get("properties", {})
    return properties[step] if step in properties else node.get("additionalProperties")


def _is_binary(node: Mapping[str, Any]) -> bool:
    kind = node.get("contentMediaType")
    is_file = (
        isinstance(kind, str) and "contentEncoding" not in node and not kind.startswith(("text/", "application/json"))
    )
    return is_file or node.get("contentEncoding") == "base64" or node.get("format") in ("binary", "byte")


def merge(schema: Any, target: Callable[[str], Any]) -> dict[str, Any]:
    """Return a schema with its reference followed and its `allOf` merged into it; its own keywords take precedence.

    `target` returns the target of a reference.
    """
    pending, found, steps = [schema], dict[str, Any](), 0
    while pending and steps < _MAX_MERGED:
        node = pending.pop(0)
        steps += 1
        if not isinstance(node, Mapping):
            continue
        if "$ref" in node:
            pending.insert(0, target(node["$ref"]))
        pending.extend(node.get("allOf", ()))
        for keyword, value in node.items():
            if keyword == "properties":
                known = found.get("properties", {})
                found["properties"] = {**known, **value, **known}
            elif keyword == "required":
                found["required"] = list(dict.fromkeys([*found.get("required", ()), *value]))
            elif keyword not in ("$ref", "allOf", "$defs"):
                found.setdefault(keyword, value)
    return found


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
