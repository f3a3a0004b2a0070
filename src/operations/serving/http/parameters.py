"""Query parameters: the input of an operation as GET accepts it, for the OpenAPI document and the HTTP endpoint.

A query string cannot express null or an empty list, so the schemas of parameters exclude them. A property that is
neither a scalar of one type nor a list of such scalars is a parameter with JSON text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from operations.schema.dialects.keywords import ANNOTATIONS, ASSERTING
from operations.schema.dialects.traversal import schemas_in, target_in

Kind = Literal["string", "integer", "number", "boolean"]

_KINDS = ("string", "integer", "number", "boolean")
_EXPRESSIBLE = frozenset({"type", "properties", "required", "additionalProperties"})
_COMPOUND = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_SIMPLE_ARRAY = frozenset({"type", "items", "minItems", "maxItems", "uniqueItems"})
_BYTES = "contentEncoding"


class QueryParameter(msgspec.Struct, frozen=True):
    """One property of an input in a query string."""

    name: str
    required: bool
    kind: Kind | None
    """The type of the value or of each list item; None for JSON text."""
    many: bool
    """Whether the parameter is repeated, once for each list item."""
    schema: Any
    """The schema of the parameter, with references into the input schema."""
    is_bytes: bool
    """Whether the value is base64 text that stands for bytes."""


def root_object(document: Mapping[str, Any] | bool) -> Mapping[str, Any] | None:
    """Return the root schema of an input that is an object.

    Return None for any other input, and for an object whose schema has further restrictions.
    """
    if isinstance(document, bool):
        return None
    root = target_in(document.get("$defs", {}), {key: value for key, value in document.items() if key != "$defs"})
    if not isinstance(root, dict) or root.get("type") not in ("object", ["object"]):
        return None
    if root.keys() & ASSERTING - _EXPRESSIBLE or any(node.get("$ref") == "#" for node in schemas_in(dict(document))):
        return None
    properties = root.get("properties", {})
    return root if all(name in properties for name in root.get("required", ())) else None


def query_parameters(document: Mapping[str, Any] | bool) -> tuple[QueryParameter, ...] | None:
    """Return the parameters of an input; None if a query string cannot express the input."""
    root = root_object(document)
    if root is None or isinstance(document, bool):
        return None
    definitions = document.get("$defs", {})
    required = frozenset(root.get("required", ()))
    return tuple(
        _parameter(name, schema, name in required, definitions) for name, schema in root.get("properties", {}).items()
    )


def is_bytes(schema: Any, definitions: Mapping[str, Any]) -> bool:
    """Whether a schema describes bytes, encoded as base64 text in JSON."""
    schema = target_in(definitions, _without_null(schema))
    return isinstance(schema, dict) and schema.get("type") == "string" and schema.get(_BYTES) == "base64"


def _parameter(name: str, schema: Any, required: bool, definitions: Mapping[str, Any]) -> QueryParameter:
    found = _scalar(schema, definitions)
    if found is not None:
        return QueryParameter(name, required, found[0], False, found[1], is_bytes(schema, definitions))
    found = _list_of_scalars(schema, definitions)
    if found is not None:
        kind, own = found
        least = max(1, own.get("minItems", 0)) if required else own.get("minItems")
        own = own if least is None else {**own, "minItems": least}
        return QueryParameter(name, required, kind, True, own, False)
    return QueryParameter(name, required, None, False, schema, False)


def _scalar(schema: Any, definitions: Mapping[str, Any]) -> tuple[Kind, dict[str, Any]] | None:
    """Return the scalar type that a schema allows, and the schema without null; None if it allows other types."""
    own = _without_null(schema)
    target = target_in(definitions, own)
    if not isinstance(target, dict) or target.keys() & _COMPOUND:
        return None
    if target is not own:
        target = _without_null(target)
    kind = _kind(target)
    if kind is None:
        return None
    own = own if "$ref" in own and _kind(target_in(definitions, own)) == kind and _is_strict(own, target) else {}
    return kind, {**(own or target)}


def _is_strict(own: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Whether the schema `own` can stay a reference: it has only `$ref` and annotations, and `target` excludes null."""
    return own.keys() <= {"$ref"} | ANNOTATIONS and None not in target.get("enum", ())


def _kind(schema: Any) -> Kind | None:
    if not isinstance(schema, dict):
        return None
    declared = schema.get("type")
    if declared is not None:
        return cast(Kind, declared) if declared in _KINDS else None
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
    kinds = {_KIND_OF.get(type(value)) for value in values}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


_KIND_OF: dict[type, Kind] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _list_of_scalars(schema: Any, definitions: Mapping[str, Any]) -> tuple[Kind, dict[str, Any]] | None:
    target = target_in(definitions, _without_null(schema))
    target = _without_null(target)
    if not isinstance(target, dict) or target.get("type") != "array" or target.keys() & ASSERTING - _SIMPLE_ARRAY:
        return None
    found = _scalar(target.get("items", True), definitions)
    return None if found is None else (found[0], {**target, "items": found[1]})


def _without_null(schema: Any) -> Any:
    """Return a schema that excludes null; the same schema if null is not an alternative that can be removed."""
    if not isinstance(schema, dict):
        return schema
    outer = {key: value for key, value in schema.items() if key in ANNOTATIONS}
    if outer.get("default", True) is None:
        del outer["default"]
    for keyword in ("anyOf", "oneOf"):
        branches = [branch for branch in schema.get(keyword, ()) if branch != {"type": "null"}]
        if len(branches) == 1 and schema.keys() - ANNOTATIONS == {keyword} and isinstance(branches[0], dict):
            return {**branches[0], **outer}
    declared = schema.get("type")
    kinds = [kind for kind in declared if kind != "null"] if isinstance(declared, list) else []
    if len(kinds) != 1 and None not in schema.get("enum", ()):
        return schema
    narrowed = {key: value for key, value in schema.items() if key not in ANNOTATIONS} | outer
    if len(kinds) == 1:
        narrowed["type"] = kinds[0]
    if "enum" in narrowed:
        narrowed["enum"] = [value for value in narrowed["enum"] if value is not None]
    return narrowed
