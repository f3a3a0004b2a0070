"""Secret parts of a value: those that the schema marks `writeOnly` or `format: password`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from operations.schema.budget import Budget, ExhaustedError
from operations.schema.dialects.patterns import matcher
from operations.schema.dialects.traversal import Definition, Reach, is_marked

REDACTED = "[redacted]"
Path = tuple[str | int, ...]
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_CONDITIONAL = ("if", "then", "else", "not")
_MEMBERS = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
_SECRET = True


class Hidden:
    """The secret paths of one value, as a tree of keys that ends at each secret."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def covers(self, path: Path) -> bool:
        """Whether the path is a secret or inside one."""
        return self._below(path) is _SECRET

    def touches(self, path: Path) -> bool:
        """Whether the path is a secret, inside one, or contains one."""
        pending = [self._below(path)]
        while pending:
            tree = pending.pop()
            if tree is _SECRET:
                return True
            pending += (tree or {}).values()
        return False

    def redacted(self, value: Any, path: Path) -> Any:
        """Return the value at `path` with every secret replaced; the value itself if it has no secrets."""
        return _redacted(value, self._below(path)) if self.touches(path) else value

    def _below(self, path: Path) -> Any:
        tree = self._tree
        for part in path:
            if tree is _SECRET or tree is None:
                return tree
            tree = tree.get(part)
        return tree


def _redacted(value: Any, tree: Any) -> Any:
    if tree is _SECRET:
        return REDACTED
    if not tree:
        return value
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    for key, inner in tree.items():
        copy[key] = _redacted(copy[key], inner)
    return copy


class _PathSchemas:
    """Every schema that may apply to one path of a value, through references and unions."""

    def __init__(self, parts: list[dict[str, Any]], has_secret: bool) -> None:
        self.parts = parts
        self.secret = any(is_marked(part) for part in parts)
        self.has_secret = has_secret
        self.names_members = any(keyword in part for part in parts for keyword in _MEMBERS)
        self.members: dict[str, _PathSchemas | None] = {}
        self.has_secret_member: bool | None = None


class Secrets:
    """Finds the paths of a value that the schema of one converted document marks as secret."""

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions
        self._document = definitions["#"].schema
        self._by_schemas: dict[tuple[int, ...], _PathSchemas] = {}

    @cached_property
    def _marked(self) -> Reach:
        """The schemas that are marked as secret, or contain or refer to such a schema."""
        return Reach(self._definitions, "marks secrets", is_marked, lambda definition: definition.native.marks_secrets)

    def secret_paths(self, value: Any) -> Hidden:
        """Return the paths in `value` whose content must never be printed.

        These include all paths for which the search would take too long.
        """
        if not self._marked.reached_from("#"):
            return Hidden(None)
        holder: dict[int, Any] = {}
        pending: list[tuple[_PathSchemas, Any, Any, Any]] = [(self._path_schemas([self._document]), value, holder, 0)]
        budget = Budget(value)
        while pending:
            path_schemas, item, parent, key = pending.pop()
            parent[key] = self._enter(path_schemas, item, pending, budget)
        return Hidden(holder[0])

    def _enter(self, path_schemas: _PathSchemas, value: Any, pending: list[Any], budget: Budget) -> Any:
        """Return the tree of one path; add to `pending` the properties or items at this path that may have secrets."""
        if path_schemas.secret:
            return _SECRET
        if not path_schemas.has_secret or value is None or isinstance(value, bool):
            return None
        tree: dict[Any, Any] = {}
        try:
            budget.spend()
            if isinstance(value, Mapping):
                for name, item in value.items():
                    self._child(
                        self._member(path_schemas, str(name)),
                        self._hides_unknown(path_schemas),
                        name,
                        item,
                        tree,
                        pending,
                    )
            elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
                for index, item in enumerate(value):
                    schemas = [schema for part in path_schemas.parts for schema in _item_schemas(part, index)]
                    self._child(self._path_schemas(schemas), True, index, item, tree, pending)
            else:
                return _SECRET
        except ExhaustedError:
            return _SECRET
        return tree

    @staticmethod
    def _child(path_schemas: _PathSchemas, hides: bool, key: Any, item: Any, tree: Any, pending: list[Any]) -> None:
        if path_schemas.has_secret:
            pending.append((path_schemas, item, tree, key))
        elif hides and not path_schemas.parts:
            tree[key] = _SECRET

    def _hides_unknown(self, path_schemas: _PathSchemas) -> bool:
        """Whether unknown properties may be secrets: true beside known secrets, and in a value of the wrong type."""
        if path_schemas.has_secret_member is None:
            schemas = [schema for part in path_schemas.parts for schema in part.get("properties", {}).values()]
            path_schemas.has_secret_member = any(self._path_schemas([schema]).secret for schema in schemas)
        return path_schemas.has_secret_member or not path_schemas.names_members

    def _member(self, path_schemas: _PathSchemas, name: str) -> _PathSchemas:
        known = path_schemas.members.get(name)
        if known is None:
            known = self._path_schemas(
                [schema for part in path_schemas.parts for schema in _member_schemas(part, name)]
            )
            if any(name in part.get("properties", ()) for part in path_schemas.parts):
                path_schemas.members[name] = known
        return known

    def _path_schemas(self, schemas: list[Any]) -> _PathSchemas:
        key = tuple(id(schema) for schema in schemas if isinstance(schema, dict))
        if key not in self._by_schemas:
            parts = list(self._parts(schemas))
            path_schemas = self._by_schemas[key] = _PathSchemas(parts, any(map(self._marked.reaches, parts)))
            # An object whose property names are secret cannot be shown without them.
            names = [part["propertyNames"] for part in parts if "propertyNames" in part]
            path_schemas.secret = path_schemas.secret or any(self._path_schemas([name]).secret for name in names)
        return self._by_schemas[key]

    def _parts(self, schemas: list[Any]) -> Iterator[dict[str, Any]]:
        seen: set[int] = set()
        pending = list(schemas)
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if "$ref" in schema:
                pending.append(target_of(schema["$ref"], self._document))
            for keyword in _IN_PLACE:
                pending += schema.get(keyword, ())
            pending += [schema[keyword] for keyword in _CONDITIONAL if keyword in schema]
            pending += schema.get("dependentSchemas", {}).values()


def target_of(pointer: str, document: Any) -> Any:
    """Return the target of a converted document's reference: `#` or `#/$defs/<name>`.

    Examples and defaults are walked like schemas and may contain apparent references, which resolve to True.
    """
    return document if pointer == "#" else document.get("$defs", {}).get(pointer[8:], True)


def _member_schemas(part: dict[str, Any], name: str) -> Iterator[Any]:
    if name in part.get("properties", ()):
        yield part["properties"][name]
    for pattern, schema in part.get("patternProperties", {}).items():
        if matcher(pattern)(name):
            yield schema
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in part:
            yield part[keyword]


def _item_schemas(part: dict[str, Any], index: int) -> Iterator[Any]:
    prefix = part.get("prefixItems", ())
    if index < len(prefix):
        yield prefix[index]
    for keyword in ("items", "contains", "unevaluatedItems"):
        if keyword in part:
            yield part[keyword]
