"""Conversion of any JSON Schema to draft 2020-12, self-contained, with references as pointers into `$defs`.

Only schemas reachable from the root are converted, so a schema may be part of a large document. Unsupported parts are
omitted and reported once; a schema is never rejected. Keywords of OpenAPI 3.0 and Swagger 2.0 (`nullable`, `example`,
`discriminator`) are replaced or dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Any

from operations.schema.dialects.keywords import (
    ASSERTIONS,
    FORMS,
    LITERALS,
    SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    SINCE_DRAFT,
    TYPES,
)
from operations.schema.dialects.literals import LiteralBudget, NotPlainError, plain
from operations.schema.dialects.patterns import engine_of, is_linear
from operations.schema.dialects.plain import Conversion
from operations.schema.dialects.references import Loader, References, SchemaLocation, UnresolvedReferenceError

MAX_SCHEMA_DEPTH = 90
_MAX_INLINE = 2000
_COUNTED = ("oneOf", "prefixItems")
_DESCRIBING = frozenset({"$ref", "title", "description", "$comment", "examples", "deprecated"})
OPENAPI_30 = 3
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
_NAMES = {
    "draft4": 4,
    "draft6": 6,
    "draft7": 7,
    "2019-09": 2019,
    "2020-12": 2020,
    "openapi-3.0": OPENAPI_30,
}
_DROPPED = frozenset(
    {"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"}
)
_TEXTS = frozenset({"title", "description", "format", "$comment"})
_SAME = (
    (ASSERTIONS.keys() | LITERALS | SCHEMA_LISTS | SCHEMA_MAPS | _TEXTS)
    - SINCE_DRAFT.keys()
    - {"exclusiveMinimum", "exclusiveMaximum"}
) | {"items", "additionalProperties", "not", "$ref", "readOnly", "writeOnly", "deprecated"}
"""Keywords that have the same name and form in every draft, unless `items` is a list."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def draft_number(dialect: str | None) -> int | None:
    """Return the draft of a dialect name or metaschema URL; None if unknown."""
    if dialect is None:
        return None
    uri = dialect.rstrip("#")
    return _NAMES.get(dialect) or _DRAFTS.get(uri) or _DRAFTS.get(uri.replace("https://", "http://", 1))


def convert(document: Any, dialect: str | None = None, loader: Loader | None = None) -> Conversion:
    """Convert `document`; a value that is not a schema becomes `True`, and the problem is reported."""
    if isinstance(document, bool):
        return Conversion(document, (), True, False)
    if not isinstance(document, Mapping):
        return Conversion(
            True, (f"expected an object or boolean as schema, not {type(document).__name__}",), True, False
        )
    return Converter(document, dialect, loader).run()


