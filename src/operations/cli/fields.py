"""The fields of an input schema: what may be typed at a place, for reading words, for completion and for examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Path = Sequence[str | int]
_MOST_STEPS = 200
"""How many sub-schemas of one place are looked at: a schema may refer to itself."""


class Fields:
    """An input schema's document, asked by path; a document that is no mapping describes nothing."""

    def __init__(self, document: object) -> None:
        self._root: Mapping[str, Any] = document if isinstance(document, Mapping) else {}

    def at(self, path: Path = ()) -> list[Mapping[str, Any]]:
        """Every schema that speaks of the value at a path: references followed, branches of unions apart."""
        nodes = list(self._spread(self._root))
        for step in path:
            nodes = [found for node in nodes for child in _children(node, step) for found in self._spread(child)]
            nodes = nodes[:_MOST_STEPS]
        return nodes

    def names(self, path: Path = ()) -> list[str]:
        """The declared members of the object at a path, those that must be there first."""
        nodes = self.at(path)
        declared = dict.fromkeys(name for node in nodes for name in _mapping(node.get("properties")))
        required = {name for node in nodes for name in _sequence(node.get("required"))}
        return sorted(declared, key=lambda name: name not in required)

    def required(self, path: Path = ()) -> set[str]:
        """The members that must be there, whichever branch of a union is taken."""
        return {
            name for name in _sequence(_mapping(self._resolve(self._root)).get("required")) if isinstance(name, str)
        }

    def is_open(self, path: Path = ()) -> bool:
        """Whether members that are not declared are let through."""
        return not any(
            node.get("additionalProperties") is False or node.get("unevaluatedProperties") is False
            for node in self.at(path)
        )

    def types(self, path: Path) -> set[str]:
        """The JSON types that a value at a path may have; empty where the schema does not say."""
        found: set[str] = set()
        for node in self.at(path):
            kind = node.get("type")
            found.update([kind] if isinstance(kind, str) else _sequence(kind))
            if "const" in node:
                found.add(_type_of(node["const"]))
            found.update(_type_of(value) for value in _sequence(node.get("enum")))
            if "type" not in node and "properties" in node:
                found.add("object")
        return found

    def choices(self, path: Path) -> list[Any]:
        """The values that an enumeration at a path allows."""
        listed: list[Any] = []
        for node in self.at(path):
            listed += _sequence(node.get("enum"))
            if "const" in node:
                listed.append(node["const"])
        return listed

    def is_binary(self, path: Path) -> bool:
        """Whether the value at a path is bytes."""
        return any(
            node.get("contentEncoding") == "base64" or node.get("format") in ("binary", "byte")
            for node in self.at(path)
        )

    def _spread(self, schema: object) -> Iterator[Mapping[str, Any]]:
        """A schema and all that are combined in it."""
        waiting, seen = [schema], 0
        while waiting and seen < _MOST_STEPS:
            node = self._resolve(waiting.pop(0))
            seen += 1
            if not isinstance(node, Mapping):
                continue
            yield node
            for keyword in ("allOf", "anyOf", "oneOf"):
                waiting += _sequence(node.get(keyword))

    def _resolve(self, node: object) -> object:
        """A schema, or what it refers to within the document; its other keywords beside."""
        for _ in range(20):
            reference = node.get("$ref") if isinstance(node, Mapping) else None
            if not isinstance(reference, str) or not isinstance(node, Mapping):
                return node
            target = self._find(reference)
            beside = {key: value for key, value in node.items() if key != "$ref"}
            node = {**target, **beside} if isinstance(target, Mapping) else beside
        return {}

    def _find(self, reference: str) -> object:
        if not reference.startswith("#"):
            return None
        found: object = self._root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def _children(node: Mapping[str, Any], step: str | int) -> Iterator[object]:
    if isinstance(step, int):
        prefix = _sequence(node.get("prefixItems"))
        yield prefix[step] if step < len(prefix) else node.get("items")
        return
    properties = _mapping(node.get("properties"))
    yield properties[step] if step in properties else node.get("additionalProperties")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _type_of(value: object) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
