"""Fields of an input schema by path, for parsing input, completion and examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Path = Sequence[str | int]
WORD = r"(?s)^(?P<key>[^=@:]+(?::(?!=)[^=@:]*)*?)(?P<sign>:=@|=@|:=|=|@)(?P<value>.*)$"
"""A word of a command line that specifies a field: `key=value`, `key:=json`, `key@file`."""
WHOLE = ("@", "{", "[")
"""First characters of a word that specifies the whole input, such as `@input.json`, instead of one field."""
_MAX_STEPS = 200
"""Maximum number of sub-schemas to inspect at one path, because a schema may refer to itself."""


def is_assignment(name: str, value: str) -> bool:
    """Whether the word `name=value` means this field and this value, not a file, an option or other JSON."""
    match = None if name.startswith(("-", *WHOLE)) else re.match(WORD, f"{name}={value}")
    return match is not None and match.groups() == (name, "=", value)


class Fields:
    """The fields of a schema document; a document that is not a mapping has none."""

    def __init__(self, document: object) -> None:
        self._root: Mapping[str, Any] = document if isinstance(document, Mapping) else {}

    def at(self, path: Path = ()) -> list[Mapping[str, Any]]:
        """Return every schema that applies at a path: references resolved, each branch of a union separate."""
        nodes = list(self._spread(self._root))
        for step in path:
            nodes = [found for node in nodes for child in _children(node, step) for found in self._spread(child)]
            nodes = nodes[:_MAX_STEPS]
        return nodes

    def names(self, path: Path = ()) -> list[str]:
        """Return the declared fields of the object at a path, required ones first."""
        nodes = self.at(path)
        declared = dict.fromkeys(name for node in nodes for name in _mapping(node.get("properties")))
        required = {name for node in nodes for name in _sequence(node.get("required"))}
        return sorted(declared, key=lambda name: name not in required)

    def is_open(self, path: Path = ()) -> bool:
        """Whether undeclared fields are allowed."""
        return not any(
            node.get("additionalProperties") is False or node.get("unevaluatedProperties") is False
            for node in self.at(path)
        )

    def types(self, path: Path) -> set[str]:
        """Return the JSON types allowed at a path; empty if the schema does not specify any."""
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
        """Return the values of an enumeration at a path."""
        listed: list[Any] = []
        for node in self.at(path):
            listed += _sequence(node.get("enum"))
            if "const" in node:
                listed.append(node["const"])
        return listed

    def is_binary(self, path: Path) -> bool:
        """Whether the value at a path is bytes."""
        return any(map(_is_binary, self.at(path)))

    def merged(self, schema: object) -> dict[str, Any]:
        """Return one schema with its reference resolved and its `allOf` merged; unions are not merged."""
        merged: dict[str, Any] = {}
        waiting, seen = [schema], 0
        while waiting and seen < _MAX_STEPS:
            node = self._resolve(waiting.pop(0))
            seen += 1
            if not isinstance(node, Mapping):
                continue
            waiting[:0] = _sequence(node.get("allOf"))
            for keyword, value in node.items():
                if keyword == "properties":
                    merged["properties"] = {**_mapping(value), **merged.get("properties", {})}
                elif keyword == "required":
                    merged["required"] = [*merged.get("required", ()), *_sequence(value)]
                elif keyword != "allOf":
                    merged.setdefault(keyword, value)
        return merged

    def variants(self, node: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the branches of a union, except null."""
        branches = [*_sequence(node.get("oneOf")), *_sequence(node.get("anyOf"))][:_MAX_STEPS]
        found = [self.merged(branch) for branch in branches]
        return [each for each in found if each.get("type") != "null"]

    def _spread(self, schema: object) -> Iterator[Mapping[str, Any]]:
        """Yield a schema and the schemas in its `allOf`, `anyOf` and `oneOf`, which apply to the same value."""
        waiting, seen = [schema], 0
        while waiting and seen < _MAX_STEPS:
            node = self._resolve(waiting.pop(0))
            seen += 1
            if not isinstance(node, Mapping):
                continue
            yield node
            for keyword in ("allOf", "anyOf", "oneOf"):
                waiting += _sequence(node.get(keyword))

    def _resolve(self, node: object) -> object:
        """Return a schema with its `$ref` replaced by the target's keywords; keywords beside `$ref` take precedence."""
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


def _is_binary(node: Mapping[str, Any]) -> bool:
    kind = node.get("contentMediaType")
    is_file = (
        isinstance(kind, str) and "contentEncoding" not in node and not kind.startswith(("text/", "application/json"))
    )
    return is_file or node.get("contentEncoding") == "base64" or node.get("format") in ("binary", "byte")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _type_of(value: object) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