class Converter:
    """One conversion: the definitions so far and the references between them."""

    def __init__(self, document: Mapping[str, Any], dialect: str | None, loader: Loader | None) -> None:
        self.complaints: list[str] = []
        self.exact = True
        default = draft_number(dialect)
        if dialect is not None and default is None:
            self.complaints.append(f"unknown dialect {dialect!r}")
        draft = self._draft_of(document, default or 2020)
        self.references = References(document, draft, self._draft_of, loader)
        self.definitions: dict[str, Any] = {}
        self._names: dict[Any, str] = {id(document): "#"}
        self.taken: MutableMapping[str, int] = {}
        self.edges: dict[str, set[str]] = {}
        self._current = "#"
        self._pending: list[tuple[str, SchemaLocation]] = []
        self._seen: dict[int, tuple[Mapping[str, Any], str, int]] = {}
        self._converted = 0
        self._budget = LiteralBudget()

    def run(self) -> Conversion:
        """Convert the document and all its definitions."""
        document = self.convert_all()
        if self.definitions:
            document["$defs"] = self.definitions
        return Conversion(document, tuple(self.complaints), self.exact, has_cycle(self.edges))

    def convert_all(self) -> dict[str, Any]:
        """Convert the document and then its definitions; return the document without definitions."""
        root = self.references.root
        document: dict[str, Any] = self._schema(root.schema, root.base, root.draft, 0)
        while self._pending:
            name, location = self._pending.pop()
            self._current = f"#/$defs/{name}"
            self.definitions[name] = self._schema(location.schema, location.base, location.draft, 0)
        return document

    def _draft_of(self, schema: Mapping[str, Any], current: int) -> int:
        declared = schema.get("$schema")
        if not isinstance(declared, str) or current == OPENAPI_30:
            return current
        draft = draft_number(declared)
        if draft is None:
            self.exact = False
        return draft or current

    def _complain(self, message: str) -> None:
        if len(self.complaints) < 20:
            self.complaints.append(f"in {self._current}: {message}")

    def _schema(self, schema: Any, base: str, draft: int, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, (dict, Mapping)):
            self._complain(f"{type(schema).__name__} is not a schema")
            return True
        if depth > MAX_SCHEMA_DEPTH:
            self._complain(f"schemas nested deeper than {MAX_SCHEMA_DEPTH} levels accept any value")
            return True
        if depth:
            base, draft = self.references.enter(schema, base, draft)
            if self._is_shared(schema, base, draft):
                return {"$ref": self._linked(self._pointer_to(SchemaLocation(schema, base, draft), None))}
        if draft == OPENAPI_30:
            schema = from_openapi30(schema)
        if "$ref" in schema and draft < 2019:
            schema = {"$ref": schema["$ref"]}
        out: dict[str, Any] = {}
        where = (base, draft, depth + 1)
        # Fast path: most schemas have only keywords that are the same in every draft.
        same = _SAME.issuperset(schema) and schema.get("items").__class__ is not list
        for keyword, value in schema.items() if same else _modern(schema, draft):
            # Fast path: most keywords are a type or a text, which need no copy.
            if (
                value.__class__ is str
                and value.isascii()
                and (keyword in _TEXTS or (keyword == "type" and value in TYPES))
            ):
                out[keyword] = value
            else:
                self._keyword(out, keyword, value, where)
        return out

    def _is_shared(self, schema: Mapping[str, Any], base: str, draft: int) -> bool:
        """Whether a schema was converted before at another location; the first `_MAX_INLINE` schemas are not
        considered.
        """
        self._converted += 1
        if self._converted <= _MAX_INLINE:
            return False
        here = (schema, base, draft)  # keeps the schema alive, so that no other object gets its id()
        known = self._seen.setdefault(id(schema), here)
        return known is not here and known[1:] == here[1:]

    def _linked(self, pointer: str) -> str:
        self.edges.setdefault(self._current, set()).add(pointer)
        return pointer

    def _keyword(self, out: dict[str, Any], keyword: str, value: Any, where: tuple[str, int, int]) -> None:
        if keyword in _REFERENCES:
            self._reference(out, keyword, value, where[0])
        elif keyword in SCHEMA:
            out[keyword] = self._schema(value, *where)
        elif keyword in SCHEMA_LISTS:
            self._schema_list(out, keyword, value, where)
        elif keyword in SCHEMA_MAPS:
            self._schema_map(out, keyword, value, where)
        elif keyword in ASSERTIONS or keyword in LITERALS:
            self._literal(out, keyword, value)
        elif not isinstance(value, Mapping) or keyword.startswith("x-"):
            self._literal(out, keyword, value, silent=True)

    def _schema_list(self, out: dict[str, Any], keyword: str, value: Any, where: tuple[str, int, int]) -> None:
        if isinstance(value, (list, tuple)) and value:
            items = [self._schema(item, *where) for item in value]
            out[keyword] = out.get(keyword, []) + (items if keyword in _COUNTED else _distinct(items))
        else:
            self._complain(f"{keyword} is not a list of schemas")

    def _schema_map(self, out: dict[str, Any], keyword: str, value: Any, where: tuple[str, int, int]) -> None:
        if not isinstance(value, (dict, Mapping)):
            self._complain(f"{keyword} is not an object")
            return
        members = {}
        for name, item in value.items():
            if not isinstance(name, str) or (keyword == "patternProperties" and not is_linear(name)):
                self._complain(f"{keyword}: {name!r:.60} is not supported")
            else:
                members[name] = self._schema(item, *where)
        out[keyword] = members

    def _literal(self, out: dict[str, Any], keyword: str, value: Any, *, silent: bool = False) -> None:
        try:
            value = plain(value, self._budget)
        except NotPlainError as error:
            if not silent:
                self._complain(f"{keyword}: {error}")
            return
        if keyword == "examples" and isinstance(value, dict):
            value = list(value.values())  # by name, as in OpenAPI
        if not FORMS.get(keyword, _anything)(value):
            if keyword in ASSERTIONS:
                self._complain(f"{keyword}: {value!r:.60} is not supported")
        elif keyword == "pattern" and engine_of(value) is None:
            self._complain(f"pattern: {value!r:.60} is not a supported regular expression")
        else:
            out[keyword] = value

    def _reference(self, out: dict[str, Any], keyword: str, value: Any, base: str) -> None:
        if keyword != "$ref":
            self.exact = False
        try:
            if not isinstance(value, str):
                raise UnresolvedReferenceError(f"{value!r:.60} is not a reference")
            pointer = self._linked(self.pointer_of(keyword, str(value), base))
        except (UnresolvedReferenceError, ValueError) as error:
            if isinstance(value, str) and draft_number(value):
                self.exact = False  # the native engine has the metaschemas built in
                return
            self._complain(f"{keyword} {value!r:.100} accepts any value: {error}")
            return
        if "$ref" in out:
            out.setdefault("allOf", []).append({"$ref": pointer})
        else:
            out["$ref"] = pointer

    def pointer_of(self, keyword: str, reference: str, base: str) -> str:
        """Return the pointer of the definition that a reference leads to; raise UnresolvedReferenceError if there is
        none.
        """
        return self._pointer_to(self.resolved(keyword, reference, base), reference)

    def resolved(self, keyword: str, reference: str, base: str) -> SchemaLocation:
        """Return the target of a reference; raise UnresolvedReferenceError if there is none."""
        if keyword == "$recursiveRef":
            return self.references.root
        resolve = self.references.resolve_dynamic if keyword == "$dynamicRef" else self.references.resolve
        return resolve(reference, base)

    def _pointer_to(self, target: SchemaLocation, reference: str | None) -> str:
        """Return the pointer of a definition that is converted later; `reference` is None for a repeated schema."""
        key = id(target.schema) if isinstance(target.schema, Mapping) else reference
        if key not in self._names:
            self._names[key] = self.define(reference or "shared", target)
        return self._names[key]

    def define(self, reference: str, target: SchemaLocation) -> str:
        """Return the pointer of a new definition, which is named after a reference and converted later."""
        name = unique_name(reference, self.taken)
        self._pending.append((name, target))
        return f"#/$defs/{name}"


