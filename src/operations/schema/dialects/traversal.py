"""Traversal of a converted document: its schemas, its references and their targets, its assertions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from operations.schema.dialects.keywords import ASSERTING, ASSERTIONS, SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS

_MAX_STEPS = 50
_POINTER = "#/$defs/"
BEYOND: Final = 1 << 40
"""A number of visits above every limit."""
UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_UNEVALUATED_DEPTH = 7
_UNWALKED = ("$defs", "enum", "const", "default", "examples")
_LEAVES: Final = ASSERTIONS.keys() | {"$ref"}
_SINGLE: Final = SCHEMA - {"contentSchema"}
_MAPS: Final = SCHEMA_MAPS | {"$defs"}


def schemas_in(document: dict[str, Any], definitions: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield every object schema of a document once, the document first; with `definitions`, only those of them."""
    pending: list[Any] = [document]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            if node is document and definitions is not None:
                pending += [*schemas_below(node, definitions=False), *(node["$defs"][name] for name in definitions)]
            else:
                pending.extend(schemas_below(node))


def schemas_below(node: Mapping[str, Any], *, definitions: bool = True) -> Iterator[Any]:
    """Yield the direct sub-schemas of a schema, with or without its definitions."""
    for key, value in node.items():
        if key in SCHEMA:
            yield value
        elif key in SCHEMA_LISTS and isinstance(value, list):
            yield from value
        elif (key in SCHEMA_MAPS or (definitions and key == "$defs")) and isinstance(value, dict):
            yield from value.values()


def target_in(definitions: Mapping[str, Any], schema: Any) -> Any:
    """Return the target of a schema that is only a reference, else the schema itself; `#` stays a reference."""
    for _ in range(_MAX_STEPS):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith(_POINTER):
            break
        if len(schema) > 1 and len(schema.keys() & ASSERTING) > 1:
            break
        schema = definitions.get(reference[len(_POINTER) :], True)
    return schema


def parts_of(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas that apply in addition to a schema's own keywords."""
    if "$ref" in schema:
        yield {"$ref": schema["$ref"]}
    yield from schema.get("allOf", ())


class ReferenceCounts(NamedTuple):
    """References of a definition with their depth and number; its own depth, and its number of objects."""

    targets: dict[str, int]
    times: dict[str, int]
    depth: int
    size: int


def count_references(schema: Any) -> ReferenceCounts:
    """Return the references of a converted schema, except those of its own definitions."""
    targets: dict[str, int] = {}
    times: dict[str, int] = {}
    deepest = size = 0
    pending = [(schema, 1)] if isinstance(schema, (dict, list)) else []
    while pending:
        node, depth = pending.pop()
        if isinstance(node, dict):
            deepest = max(deepest, depth)
            # Unevaluated parts are found by visiting everything again, so counting objects is not sufficient.
            unevaluated = any(key in node for key in UNEVALUATED)
            size += BEYOND if unevaluated else 1
            if isinstance(node.get("$ref"), str):
                times[node["$ref"]] = times.get(node["$ref"], 0) + 1
                targets[node["$ref"]] = max(targets.get(node["$ref"], 0), depth)
            below = depth + (_UNEVALUATED_DEPTH if unevaluated else 1)
            pending += [
                (value, below)
                for key, value in node.items()
                if isinstance(value, (dict, list)) and key not in _UNWALKED
            ]
        else:
            pending += [(item, depth) for item in node if isinstance(item, (dict, list))]
    return ReferenceCounts(targets, times, deepest, size)


class NativeForm(NamedTuple):
    """The part of a converted schema for the native engine: its assertions, without descriptions and examples."""

    schema: Any
    patterns: tuple[str, ...]
    """Every regular expression in the schema."""
    compares_items: bool
    """Whether items are compared with each other."""


def native_form(document: Any) -> NativeForm:
    """Return the assertions of a converted document, at the same pointers, found in one walk.

    Without this, the native engine would take twice as long, to read annotations as well.
    """
    patterns: list[str] = []
    compares: list[bool] = []

    def asserting(schema: Any) -> Any:
        if schema.__class__ is not dict:
            return schema
        out: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in _LEAVES:
                out[keyword] = value
            elif keyword in _SINGLE:
                out[keyword] = asserting(value)
            elif keyword in SCHEMA_LISTS:
                out[keyword] = [asserting(item) for item in value]
            elif keyword in _MAPS:
                out[keyword] = {name: asserting(item) for name, item in value.items()}
        if "pattern" in out:
            patterns.append(out["pattern"])
        patterns.extend(out.get("patternProperties", ()))
        compares.append(out.get("uniqueItems", False))
        return out

    schema = asserting(document)
    return NativeForm(schema, tuple(patterns), any(compares))


def joined_form(root: NativeForm, definitions: Mapping[str, NativeForm]) -> NativeForm:
    """Return the native form of a document, joined from the native forms of its own keywords and of its definitions."""
    forms = definitions.values()
    patterns = [*root.patterns, *(pattern for form in forms for pattern in form.patterns)]
    schema = {**root.schema, "$defs": {name: form.schema for name, form in definitions.items()}}
    return NativeForm(schema, tuple(patterns), root.compares_items or any(form.compares_items for form in forms))


class Definition:
    """A converted component of a document. It is not changed after a schema refers to it."""

    def __init__(self, schema: Any, targets: frozenset[str], exact: bool) -> None:
        self.schema = schema
        self.targets = targets
        """Pointers of the definitions that it refers to."""
        self.exact = exact

    @cached_property
    def native(self) -> NativeForm:
        """Its assertions, for the native engine."""
        return native_form(self.schema)

    @cached_property
    def counts(self) -> ReferenceCounts:
        """Its references, for the estimate of costs."""
        return count_references(self.schema)
