"""Cost estimate of a schema: how often the native engine may visit one path of a value.

The native engine follows every path through a schema. With repeated references the number of paths doubles at each
level of a chain, even for small values. The engine cannot be stopped, so the cost is estimated before it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from operations.schema.dialects.keywords import SCHEMA_LISTS, SCHEMA_MAPS
from operations.schema.dialects.traversal import (
    APPLYING,
    BEYOND,
    UNEVALUATED,
    Bounds,
    Definition,
    components,
)

AFFORDABLE = 4096
"""Maximum visits of one path for the native engine; above this number, evaluating step by step is as fast."""
EXPLAINABLE = 64
"""Maximum visits of one path for listing errors, where each visit may keep an error in memory."""
_MAX_HEIGHT = 600
"""Maximum depth of schemas, through references, that the native engine compiles without a stack overflow."""
_CYCLE_SHARE = 10
_UNEVALUATED_DEPTH = 7
_MAX_NAMES = 256
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_VERDICT_ONLY = ("anyOf", "oneOf", "not", "if")
"""Keywords for which the native form only decides validity and lists no errors."""

_IN_PLACE = frozenset({*_LISTS, *_SINGLE, "dependentSchemas"})
_NAMED = frozenset({"properties", "prefixItems"})
_UNBOUNDED: Final = Bounds(0, BEYOND, 0)
_Key = str | int


class _Visits:
    """How often the engine visits paths when it applies a schema once.

    The paths are the path of the value, named properties and items, other properties, and other items.
    """

    __slots__ = ("items", "members", "named", "own")

    def __init__(self, own: int) -> None:
        self.own = own
        self.named: dict[_Key, int] = {}
        self.members = 0
        self.items = 0

    def add(self, other: _Visits, times: int = 1) -> None:
        """Add the visits of another schema at the same path."""
        named = self.named
        keys: Iterable[_Key] = other.named
        if other.members or other.items:  # they change every name, which for many names takes quadratic time
            if len(named) > _MAX_NAMES:
                self.members = self.items = max(self.members, self.items, *named.values())
                named.clear()
            keys = other.named.keys() | named.keys()
        for key in keys:
            named[key] = min(self.at(key) + times * other.at(key), BEYOND)
        self.own = min(self.own + times * other.own, BEYOND)
        self.members = min(self.members + times * other.members, BEYOND)
        self.items = min(self.items + times * other.items, BEYOND)

    def at(self, key: _Key) -> int:
        rest = self.items if isinstance(key, int) else self.members
        return self.named.get(key, rest)

    def add_all(self, visits: int, *, items: bool) -> None:
        """Add visits of every property, or with `items` of every item."""
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
        """Return the same visits, without property names if there are many names, so that adding stays cheap."""
        if len(self.named) <= _MAX_NAMES:
            return self
        short = _Visits(self.own)
        short.members = short.items = self.maximum()
        return short


class _Pass(NamedTuple):
    """Parameters of one pass of the cost estimate over a cycle of definitions."""

    own: int
    edge: int
    """Number of visits to count for a property or item that leads back into the cycle."""
    cycle: frozenset[str]
    done: dict[str, _Visits | None]
    entries: set[str]


class Costs:
    """The cost of one converted document and of each schema in it.

    `definitions` are the document and its definitions by pointer. The bounds of a definition are computed once and
    stored in the definition. With `explained`, the cost includes listing errors. Errors in the branches of unions are
    included only if `outlined` is false.
    """

    def __init__(
        self, definitions: Mapping[str, Definition], *, explained: bool = False, outlined: bool = True
    ) -> None:
        self._document = definitions["#"].schema
        self._explained = explained
        self._outlined = explained and outlined
        self._known: dict[str, _Visits] = {}
        self._schemas: dict[int, int] = {}
        self._definitions = definitions
        for group in components(("#",), self._unmeasured):
            self._measure(group)

    def of(self, schema: Any) -> int:
        """Return how often the native engine may visit one path for a schema of the document; `BEYOND` if this is
        unknown.
        """
        self._estimate_all()
        return 0 if isinstance(schema, bool) else self._schemas.get(id(schema), BEYOND)

    @property
    def affordable(self) -> bool:
        """Whether the document is cheap enough for the native engine, whatever the value."""
        return self.affords(self._document)

    def affords(self, schema: Any) -> bool:
        """Whether one schema of the document is cheap enough for the native engine, whatever the value."""
        bounds = self._bounds_of("#") if schema is self._document else _Walk(schema, self._bounds_of)
        if bounds.height > _MAX_HEIGHT:
            return False
        if bounds.visits <= AFFORDABLE:  # fast path: most schemas are small
            return True
        return self.of(schema) <= max(AFFORDABLE, len(self._schemas))

    @property
    def explainable(self) -> bool:
        """Whether listing errors is cheap enough for the native engine, whatever the value."""
        schemas = sum(definition.bounds.schemas for definition in self._definitions.values() if definition.bounds)
        limit = max(EXPLAINABLE, schemas)
        if self._bounds_of("#").visits <= limit:  # fast path: in most documents, paths are few
            return True
        self._estimate_all()
        return max(self._schemas.values(), default=0) <= limit

    def _unmeasured(self, pointer: str) -> list[str]:
        """Return the definitions without bounds that a definition refers to."""
        return [target for target in self._definitions[pointer].targets if self._definitions[target].bounds is None]

    def _measure(self, group: Sequence[str]) -> None:
        """Compute the bounds of definitions that refer to each other, or of a single definition.

        The height of a cycle includes one tenth of the depth of each definition.
        """
        walks = {pointer: _Walk(self._definitions[pointer].schema, self._bounds_of) for pointer in group}
        height = max(walk.height for walk in walks.values())
        if len(group) > 1:
            height += sum(walk.depth for walk in walks.values()) // _CYCLE_SHARE
        for pointer, walk in walks.items():
            self._definitions[pointer].bounds = Bounds(height, walk.visits, walk.schemas)

    def _bounds_of(self, pointer: str) -> Bounds:
        """Return the bounds of a definition; unlimited visits if they are not computed yet, as within a cycle."""
        return self._definitions[pointer].bounds or _UNBOUNDED

    def _estimate_all(self) -> None:
        if not self._known:
            for group in components(("#",), lambda pointer: self._definitions[pointer].targets):
                self._estimate(group)

    def _estimate(self, group: Sequence[str]) -> None:
        """Estimate the cost of definitions that refer to each other, or of a single definition."""
        cycle = frozenset(group)
        entries: set[str] = set()
        edge = 1
        if any(cycle & self._definitions[pointer].targets for pointer in group):
            edge = self._edge(cycle, entries)
        last = _Pass(1, edge, cycle, {}, entries)
        for pointer in cycle:
            self._known[pointer] = self._definition(pointer, last).shortened()

    def _edge(self, cycle: frozenset[str], entries: set[str]) -> int:
        """Return how many visits to count for a reference that leads back into a cycle.

        While checking, the native engine caches the results of definitions that refer to themselves, so each entry into
        the cycle counts once. While listing errors, the engine caches nothing.
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
            estimate.done[pointer] = self._visits(self._definitions[pointer].schema, estimate, top=True)
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


