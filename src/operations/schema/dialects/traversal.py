"""Traversal of a converted document: its schemas, its references and their targets, its assertions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from operations.schema.dialects.keywords import ASSERTING, ASSERTIONS, SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS
from operations.schema.dialects.literals import fragment

_MAX_STEPS = 50
_MAX_UNION_DEPTH = 20
"""Depth up to which unions are moved into separate schemas.

Moving adds JSON levels, of which the native engine reads at most 255.
"""
_POINTER = "#/$defs/"
BEYOND: Final = 1 << 40
"""A number of visits above every limit."""
UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
APPLYING: Final = (SCHEMA - {"contentSchema"}) | SCHEMA_LISTS | SCHEMA_MAPS | {"$ref"}
"""Keywords with sub-schemas or references that apply to a value."""
UNIONS: Final = frozenset({"anyOf", "oneOf"})
_SIMPLE: Final = 100
"""Length of a pattern above which its cost is estimated."""
_LEAVES: Final = ASSERTIONS.keys() | {"$ref"}
_SINGLE: Final = SCHEMA - {"contentSchema"}


def schemas_in(document: dict[str, Any], definitions: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield every object schema of a document once, the document first.

    With `definitions`, only the definitions with these names are included.
    """
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


class Bounds(NamedTuple):
    """Bounds of a definition's cost for the native engine, including the definitions that it refers to."""

    height: int
    """The depth of the definition, through references."""
    visits: int
    """An upper limit of the visits of one path of a value."""
    schemas: int
    """The number of schemas in the definition itself."""


def targets_of(schema: Any) -> frozenset[str]:
    """Return the pointers that a converted schema refers to, without the references inside its definitions."""
    nodes = schemas_in(schema, ()) if isinstance(schema, dict) else ()
    return frozenset(node["$ref"] for node in nodes if "$ref" in node)


class NativeForm(NamedTuple):
    """The part of a converted schema for the native engine: its assertions, without descriptions and examples.

    A failed union reports only that it failed; otherwise the engine would list the errors of all branches of the
    union. For this, each union moves into `allOf`, as `{"if": union, "else": false}`.
    """

    schema: Any
    patterns: tuple[str, ...]
    """Every regular expression in the schema."""
    compares_items: bool
    """Whether items are compared with each other."""
    marks_secrets: bool
    """Whether a schema marks its values as secret."""


def native_form(definitions: Mapping[str, Definition]) -> NativeForm:
    """Return the assertions of a converted document, given as its definitions by pointer.

    Annotations are removed because the native engine would need as much time to read them as to read the assertions.
    """
    forms = {pointer: definition.native for pointer, definition in definitions.items()}
    schema = forms["#"].schema
    if len(forms) > 1:
        schema = {**schema, "$defs": {pointer[8:]: form.schema for pointer, form in forms.items() if pointer != "#"}}
    patterns = tuple(pattern for form in forms.values() for pattern in form.patterns)
    compares = any(form.compares_items for form in forms.values())
    return NativeForm(schema, patterns, compares, any(form.marks_secrets for form in forms.values()))


def _native_form(document: Any) -> NativeForm:
    """Return the assertions of one definition, found in one walk."""
    patterns: list[str] = []
    compares: list[bool] = []
    marks: list[bool] = []

    def asserting(schema: Any, depth: int) -> Any:
        if schema.__class__ is not dict:
            return schema
        out: dict[str, Any] = {}
        marks.append(is_marked(schema))
        for keyword, value in schema.items():
            if keyword in _LEAVES:
                out[keyword] = value
            elif keyword in _SINGLE:
                out[keyword] = asserting(value, depth + 1)
            elif keyword in SCHEMA_LISTS:
                out[keyword] = [asserting(item, depth + 1) for item in value]
            elif keyword in SCHEMA_MAPS:
                out[keyword] = {name: asserting(item, depth + 1) for name, item in value.items()}
        _move_unions(out, depth)
        if "pattern" in out:
            patterns.append(out["pattern"])
            if "(" in out["pattern"] or "{" in out["pattern"] or len(out["pattern"]) > _SIMPLE:
                from operations.schema.dialects.patterns import native_pattern  # most documents have no patterns

                out["pattern"] = native_pattern(out["pattern"])
        patterns.extend(out.get("patternProperties", ()))
        compares.append(out.get("uniqueItems", False))
        return out

    schema = asserting(document, 0)
    return NativeForm(schema, tuple(patterns), any(compares), any(marks))


def _move_unions(schema: dict[str, Any], depth: int) -> None:
    """Move each union of a schema into a schema in its `allOf`, in place, unless the schema is nested too deep."""
    if UNIONS.isdisjoint(schema) or depth > _MAX_UNION_DEPTH:
        return
    if unions := [{"if": {keyword: schema.pop(keyword)}, "else": False} for keyword in unions_of(schema)]:
        schema["allOf"] = [*schema.get("allOf", ()), *unions]


def _native_children(schema: Mapping[str, Any], depth: int) -> Iterator[tuple[Any, str]]:
    """Yield the direct sub-schemas of a schema, and their pointers in its native form."""
    conjuncts = len(schema.get("allOf", ()))
    for keyword, value in schema.items():
        if keyword in _SINGLE:
            yield value, keyword
        elif keyword in SCHEMA_LISTS:
            place = keyword
            if depth <= _MAX_UNION_DEPTH and keyword in UNIONS and len(value) > 1:
                place = f"allOf/{conjuncts}/if/{keyword}"
                conjuncts += 1
            yield from ((item, f"{place}/{index}") for index, item in enumerate(value))
        elif keyword in SCHEMA_MAPS:
            yield from ((item, f"{keyword}/{fragment(name)}") for name, item in value.items())


