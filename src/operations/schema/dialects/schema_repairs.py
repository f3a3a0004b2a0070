"""Repairs of unsatisfiable schemas: each is changed to the schema that its author most likely meant.

Published API descriptions repeat a few kinds of contradictions. An operation with such a contradiction could never be
called. Only unsatisfiable parts are changed. Works on converted documents, where every reference is a pointer into
`$defs`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from operations.schema.dialects.overlaps import covers, kinds_of, kinds_overlap
from operations.schema.dialects.patterns import engine_of, matcher
from operations.schema.dialects.traversal import parts_of, schemas_in, target_in

# A caret after a slash, or a slash after a dollar sign, never matches: the slashes only delimit the expression.
_QUOTED = re.compile(r"/(\^.*|.*\$)/([a-z]*)", re.DOTALL)
_MAX_BRANCHES = 100
_SPELLINGS = {"true": True, "false": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,300})(\.[0-9]{1,300})?")


class SchemaRepairs:
    """Repairs the schemas that share definitions, each definition once.

    - `enum` without a value of the declared `type`: convert the values to this type. For an array, move `enum` to its
      items.
    - A `pattern` between slashes: remove the slashes.
    - Parts of an `allOf` that forbid properties which another part requires: forbid undeclared properties in the merged
      schema instead of the parts.
    - An object that forbids a property which it requires: allow undeclared properties.
    - A union whose branches include, through `allOf`, the schema around the union: let the branches include that schema
      without the union.
    - A `oneOf` in which one branch accepts everything that another accepts: use `anyOf`.
    """

    def __init__(self) -> None:
        self._unjoined: dict[str, Any] = {}
        """Definitions as they were before a repair changed them; needed to repair schemas that contain them."""

    def repair(self, document: dict[str, Any], fresh: Collection[str] | None = None) -> None:
        """Repair the unsatisfiable parts of a document in place; with `fresh`, only the definitions with these names,
        and the root.
        """
        fresh = document.get("$defs", ()) if fresh is None else fresh
        nodes = list(schemas_in(document, fresh))
        definitions = document.get("$defs", {})
        for node in nodes:
            if "enum" in node and "type" in node:
                _repair_choices(node)
            if "pattern" in node:
                _repair_pattern(node)
            if "oneOf" in node or "anyOf" in node:
                _end_recursion(node, definitions)
        # Find all contradictions before changing any schema: a changed part is not found in the schemas that contain
        # it.
        unjoined = {**definitions, **self._unjoined} if self._unjoined else definitions
        joined = [(node, made) for node in nodes if (made := _Joined(unjoined).repaired(node))]
        if joined:
            self._unjoined |= {name: _with_own_parts(definitions[name]) for name in fresh}
        for node, made in joined:
            node.clear()
            node.update(made)
        for node in schemas_in(document, fresh) if joined else nodes:
            if "oneOf" in node and _is_ambiguous(node["oneOf"], definitions):
                _repair_union(node)


# Choices and patterns


def _repair_choices(node: dict[str, Any]) -> None:
    expected = (kinds_of(node) or frozenset()) - {"null"}
    choices = [choice for choice in node["enum"] if choice is not None]
    if not expected or not choices or any(kinds_overlap(_kind(choice), expected) for choice in choices):
        return
    if "array" in expected:
        items = node.get("items", {})
        del node["enum"]
        if isinstance(items, dict) and "enum" not in items:
            node["items"] = {**items, "enum": choices}
            if "type" in items:
                _repair_choices(node["items"])
        return
    made = [_converted(choice, expected) for choice in choices]
    if None not in made:
        node["enum"] = made + [None] * (None in node["enum"])


def _kind(value: Any) -> frozenset[str]:
    return kinds_of({"const": value}) or frozenset()


def _converted(choice: Any, expected: frozenset[str]) -> Any:
    """Return a choice converted to the expected types, as literally as possible; None if impossible."""
    if "string" in expected and isinstance(choice, int | float):
        return str(choice).lower() if isinstance(choice, bool) else str(choice)
    if "boolean" in expected and isinstance(choice, str):
        return _SPELLINGS.get(choice.lower())
    if expected & {"integer", "number"} and isinstance(choice, str) and (found := _NUMBER.fullmatch(choice)):
        return int(choice) if found[2] is None else float(choice) if "number" in expected else None
    return None


def _repair_pattern(node: dict[str, Any]) -> None:
    quoted = _QUOTED.fullmatch(node["pattern"])
    if quoted is None:
        return
    flags = "".join(flag for flag in "is" if flag in quoted[2])
    meant = f"(?{flags}:{quoted[1]})" if flags else quoted[1]
    if engine_of(meant) is not None:
        node["pattern"] = meant


def _repair_union(node: dict[str, Any]) -> None:
    branches = node.pop("oneOf")
    if "anyOf" in node:
        node.setdefault("allOf", []).append({"anyOf": branches})
    else:
        node["anyOf"] = branches


def _is_ambiguous(branches: list[Any], definitions: Mapping[str, Any]) -> bool:
    return len(branches) <= _MAX_BRANCHES and any(
        covers(wide, narrow, definitions)
        for index, wide in enumerate(branches)
        for other, narrow in enumerate(branches)
        if index != other
    )


def _end_recursion(node: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    """End the recursion of a union whose branches include, through `allOf`, the schema that contains the union.

    Afterwards, the branches include a copy of that schema without the union.
    """
    rest = {key: value for key, value in node.items() if key not in ("oneOf", "anyOf", "$defs")}
    seen = {id(node)}
    pending = [branch for key in ("oneOf", "anyOf") for branch in node.get(key, ())]
    while pending:
        branch = target_in(definitions, pending.pop())
        if not isinstance(branch, dict) or id(branch) in seen:
            continue
        seen.add(id(branch))
        parts = branch.get("allOf", [])
        for index, part in enumerate(parts):
            if target_in(definitions, part) is node:
                parts[index] = rest
        pending.extend(parts)


# Objects merged from closed parts


class _Joined:
    """The parts that one schema has through `allOf` and references."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def repaired(self, node: dict[str, Any]) -> dict[str, Any] | None:
        """Return a repaired copy if one part forbids a property that another requires; otherwise None.

        In the copy, the rule for undeclared properties moves from the parts to the merged schema. If no part describes
        some required property, the rule is dropped.
        """
        if "allOf" not in node and not ("required" in node and node.keys() & {"$ref", "additionalProperties"}):
            return None
        parts = list(self._parts(node, set()))
        closing = [part for part in parts if self._excludes(part, parts)]
        if not closing:
            return None
        made = self._opened(node, {id(part) for part in closing}, ())
        described = {name for part in parts for name in part.get("properties", ())}
        if described.issuperset(name for part in parts for name in part.get("required", ())):
            rests = [part["additionalProperties"] for part in closing]
            made.setdefault("unevaluatedProperties", False if False in rests else rests[0])
        return made

    def _parts(self, node: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
        if not isinstance(node, dict) or id(node) in seen:
            return
        seen.add(id(node))
        yield node
        for part in parts_of(node):
            yield from self._parts(target_in(self._definitions, part), seen)

    def _excludes(self, part: dict[str, Any], parts: list[dict[str, Any]]) -> bool:
        """Whether a part's `additionalProperties` rejects every possible value of a required property."""
        rest = part.get("additionalProperties", True)
        if rest is not False and not isinstance(rest, dict):
            return False
        required = {name for other in parts for name in other.get("required", ())}
        patterns = part.get("patternProperties", ())
        return any(
            not any(matcher(pattern)(name) for pattern in patterns)
            and (not isinstance(rest, dict) or self._cannot_be(name, rest, parts))
            for name in required.difference(part.get("properties", ()))
        )

    def _cannot_be(self, name: str, rest: dict[str, Any], parts: list[dict[str, Any]]) -> bool:
        allowed = kinds_of(target_in(self._definitions, rest))
        declared = [part["properties"][name] for part in parts if name in part.get("properties", ())]
        kinds = [kinds_of(target_in(self._definitions, schema)) for schema in declared]
        return allowed is not None and any(kind is not None and not kinds_overlap(kind, allowed) for kind in kinds)

    def _opened(self, node: dict[str, Any], closed: set[int], ancestors: tuple[int, ...]) -> dict[str, Any]:
        """Return a copy in which the parts in `closed` allow undeclared properties; referenced
        schemas stay unchanged.
        """
        made = dict(node)
        if id(node) in closed:
            del made["additionalProperties"]
        parts = []
        for part in parts_of(node):
            target = target_in(self._definitions, part)
            inner = {id(found) for found in self._parts(target, set())} if isinstance(target, dict) else set()
            touched = inner & closed and id(target) not in ancestors
            parts.append(self._opened(target, closed, (*ancestors, id(node))) if touched else part)
        made.pop("$ref", None)
        if parts:
            made["allOf"] = parts
        return made


def _with_own_parts(schema: Any) -> Any:
    """Return a copy of a schema and of the parts of its `allOf`; anything else in it is shared with the original."""
    if not isinstance(schema, dict) or "allOf" not in schema:
        return dict(schema) if isinstance(schema, dict) else schema
    return {**schema, "allOf": [_with_own_parts(part) for part in schema["allOf"]]}
