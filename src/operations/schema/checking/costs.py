"""What a schema can cost the native engine: how often it may look at one place of a value, told from the schema alone.

The native engine follows every path through a schema. Where references repeat, the paths double at every level of a
chain, and no value has to be large for that. The engine cannot be stopped once it is called, so that is decided before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from operations.schema.checking.secrets import target_of

AFFORDABLE = 4096
"""Looks at one place of a value that the native engine is given: about as long as evaluating step by step takes."""
EXPLAINABLE = 64
"""The same for listing errors, where each look may leave an error in memory."""
_BEYOND = 1 << 40
_MAX_HEIGHT = 600
"""Levels of schemas, through references, that the native engine compiles without running out of stack."""
_CYCLE_SHARE = 10
_UNEVALUATED_DEPTH = 7
_UNWALKED = ("$defs", "enum", "const", "default", "examples")
UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_MAX_NAMES = 256
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_ASKED = ("anyOf", "oneOf", "not", "if")
"""Where an outline, or the native engine by itself, only asks whether a value fits, and lists no errors."""

_Key = str | int
_APPLYING = frozenset(
    {
        *(*_LISTS, *_SINGLE, *UNEVALUATED, "$ref", "dependentSchemas", "properties", "prefixItems"),
        *("additionalProperties", "items", "patternProperties", "propertyNames", "contains"),
    }
)
"""Keywords that hold or name other schemas, so that there is more to look at than the schema itself."""


class _Looks:
    """How often one schema, applied once, looks at a place (`own`), at its members by name, and at all others."""

    __slots__ = ("items", "members", "named", "own")

    def __init__(self, own: int) -> None:
        self.own = own
        self.named: dict[_Key, int] = {}
        self.members = 0
        self.items = 0

    def add(self, other: _Looks, times: int = 1) -> None:
        """Apply another schema at the same place."""
        named = self.named
        for key in other.named.keys() | named.keys() if other.named or other.members or other.items else ():
            named[key] = min(self.at(key) + times * other.at(key), _BEYOND)
        self.own = min(self.own + times * other.own, _BEYOND)
        self.members = min(self.members + times * other.members, _BEYOND)
        self.items = min(self.items + times * other.items, _BEYOND)

    def at(self, key: _Key) -> int:
        rest = self.items if isinstance(key, int) else self.members
        return self.named.get(key, rest)

    def add_all(self, looks: int, *, items: bool) -> None:
        """Look at every member, or every item."""
        for key in self.named:
            if isinstance(key, int) == items:
                self.named[key] += looks
        if items:
            self.items += looks
        else:
            self.members += looks

    def most(self) -> int:
        return max(self.own, self.members, self.items, max(self.named.values(), default=0))

    def shortened(self) -> _Looks:
        """The same without names where there are many, so that adding up stays cheap."""
        if len(self.named) <= _MAX_NAMES:
            return self
        short = _Looks(self.own)
        short.members = short.items = self.most()
        return short


class _Pass(NamedTuple):
    """How one reckoning of a cycle of definitions counts."""

    own: int
    edge: int
    """What a member or item that leads back into the cycle counts."""
    cycle: frozenset[str]
    done: dict[str, _Looks | None]
    entries: set[str]


class Costs:
    """The cost of one converted document, and of each schema in it."""

    def __init__(self, document: Any, *, explained: bool = False, outlined: bool = False) -> None:
        self._document = document
        self._explained = explained
        self._outlined = outlined
        self._known: dict[str, _Looks] = {}
        self._schemas: dict[int, int] = {}
        self._heights: dict[str, int] = {}
        self._paths: dict[str, int] = {}
        self._groups = list(_components(document))
        for group in self._groups:
            self._measure(group)

    def of(self, schema: Any) -> int:
        """Looks at one place that a schema of the document can cost; many where that is not known."""
        self._reckon_all()
        return 0 if isinstance(schema, bool) else self._schemas.get(id(schema), _BEYOND)

    @property
    def affordable(self) -> bool:
        """Whether the native engine may be given any value."""
        return self.affords(self._document)

    def affords(self, schema: Any) -> bool:
        """Whether the native engine may be given any value for one schema of the document."""
        root = schema is self._document
        height = self._heights["#"] if root else self._height(_reach(schema))
        if root and self._paths["#"] <= AFFORDABLE:  # most schemas are so small that nothing more need be known
            return height <= _MAX_HEIGHT
        return height <= _MAX_HEIGHT and self.of(schema) <= max(AFFORDABLE, len(self._schemas))

    @property
    def explainable(self) -> bool:
        """Whether the native engine may list the errors of any value."""
        self._reckon_all()
        return max(self._schemas.values(), default=0) <= max(EXPLAINABLE, len(self._schemas))

    def _measure(self, group: dict[str, _Reach]) -> None:
        """Find how deep the native engine nests for definitions, at most through each of a cycle once."""
        height = max(self._height(reach) for reach in group.values())
        if len(group) > 1:
            height += sum(reach.depth for reach in group.values()) // _CYCLE_SHARE
        self._heights.update(dict.fromkeys(group, height))
        for pointer, reach in group.items():
            below = sum(times * self._paths.get(name, _BEYOND) for name, times in reach.times.items())
            self._paths[pointer] = min(reach.size + below, _BEYOND)

    def _height(self, reach: _Reach) -> int:
        return max([reach.depth, *(depth + self._heights.get(name, 0) for name, depth in reach.targets.items())])

    def _reckon_all(self) -> None:
        while self._groups:
            self._reckon(self._groups.pop(0))

    def _reckon(self, group: dict[str, _Reach]) -> None:
        """Find the looks of definitions that refer to each other, or of one that does not refer to itself."""
        cycle = frozenset(group)
        entries: set[str] = set()
        edge = 1
        if any(cycle & reach.targets.keys() for reach in group.values()):
            edge = self._edge(cycle, entries)
        last = _Pass(1, edge, cycle, {}, entries)
        for pointer in cycle:
            self._known[pointer] = self._definition(pointer, last).shortened()

    def _edge(self, cycle: frozenset[str], entries: set[str]) -> int:
        """What coming back into a cycle counts.

        Results of definitions that refer to themselves are remembered by the native engine while it checks, so a path
        need not be counted further than through every entry once. When it lists errors nothing is remembered.
        """
        first = _Pass(0, 1, cycle, {}, entries)
        returns = {pointer: self._definition(pointer, first).most() for pointer in cycle}
        factor = 1
        for pointer in entries:
            factor = min(factor * max(1, returns[pointer]), _BEYOND)
        if self._explained and factor > 1:
            return _BEYOND
        second = _Pass(1, 1, cycle, {}, entries)
        return min(factor * max((self._definition(p, second).most() for p in entries), default=1), _BEYOND)

    def _definition(self, pointer: str, how: _Pass) -> _Looks:
        if pointer not in how.done:
            how.done[pointer] = None
            how.done[pointer] = self._looks(target_of(pointer, self._document), how, top=True)
        # A definition that applies itself to the same place again, which no sensible one does.
        return how.done[pointer] or _Looks(_BEYOND)

    def _looks(self, schema: Any, how: _Pass, *, top: bool) -> _Looks:
        looks = _Looks(how.own)
        if not isinstance(schema, dict):
            return looks
        if _APPLYING.isdisjoint(schema):  # most schemas of a large document: a type and a description
            self._schemas[id(schema)] = how.own
            return looks
        again = 1 + sum(keyword in schema for keyword in UNEVALUATED)
        if "$ref" in schema:
            looks.add(self._reference(schema["$ref"], how, top=top), again)
        for keyword, child in _in_place(schema):
            inner = self._looks(child, how, top=top)
            if not (self._outlined and keyword in _ASKED):
                looks.add(inner, again)
        self._add_parts(looks, schema, how)
        self._schemas[id(schema)] = looks.most()
        return looks

    def _reference(self, pointer: str, how: _Pass, *, top: bool) -> _Looks:
        if pointer not in how.cycle:
            return self._known.get(pointer, _Looks(1)) if how.own else _Looks(0)
        if top:
            return self._definition(pointer, how)
        how.entries.add(pointer)
        return _Looks(how.edge)

    def _add_parts(self, looks: _Looks, schema: dict[str, Any], how: _Pass) -> None:
        """Count what a schema says about members and items."""
        own = _Looks(0)
        for key, child in chain(schema.get("properties", {}).items(), enumerate(schema.get("prefixItems", ()))):
            own.named[key] = self._most(child, how)
        own.members = self._most(schema.get("additionalProperties", True), how)
        own.items = self._most(schema.get("items", True), how)
        for child in schema.get("patternProperties", {}).values():
            own.add_all(self._most(child, how), items=False)
        for keyword in ("unevaluatedProperties", "propertyNames"):
            own.add_all(self._most(schema.get(keyword, True), how), items=False)
        for keyword in ("unevaluatedItems", "contains"):
            own.add_all(self._most(schema.get(keyword, True), how), items=True)
        looks.add(own)

    def _most(self, schema: Any, how: _Pass) -> int:
        return 0 if isinstance(schema, bool) else self._looks(schema, how, top=False).most()


def _in_place(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in _LISTS:
        for child in schema.get(keyword, ()):
            yield keyword, child
    for keyword in _SINGLE:
        if keyword in schema:
            yield keyword, schema[keyword]
    for child in schema.get("dependentSchemas", {}).values():
        yield "dependentSchemas", child


class _Reach(NamedTuple):
    """What a definition refers to, each with how deep inside it and how often; its own depth, and objects in it."""

    targets: dict[str, int]
    times: dict[str, int]
    depth: int
    size: int


def _reach(schema: Any) -> _Reach:
    targets: dict[str, int] = {}
    times: dict[str, int] = {}
    deepest = size = 0
    pending = [(schema, 1)]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, dict):
            deepest = max(deepest, depth)
            # What is not evaluated is found by going through everything again, so counting objects says nothing.
            size += _BEYOND if any(key in node for key in UNEVALUATED) else 1
            if isinstance(node.get("$ref"), str):
                times[node["$ref"]] = times.get(node["$ref"], 0) + 1
                targets[node["$ref"]] = max(targets.get(node["$ref"], 0), depth)
            below = depth + (_UNEVALUATED_DEPTH if any(key in node for key in UNEVALUATED) else 1)
            pending += [(value, below) for key, value in node.items() if key not in _UNWALKED]
        elif isinstance(node, list):
            pending += [(item, depth) for item in node]
    return _Reach(targets, times, deepest, size)


def _components(document: Any) -> Iterator[dict[str, _Reach]]:
    """The definitions in groups that refer to each other, those a group refers to before it (Tarjan's algorithm)."""
    reaches: dict[str, _Reach] = {}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    opened: dict[str, None] = {}
    walk: list[tuple[str, Iterator[str]]] = []

    def enter(pointer: str) -> None:
        reaches[pointer] = _reach(target_of(pointer, document))
        order[pointer] = low[pointer] = len(order)
        opened[pointer] = None
        walk.append((pointer, iter(reaches[pointer].targets)))

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
                    group[last] = reaches[last]
                yield group
        elif target not in order:
            enter(target)
        elif target in opened:
            low[pointer] = min(low[pointer], order[target])
