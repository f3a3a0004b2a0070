"""Native validators of schema documents; None in place of a validator if the native engine rejects the document.

The regular expressions of a document decide which regex engine is used. The native engine never uses the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from operations.schema.checking.values import too_shared
from operations.schema.dialects.literals import fragment
from operations.schema.dialects.traversal import NativeForm, native_form, targets_of

if TYPE_CHECKING:
    from operations.schema.dialects.patterns import Engine
    from operations.schema.dialects.references import Loader
    from operations.schema.dialects.traversal import Definition

_ADDRESS = "urn:operations:parts"
_NATIVE = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


def compiled(
    document: Any, definitions: Mapping[str, Definition] = MappingProxyType({})
) -> jsonschema_rs.Validator | None:
    """Return a validator for a converted document; None if the native engine rejects it.

    `definitions` are the document's definitions by pointer, if other documents share them.
    """
    return compiled_form(native_form(document, definitions))


def compiled_form(form: NativeForm) -> jsonschema_rs.Validator | None:
    """Return a validator for a converted document in its native form; None if the native engine rejects it."""
    return _compiled(form.schema, **_regex_options(form.patterns))


def compiled_reference(
    reference: Any, registry: jsonschema_rs.Registry, engine: Engine
) -> jsonschema_rs.Validator | None:
    """Return a validator for references to the documents of a registry; `engine` is the regex engine."""
    from operations.schema.dialects.patterns import engine_options

    return _compiled(reference, registry=registry, pattern_options=engine_options(engine))


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
    """Return a validator for a document in its own draft; None if the native engine rejects it."""
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


class Parts:
    """Native validators of parts of one converted document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._registry: jsonschema_rs.Registry | None = None
        self._pointers: dict[int, str] = {}
        self._engine: Engine = "linear"

    def compiled(self, schemas: tuple[Any, ...]) -> jsonschema_rs.Validator | None:
        """Return a validator for all of `schemas`; None if there are none or the native engine rejects them."""
        if not any(targets_of(schema) for schema in schemas):
            return compiled(schemas[0] if len(schemas) == 1 else {"allOf": list(schemas)}) if schemas else None
        if self._registry is None:
            from operations.schema.dialects.patterns import weakest_engine

            self._pointers = dict(pointers(self._document, fragment))
            form = native_form(self._document)
            self._engine = weakest_engine(form.patterns)
            self._registry = jsonschema_rs.Registry([(_ADDRESS, form.schema)])
        references = [{"$ref": f"{_ADDRESS}#{self._pointers[id(schema)]}"} for schema in schemas]
        document = references[0] if len(references) == 1 else {"allOf": references}
        return compiled_reference(document, self._registry, self._engine)


def pointers(document: Any, segment: Callable[[str], str]) -> Iterator[tuple[int, str]]:
    """Yield the id() and the JSON pointer of every object in a document; `segment` encodes a part of a pointer."""
    pending = [(document, "")]
    while pending:
        node, written = pending.pop()
        if isinstance(node, dict):
            yield id(node), written
            members: Iterable[tuple[Any, Any]] = node.items()
        elif isinstance(node, list):
            members = enumerate(node)
        else:
            continue
        pending += [(item, f"{written}/{segment(str(key))}") for key, item in members]