def _distinct(schemas: list[Any]) -> list[Any]:
    """Return the schemas without repeated references, which would double the work at every level of a chain."""
    kept: dict[Any, Any] = {}
    for index, schema in enumerate(schemas):
        plain_reference = isinstance(schema, dict) and "$ref" in schema and schema.keys() <= _DESCRIBING
        kept.setdefault(schema["$ref"] if plain_reference else index, schema)
    return list(kept.values())


def _anything(value: Any) -> bool:
    return True


def unique_name(reference: str, taken: MutableMapping[str, int]) -> str:
    """Return a definition's name: the last part of the reference, in characters that pointers need not escape.

    `taken` has the names used so far, each with the next number for a duplicate.
    """
    last = reference.rstrip("/#").replace("#", "/").rsplit("/", 1)[-1]
    name = re.sub("[^A-Za-z0-9_.-]", "_", last)
    name = candidate = name or "schema"
    while candidate in taken:
        taken[name] += 1
        candidate = f"{name}_{taken[name]}"
    taken[candidate] = 1
    return candidate


def _modern(schema: Mapping[str, Any], draft: int) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of `schema` and their values; renamed keywords have their new names."""
    tuple_form = isinstance(schema.get("items"), (list, tuple))
    for keyword, value in schema.items():
        if keyword == "items" and tuple_form:
            if value:
                yield "prefixItems", value
        elif keyword == "additionalItems":
            if tuple_form:
                yield "items", value
        elif keyword == "dependencies" and isinstance(value, Mapping):
            yield from _dependencies(value)
        elif keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            if value and (bound := schema.get(keyword[9:].lower())) is not None:
                yield keyword, bound
        elif _is_known(keyword, draft):
            yield keyword, value


def _is_known(keyword: Any, draft: int) -> bool:
    if keyword not in SINCE_DRAFT:
        return isinstance(keyword, str) and keyword not in _DROPPED
    return SINCE_DRAFT[keyword] <= max(draft, 4)


def _dependencies(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    names = {name: item for name, item in value.items() if isinstance(item, list | tuple)}
    schemas = {name: item for name, item in value.items() if name not in names}
    if names:
        yield "dependentRequired", names
    if schemas:
        yield "dependentSchemas", schemas


def has_cycle(edges: Mapping[str, AbstractSet[str]]) -> bool:
    """Whether the references form a cycle."""
    waiting = {name: len(targets) for name, targets in edges.items()}
    users: dict[str, list[str]] = {}
    for name, targets in edges.items():
        for target in targets:
            users.setdefault(target, []).append(name)
    done = [name for name in users if not waiting.get(name)]
    while done:
        for user in users.get(done.pop(), ()):
            waiting[user] -= 1
            if not waiting[user]:
                done.append(user)
    return any(waiting.values())


_MISSPELLED = {
    **dict.fromkeys(("int", "int32", "int64", "long", "short", "integers"), "integer"),
    **dict.fromkeys(("float", "double", "decimal", "numeric", "int or float"), "number"),
    **dict.fromkeys(("bool", "boolen"), "boolean"),
    **dict.fromkeys(("str", "text", "char", "file", "date", "datetime", "date-time", "time", "timestamp"), "string"),
    **dict.fromkeys(("uuid", "guid", "email", "url", "uri", "byte", "binary", "base64", "enum", "strings"), "string"),
    **dict.fromkeys(("list", "arrays"), "array"),
    **dict.fromkeys(("map", "dict", "dictionary", "hash", "json", "obj"), "object"),
    **{kind: kind for kind in TYPES},
}
"""JSON types by the misspelled and foreign names that documents use."""
_DOCUMENTATION = frozenset({"discriminator", "xml", "externalDocs", "nullable", "x-nullable", "example"})


def from_openapi30(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema object with OpenAPI's own keywords replaced or dropped, and a misspelled `type` corrected.

    Sub-schemas stay unchanged, and so does an object with a `$ref`.
    """
    if "$ref" in schema:
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and kind not in TYPES and (meant := _MISSPELLED.get(kind.strip().lower())):
        schema = {**schema, "type": meant}
    if _DOCUMENTATION.isdisjoint(schema):
        return schema
    nullable = schema.get("nullable") is True or schema.get("x-nullable") is True
    out = {keyword: value for keyword, value in schema.items() if keyword not in _DOCUMENTATION}
    if "example" in schema:
        out.setdefault("examples", [schema["example"]])
    return _with_null(out) if nullable else out


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and None not in choices:
        schema["enum"] = [*choices, None]
    if isinstance(kind, str):
        schema["type"] = [kind, "null"] if kind != "null" else kind
        if not any(keyword in schema for keyword in ("allOf", "anyOf", "oneOf", "not")):
            return schema
        schema["type"] = kind
    elif choices is not None:
        return schema
    return _or_null(schema)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a union of a schema and null; its annotations stay outside the union."""
    described: dict[str, Any] = {}
    for keyword in ("title", "description", "default", "examples"):
        if keyword in schema:
            described[keyword] = schema.pop(keyword)
    return {**described, "anyOf": [schema, {"type": "null"}]} if schema else described
