"""`readOnly` properties become optional in requests, and `writeOnly` properties in responses.

Works on converted documents: every reference is a pointer into `$defs`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from operations.schema.dialects.traversal import schemas_below

OneWay = Literal["readOnly", "writeOnly"]

_BRANCHES = ("allOf", "anyOf", "oneOf")
_BRANCH = ("then", "else")
_REFUSING = ("not", "if")  # a schema with these keywords rejects more if the schema below them requires less
_MAX_DEPTH = 50
_NONE: frozenset[str] = frozenset()


def lift_required(
    document: dict[str, Any], keyword: OneWay, definitions: Collection[str] | None = None, *, root: bool = True
) -> None:
    """Remove the properties marked with `keyword` from every `required` of a document, in place.

    With `definitions`, only the definitions with these names are changed, because the others were changed before.
    Without `root`, the properties of the document itself stay required.
    """
    own = document.get("required")
    _Lifting(document, keyword).run(document.get("$defs", {}) if definitions is None else definitions)
    if own and not root:
        document["required"] = own


class _Lifting:
    """State of the removal in one document."""

    def __init__(self, document: dict[str, Any], keyword: OneWay) -> None:
        self._document = document
        self._definitions = document.get("$defs", {})
        self._keyword = keyword
        self._marked: dict[int, frozenset[str]] = {}

    def run(self, definitions: Collection[str]) -> None:
        """Process every schema once.

        In a branch (`allOf`, `then`, …), the marks of the enclosing schema apply as well.
        """
        pending: list[tuple[Any, frozenset[str]]] = [(self._definitions[name], _NONE) for name in definitions]
        pending.append((self._document, _NONE))
        while pending:
            node, around = pending.pop()
            if not isinstance(node, dict):
                continue
            marked = around | self._marks(node)
            _lift(node, marked)
            parts = {id(part) for part in _parts(node)}
            refused = {id(node[key]) for key in _REFUSING if key in node}
            pending.extend(
                (inner, marked if id(inner) in parts else _NONE)
                for inner in schemas_below(node, definitions=False)
                if id(inner) not in refused
            )

    def _marks(self, node: dict[str, Any]) -> frozenset[str]:
        """Return the names of the properties that the schema marks, also in its parts and references."""
        names: set[str] = set()
        seen: set[int] = set()
        pending: list[Any] = [node]
        while pending:
            part = pending.pop()
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                names |= self._own_marks(part)
                pending += [*_parts(part), self._target(part)]
        return frozenset(names)

    def _own_marks(self, node: dict[str, Any]) -> frozenset[str]:
        known = self._marked.get(id(node))
        if known is None:
            members = node.get("properties", {})
            known = frozenset(name for name, member in members.items() if self._is_marked(member, 0))
            self._marked[id(node)] = known
        return known

    def _is_marked(self, member: Any, depth: int) -> bool:
        """Whether a property is marked: in its own schema, or in a schema that it refers to or is merged from."""
        if not isinstance(member, dict) or depth > _MAX_DEPTH:
            return False
        if member.get(self._keyword) is True:
            return True
        joined = member.get("allOf", ())
        return any(self._is_marked(part, depth + 1) for part in (*joined, self._target(member)))

    def _target(self, node: Mapping[str, Any]) -> Any:
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return None
        return self._definitions.get(reference.removeprefix("#/$defs/")) if reference != "#" else self._document


def _parts(node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas that apply to the same value as `node`."""
    for key in _BRANCHES:
        yield from node.get(key, ())
    for key in _BRANCH:
        if key in node:
            yield node[key]


def _lift(node: dict[str, Any], marked: frozenset[str]) -> None:
    required = node.get("required")
    if required and not marked.isdisjoint(required):
        kept = [name for name in required if name not in marked]
        if kept:
            node["required"] = kept
        else:
            del node["required"]
