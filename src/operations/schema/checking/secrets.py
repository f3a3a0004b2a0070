"""Which places of a value hold secrets: what the schema marks `writeOnly` or `format: password`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from operations.schema.dialects.patterns import matcher

Path = tuple[str | int, ...]
_MAX_DEPTH = 200
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_CONDITIONAL = ("if", "then", "else", "not")


class Secrets:
    """Finds the secret places of values by one converted document."""

    def __init__(self, document: dict[str, Any] | bool) -> None:
        self._document = document
        self._any = _marks_any(document)

    def paths(self, value: Any) -> set[Path]:
        """The paths in `value` that must never be printed."""
        found: set[Path] = set()
        if self._any:
            self._walk([self._document], value, (), found)
        return found

    def _walk(self, schemas: list[Any], value: Any, path: Path, found: set[Path]) -> None:
        parts = list(self._parts(schemas))
        if any(part.get("writeOnly") is True or part.get("format") == "password" for part in parts):
            found.add(path)
            return
        if len(path) > _MAX_DEPTH:
            return
        if isinstance(value, Mapping):
            for name, item in value.items():
                inner = [schema for part in parts for schema in _member_schemas(part, str(name))]
                if inner:
                    self._walk(inner, item, (*path, name), found)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                inner = [schema for part in parts for schema in _item_schemas(part, index)]
                if inner:
                    self._walk(inner, item, (*path, index), found)

    def _parts(self, schemas: list[Any]) -> Iterator[dict[str, Any]]:
        """Every schema that may apply to the same place, through references and unions."""
        seen: set[int] = set()
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if "$ref" in schema:
                pending.append(target_of(schema["$ref"], self._document))
            for keyword in _IN_PLACE:
                pending += schema.get(keyword, ())
            pending += [schema[keyword] for keyword in _CONDITIONAL if keyword in schema]
            pending += schema.get("dependentSchemas", {}).values()


def target_of(pointer: str, document: Any) -> Any:
    """What a converted document's reference leads to: `#` or `#/$defs/<name>`."""
    return document if pointer == "#" else document["$defs"][pointer[8:]]


def _member_schemas(part: dict[str, Any], name: str) -> Iterator[Any]:
    if name in part.get("properties", ()):
        yield part["properties"][name]
    for pattern, schema in part.get("patternProperties", {}).items():
        if matcher(pattern)(name):
            yield schema
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in part:
            yield part[keyword]


def _item_schemas(part: dict[str, Any], index: int) -> Iterator[Any]:
    prefix = part.get("prefixItems", ())
    if index < len(prefix):
        yield prefix[index]
    for keyword in ("items", "contains", "unevaluatedItems"):
        if keyword in part:
            yield part[keyword]


def _marks_any(document: Any) -> bool:
    pending = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node.get("writeOnly") is True or node.get("format") == "password":
                return True
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return False
