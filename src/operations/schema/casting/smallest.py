"""The smallest valid value: declared defaults first, then zero values, then a short search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

from operations.schema.budget import Budget
from operations.schema.casting.nodes import MISSING, Node
from operations.schema.dialects.literals import copied, same, weight
from operations.schema.dialects.patterns import sample_strings

_MAX_DEPTH = 40
MAX_ITEMS = 10_000
_ANY: tuple[Any, ...] = ({}, None, "", 0, False, [], True, 1, "a", -1, 0.5, " ", [None], {"a": None})
_STEPS_PER_NODE = 10
"""Steps that each node costs when a value is built, because the parts of the node must be merged and compiled."""


class Casts(Protocol):
    """The methods of `Repair` that `Builder` needs."""

    def cast_to(self, node: Node, value: Any) -> Any:
        """Cast `value` to `node`."""

    def valid_default(self, node: Node) -> Any:
        """Return the declared default, cast; MISSING if there is none or it is invalid."""

    def additions(self, node: Node, value: dict[str, Any]) -> dict[str, Any]:
        """Return the declared defaults that `value` lacks."""


class Builder:
    """Builder of the smallest values of nodes.

    A recursive schema leads back to a node whose value is being built. Such a node is entered at most twice.
    """

    def __init__(self, repair: Casts, budget: Budget) -> None:
        self._repair = repair
        self._budget = budget
        self._trail: list[int] = []
        self._known: dict[int, Any] = {}

    def smallest(self, node: Node) -> Any:
        """Return the first valid candidate, or the first candidate if none is valid; MISSING without candidates."""
        if self._trail:
            return self._entered(node)
        if id(node) not in self._known:
            self._known[id(node)] = self._entered(node)
        known = self._known[id(node)]
        if isinstance(known, dict | list):
            self._budget.spend(weight(known))
        return copied(known)

    def _entered(self, node: Node) -> Any:
        if len(self._trail) > _MAX_DEPTH or self._trail.count(id(node)) > 1:
            return MISSING
        self._budget.spend(_STEPS_PER_NODE + len(node.parts))
        self._trail.append(id(node))
        try:
            return self._search(node)
        finally:
            self._trail.pop()

    def smallest_or_null(self, node: Node | None) -> Any:
        """Return the smallest value; null if there is none or the node is unknown."""
        if node is None or not node.parts:
            return None
        value = self.smallest(node)
        return None if value is MISSING else value

    def _search(self, node: Node) -> Any:
        first = MISSING
        for count, candidate in enumerate(self._candidates(node)):
            if candidate is MISSING:
                continue
            self._budget.spend()
            if node.check(candidate):
                return copied(candidate)
            if first is MISSING:
                first = copied(candidate)
            if count > 200:
                break
        return first

    def _candidates(self, node: Node) -> Iterator[Any]:
        if node.never:
            return
        if node.default is not MISSING:
            yield self._repair.valid_default(node)
            if not node.unions:
                yield self._repair.cast_to(node, copied(node.default))
        branches = self._branches(node)
        yield from map(self.smallest, branches)
        if node.choices is not None:
            yield from node.choices
        elif not node.unions:
            for kind in node.types if node.types is not None else _implied(node):
                yield from self._of_kind(node, kind)
        yield from self._conditional(node)
        if node.types is None and node.choices is None:
            yield from _ANY
        yield from self._excluding(branches)

    def _branches(self, node: Node) -> list[Node]:
        branches = list(node.branches) if node.unions else []
        if self._trail.count(id(node)) > 1:
            # If this node is already being built, try the branches that do not recurse first.
            branches.sort(key=lambda branch: branch.allows("object") or branch.allows("array"))
        return branches

    def _conditional(self, node: Node) -> Iterator[Any]:
        for part in node.parts if node.conditional else ():
            if "if" in part:
                met = (*node.parts, part["if"], part.get("then", True))
                yield self.smallest(node.nodes.merged(met, node.decided, conditions_decided=True))

    def _excluding(self, branches: list[Node]) -> Iterator[Any]:
        """Yield objects of one branch with a property that other branches may reject: `oneOf` needs a single match."""
        for branch in branches:
            made = self.smallest(branch)
            if isinstance(made, dict):
                names = dict.fromkeys(name for other in branches for name in other.properties if name not in made)
                yield from ({**made, name: item} for name in names for item in _ANY)

    def _of_kind(self, node: Node, kind: str) -> Iterator[Any]:
        if kind == "object":
            yield from self._objects(node)
        elif kind == "array":
            yield from self._arrays(node)
        elif kind == "string":
            yield from _strings(node)
        elif kind in ("number", "integer"):
            yield from _numbers(node, whole=kind == "integer")
        elif kind == "boolean":
            yield False
            yield True
        else:
            yield None

    # Containers

    def _objects(self, node: Node) -> Iterator[Any]:
        yield from self._objects_with(node, "abc")
        yield from self._objects_with(node, "xyz")
        yield from self._objects_with(node, "xyz", defaults=False)

    def _objects_with(self, node: Node, letters: str, *, defaults: bool = True) -> Iterator[Any]:
        """Yield objects with required properties, then with optional ones.

        The generated names are the letters in `letters`; if these are used up, the letters followed by a number.
        """
        made: dict[str, Any] = {}
        for _ in range(4):
            conditions_decided = node.decide_conditions(made)
            before = dict(made)
            self._fill(conditions_decided, made)
            if defaults:
                made.update(self._repair.additions(conditions_decided, made))
            self._fill_up(conditions_decided, made, letters)
            yield dict(made)
            if made == before:
                break
        for name in node.properties:
            if name not in made and (child := node.member(name)) is not None:
                value = self.smallest(child)
                if value is not MISSING:
                    made[name] = value
                    yield dict(made)

    def _fill(self, node: Node, made: dict[str, Any]) -> None:
        """Add the required properties."""
        for name in (*node.required, *_dependent(node, made)):
            if name not in made:
                child = node.member(name)
                made[name] = {} if child is None or not child.parts else self.smallest_or_null(child)

    def _fill_up(self, node: Node, made: dict[str, Any], letters: str) -> None:
        """Add optional and generated properties until `minProperties` is met."""
        minimum = min(node.strictest("minProperties") or 0, MAX_ITEMS)
        patterns = [
            sample for part in node.parts for p in part.get("patternProperties", ()) for sample in sample_strings(p)
        ]
        invented = (f"{letter}{number or ''}" for number in range(minimum + 1) for letter in letters)
        for name in (*node.properties, *patterns, *invented):
            if len(made) >= minimum:
                return
            child = node.member(name)
            if name not in made and (child is None or not child.never):
                value = self.smallest_or_null(child)
                if child is None or child.check(value):
                    made[name] = value

    def _arrays(self, node: Node) -> Iterator[Any]:
        minimum = min(node.strictest("minItems") or 0, MAX_ITEMS)
        exact = node.tuple_length if not node.has_rest else 0
        maximum = node.strictest("maxItems")
        unique = any(part.get("uniqueItems") for part in node.parts)
        items: list[Any] = []
        for index in range(max(minimum, exact) if maximum is None else min(max(minimum, exact), maximum)):
            child = node.item(index)
            if unique:
                items.append(self.unlike(child, items))
            else:
                items.append({} if child is None or not child.parts else self.smallest_or_null(child))
        yield list(items)
        yield self._containing(node, items)
        yield items[:minimum]

    def _containing(self, node: Node, items: list[Any]) -> list[Any]:
        """Return a copy of `items`, changed so that it satisfies every `contains`."""
        items = list(items)
        for part in node.parts:
            if "contains" in part:
                for place in range(min(part.get("minContains", 1), MAX_ITEMS)):
                    child = node.item(place)
                    contained = node.nodes.node([part["contains"], *(child.parts if child else ())])
                    value = (
                        self.unlike(contained, items)
                        if requires_unique_items(node)
                        else self.smallest_or_null(contained)
                    )
                    items[place : place + 1] = [value]
        return items

    def unlike(self, node: Node | None, others: list[Any]) -> Any:
        """Return a value for `node` that differs from all `others`; the smallest value if no such value is found
        quickly.
        """
        first = self.smallest_or_null(node)
        for candidate in (first, *_variations(self, node, first, len(others))):
            if not any(same(candidate, other) for other in others) and (node is None or node.check(candidate)):
                return candidate
        return first


def requires_unique_items(node: Node) -> bool:
    """Whether the items of an array must be unique."""
    return any(part.get("uniqueItems") for part in node.parts)


def _variations(builder: Builder, node: Node | None, first: Any, count: int) -> Iterator[Any]:
    """Yield alternatives to `first` that may match the same node: other choices, similar values, then any value."""
    if node is not None:
        for branch in node.branches if node.unions else ():
            yield builder.smallest(branch)
        yield from node.choices or ()
        for part in node.parts if isinstance(first, str) else ():
            if "pattern" in part:
                yield from (
                    sample for minimum in range(count + 2) for sample in sample_strings(part["pattern"], minimum)
                )
    for number in range(1, count + 2):
        yield from _neighbours(builder, node, first, number)
    if isinstance(first, dict) and node is not None:
        for name in node.properties:
            if name in first:
                others = _variations(builder, node.member(name), first[name], count)
                yield from ({**first, name: value} for value in others)
    yield from _ANY


def _neighbours(builder: Builder, node: Node | None, first: Any, number: int) -> Iterator[Any]:
    if isinstance(first, bool):
        yield not first
    elif isinstance(first, int | float):
        step = number * (1 if node is None else node.strictest("multipleOf") or 1)
        yield from (first + step, first - step)
    elif isinstance(first, str):
        yield first + " " * number
        yield first[:-1] + chr(96 + number) if number <= 26 else first + str(number)
    elif isinstance(first, list):
        child = None if node is None else node.item(len(first))
        yield first + [builder.smallest_or_null(child)] * number


def _implied(node: Node) -> Iterator[str]:
    """Yield the types of a schema without `type`, inferred from its keywords."""
    if not node.parts:
        return
    keywords = set().union(*node.parts)
    if keywords & {"properties", "required", "patternProperties", "minProperties", "additionalProperties"}:
        yield "object"
    if keywords & {"items", "prefixItems", "contains", "minItems", "uniqueItems"}:
        yield "array"
    if keywords & {"minLength", "maxLength", "pattern"}:
        yield "string"
    if keywords & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}:
        yield "number"


def _dependent(node: Node, made: dict[str, Any]) -> Iterator[str]:
    for part in node.parts:
        for name, needed in part.get("dependentRequired", {}).items():
            if name in made:
                yield from needed


def _strings(node: Node) -> Iterator[str]:
    minimum = min(node.strictest("minLength") or 0, 100_000)
    patterns = [part["pattern"] for part in node.parts if "pattern" in part]
    if not patterns:
        yield " " * minimum
        yield "a" * minimum
        yield "a" * (minimum + 1)
        return
    for pattern in patterns:
        for sample in sample_strings(pattern, minimum):
            yield sample
            if len(sample) < minimum:
                yield sample + sample[-1:] * (minimum - len(sample))
                yield sample[:1] * (minimum - len(sample)) + sample
    yield " " * minimum
    yield "a" * minimum


def _numbers(node: Node, *, whole: bool) -> Iterator[int | float]:
    low, high = node.strictest("minimum"), node.strictest("maximum")
    above, below = node.strictest("exclusiveMinimum"), node.strictest("exclusiveMaximum")
    steps = [part["multipleOf"] for part in node.parts if "multipleOf" in part]
    yield from (math.ceil(low), low) if low is not None and whole else (low if low is not None else 0,)
    yield 0
    starts = [bound for bound in (low, above, high, below) if bound is not None]
    for start in starts or [0]:
        yield from _around(start, steps)
    if low is None and above is None and high is None and below is None:
        yield from (0.5, 1, -1)
    bounds = [b for b in (low if above is None else above, high if below is None else below) if b is not None]
    if len(bounds) == 2:
        yield sum(bounds) / 2


def _around(start: int | float, steps: list[Any]) -> Iterator[int | float]:
    yield from (start, math.floor(start) + 1, math.ceil(start) - 1, start + 0.5, start - 0.5)
    if steps:
        step = math.lcm(*steps) if all(isinstance(s, int) for s in steps) else max(steps)
        for count in (math.floor(start / step), math.ceil(start / step)):
            yield from (count * step, (count + 1) * step, (count - 1) * step)
    yield from (start + 1e-6, start - 1e-6)
