"""The outline of a schema: equally strict, but a failed union reports only that it failed.

The native engine explains a failed union by the errors of every branch, including nested unions. With the outline, only
the requested branches are explained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jsonschema_rs

from operations.schema.checking.compiling import compiled_reference
from operations.schema.dialects.keywords import SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS
from operations.schema.dialects.literals import fragment
from operations.schema.dialects.patterns import weakest_engine
from operations.schema.dialects.traversal import UNEVALUATED, Definition, native_form

_ADDRESS = "urn:operations:outline"
_MARK = "!union"
_MAX_LOCATED = 256
UNIONS = frozenset({"anyOf", "oneOf"})


class Union(NamedTuple):
    """A union of the schema: its branches, and their location in the outline."""

    keyword: str
    branches: list[Any]
    pointer: str


class Outline:
    """The outline of one converted document, and the validators of its parts."""

    def __init__(self, document: dict[str, Any], definitions: Mapping[str, Definition]) -> None:
        self._original = document
        outlined = {pointer: _outlined_definition(definition) for pointer, definition in definitions.items()}
        self._document = _outlined({key: value for key, value in document.items() if key != "$defs"})
        self._document["$defs"] = {pointer[8:]: definition.schema for pointer, definition in outlined.items()}
        form = native_form(self._document, outlined)
        self._registry = jsonschema_rs.Registry([(_ADDRESS, form.schema)])
        self._engine = weakest_engine(form.patterns)
        self._validators: dict[str, jsonschema_rs.Validator | None] = {}
        self._located = lru_cache(_MAX_LOCATED)(self._locate)

    def errors(self, value: Any, pointer: str = "#") -> Iterator[jsonschema_rs.ValidationError]:
        """Yield the native errors of `value` by the schema at a location of the outline."""
        validator = self.validator(pointer)
        return iter(()) if validator is None else validator.iter_errors(value)

    def validator(self, pointer: str = "#") -> jsonschema_rs.Validator | None:
        """Return the validator of the schema at a location of the outline."""
        if pointer not in self._validators:
            document = {"$ref": _ADDRESS + pointer}
            self._validators[pointer] = compiled_reference(document, self._registry, self._engine)
        return self._validators[pointer]

    def locate(self, path: Sequence[str | int]) -> tuple[list[str | int], Union | None]:
        """Return the location in the schema that corresponds to a path in the outline, and the union there, if any."""
        return self._located(tuple(path))

    def _locate(self, path: tuple[str | int, ...]) -> tuple[list[str | int], Union | None]:
        node: Any = self._document
        found: list[str | int] = []
        index = 0
        while index < len(path):
            keyword = _union_at(node, path[index : index + 2])
            if keyword is not None:
                found.append(keyword)
                inside = [*path[: index + 2], "if", keyword]
                if len(path) <= index + 3:
                    pointer = "#" + "".join("/" + fragment(str(part)) for part in inside)
                    return found, Union(keyword, _at(self._original, found), pointer)
                node = node["allOf"][path[index + 1]]["if"][keyword]
                index += 4
            else:
                found.append(path[index])
                node = _step(node, path[index])
                index += 1
        return found, None


def outline_of(document: Any, definitions: Mapping[str, Definition]) -> Outline | None:
    """Return the outline of a document; None if it has no unions, or if the outline would accept other values.

    `definitions` are the document and its definitions by pointer. Shared definitions keep their outlines.
    """
    keywords = keywords_of(definitions)
    if keywords.isdisjoint(UNIONS) or not keywords.isdisjoint(UNEVALUATED):
        return None
    try:
        return Outline(document, {pointer: each for pointer, each in definitions.items() if pointer != "#"})
    except (ValueError, jsonschema_rs.ReferencingError):  # nested too deeply for the native engine
        return None


def keywords_of(definitions: Mapping[str, Definition]) -> frozenset[str]:
    """Return the keywords of all schemas in the definitions of a document."""
    return frozenset().union(*(definition.keywords for definition in definitions.values()))


def _outlined_definition(definition: Definition) -> Definition:
    known = definition.forms.get("outline")
    return known or definition.forms.setdefault("outline", Definition(_outlined(definition.schema)))


def _outlined(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    unions: list[Any] = []
    for keyword, value in schema.items():
        if keyword in ("anyOf", "oneOf") and len(value) > 1:
            unions.append({_MARK: keyword, "if": {keyword: [_outlined(branch) for branch in value]}, "else": False})
        elif keyword in SCHEMA:
            out[keyword] = _outlined(value)
        elif keyword in SCHEMA_LISTS:
            out[keyword] = [_outlined(item) for item in value]
        elif keyword in SCHEMA_MAPS:
            out[keyword] = {name: _outlined(item) for name, item in value.items()}
        else:
            out[keyword] = value
    if unions:
        out["allOf"] = [*out.get("allOf", ()), *unions]
    return out


def _union_at(node: Any, step: Sequence[str | int]) -> str | None:
    if len(step) < 2 or step[0] != "allOf" or not isinstance(node, dict) or not isinstance(node.get("allOf"), list):
        return None
    part = _step(node["allOf"], step[1])
    return part.get(_MARK) if isinstance(part, dict) else None


def _step(node: Any, part: str | int) -> Any:
    try:
        return node[part]
    except (KeyError, IndexError, TypeError):
        return None


def _at(node: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        node = _step(node, part)
    return node