class _Walk:
    """The bounds of the cost of one schema, and the depth of the schema without references; both
    are found in one walk.
    """

    def __init__(self, schema: Any, bounds_of: Callable[[str], Bounds]) -> None:
        self._bounds_of = bounds_of
        self.height = self.depth = self.schemas = 0
        self.visits = self._visits(schema, 1)
        self.height = max(self.height, self.depth)

    def _visits(self, schema: Any, depth: int) -> int:
        """Return an upper limit of the visits of one path; visits to different properties are not distinguished."""
        if not isinstance(schema, dict):
            return 1
        self.schemas += 1
        if depth > self.depth:
            self.depth = depth
        if APPLYING.isdisjoint(schema):  # fast path: a type and a description
            return 1
        again = 1 + sum(keyword in schema for keyword in UNEVALUATED)
        below = depth + (1 if again == 1 else _UNEVALUATED_DEPTH)
        in_place, others, named = 0, 0, 1
        for keyword, value in schema.items():
            if keyword == "$ref":
                target = self._bounds_of(value)
                self.height = max(self.height, depth + target.height)
                in_place += target.visits
            elif keyword in APPLYING:
                level = below + (keyword in SCHEMA_MAPS)
                visits = [self._visits(child, level) for child in _children(keyword, value)]
                if keyword in _NAMED:
                    named = max(named, max(visits, default=1))
                elif keyword in _IN_PLACE:
                    in_place += sum(visits)
                else:
                    others += sum(visits)
        return min(1 + again * in_place + named + others, BEYOND)


def _children(keyword: str, value: Any) -> Iterable[Any]:
    """Return the schemas in the value of a keyword."""
    if keyword in SCHEMA_MAPS:
        children: Iterable[Any] = value.values()
        return children
    return value if keyword in SCHEMA_LISTS else (value,)
