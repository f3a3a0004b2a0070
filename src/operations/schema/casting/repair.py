"""The interpretive cast: walks a value beside its schema, strips, fills defaults, upcasts, and under `total` replaces.

Slow and complete; the generated code in `tidying` does the common part of it fast. Never changes its input, and
returns the very same object where there is nothing to change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.casting.nodes import MISSING, Node, Nodes
from operations.schema.casting.scoring import Scores
from operations.schema.casting.smallest import MAX_ITEMS, Builder
from operations.schema.casting.upcasts import kind_of, upcasts
from operations.schema.dialects.literals import copied, same, weight


class Repair:
    """One cast of one value; remembers what it has done, so that shared and recursive parts are done once."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        total: bool,
        careful: bool = False,
        is_normal: Callable[[Node, Any], bool] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.budget = budget or Budget()
        self._is_normal = is_normal
        self._nodes = nodes
        self._total = total
        self._careful = careful
        self._builder = Builder(self, self.budget)
        self._scores = Scores(nodes, self.budget)
        self._done: dict[tuple[int, int], tuple[Any, Any]] = {}

    def fit(self, node: Node, value: Any) -> Any:
        """`value` as close to `node` as the policy makes it."""
        if kind_of(value) not in ("object", "array"):
            made = self._dispatch(node, value)
            return self._verified(node, value, made) if self._careful and self._total else made
        key = (id(node), id(value))
        if key in self._done:
            return self._done[key][1]
        self._done[key] = (value, value)
        if self._is_normal is not None and self._is_normal(node, value):
            return value
        result = self._dispatch(node, value)
        if self._careful and (self._total or result is not value):
            result = self._verified(node, value, result)
        self._done[key] = (value, result)
        return result

    def _dispatch(self, node: Node, value: Any) -> Any:
        if node.never:
            return value
        if node.unions:
            return self._fit_union(node, value)
        return self._fit_decided(node.settle(value), value)

    def _verified(self, node: Node, value: Any, result: Any) -> Any:
        """Undo a cast that made a valid value invalid; under `total` try harder to make one that fits."""
        if node.check(result):
            return result
        if node.check(value):
            return value
        if not self._total:
            return result
        smallest = self._builder.smallest(node)
        return smallest if smallest is not MISSING and node.check(smallest) else result

    def _fit_decided(self, node: Node, value: Any) -> Any:
        kind = kind_of(value)
        if node.unions:
            return self._fit_union(node, value)
        if node.choices is not None:
            return self._fit_choice(node, value)
        if not node.allows(kind):
            return self._convert(node, value)
        if kind == "object":
            return self._fit_object(node, value)
        if kind == "array":
            return self._fit_array(node, value)
        return value if not self._total or node.check(value) else self._replaced(node, value)

    def _convert(self, node: Node, value: Any) -> Any:
        for other in upcasts(value):
            if node.allows(kind_of(other)) and node.check(other):
                return other
        return self._replaced(node, value) if self._total and not node.check(value) else value

    def _replaced(self, node: Node, value: Any) -> Any:
        """What `total` puts in place of a value that does not fit: a default, else the smallest that does."""
        smallest = self._builder.smallest(node)
        return value if smallest is MISSING or not node.check(smallest) else smallest

    def _fit_choice(self, node: Node, value: Any) -> Any:
        assert node.choices is not None
        for candidate in (value, *upcasts(value)):
            chosen = any(same(candidate, choice) for choice in node.choices)
            if chosen and (not self._total or node.check(candidate)):
                return candidate
        return self._replaced(node, value) if self._total else value

    # Objects

    def _fit_object(self, node: Node, value: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        changed = False
        for name, item in value.items():
            if not isinstance(name, str):
                out[name] = item
            elif node.keeps(name):
                child = node.member(name)
                out[name] = made = item if child is None else self.fit(child, item)
                changed = changed or made is not item
            else:
                changed = True
        if len(out) < (node.strictest("minProperties") or 0) <= len(value):
            out = {name: out.get(name, item) for name, item in value.items()}
            changed = any(out[name] is not item for name, item in value.items())
        added = self.additions(node, out)
        out.update(added)
        if self._total:
            for name in node.required:
                if name not in out:
                    added[name] = out[name] = self._builder.smallest_or_null(node.member(name))
        return out if changed or added else value

    def additions(self, node: Node, value: dict[str, Any]) -> dict[str, Any]:
        """The declared defaults that `value` lacks and has room for."""
        added: dict[str, Any] = {}
        room = node.strictest("maxProperties")
        for name in defaultable(node):
            if name not in value and (name in node.required or room is None or len(value) + len(added) < room):
                default = default_for(node, name)
                if default is not MISSING:
                    self.budget.spend(weight(default))
                    added[name] = copied(default)
        return added

    # Arrays

    def _fit_array(self, node: Node, value: Any) -> Any:
        out = [
            item if child is None else self.fit(child, item)
            for item, child in ((item, node.item(index)) for index, item in enumerate(value))
        ]
        if self._total:
            out = self._sized(node, out)
        if len(out) == len(value) and all(a is b for a, b in zip(out, value, strict=True)):
            return value
        return out

    def _sized(self, node: Node, out: list[Any]) -> list[Any]:
        """The items cut or padded to the length the schema asks for, and made unique."""
        given = node.default if isinstance(node.default, list) else []
        is_tuple = bool(node.tuple_length) and not node.has_rest
        wanted = node.tuple_length if is_tuple else (node.strictest("minItems") or 0)
        if wanted > MAX_ITEMS:
            return out
        most = node.strictest("maxItems")
        most = min(most, wanted) if is_tuple and most is not None else wanted if is_tuple else most
        while len(out) < wanted and (most is None or len(out) < most):
            child = node.item(len(out))
            if is_tuple and len(out) < len(given):
                out.append(copied(given[len(out)]) if child is None else self.fit(child, copied(given[len(out)])))
            elif is_tuple:
                out.append(self._builder.smallest_or_null(child))
            else:
                out.append(None if child is None else self.fit(child, None))
        out = out if most is None else out[:most]
        return self._distinct(node, out) if any(part.get("uniqueItems") for part in node.parts) else out

    def _distinct(self, node: Node, items: list[Any]) -> list[Any]:
        kept: list[Any] = []
        for item in items:
            if not any(same(item, other) for other in kept):
                kept.append(item)
        for index in range(len(kept), node.strictest("minItems") or 0):
            kept.append(self._builder.unlike(node.item(index), kept))
        return kept if len(kept) != len(items) else items

    # Unions

    def _fit_union(self, node: Node, value: Any) -> Any:
        branches = node.unions[0]
        self.budget.spend(len(branches))
        fitting = [branch for branch in branches if self._nodes.fits((branch,), value)]
        results = []
        for branch in fitting:
            result = self.fit(node.choose(branch), value)
            if result is value or not loses(value, result):
                return result
            results.append(result)
        if results:
            return results[0]
        return self._fit_none(node, value)

    def _fit_none(self, node: Node, value: Any) -> Any:
        """Cast a value that fits no branch: by an upcast, else under `total` the default, else the best fit."""
        branches = node.unions[0]
        for other in upcasts(value):
            if any(self._nodes.fits((branch,), other) for branch in branches) and node.check(other):
                return other
        if self._total and node.default is not MISSING and kind_of(value) != kind_of(node.default):
            made = self.fitting_default(node)
            if made is not MISSING:
                return made
        scores = self._scores.of_branches(branches, value)
        best = max(scores)
        if best or self._total:
            return self.fit(node.choose(branches[scores.index(best)]), value)
        return self._fit_only(node, value)

    def _fit_only(self, node: Node, value: Any) -> Any:
        """Cast a value that resembles no branch: by the only one about arrays or objects, where it is such."""
        kind = kind_of(value)
        possible = [branch for branch in map(node.choose, node.unions[0]) if branch.allows(kind)]
        return self.fit(possible[0], value) if len(possible) == 1 and kind in ("object", "array") else value

    def fitting_default(self, node: Node) -> Any:
        """The declared default, cast; MISSING when there is none, or none that fits."""
        if node.default is MISSING:
            return MISSING
        made = Repair(self._nodes, total=False, budget=self.budget).fit(node, copied(node.default))
        return made if node.check(made) else MISSING


def defaultable(node: Node) -> tuple[str, ...]:
    """The names of members that may have a default: their own, or one the object's own default gives them."""
    given = node.default if isinstance(node.default, dict) else {}
    return tuple(dict.fromkeys((*node.properties, *given)))


def default_for(node: Node, name: str) -> Any:
    """The default to fill in for a missing member, cast to its own schema; MISSING when there is none that fits.

    A default that would contain itself without end is none.
    """
    known = node.defaults
    default = known.get(name, _BUSY)
    if default is _BUSY:
        # Under the lock only this thread can be at work on it, so that BUSY means: inside itself.
        with node.nodes.lock:
            default = _settled_default(node, name)
    return default


def _settled_default(node: Node, name: str) -> Any:
    known = node.defaults
    if name not in known:
        given = node.default if isinstance(node.default, dict) else {}
        child = node.member(name)
        default = given.get(name, MISSING if child is None else child.default)
        if default is not MISSING and node.keeps(name):
            known[name] = _BUSY
            if child is not None:
                default = _cast_default(child, default)
            known[name] = default if known[name] is _BUSY else MISSING
        else:
            known[name] = MISSING
    elif known[name] is _BUSY:
        known[name] = MISSING
    return known[name]


def _cast_default(child: Node, default: Any) -> Any:
    try:
        made = Repair(child.nodes, total=False).fit(child, copied(default))
    except ExhaustedError:
        return MISSING
    return made if child.check(made) else MISSING


_BUSY = object()


def loses(before: Any, after: Any) -> bool:
    """Whether `after` lacks a member or an item that `before` has, at any depth."""
    if before is after:
        return False
    if isinstance(before, dict):
        return not isinstance(after, dict) or any(
            name not in after or loses(item, after[name]) for name, item in before.items()
        )
    if isinstance(before, list | tuple):
        return (
            not isinstance(after, list | tuple)
            or len(after) < len(before)
            or any(loses(a, b) for a, b in zip(before, after, strict=False))
        )
    return False
