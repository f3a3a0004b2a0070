"""Native validators of converted documents: the right regex engine, no network access, no exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from operations.schema.checking.values import too_shared
from operations.schema.dialects.literals import fragment

if TYPE_CHECKING:
    from operations.schema.dialects.patterns import Engine
    from operations.schema.dialects.references import Loader

_ADDRESS = "urn:operations:parts"
_NATIVE = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


def patterns_in(document: Any) -> Iterator[str]:
    """Yield every regular expression in a document."""
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


def compiled(
    document: Any, *, registry: jsonschema_rs.Registry | None = None, engine: Engine | None = None
) -> jsonschema_rs.Validator | None:
    """Return a validator for a converted document; None if the native engine rejects it.

    `engine` is the regex engine, if `document` only refers to another document.
    """
    try:
        return jsonschema_rs.Draft202012Validator(
            document, offline=True, registry=registry, validate_formats=False, **_regex_options(document, engine)
        )
    except (ValueError, jsonschema_rs.ReferencingError, TypeError):
        return None


def _regex_options(document: Any, engine: Engine | None = None) -> dict[str, Any]:
    """Return the options that select the engine for the regular expressions in a document; none for none."""
    patterns = () if engine else tuple(patterns_in(document))
    if not engine and not patterns:
        return {}
    from operations.schema.dialects.patterns import engine_options, weakest_engine  # most documents have no patterns

    return {"pattern_options": engine_options(engine or weakest_engine(patterns))}


def compiled_original(document: Any, draft: int | None, loader: Loader | None) -> jsonschema_rs.Validator | None:
    """Return a validator for a document in its own draft; None if the native engine rejects it."""
    if too_shared(document):
        return None
    options: dict[str, Any] = {"offline": True, "validate_formats": False}
    if loader is not None:
        options = {"retriever": loader, "validate_formats": False}
    try:
        options |= _regex_options(document)
        if isinstance(document, Mapping) and "$schema" not in document and draft in _NATIVE:
            return _NATIVE[draft](dict(document), **options)
        return jsonschema_rs.validator_for(document, **options)
    except (ValueError, jsonschema_rs.ReferencingError, TypeError):
        return None


class Parts:
    """Native validators of parts of one converted document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._registry: jsonschema_rs.Registry | None = None
        self._pointers: dict[int, str] = {}
        self._engine: Engine = "linear"

    def compiled(self, schemas: tuple[Any, ...]) -> jsonschema_rs.Validator | None:
        """Return a validator for all of `schemas`; None if there are none or the native engine rejects them."""
        if self._registry is None:
            from operations.schema.dialects.patterns import weakest_engine

            self._pointers = dict(pointers(self._document))
            self._engine = weakest_engine(patterns_in(self._document))
            self._registry = jsonschema_rs.Registry([(_ADDRESS, self._document)])
        references = [{"$ref": f"{_ADDRESS}#{self._pointers[id(schema)]}"} for schema in schemas]
        document = references[0] if len(references) == 1 else {"allOf": references}
        return compiled(document, registry=self._registry, engine=self._engine) if references else None


def pointers(document: Any) -> Iterator[tuple[int, str]]:
    """Yield the id() of every object in a document with its JSON pointer, as a URL fragment."""
    pending = [(document, "")]
    while pending:
        node, pointer = pending.pop()
        if isinstance(node, dict):
            yield id(node), pointer
            members: Iterable[tuple[Any, Any]] = node.items()
        elif isinstance(node, list):
            members = enumerate(node)
        else:
            continue
        pending += [(item, f"{pointer}/{fragment(str(key))}") for key, item in members]
