"""The closed form of a schema: a stricter schema, which accepts only values that are valid and already normal.

One native call with the closed form can thus replace the slower stages of casting. The closed form forbids properties
that casting would remove, requires properties that have a default, and requires tuples of full length. Every change
only adds constraints: the schema accepts every value that the closed form accepts. If the closed form cannot express
exactly what casting would do, it rejects the value, and the slower stages follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from operations.schema.casting.nodes import MISSING, Node, Nodes, discriminator
from operations.schema.casting.repair import default_for, defaultable
from operations.schema.dialects.keywords import ANNOTATIONS
from operations.schema.dialects.traversal import Definition, Reach, definitions_of

_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas")
_CHILD = ("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems")
_NAMING = frozenset({"properties", "patternProperties", "prefixItems"})
_NAMED = frozenset({"properties", "$ref", "allOf", "anyOf", "oneOf", "default"})
"""A schema that declares a property with a default has at least one of these keywords."""
_UNCLOSABLE = {"not": {"type": "object"}}


class Closer:
    """Writes the closed form of one converted document.

    A schema has up to four forms: `closed`, `inner`, `closed-kept` and `inner-kept`. The form `inner` is for a part of
    a closed schema, such as a branch of its `allOf`: the schemas of properties and items are closed, but the part
    itself allows undeclared properties. The `-kept` forms do not require properties with a default. Other schemas stay
    unchanged. The forms of a definition depend only on the schemas that it refers to, so documents that share a
    definition share its forms. `definitions` are the document and its definitions by pointer.
    """

    def __init__(self, nodes: Nodes, definitions: Mapping[str, Definition]) -> None:
        self._document = nodes.document
        self._nodes = nodes
        self._sources = definitions
        self._mattering = Reach(
            definitions, "names properties", _matters, lambda each: any(map(_matters, each.schemas))
        )
        self._defaulting = Reach(definitions, "has defaults", _defaults, lambda each: any(map(_defaults, each.schemas)))

    def form(self, schema: dict[str, Any] | bool | None = None) -> dict[str, Definition]:
        """Return, by pointer, the closed form of the document or of one schema in it, and the definitions of the form.

        The pointer of the closed form is `#`. If an unchanged schema refers to the document as `#`, and the document is
        changed, the result rejects every value.
        """
        closed = Definition(self._closed(self._document if schema is None else schema, ""))
        definitions: dict[str, Definition] = {}
        pending = sorted(closed.targets)
        while pending:
            pointer = pending.pop()
            if pointer not in definitions:
                definitions[pointer] = form = self._form_of(pointer)
                pending += sorted(form.targets)
        if "#" in definitions and closed.schema is not self._document:
            return definitions_of(False)
        return {**definitions, "#": closed}

    # References

    def _form_of(self, pointer: str) -> Definition:
        """Return the definition at a pointer; for a pointer that `_reference` made, the form of a definition."""
        if pointer in self._sources:
            return self._sources[pointer]
        form, _, name = pointer[8:].partition(":")
        source = self._sources[f"#/$defs/{name}" if name else "#"]
        return source.forms.get(form) or source.forms.setdefault(form, self._written(source.schema, form))

    def _written(self, schema: Any, form: str) -> Definition:
        kind, dash, kept = form.partition("-")
        return Definition((self._closed if kind == "closed" else self._inner)(schema, dash + kept))

    def _reference(self, pointer: str, form: str) -> dict[str, Any]:
        if not self._mattering.reached_from(pointer):
            return {"$ref": pointer}
        if not self._defaulting.reached_from(pointer):
            form = form.removesuffix("-kept")
        return {"$ref": f"#/$defs/{form}:{pointer[8:]}"}

    # Schemas that are closed themselves

    def _closed(self, schema: Any, kept: str) -> Any:
        if not self._needs_closing(schema):
            return schema
        if not any(keyword in schema for keyword in _IN_PLACE):
            return self._closed_simple(schema, kept)
        if set(schema) - ANNOTATIONS == {"$ref"} and not isinstance(schema.get("default"), dict):
            return self._reference(schema["$ref"], "closed" + kept)
        node = self._nodes.node([schema])
        if not node.unions:
            return self._closed_whole(schema, node, kept)
        own = [keyword for keyword in ("anyOf", "oneOf") if len(schema.get(keyword, ())) > 1]
        if len(node.unions) > 1 or len(own) != 1 or node.conditional:
            return {"allOf": [self._inner(schema, kept), _UNCLOSABLE]}
        return self._closed_union(schema, node, own[0], kept)

    def _closed_simple(self, schema: dict[str, Any], kept: str) -> dict[str, Any]:
        out = self._inner_keywords(schema, kept)
        named = "properties" in schema or "patternProperties" in schema
        if named and "additionalProperties" not in schema and "unevaluatedProperties" not in schema:
            out["additionalProperties"] = False
            out["properties"] = {**dict.fromkeys(schema.get("required", ()), True), **out.get("properties", {})}
        return out

    def _closed_whole(self, schema: dict[str, Any], node: Node, kept: str) -> dict[str, Any]:
        out = self._inner_keywords(schema, kept)
        if "unevaluatedProperties" not in schema and (node.declares or node.conditional):
            out["unevaluatedProperties"] = False
            out["properties"] = {**dict.fromkeys(node.required, True), **out.get("properties", {})}
        return out

    def _closed_union(self, schema: dict[str, Any], node: Node, keyword: str, kept: str) -> dict[str, Any]:
        alone = not set(schema) - ANNOTATIONS - {"type", keyword} and not isinstance(node.default, dict)
        branches: list[Any] = []
        for branch, chosen in reversed(list(zip(schema[keyword], node.branches, strict=True))):
            form = self._branch(branch, chosen, alone, kept)
            if branches and not kept and self._has_default(branch):
                # If a value lacks only defaults of this branch, it is cast to this branch, not to a later branch.
                without = self._branch(branch, chosen, alone, "-kept")
                branches = [{"if": without, "then": form, "else": {"anyOf": branches}}]
            else:
                branches = [form, *branches]
        out = self._inner_keywords(schema, kept, besides=keyword)
        out["anyOf"] = branches
        if keyword == "oneOf" and not _disjoint([self._nodes.node([branch]) for branch in schema[keyword]]):
            out["oneOf"] = schema[keyword]
        return out

    def _branch(self, branch: Any, chosen: Node, alone: bool, kept: str) -> Any:
        if alone:
            return self._closed(branch, kept)
        if chosen.unions or chosen.conditional:
            return {"allOf": [self._inner(branch, kept), _UNCLOSABLE]}
        form: dict[str, Any] = {"allOf": [self._inner(branch, kept)]}
        if not kept and (names := self._defaulted(chosen)):
            form["required"] = names
        if chosen.declares and not chosen.open:
            form["properties"] = dict.fromkeys((*chosen.properties, *chosen.required), True)
            form["patternProperties"] = {
                pattern: True for part in chosen.parts for pattern in part.get("patternProperties", ())
            }
            form["unevaluatedProperties"] = False
        return form

    # Schemas whose contents are closed

    def _inner(self, schema: Any, kept: str) -> Any:
        return self._inner_keywords(schema, kept) if self._needs_closing(schema) else schema

    def _inner_keywords(self, schema: dict[str, Any], kept: str, besides: str | None = None) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword not in ("$defs", besides):
                out.update(self._inner_keyword(keyword, value, kept))
        self._require(out, schema, kept)
        return out

    def _inner_keyword(self, keyword: str, value: Any, kept: str) -> dict[str, Any]:
        if keyword == "$ref":
            return self._reference(value, "inner" + kept)
        if keyword in ("properties", "patternProperties"):
            return {keyword: {name: self._closed(item, kept) for name, item in value.items()}}
        if keyword in _CHILD:
            return {keyword: self._closed(value, kept)}
        if keyword == "prefixItems":
            return {keyword: [self._closed(item, kept) for item in value]}
        if keyword == "oneOf" and len(value) > 1:
            return {"oneOf": value, "allOf": [{"anyOf": self._inners(value, kept)}]}
        if keyword in ("allOf", "anyOf", "oneOf"):
            return {keyword: self._inners(value, kept)}
        if keyword in ("then", "else"):
            return {keyword: self._inner(value, kept)}
        if keyword == "dependentSchemas":
            return {keyword: {name: self._inner(item, kept) for name, item in value.items()}}
        return {keyword: value}

    def _inners(self, schemas: list[Any], kept: str) -> list[Any]:
        return [self._inner(schema, kept) for schema in schemas]

    def _require(self, out: dict[str, Any], schema: dict[str, Any], kept: str) -> None:
        """Make `out` require the properties with a default, and tuples of full length."""
        if not kept and not _NAMED.isdisjoint(schema) and self._has_default(schema):
            names = self._defaulted(self._nodes.node([schema]))
            if names:
                out["required"] = list(dict.fromkeys((*schema.get("required", ()), *names)))
        if "prefixItems" in schema and schema.get("items", False) is False:
            out["minItems"] = max(len(schema["prefixItems"]), schema.get("minItems", 0))
            out["items"] = False

    def _defaulted(self, node: Node) -> list[str]:
        given = node.default if isinstance(node.default, dict) else ()
        return [
            name
            for name in defaultable(node)
            if (name in given or any(self._has_default(schema) for schema in node.member_schemas(name)))
            and default_for(node, name) is not MISSING
        ]

    # Reachable schemas

    def _needs_closing(self, schema: Any) -> bool:
        return self._mattering.reaches(schema)

    def _has_default(self, schema: Any) -> bool:
        return self._defaulting.reaches(schema)


def _defaults(schema: dict[str, Any]) -> bool:
    return "default" in schema


def _matters(schema: dict[str, Any]) -> bool:
    return not _NAMING.isdisjoint(schema) or isinstance(schema.get("default"), dict)


def _disjoint(branches: Sequence[Node]) -> bool:
    """Whether no value can match two branches, by their types or a required literal."""
    return _disjoint_types(branches) or discriminator(branches) is not None


def _disjoint_types(branches: Sequence[Node]) -> bool:
    seen: set[str] = set()
    for node in branches:
        if node.types is None or node.unions or seen & set(node.types):
            return False
        seen.update(node.types)
    return True
