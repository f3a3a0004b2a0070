"""Native validators of schema documents; None in place of a validator if the native engine rejects the document.

The regular expressions of a document decide which regex engine is used. The native engine never uses the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jsonschema_rs

from operations.schema.checking.values import too_shared
from operations.schema.dialects.traversal import NativeForm, definitions_of, native_form, unions_of

if TYPE_CHECKING:
    from operations.schema.dialects.references import Loader
    from operations.schema.dialects.traversal import Definition

_ADDRESS = "urn:operations:parts"
_MAX_LOCATED = 256
_NATIVE = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


def compiled(document: Any) -> jsonschema_rs.Validator | None:
    """Return a validator for a converted document; None if the native engine rejects it."""
    return compiled_form(native_form(definitions_of(document)))


def compiled_form(form: NativeForm) -> jsonschema_rs.Validator | None:
    """Return a validator for a converted document in its native form; None if the native engine rejects it."""
    return _compiled(form.schema, **_regex_options(form.patterns))


def _compiled(schema: Any, **options: Any) -> jsonschema_rs.Validator | None:
    try:
        return jsonschema_rs.Draft202012Validator(schema, offline=True, validate_formats=False, **options)
    except (ValueError, jsonschema_rs.ReferencingError, TypeError):
        return None


def _regex_options(patterns: Iterable[str]) -> dict[str, Any]:
    """Return the options that select the engine for regular expressions; no options if there are no patterns."""
    if not patterns:
        return {}
    from operations.schema.dialects.patterns import engine_options, weakest_engine  # most documents have no patterns

    return {"pattern_options": engine_options(weakest_engine(patterns))}


def compiled_original(document: Any, draft: int | None, loader: Loader | None) -> jsonschema_rs.Validator | None:
    """Return a validator for a document in its own draft; None if the native engine cannot or must not use it."""
    if too_shared(document):
        return None
    options: dict[str, Any] = {"offline": True, "validate_formats": False}
    if loader is not None:
        options = {"retriever": loader, "validate_formats": False}
    try:
        patterns = tuple(_patterns_in(document))
        options |= _regex_options(patterns)
        if not _are_native(patterns):
            return None
        if isinstance(document, Mapping) and "$schema" not in document and draft in _NATIVE:
            return _NATIVE[draft](dict(document), **options)
        return jsonschema_rs.validator_for(document, **options)
    except (ValueError, jsonschema_rs.ReferencingError, TypeError):
        return None


def _are_native(patterns: Iterable[str]) -> bool:
    """Whether the native engine may use all patterns as they are written."""
    from operations.schema.dialects.patterns import native_pattern

    return all(native_pattern(pattern) == pattern for pattern in patterns)


def _patterns_in(document: Any) -> Iterator[str]:
    """Yield every regular expression in a document of any draft; examples are searched as well."""
    pending = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, (dict, Mapping)):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            if isinstance(node.get("patternProperties"), Mapping):
                yield from node["patternProperties"]
            node = node.values()
        elif not isinstance(node, (list, tuple)):
            continue
        pending += [item for item in node if item.__class__ is not str]


class Union(NamedTuple):
    """A union of a schema: its keyword and its branches."""

    keyword: str
    branches: list[Any]


class Parts:
    """Native validators of parts of one converted document, each compiled on first use."""

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions
        self._compiled: dict[tuple[int, ...], jsonschema_rs.Validator | None] = {}
        self.locate = lru_cache(_MAX_LOCATED)(self._locate)
        """Function that converts a path in the native form to a path in the schema.

        It returns this path, and the union at the path or None.
        """

    @cached_property
    def form(self) -> NativeForm:
        """The native form of the document."""
        return native_form(self._definitions)

    @cached_property
    def _options(self) -> dict[str, Any]:
        registry = jsonschema_rs.Registry([(_ADDRESS, self.form.schema)])
        return {"registry": registry, **_regex_options(self.form.patterns)}

    def compiled(self, schemas: tuple[Any, ...]) -> jsonschema_rs.Validator | None:
        """Return a validator for all of `schemas`; None if there are none or the native engine rejects them."""
        key = tuple(map(id, schemas))
        if key not in self._compiled:
            references = [{"$ref": f"{_ADDRESS}{self._pointer_to(schema)}"} for schema in schemas]
            document = references[0] if len(references) == 1 else {"allOf": references}
            self._compiled[key] = _compiled(document, **self._options) if references else None
        return self._compiled[key]

    def _pointer_to(self, schema: Any) -> str:
        """Return the pointer, in the native form, of a schema of the document."""
        places = ((pointer, definition.places.get(id(schema))) for pointer, definition in self._definitions.items())
        return next(pointer + place for pointer, place in places if place is not None)

    def _locate(self, path: tuple[str | int, ...]) -> tuple[list[str | int], Union | None]:
        node: Any = self._definitions["#"].schema
        found: list[str | int] = []
        index = 0
        while index < len(path):
            keyword = _union_at(node, path[index : index + 2])
            if keyword is None:
                found.append(path[index])
                node = _step(node, path[index])
                index += 1
                continue
            found.append(keyword)
            node = node[keyword]
            if len(path) <= index + 3:
                return found, Union(keyword, node)
            index += 4
        return found, None


def _union_at(node: Any, step: Sequence[str | int]) -> str | None:
    """Return the keyword of the union of `node` to which a step in the native form leads; None for any other step."""
    if len(step) < 2 or step[0] != "allOf" or not isinstance(node, dict) or not isinstance(step[1], int):
        return None
    unions = unions_of(node)[step[1] - len(node.get("allOf", ())) :] if step[1] >= len(node.get("allOf", ())) else ()
    return unions[0] if unions else None


def _step(node: Any, part: str | int) -> Any:
    try:
        return node[part]
    except (KeyError, IndexError, TypeError):
        return None
