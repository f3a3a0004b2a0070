"""Inputs that nobody can give: what in a description contradicts itself so that no value fits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from operations.schema.dialects.keywords import TYPES
from operations.schema.dialects.overlaps import kinds_of, kinds_overlap
from operations.sources.openapi.documents import DanglingReferenceError, Documents, Node

_DEEPEST = 12


def why_nothing_fits(documents: Documents, input_schema: Any) -> str | None:
    """Where and why no input at all can fit the schema of an operation's input; None where nothing says so.

    Only what must be given is looked at, and only what is sure is told: two types at once, or itself without end.
    """
    if not isinstance(input_schema, Mapping):
        return None
    return _why(documents, Node(input_schema, documents.root.address), "", ())


def _why(documents: Documents, node: Node, where: str, trail: tuple[int, ...]) -> str | None:
    parts = list(_parts(documents, node, 0))
    if len(trail) > _DEEPEST:
        return None
    if any(id(part.value) in trail for part in parts):
        return f"{where or '/'} requires itself without end"
    kinds = [found for part in parts if (found := kinds_of(part.value)) is not None and found <= TYPES]
    if any(not kinds_overlap(first, second) for first in kinds for second in kinds):
        told = " and ".join(sorted({"/".join(sorted(kind)) for kind in kinds}))
        return f"{where or '/'} has to be {told} at once"
    trail = (*trail, *(id(part.value) for part in parts))
    for part in parts:
        required = part.value.get("required")
        for name in required if isinstance(required, list) and not _may_be_null(part) else ():
            member = part.get("properties", name) if isinstance(name, str) else None
            if member is not None and isinstance(member.value, Mapping) and member.value.get("readOnly") is not True:
                reason = _why(documents, member, f"{where}/{name}", trail)
                if reason is not None:
                    return reason
    return None


def _parts(documents: Documents, node: Node, depth: int) -> Iterator[Node]:
    """A schema and those that it is joined of; one that may be null instead is none that must fit."""
    try:
        node = documents.follow(node)
    except DanglingReferenceError:
        return
    if not isinstance(node.value, Mapping) or depth > _DEEPEST or _may_be_null(node):
        return
    yield node
    for _, part in node.get("allOf").items():
        yield from _parts(documents, part, depth + 1)


def _may_be_null(node: Node) -> bool:
    kind = node.value.get("type")
    nullable = node.value.get("nullable") is True or node.value.get("x-nullable") is True
    return nullable or (isinstance(kind, list) and "null" in kind)
