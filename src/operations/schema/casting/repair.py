"""Repair: casts a value by walking the value and its schema together.

It removes properties, fills in defaults, upcasts, and under `total` replaces invalid values.

Repair is slow, but makes every kind of change; for the most common changes, generated code is faster. Repair never
changes its input, and returns the same object if nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_not
from typing import Any

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.casting.nodes import MISSING, Node, Nodes
from operations.schema.casting.scoring import Scores
from operations.schema.casting.smallest import MAX_ITEMS, Builder
from operations.schema.casting.upcasts import kind_of, upcasts
from operations.schema.dialects.literals import copied, same, weight

_SCALARS = frozenset({str, int, float, bool, type(None)})


class Repair:
    """A cast of one value; caches results, so that shared and recursive parts are cast once."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        total: bool,
        valid: bool = False,
        careful: bool = False,
        normal_check: Callable[[Node], Callable[[Any], bool]] | None = None,
        budget: Budget | None = None,
        scores: Scores | None = None,
    ) -> None:
        self.budget = budget or Budget()
        self._normal_check = normal_check
        """Returns a fast check whether a value of a node is already normal, so that the value can be skipped."""
        self._nodes = nodes
        self._total = total
        self._valid = valid
        """Whether the value is known to be valid. Casting then changes only objects and arrays."""
        self._careful = careful
        self._builder = Builder(self, self.budget)
        self._scores = scores or Scores(nodes, self.budget)
        self._done: dict[tuple[int, int], tuple[Any, Any]] = {}

    def cast_to(self, node: Node, value: Any) -> Any:
        """Return `value` cast to `node` as far as the policy allows."""
        if kind_of(value) not in ("object", "array"):
            if self._valid:
                return value
            made = self._dispatch(node, value)
            return self._verified(node, value, made) if self._careful and self._total else made
        key = (id(node), id(value))
        if key in self._done:
            return self._done[key][1]
        self._done[key] = (value, value)
        if self._normal_check is not None and _passes(self._normal_check(node), value):
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
            return self._cast_union(node, value)
        return self._cast_decided(node.decide_conditions(value), value)

    def _verified(self, node: Node, value: Any, result: Any) -> Any:
        """Undo a cast that made a valid value invalid; under `total`, search further for a valid result."""
        if node.check(result):
            return result
        if node.check(value):
            return value
        if not self._total:
            return result
        smallest = self._builder.smallest(node)
        return smallest if smallest is not MISSING and node.check(smallest) else result

    def _cast_decided(self, node: Node, value: Any) -> Any:
        kind = kind_of(value)
        if node.unions:
            return self._cast_union(node, value)
        if node.choices is not None:
            return self._cast_choice(node, value)
        if not node.allows(kind):
            return self._convert(node, value)
        if kind == "object":
            return self._cast_object(node, value)
        if kind == "array":
            return self._cast_array(node, value)
        return value if not self._total or node.check(value) else self._replaced(node, value)

    def _convert(self, node: Node, value: Any) -> Any:
        for other in upcasts(value):
            if node.allows(kind_of(other)) and node.check(other):
                return other
        return self._replaced(node, value) if self._total and not node.check(value) else value

    def _replaced(self, node: Node, value: Any) -> Any:
        """Return the replacement of `total` for an invalid value: a default, else the smallest valid value, else the
        value itself.
        """
        smallest = self._builder.smallest(node)
        return value if smallest is MISSING or not node.check(smallest) else smallest

    def _cast_choice(self, node: Node, value: Any) -> Any:
        assert node.choices is not None
        for candidate in (value, *upcasts(value)):
            chosen = any(same(candidate, choice) for choice in node.choices)
            if chosen and (not self._total or node.check(candidate)):
                return candidate
        return self._replaced(node, value) if self._total else value

    # Objects

    def _cast_object(self, node: Node, value: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        changed = False
        keeps = node.names if self._valid else node.keeps
        for name, item in value.items():
            if not isinstance(name, str):
                out[name] = item
            elif not keeps(name):
                changed = True
            elif self._valid and item.__class__ in _SCALARS:  # fast path: needs no node
                out[name] = item
            else:
                child = node.member(name)
                out[name] = made = item if child is None else self.cast_to(child, item)
                changed = changed or made is not item
        if len(out) < len(value) and len(out) < (node.strictest("minProperties") or 0) <= len(value):
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
        """Return the declared defaults that `value` lacks; for optional properties, only up to `maxProperties`."""
        added: dict[str, Any] = {}
        for name in defaultable(node):
            if name not in value and (default := default_for(node, name)) is not MISSING:
                max_properties = node.strictest("maxProperties")
                if name in node.required or max_properties is None or len(value) + len(added) < max_properties:
                    self.budget.spend(weight(default))
                    added[name] = copied(default)
        return added

    # Arrays

    def _cast_array(self, node: Node, value: Any) -> Any:
        if node.tuple_length:
            children = [node.item(index) for index in range(len(value))]
            out = [
                item if child is None else self.cast_to(child, item)
                for item, child in zip(value, children, strict=True)
            ]
        else:
            out = self._cast_items(node.item(0), value)
        if self._total:
            out = self._sized(node, out)
        return value if len(out) == len(value) and not any(map(is_not, out, value)) else out

    def _cast_items(self, child: Node | None, value: Any) -> list[Any]:
        """Cast the items of an array, which all have the same schema.

        Items that the native engine recognises as normal are not cast.
        """
        if child is None:
            return list(value)
        if self._normal_check is not None:
            is_normal = self._normal_check(child)
            try:
                return [item if is_normal(item) else self.cast_to(child, item) for item in value]
            except ValueError:
                pass  # an item that is not JSON
        return [self.cast_to(child, item) for item in value]

    def _sized(self, node: Node, out: list[Any]) -> list[Any]:
        """Return the items truncated or padded to the required length, and made unique if the schema requires this."""
        given = node.default if isinstance(node.default, list) else []
        is_tuple = bool(node.tuple_length) and not node.has_rest
        target_length = node.tuple_length if is_tuple else (node.strictest("minItems") or 0)
        if target_length > MAX_ITEMS:
            return out
        maximum = node.strictest("maxItems")
        maximum = (
            min(maximum, target_length) if is_tuple and maximum is not None else target_length if is_tuple else maximum
        )
        while len(out) < target_length and (maximum is None or len(out) < maximum):
            child = node.item(len(out))
            if is_tuple and len(out) < len(given):
                out.append(copied(given[len(out)]) if child is None else self.cast_to(child, copied(given[len(out)])))
            elif is_tuple:
                out.append(self._builder.smallest_or_null(child))
            else:
                out.append(None if child is None else self.cast_to(child, None))
        out = out if maximum is None else out[:maximum]
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

    def _cast_union(self, node: Node, value: Any) -> Any:
        branches = node.unions[0]
        self.budget.spend(len(branches))
        matching = [place for place, branch in enumerate(branches) if self._nodes.is_valid((branch,), value)]
        results = []
        for place in matching:
            result = self.cast_to(node.branches[place], value)
            if result is value or not loses(value, result):
                return result
            results.append(result)
        if results:
            return self._fullest(node, value, matching, min(results, key=lambda result: lost(value, result)))
        return self._cast_unmatched(node, value)

    def _fullest(self, node: Node, value: Any, matching: list[int], best: Any) -> Any:
        """Return the result that keeps the largest part of a value, if every matching branch would remove a part.

        `best` is the best result of a matching branch. A result that keeps more of the value replaces `best` if the
        result is valid by its branch, or has more valid properties than `best` has properties. Choosing another branch
        is safe because the value itself is valid by the union.
        """
        if not isinstance(value, dict):
            return best
        plain = Repair(self._nodes, total=False, budget=self.budget) if self._total or self._valid else self
        for place, chosen in enumerate(node.branches):
            if place in matching or not (chosen.allows("object") and chosen.declares):
                continue
            if sum(map(chosen.keeps, filter(_is_text, value))) <= len(best):
                continue
            result = plain.cast_to(chosen, value)
            if lost(value, result) < lost(value, best) and (
                chosen.check(result) or _valid_members(chosen, result) > len(best)
            ):
                best = result
        return best

    def _cast_unmatched(self, node: Node, value: Any) -> Any:
        """Cast a value that matches no branch.

        Try an upcast, then (under `total`) the default, then the branch with the best score.
        """
        branches = node.unions[0]
        for other in upcasts(value):
            if any(self._nodes.is_valid((branch,), other) for branch in branches) and node.check(other):
                return other
        if self._total and node.default is not MISSING and kind_of(value) != kind_of(node.default):
            made = self.valid_default(node)
            if made is not MISSING:
                return made
        scores = self._scores.of_branches(branches, value)
        best = max(scores)
        if best or self._total:
            return self.cast_to(node.branches[scores.index(best)], value)
        return self._cast_only(node, value)

    def _cast_only(self, node: Node, value: Any) -> Any:
        """Cast an object or array whose score is 0 in all branches, if only one branch allows its type."""
        kind = kind_of(value)
        possible = [branch for branch in node.branches if branch.allows(kind)]
        return self.cast_to(possible[0], value) if len(possible) == 1 and kind in ("object", "array") else value

    def valid_default(self, node: Node) -> Any:
        """Return the declared default, cast; MISSING if there is none or it is invalid."""
        if node.default is MISSING:
            return MISSING
        made = Repair(self._nodes, total=False, budget=self.budget).cast_to(node, copied(node.default))
        return made if node.check(made) else MISSING


def defaultable(node: Node) -> tuple[str, ...]:
    """Return the names of properties that may have a default, in their own schema or in the default of the object."""
    given = node.default if isinstance(node.default, dict) else {}
    return tuple(dict.fromkeys((*node.properties, *given)))


def default_for(node: Node, name: str) -> Any:
    """Return the default for a missing property, cast to its schema; MISSING if there is no valid default.

    A default that would contain itself is ignored.
    """
    known = node.defaults
    default = known.get(name, _BUSY)
    if default is _BUSY:
        # Under the lock, only this thread determines the default, so _BUSY means recursion.
        with node.nodes.lock:
            default = _decided_default(node, name)
    return default


def _decided_default(node: Node, name: str) -> Any:
    known = node.defaults
    if name not in known:
        given = node.default if isinstance(node.default, dict) else {}
        default = given[name] if name in given else node.member_default(name)
        if default is not MISSING and node.keeps(name):
            known[name] = _BUSY
            if (child := node.member(name)) is not None:
                default = _cast_default(child, default)
            known[name] = default if known[name] is _BUSY else MISSING
        else:
            known[name] = MISSING
    elif known[name] is _BUSY:
        known[name] = MISSING
    return known[name]


def _cast_default(child: Node, default: Any) -> Any:
    try:
        made = Repair(child.nodes, total=False).cast_to(child, copied(default))
    except ExhaustedError:
        return MISSING
    return made if child.check(made) else MISSING


_BUSY = object()


def _passes(check: Callable[[Any], bool], value: Any) -> bool:
    try:
        return check(value)
    except ValueError:
        return False  # not JSON


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def _valid_members(node: Node, value: dict[str, Any]) -> int:
    """Return how many properties are valid; 0 if a property with a literal has another value."""
    valid = 0
    for name, item in value.items():
        child = node.member(name)
        if child is None or child.check(item):
            valid += 1
        elif child.choices is not None:
            return 0
    return valid


def lost(before: Any, after: Any) -> int:
    """Return how many properties and items of `before` are not in `after`, at any depth."""
    if before is after:
        return 0
    if isinstance(before, dict) and isinstance(after, dict):
        return sum(1 if name not in after else lost(item, after[name]) for name, item in before.items())
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return max(0, len(before) - len(after)) + sum(lost(a, b) for a, b in zip(before, after, strict=False))
    return int(isinstance(before, dict | list | tuple))


def loses(before: Any, after: Any) -> bool:
    """Whether `after` lacks a property or item of `before`, at any depth."""
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
