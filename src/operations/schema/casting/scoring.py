"""Scores: how well a value matches the branches of a union, for casting and for error messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operations.schema.budget import Budget
from operations.schema.casting.nodes import Node, Nodes
from operations.schema.casting.upcasts import kind_of
from operations.schema.dialects.literals import same

_SAMPLED = 20
_RECOGNISED = 10


class Scores:
    """Cached scores of one value's parts."""

    def __init__(self, nodes: Nodes, budget: Budget) -> None:
        self._nodes = nodes
        self._budget = budget
        self._known: dict[tuple[int, int], tuple[Any, int]] = {}

    def with_budget(self, budget: Budget) -> Scores:
        """Return the same scores, with another budget for further work."""
        scores = Scores(self._nodes, budget)
        scores._known = self._known
        return scores

    def rescoring(self, budget: Budget) -> Callable[[list[Any], Any], list[int]]:
        """Return `of_branches` of the same scores with another budget, for explaining the remaining problems."""
        return self.with_budget(budget).of_branches

    def of_branches(self, branches: tuple[Any, ...] | list[Any], value: Any) -> list[int]:
        """Return the score of each branch."""
        return [self._score(self._nodes.node([branch]), value) for branch in branches]

    def _score(self, node: Node, value: Any) -> int:
        key = (id(node), id(value))
        if key not in self._known:
            self._budget.spend()
            self._known[key] = (value, 0)
            self._known[key] = (value, self._scored(node, value))
        return self._known[key][1]

    def _scored(self, node: Node, value: Any) -> int:
        """Return 100 for each matching literal, 10 for each valid property, 1 for each present property, plus scores of
        items.
        """
        kind = kind_of(value)
        if node.unions:
            # Score each branch alone: the combinations with the branches of other unions would be too many.
            best = sum(max(self.of_branches(union, value)) for union in node.unions)
            return best + self._members(node, value) if kind == "object" else best
        if kind == "object" and node.properties:
            return self._members(node, value)
        if node.types is None or kind not in node.types or kind not in ("object", "array"):
            return int(node.check(value))
        if kind == "object":
            parts = [(node.member(name), item) for name, item in value.items() if isinstance(name, str)][:_SAMPLED]
        else:
            parts = [(node.item(index), item) for index, item in enumerate(value[:_SAMPLED])]
        return 1 + sum(self._item(child, item) for child, item in parts)

    def _members(self, node: Node, value: dict[str, Any]) -> int:
        return sum(self._member(node, name, value[name]) for name in node.properties if name in value)

    def _item(self, child: Node | None, item: Any) -> int:
        """Return the score of an item; 0 for a container without recognisable content."""
        score = 1 if child is None else self._score(child, item)
        return score if score >= _RECOGNISED or not isinstance(item, dict | list | tuple) else 0

    def _member(self, node: Node, name: str, item: Any) -> int:
        child = node.member(name)
        if child is None:
            return 11
        self._budget.spend()
        literal = child.choices is not None and len(child.choices) == 1 and same(child.choices[0], item)
        return 100 * literal + 10 * child.check(item) + 1
