"""The schema for casting: all schemas that apply at one path merged into one node.

`$ref` and `allOf` are merged. Unions stay; choosing a branch returns another node. Nodes are created on demand, so
recursive schemas are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from threading import RLock
from typing import Any, Final

from operations.schema.checking.compiling import Parts
from operations.schema.checking.secrets import target_of
from operations.schema.checking.values import as_json
from operations.schema.dialects.literals import same
from operations.schema.dialects.patterns import matcher
from operations.schema.dialects.traversal import definitions_of

MISSING: Final[Any] = type("_Missing", (), {"__repr__": lambda self: "MISSING"})()

_CONJOINING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
Part = dict[str, Any]
Union = tuple[Any, ...]


class Node:
    """All schemas that apply at one path of a value, merged."""

    def __init__(
        self,
        nodes: Nodes,
        parts: tuple[Part, ...],
        unions: tuple[Union, ...],
        decided: frozenset[int] = frozenset(),
        conditions_decided: bool = False,
    ) -> None:
        self.nodes = nodes
        self.parts = parts
        self.unions = unions
        self.decided = decided
        self.source: Part | None = None
        self.never = any(part.get("!never") for part in parts)
        self.types = _types(parts)
        self.choices = _choices(parts)
        self.default = next((part["default"] for part in parts if "default" in part), MISSING)
        self.properties: tuple[str, ...] = tuple(
            dict.fromkeys(name for part in parts for name in part.get("properties", ()))
        )
        self.required: tuple[str, ...] = tuple(
            dict.fromkeys(name for part in parts for name in part.get("required", ()))
        )
        self.conditional = not conditions_decided and any("if" in part or "dependentSchemas" in part for part in parts)
        self.tuple_length = max((len(part.get("prefixItems", ())) for part in parts), default=0)
        self.has_rest = any(part.get("items", False) is not False for part in parts)
        self.declares = any("properties" in part or "patternProperties" in part for part in parts)
        self.open = any(
            part.get(keyword, False) is not False
            for part in parts
            for keyword in ("additionalProperties", "unevaluatedProperties")
        )
        self.defaults: dict[str, Any] = {}
        self._members: dict[str, Node | None] = {}
        self._items: dict[int, Node | None] = {}
        self._branches: tuple[Node, ...] | None = None
        self._matches: Callable[[Any], bool] | None = None

    def allows(self, kind: str | None) -> bool:
        """Whether a value of this JSON type can match; `kind` is None for a value that is not JSON."""
        return self.types is None or kind in self.types

    def strictest(self, keyword: str) -> Any:
        """Return the tightest of the merged bounds of a `min…`, `max…` or `exclusive…` keyword, or None."""
        bounds = [part[keyword] for part in self.parts if keyword in part]
        if not bounds:
            return None
        return min(bounds) if "max" in keyword.lower() else max(bounds)

    def keeps(self, name: str) -> bool:
        """Whether casting keeps a property of this name."""
        if name in self.required or not self.names(name):
            return name in self.required
        child = self.member(name)
        return child is None or not child.never

    def names(self, name: str) -> bool:
        """Whether the schema names a property, or accepts properties that it does not name."""
        return (
            name in self.properties
            or name in self.required
            or self.open
            or not self.declares
            or any(matcher(pattern)(name) for part in self.parts for pattern in part.get("patternProperties", ()))
        )

    def member(self, name: str) -> Node | None:
        """Return the node of a property; None if the schema does not describe it."""
        if name not in self._members:
            schemas = self.member_schemas(name)
            self._members[name] = self.nodes.node(schemas) if schemas else None
        return self._members[name]

    def member_schemas(self, name: str) -> list[Any]:
        """Return the schemas that apply to a property."""
        schemas = [schema for part in self.parts for schema in _member_schemas(part, name)]
        if not schemas or (all(schema is True for schema in schemas)):
            schemas = [
                part["unevaluatedProperties"]
                for part in self.parts
                if "unevaluatedProperties" in part and name not in self.properties
            ] or schemas
        return schemas

    def member_default(self, name: str) -> Any:
        """Return the declared default of a property; MISSING if it has none."""
        schemas = [schema for schema in self.member_schemas(name) if isinstance(schema, dict)]
        if all("default" not in schema and _CONJOINING.isdisjoint(schema) for schema in schemas):
            return MISSING  # fast path: most properties
        child = self.member(name)
        return MISSING if child is None else child.default

    def item(self, index: int) -> Node | None:
        """Return the node of an item; None if the schema does not describe it."""
        index = min(index, self.tuple_length)
        if index not in self._items:
            schemas = [schema for part in self.parts for schema in _item_schemas(part, index)]
            self._items[index] = self.nodes.node(schemas) if schemas else None
        return self._items[index]

    def check(self, value: Any) -> bool:
        """Whether a value is valid by every schema of this node, and by a branch of each of its unions."""
        if self._matches is None:
            self._matches = self.nodes.checker(self.parts)
        return self._matches(value) and all(
            any(self.nodes.is_valid((branch,), value) for branch in union) for union in self.unions
        )

    @property
    def branches(self) -> tuple[Node, ...]:
        """A node for each branch of the first union: this node merged with that branch."""
        if self._branches is None:
            decided = self.decided | {id(self.unions[0])}
            self._branches = tuple(self.nodes.merged((*self.parts, branch), decided) for branch in self.unions[0])
        return self._branches

    def decide_conditions(self, value: Any) -> Node:
        """Return this node with its conditions (`if`, `dependentSchemas`) decided by `value`."""
        if not self.conditional:
            return self
        node = self
        done: set[int] = set()
        while fresh := [part for part in node.parts if id(part) not in done]:
            done.update(id(part) for part in fresh)
            extra = [schema for part in fresh for schema in self._decisions(part, value)]
            node = self.nodes.merged((*node.parts, *extra), self.decided, conditions_decided=True)
        return node

    def _decisions(self, part: Part, value: Any) -> Iterator[Any]:
        if "if" in part:
            if self.nodes.is_valid((part["if"],), value):
                yield part["if"]
                yield part.get("then", True)
            else:
                yield part.get("else", True)
        if isinstance(value, dict):
            for name, schema in part.get("dependentSchemas", {}).items():
                if name in value:
                    yield schema


class Nodes:
    """The nodes of one converted document, and native validators of its parts."""

    def __init__(self, document: dict[str, Any] | bool, lock: Any = None, parts: Parts | None = None) -> None:
        self.document = document
        self.lock = lock if lock is not None else RLock()
        self._made: dict[Any, Node] = {}
        self._alone: dict[tuple[int, ...], Node] = {}
        self._unions: dict[int, Union] = {}
        self._checkers: dict[tuple[int, ...], Callable[[Any], bool]] = {}
        self._native = parts or Parts(definitions_of(document))

    def __len__(self) -> int:
        return len(self._made)

    @cached_property
    def root(self) -> Node:
        """The node of the document."""
        return self.node([self.document])

    def node(self, schemas: Iterable[Any]) -> Node:
        """Return the node of schemas that apply together."""
        listed = tuple(schemas)
        key = tuple(map(id, listed))
        node = self._alone.get(key)
        if node is None:
            node = self._alone[key] = self.merged(listed, frozenset())
            if len(listed) == 1 and isinstance(listed[0], dict):
                node.source = listed[0]
        return node

    def merged(self, schemas: tuple[Any, ...], decided: frozenset[int], *, conditions_decided: bool = False) -> Node:
        """Return the node of schemas, with references and `allOf` merged, and without the unions in `decided`."""
        parts, found = self._flatten(schemas)
        unions = tuple(union for union in found if id(union) not in decided)
        key = (tuple(map(id, parts)), decided, conditions_decided)
        node = self._made.get(key)
        if node is None:
            # One permanent node per key: other code identifies nodes by their id().
            node = self._made.setdefault(key, Node(self, tuple(parts), unions, decided, conditions_decided))
        return node

    def _flatten(self, schemas: tuple[Any, ...]) -> tuple[list[Part], list[Union]]:
        parts: list[Part] = []
        unions: list[Union] = []
        seen: set[int] = set()
        pending = list(reversed(schemas))
        while pending:
            schema = pending.pop()
            if schema is True or id(schema) in seen:
                continue
            if schema is False:
                parts.append(_NEVER)
                continue
            seen.add(id(schema))
            parts.append(schema)
            if not _CONJOINING.isdisjoint(schema):
                pending.extend(reversed(self._conjuncts(schema, unions)))
        return parts, unions

    def _conjuncts(self, schema: Part, unions: list[Union]) -> list[Any]:
        following = []
        if "$ref" in schema:
            following.append(target_of(schema["$ref"], self.document))
        following += schema.get("allOf", ())
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if branches is None:
                continue
            if len(branches) == 1:
                following.append(branches[0])
            else:
                unions.append(self._branches(branches))
        return following

    def _branches(self, branches: list[Any]) -> Union:
        """Return the same tuple for the same list, so that nodes can be identified by id()."""
        return self._unions.setdefault(id(branches), tuple(branches))

    def is_valid(self, schemas: tuple[Any, ...], value: Any) -> bool:
        """Whether `value` is valid by all of `schemas`, using the native engine."""
        return self.checker(schemas)(value)

    def checker(self, schemas: tuple[Any, ...]) -> Callable[[Any], bool]:
        """Return a function that checks whether a value is valid by all of `schemas`."""
        key = tuple(map(id, schemas))
        check = self._checkers.get(key)
        if check is None:
            with self.lock:
                check = self._checkers[key] = self._make_checker(schemas)
        return check

    def _make_checker(self, schemas: tuple[Any, ...]) -> Callable[[Any], bool]:
        if any(schema is False or schema is _NEVER for schema in schemas):
            return lambda value: False
        validator = self._native.compiled(tuple(schema for schema in schemas if schema is not True))
        if validator is None:
            return lambda value: True
        is_valid = validator.is_valid

        def check(value: Any) -> bool:
            try:
                return is_valid(value)
            except ValueError:
                copy = as_json(value)
            try:
                return not copy.foreign and is_valid(copy.value)
            except ValueError:
                return False

        return check


def discriminator(branches: Sequence[Node]) -> str | None:
    """Return the required property whose string value identifies the branch of an object; None if there is none."""
    for name in branches[0].properties:
        taken: set[str] = set()
        for branch in branches:
            only_object = branch.types is not None and set(branch.types) == {"object"} and not branch.unions
            child = branch.member(name) if only_object and name in branch.required else None
            values = None if child is None else child.choices
            if not values or any(not isinstance(value, str) or value in taken for value in values):
                break
            taken.update(values)
        else:
            return name
    return None


_NEVER: Final[Part] = {"!never": True}


def _types(parts: tuple[Part, ...]) -> tuple[str, ...] | None:
    """Return the types that every part allows, in the order of the first part with types; None if no part has types."""
    allowed: tuple[str, ...] | None = None
    for part in parts:
        if "type" in part:
            named = [part["type"]] if isinstance(part["type"], str) else part["type"]
            wide = [*named, "integer"] if "number" in named else named
            allowed = tuple(wide) if allowed is None else tuple(kind for kind in allowed if kind in wide)
    return allowed


def _choices(parts: tuple[Part, ...]) -> list[Any] | None:
    """Return the values that every `enum` and `const` allows; None if there are no such keywords."""
    choices: list[Any] | None = None
    for part in parts:
        for named in ([part["const"]] if "const" in part else None, part.get("enum")):
            if named is not None:
                kept = choices
                choices = named if kept is None else [a for a in kept if any(same(a, b) for b in named)]
    return choices


def _member_schemas(part: Part, name: str) -> Iterator[Any]:
    named = False
    if name in part.get("properties", ()):
        named = True
        yield part["properties"][name]
    for pattern, schema in part.get("patternProperties", {}).items():
        if matcher(pattern)(name):
            named = True
            yield schema
    if not named and "additionalProperties" in part:
        yield part["additionalProperties"]


def _item_schemas(part: Part, index: int) -> Iterator[Any]:
    prefix = part.get("prefixItems", ())
    if index < len(prefix):
        yield prefix[index]
    elif "items" in part:
        yield part["items"]