def unions_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of the unions in a schema, in the order of its native form."""
    return [keyword for keyword, branches in schema.items() if keyword in UNIONS and len(branches) > 1]


class Definition:
    """A definition that documents may share, and facts about it. The schema never changes once a document uses it."""

    def __init__(self, schema: Any, targets: frozenset[str] | None = None, exact: bool = True) -> None:
        self.schema = schema
        if targets is not None:
            self.targets = targets
        self.exact = exact
        self.forms: dict[str, Definition] = {}
        """The closed forms of the definition by kind, written by the first schema that needs them."""
        self.bounds: Bounds | None = None
        """The bounds of the definition's cost, found by the first estimate that needs them."""
        self.reaches: dict[str, bool] = {}
        """Whether a predicate holds for a schema in this definition or in one that it refers to, by the predicate's
        name.
        """

    @property
    def schemas(self) -> Iterator[dict[str, Any]]:
        """Every object schema in the definition."""
        return schemas_in(self.schema, ()) if isinstance(self.schema, dict) else iter(())

    @cached_property
    def targets(self) -> frozenset[str]:
        """Pointers of the definitions that this one refers to."""
        return targets_of(self.schema)

    @cached_property
    def native(self) -> NativeForm:
        """The assertions of the definition, for the native engine."""
        return _native_form(self.schema)

    @cached_property
    def places(self) -> dict[int, str]:
        """The JSON pointer of each schema of the definition in the definition's native form, by the schema's id()."""
        places: dict[int, str] = {}
        pending = [(self.schema, "", 0)]
        while pending:
            schema, place, depth = pending.pop()
            if isinstance(schema, dict):
                places[id(schema)] = place
                below = _native_children(schema, depth)
                pending += [(child, f"{place}/{step}", depth + 1) for child, step in below]
        return places


def components(starts: Iterable[str], targets: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Yield groups of definitions that refer to each other; a group comes after all groups that it refers to.

    This is Tarjan's algorithm.

    The definitions are those in `starts` and all that they refer to; `targets` returns what one definition refers to.
    """
    order = {"": 0}
    low = {"": 0}
    opened: dict[str, None] = {}
    walk = [("", iter(starts))]
    while True:
        pointer, rest = walk[-1]
        target = next(rest, None)
        if target is None:
            walk.pop()
            if not walk:
                return
            low[walk[-1][0]] = min(low[walk[-1][0]], low[pointer])
            if low[pointer] == order[pointer]:
                group = []
                while pointer in opened:
                    group.append(opened.popitem()[0])
                yield group
        elif target in opened:
            low[pointer] = min(low[pointer], order[target])
        elif target not in order:
            order[target] = low[target] = len(order)
            opened[target] = None
            walk.append((target, iter(targets(target))))


def is_marked(schema: Mapping[str, Any]) -> bool:
    """Whether a schema marks its values as secret."""
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def definitions_of(document: Any, shared: Mapping[str, Definition] = MappingProxyType({})) -> dict[str, Definition]:
    """Return the document and its definitions by pointer; `shared` are definitions that other documents share."""
    named = document.get("$defs", {}) if isinstance(document, dict) and not shared else {}
    own = {f"{_POINTER}{name}": Definition(schema) for name, schema in named.items()}
    return {"#": Definition(document), **own, **shared}


class Reach:
    """The schemas of a document for which a predicate holds, or that contain or refer to such a schema.

    `name` identifies the predicate. Schemas are walked on demand. `holds` decides whether the predicate holds for at
    least one schema of a definition.
    """

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        name: str,
        predicate: Callable[[Any], bool],
        holds: Callable[[Definition], bool],
    ) -> None:
        self._definitions = definitions
        self._name = name
        self._predicate = predicate
        self._known: dict[int, bool] = {}
        fresh = {pointer: each for pointer, each in definitions.items() if name not in each.reaches}
        users: dict[str, list[str]] = {}
        found = []
        for pointer, definition in fresh.items():
            for target in definition.targets:
                users.setdefault(target, []).append(pointer)
            if holds(definition) or any(map(self.reached_from, definition.targets)):
                found.append(pointer)
        reached: set[str] = set()
        while found:
            pointer = found.pop()
            if pointer not in reached:
                reached.add(pointer)
                found += users.get(pointer, ())
        for pointer, definition in fresh.items():
            definition.reaches[name] = pointer in reached

    def reached_from(self, pointer: str) -> bool:
        """Whether the predicate holds for a schema of a definition, or for one that the definition refers to."""
        definition = self._definitions.get(pointer)
        return definition is not None and definition.reaches.get(self._name, False)

    def reaches(self, schema: Any) -> bool:
        """Whether the predicate holds for a schema of the document, or for one that it contains or refers to."""
        if not isinstance(schema, dict) or APPLYING.isdisjoint(schema):
            return isinstance(schema, dict) and self._predicate(schema)
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = (
                self._predicate(schema)
                or ("$ref" in schema and self.reached_from(schema["$ref"]))
                or any(self.reaches(child) for child in schemas_below(schema, definitions=False))
            )
        return known
