"""Cost estimate of a schema for the native engine: how often it may visit one path of a value.

The native engine follows every path through a schema. With repeated references the number of paths doubles at each
level of a chain, even for small values. The engine cannot be stopped, so the cost is estimated before it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from operations.schema.checking.secrets import target_of
from operations.schema.dialects.traversal import (
    APPLYING,
    BEYOND,
    UNEVALUATED,
    Bounds,
    Definition,
    Nesting,
    nesting_of,
)

AFFORDABLE = 4096
"""Maximum visits of one path for the native engine; beyond it, evaluating step by step is as fast."""
EXPLAINABLE = 64
"""Maximum visits of one path for listing errors, where each visit may keep an error in memory."""
_MAX_HEIGHT = 600
"""Maximum depth of schemas, through references, that the native engine compiles without a stack overflow."""
_CYCLE_SHARE = 10
_MAX_NAMES = 256
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_VERDICT_ONLY = ("anyOf", "oneOf", "not", "if")
"""Keywords for which an outline, or the native engine, only decides validity and lists no errors."""

_OTHERS = ("additionalProperties", "items", "propertyNames", "contains", *UNEVALUATED)
_UNBOUNDED: Final = Bounds(0, BEYOND)
_Key = str | int


class _Visits:
    """Visits by one application of a schema: to its own path, to named properties, to other properties and to items."""

    __slots__ = ("items", "members", "named", "own")

    def __init__(self, own: int) -> None:
        self.own = own
        self.named: dict[_Key, int] = {}
        self.members = 0
        self.items = 0

    def add(self, other: _Visits, times: int = 1) -> None:
        """Add the visits of another schema at the same path."""
        named = self.named
        for key in other.named.keys() | named.keys() if other.named or other.members or other.items else ():
            named[key] = min(self.at(key) + times * other.at(key), BEYOND)
        self.own = min(self.own + times * other.own, BEYOND)
        self.members = min(self.members + times * other.members, BEYOND)
        self.items = min(self.items + times * other.items, BEYOND)

    def at(self, key: _Key) -> int:
        rest = self.items if isinstance(key, int) else self.members
        return self.named.get(key, rest)

    def add_all(self, visits: int, *, items: bool) -> None:
        """Visit every property, or every item."""
        for key in self.named:
            if isinstance(key, int) == items:
                self.named[key] += visits
        if items:
            self.items += visits
        else:
            self.members += visits

    def maximum(self) -> int:
        return max(self.own, self.members, self.items, max(self.named.values(), default=0))

    def shortened(self) -> _Visits:
        """Return the same visits without property names if there are many, so that adding stays cheap."""
        if len(self.named) <= _MAX_NAMES:
            return self
        short = _Visits(self.own)
        short.members = short.items = self.maximum()
        return short


class _Pass(NamedTuple):
    """Parameters of one estimate for a cycle of definitions."""

    own: int
    edge: int
    """Visits counted for a property or item that leads back into the cycle."""
    cycle: frozenset[str]
    done: dict[str, _Visits | None]
    entries: set[str]


class Costs:
    """The cost of one converted document and of each schema in it.

    `definitions` are those of the document by pointer, if other documents share them. What the first of these documents
    finds about a definition, the definition keeps.
    """

    def __init__(
        self,
        document: Any,
        *,
        explained: bool = False,
        outlined: bool = False,
        definitions: Mapping[str, Definition] = MappingProxyType({}),
    ) -> None:
        self._document = document
        self._explained = explained
        self._outlined = outlined
        self._known: dict[str, _Visits] = {}
        self._schemas: dict[int, int] = {}
        self._bounds: dict[str, Bounds] = {}
        self._definitions = definitions
        for group in _components(document, definitions, measured=True):
            self._measure(group)

    def of(self, schema: Any) -> int:
        """Return the visits of one path that a schema of the document can cost; a high number if unknown."""
        self._estimate_all()
        return 0 if isinstance(schema, bool) else self._schemas.get(id(schema), BEYOND)

    @property
    def affordable(self) -> bool:
        """Whether the native engine may be called for any value."""
        return self.affords(self._document)

    def affords(self, schema: Any) -> bool:
        """Whether the native engine may be called for any value of one schema of the document."""
        root = schema is self._document
        height = self._bounds["#"].height if root else self._height(nesting_of(schema))
        if root and self._bounds["#"].visits <= AFFORDABLE:  # fast path: most schemas are small
            return height <= _MAX_HEIGHT
        return height <= _MAX_HEIGHT and self.of(schema) <= max(AFFORDABLE, len(self._schemas))

    @property
    def explainable(self) -> bool:
        """Whether the native engine may list the errors of any value."""
        if self._bounds["#"].visits <= EXPLAINABLE:  # fast path: most schemas are small
            return True
        self._estimate_all()
        return max(self._schemas.values(), default=0) <= max(EXPLAINABLE, len(self._schemas))

    def _measure(self, group: dict[str, Nesting]) -> None:
        """Compute how deeply definitions are nested for the native engine; each definition of a cycle counts once."""
        height = max(self._height(references) for references in group.values())
        if len(group) > 1:
            height += sum(references.depth for references in group.values()) // _CYCLE_SHARE
        for pointer in group:
            bounds = Bounds(height, self._max_of(target_of(pointer, self._document)))
            shared = self._definitions.get(pointer)
            if shared is None:
                self._bounds[pointer] = bounds
            else:
                shared.bounds = bounds

    def _bounds_of(self, pointer: str) -> Bounds:
        """Return the bounds of a definition; too many visits if it is part of the same cycle."""
        shared = self._definitions.get(pointer)
        known = self._bounds.get(pointer) if shared is None else shared.bounds
        return known or _UNBOUNDED

    def _max_of(self, schema: Any) -> int:
        """Return an upper limit of the visits of one path; visits to different properties are not distinguished."""
        if not isinstance(schema, dict):
            return 1
        if APPLYING.isdisjoint(schema):  # fast path: a type and a description
            return 1
        in_place = self._bounds_of(schema["$ref"]).visits if "$ref" in schema else 0
        for _, child in _in_place(schema):
            in_place += self._max_of(child)
        named = 1
        for child in chain(schema.get("properties", {}).values(), schema.get("prefixItems", ())):
            if isinstance(child, dict) and not APPLYING.isdisjoint(child):
                named = max(named, self._max_of(child))
        for keyword in _OTHERS:
            if keyword in schema:
                named += self._max_of(schema[keyword])
        for child in schema.get("patternProperties", {}).values():
            named += self._max_of(child)
        again = 1 + sum(keyword in schema for keyword in UNEVALUATED)
        return min(1 + again * in_place + named, BEYOND)

    def _height(self, references: Nesting) -> int:
        return max(
            [references.depth, *(depth + self._bounds_of(name).height for name, depth in references.targets.items())]
        )

    def _estimate_all(self) -> None:
        if not self._known:
            for group in _components(self._document, self._definitions):
                self._estimate(group)

    def _estimate(self, group: dict[str, Nesting]) -> None:
        """Estimate the cost of definitions that refer to each other, or of a single definition."""
        cycle = frozenset(group)
        entries: set[str] = set()
        edge = 1
        if any(cycle & references.targets.keys() for references in group.values()):
            edge = self._edge(cycle, entries)
        last = _Pass(1, edge, cycle, {}, entries)
        for pointer in cycle:
            self._known[pointer] = self._definition(pointer, last).shortened()

    def _edge(self, cycle: frozenset[str], entries: set[str]) -> int:
        """Return the visits counted for re-entering a cycle.

        While checking, the native engine caches the results of definitions that refer to themselves, so each entry into
        the cycle counts once. When it lists errors, nothing is cached.
        """
        first = _Pass(0, 1, cycle, {}, entries)
        returns = {pointer: self._definition(pointer, first).maximum() for pointer in cycle}
        factor = 1
        for pointer in entries:
            factor = min(factor * max(1, returns[pointer]), BEYOND)
        if self._explained and factor > 1:
            return BEYOND
        second = _Pass(1, 1, cycle, {}, entries)
        return min(factor * max((self._definition(p, second).maximum() for p in entries), default=1), BEYOND)

    def _definition(self, pointer: str, estimate: _Pass) -> _Visits:
        if pointer not in estimate.done:
            estimate.done[pointer] = None
            estimate.done[pointer] = self._visits(target_of(pointer, self._document), estimate, top=True)
        # A definition that applies itself to the same path, which sensible schemas never do.
        return estimate.done[pointer] or _Visits(BEYOND)

    def _visits(self, schema: Any, estimate: _Pass, *, top: bool) -> _Visits:
        visits = _Visits(estimate.own)
        if not isinstance(schema, dict):
            return visits
        if APPLYING.isdisjoint(schema):  # fast path: a type and a description
            self._schemas[id(schema)] = estimate.own
            return visits
        again = 1 + sum(keyword in schema for keyword in UNEVALUATED)
        if "$ref" in schema:
            visits.add(self._reference(schema["$ref"], estimate, top=top), again)
        for keyword, child in _in_place(schema):
            inner = self._visits(child, estimate, top=top)
            if not (self._outlined and keyword in _VERDICT_ONLY):
                visits.add(inner, again)
        self._add_parts(visits, schema, estimate)
        self._schemas[id(schema)] = visits.maximum()
        return visits

    def _reference(self, pointer: str, estimate: _Pass, *, top: bool) -> _Visits:
        if pointer not in estimate.cycle:
            return self._known.get(pointer, _Visits(1)) if estimate.own else _Visits(0)
        if top:
            return self._definition(pointer, estimate)
        estimate.entries.add(pointer)
        return _Visits(estimate.edge)

    def _add_parts(self, visits: _Visits, schema: dict[str, Any], estimate: _Pass) -> None:
        """Count the visits of properties and items."""
        own = _Visits(0)
        for key, child in chain(schema.get("properties", {}).items(), enumerate(schema.get("prefixItems", ()))):
            own.named[key] = self._max_visits(child, estimate)
        own.members = self._max_visits(schema.get("additionalProperties", True), estimate)
        own.items = self._max_visits(schema.get("items", True), estimate)
        for child in schema.get("patternProperties", {}).values():
            own.add_all(self._max_visits(child, estimate), items=False)
        for keyword in ("unevaluatedProperties", "propertyNames"):
            own.add_all(self._max_visits(schema.get(keyword, True), estimate), items=False)
        for keyword in ("unevaluatedItems", "contains"):
            own.add_all(self._max_visits(schema.get(keyword, True), estimate), items=True)
        visits.add(own)

    def _max_visits(self, schema: Any, estimate: _Pass) -> int:
        return 0 if isinstance(schema, bool) else self._visits(schema, estimate, top=False).maximum()


def _in_place(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in _LISTS:
        for child in schema.get(keyword, ()):
            yield keyword, child
    for keyword in _SINGLE:
        if keyword in schema:
            yield keyword, schema[keyword]
    for child in schema.get("dependentSchemas", {}).values():
        yield "dependentSchemas", child


def _components(
    document: Any, definitions: Mapping[str, Definition], *, measured: bool = False
) -> Iterator[dict[str, Nesting]]:
    """Yield groups of definitions that refer to each other, dependencies first (Tarjan's algorithm).

    With `measured`, those whose bounds are known are left out.
    """
    known = {pointer for pointer, shared in definitions.items() if shared.bounds} if measured else ()
    reached_definitions: dict[str, Nesting] = {}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    opened: dict[str, None] = {}
    walk: list[tuple[str, Iterator[str]]] = []

    def enter(pointer: str) -> None:
        shared = definitions.get(pointer)
        found = nesting_of(target_of(pointer, document)) if shared is None else shared.nesting
        reached_definitions[pointer] = found
        order[pointer] = low[pointer] = len(order)
        opened[pointer] = None
        walk.append((pointer, iter(reached_definitions[pointer].targets)))

    enter("#")
    while walk:
        pointer, targets = walk[-1]
        target = next(targets, None)
        if target is None:
            walk.pop()
            if walk:
                low[walk[-1][0]] = min(low[walk[-1][0]], low[pointer])
            if low[pointer] == order[pointer]:
                group = {}
                while pointer in opened:
                    last = opened.popitem()[0]
                    group[last] = reached_definitions[last]
                yield group
        elif target not in order and target not in known:
            enter(target)
        elif target in opened:
            low[pointer] = min(low[pointer], order[target])
