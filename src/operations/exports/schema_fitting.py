"""fit_schema: a JSON Schema reduced to a provider's subset. Lost constraints are added to descriptions.

A value that the subset cannot describe (a free-form object, a mixture of types) is sent as a JSON string, which
`arguments.read_arguments` decodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from operations.exports.names import property_name
from operations.exports.schema_subsets import Subset
from operations.schema.parts import OF_ARRAYS, OF_OBJECTS, SchemaParts, kinds_of, type_of

OMIT = "__omit__"
"""The string that a model sends to omit an optional property, if the provider requires every property.

It is used only for properties that accept null. Other properties are omitted by null.
"""
_KNOWN = frozenset(
    (
        *("type", "enum", "const", "description", "title", "default", "examples", "format", "pattern", "$ref"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "unevaluatedProperties", "unevaluatedItems", "dependentRequired", "dependentSchemas"),
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "else"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    )
)
_OF_SCALARS = frozenset(
    (
        *("format", "pattern", "minLength", "maxLength", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
"""Keywords of strings and numbers."""
_LOOK_AROUND = re.compile(r"\(\?(?:[=!]|<[=!])")
JSON_PREFIX = "json:"
"""Prefix that distinguishes a JSON string from a plain string, where both are accepted."""
_JSON_TEXT = "as JSON text"
_VALUES = frozenset({"const", "default", "examples", "uniqueItems"})
"""Keywords whose value is not a schema, although the value may look like a schema."""
_MAX_NOTE = 200
_MAX_NODES = 20_000
"""Maximum number of fitted parts of one schema. The limit is needed because merging `allOf` can repeat parts."""
_LONG_ENUM = 250
"""Number of values above which the characters of an `enum` are limited."""
_encode = msgspec.json.Encoder().encode


def fit_schema(document: Mapping[str, Any] | bool, subset: Subset) -> dict[str, Any]:
    """Return the input schema `document` reduced to `subset`, with an object at its root; `document` is unchanged."""
    return _Fitter(document, subset).fit()


def is_object_schema(document: Mapping[str, Any] | bool) -> bool:
    """Whether an input schema accepts objects or any value.

    If it does, the arguments of the tool are the input itself. Otherwise they are an object that contains the input.
    """
    if isinstance(document, bool):
        return True
    kind = document.get("type")
    if kind is None:
        has_other = any(keyword in document for keyword in ("enum", "const", "items", "prefixItems"))
        return not has_other
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


class _Fitter:
    """Reduces one schema to a provider's subset of JSON Schema."""

    def __init__(self, document: Mapping[str, Any] | bool, subset: Subset) -> None:
        root = {} if isinstance(document, bool) else dict(document)
        self._definitions: Mapping[str, Any] = root.pop("$defs", {})
        self._root = root
        self._parts = SchemaParts(document)
        self._subset = subset
        self._fitted: dict[str, Any] = {}
        self._refers_to_root = False
        self._nodes_left = _MAX_NODES
        self._properties_left = _MAX_NODES if subset.max_properties is None else subset.max_properties
        self._values_left = subset.max_values
        self._characters_left = subset.max_characters

    def fit(self) -> dict[str, Any]:
        root = self._object_root()
        self._takes_characters(map(property_name, root.get("properties", ())))
        fitted = self._object(root, 1) if self._subset.is_closed else self._plain(root, 1)
        fitted.setdefault("properties", {})
        if self._refers_to_root and not self._is_same_root():
            # The root was flattened, so references to it need the original schema.
            self._fitted["root_schema"] = {}
            self._fitted["root_schema"] = self._node(self._root, 2)
        if self._fitted:
            fitted["$defs"] = dict(sorted(self._fitted.items()))
        return fitted

    def _is_same_root(self) -> bool:
        return not any(keyword in self._root for keyword in ("anyOf", "oneOf", "allOf", "$ref"))

    def _object_root(self) -> dict[str, Any]:
        """Return the root as one object schema; branches of unions are merged, and the description lists them."""
        root = self._parts.merged(self._root)
        root["type"] = "object"
        alternatives = [self._parts.merged(each) for key in ("anyOf", "oneOf") for each in root.pop(key, ())]
        if alternatives:
            properties = dict(root.get("properties", {}))
            for each in alternatives:
                for name, schema in each.get("properties", {}).items():
                    properties.setdefault(name, schema)
            needs = [set(each.get("required", ())) for each in alternatives]
            common = set.intersection(*needs)
            root["properties"] = properties
            root["required"] = list(dict.fromkeys([*root.get("required", ()), *sorted(common)]))
            choices = " or ".join(", ".join(sorted(need)) or "nothing more" for need in needs[:5])
            root["description"] = _join(root.get("description"), f"required: {choices}")
            root.pop("additionalProperties", None)
        for keyword in ("enum", "const", "not", "if", "then", "else"):
            root.pop(keyword, None)
        return root

    def _node(self, schema: Any, depth: int) -> dict[str, Any]:
        """Return the fitted form of a schema below the root."""
        if not self._subset.is_closed:
            return self._plain(schema, depth) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
        self._nodes_left -= 1
        if not isinstance(schema, Mapping) or self._nodes_left < 0:
            return _json_text(schema)
        parts = schema.get("allOf")
        alone = parts[0] if parts and len(parts) == 1 and "properties" not in schema else None
        if isinstance(alone, Mapping) and "$ref" in alone:
            # Older documents write a reference with sibling keywords as an `allOf` with one part.
            schema = {"description": schema.get("description"), **alone}
        if isinstance(schema.get("$ref"), str):
            return self._reference(schema)
        if parts:
            schema = self._parts.merged(schema)
        if self._subset.max_depth is not None and depth > self._subset.max_depth and _nests(schema):
            return _json_text(schema)
        union = schema.get("anyOf") or schema.get("oneOf")
        if union and "type" not in schema and "properties" not in schema:
            return self._union(schema, union, depth)
        return self._typed(schema, depth)

    def _reference(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fitted form of a reference; fit its target unless an earlier reference did."""
        reference = schema["$ref"]
        if reference == "#":
            self._refers_to_root = True
            place = "#" if self._is_same_root() else "#/$defs/root_schema"
        else:
            name = reference.removeprefix("#/$defs/")
            safe = property_name(name)
            if safe not in self._fitted:
                target = self._definitions.get(name, True)
                if not self._takes_characters([safe]):
                    return _json_text(target)
                self._fitted[safe] = {}
                self._fitted[safe] = self._node(target, 2)
            place = f"#/$defs/{safe}"
        description = schema.get("description")
        # Some providers refuse sibling keywords of a reference.
        return {"$ref": place} if not description else {"description": description, "anyOf": [{"$ref": place}]}

    def _union(self, schema: Mapping[str, Any], branches: Sequence[Any], depth: int) -> dict[str, Any]:
        fitted: list[dict[str, Any]] = []
        for branch in branches:
            each = self._node(branch, depth)
            if each not in fitted:
                fitted.append(each)
        texts = [each for each in fitted if _is_json_text(each)]
        if texts and any("string" in kinds_of(each) for branch in branches for each in self._parts.variants(branch)):
            # Plain strings are valid values as well, so a prefix marks the JSON strings.
            fitted = [self._prefixed(each) if each in texts else each for each in fitted]
        return self._described({"anyOf": fitted}, schema, ())

    def _prefixed(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Return `fitted`, the schema of a JSON string, changed so that the string has to begin with `JSON_PREFIX`."""
        described = fitted["description"].replace(_JSON_TEXT, f"{_JSON_TEXT} that begins with {JSON_PREFIX}", 1)
        pattern = {} if "pattern" in self._subset.moved else {"pattern": f"^{JSON_PREFIX}"}
        return {**fitted, "description": described, **pattern}

    def _typed(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        kinds = kinds_of(schema)
        if not kinds or (len(kinds) > 2 and "object" in kinds and not schema.get("properties")):
            return _json_text(schema)
        if len(kinds) > 1 and (not self._subset.has_type_lists or "object" in kinds or "array" in kinds):
            branches = [{**_only(schema, kind), "type": kind} for kind in kinds]
            branches = [branch for branch in branches if branch.get("enum") != []]
            return self._union({"description": schema.get("description", "")}, branches, depth)
        if kinds == ["object"]:
            if not schema.get("properties") and schema.get("additionalProperties") is not False:
                return _json_text(schema)
            names = schema.get("properties", ())
            if len(names) > self._properties_left or not self._takes_characters(map(property_name, names)):
                return _json_text(schema)
            return self._object(schema, depth)
        if kinds == ["array"]:
            return self._array(schema, depth)
        return self._scalar(schema, kinds)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, required = {}, []
        self._properties_left -= len(schema.get("properties", ()))
        needed = set(schema.get("required", ()))
        for name, child in schema.get("properties", {}).items():
            if child is False:
                continue
            fitted, safe = self._node(child, depth + 1), property_name(name)
            if self._subset.is_complete and name not in needed:
                fitted = self._optional(fitted, child)
            properties[safe] = fitted if safe == name else _add_note(fitted, f"the property {name}")
            if self._subset.is_complete or name in needed:
                required.append(safe)
        fitted = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        lost = ["anyOf", "oneOf"]
        if schema.get("additionalProperties"):
            lost.append("additionalProperties")
        return self._described(fitted, schema, lost)

    def _optional(self, fitted: dict[str, Any], child: Any) -> dict[str, Any]:
        """Return the schema of an optional property for a provider that requires every property.

        Null omits the property, or `OMIT` if null is a valid value.
        """
        if self._parts.accepts_null(child):
            exact = {"enum": [OMIT]} if self._has_room([OMIT]) else {"pattern": f"^{OMIT}$"}
            unset = {"type": "string", **exact}
            return _add_note({"anyOf": [fitted, unset]}, f"{OMIT} leaves it out")
        kind = fitted.get("type")
        if isinstance(kind, str) and "enum" not in fitted:
            return {**fitted, "type": [kind, "null"]}
        description = fitted.pop("description", None)
        union = [*fitted["anyOf"], {"type": "null"}] if set(fitted) == {"anyOf"} else [fitted, {"type": "null"}]
        return {"anyOf": union} if description is None else {"description": description, "anyOf": union}

    def _array(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        items = schema.get("items", True)
        if schema.get("prefixItems"):
            items = {"anyOf": [*schema["prefixItems"], *([items] if isinstance(items, Mapping) else [])]}
        fitted: dict[str, Any] = {"type": "array", "items": self._node(items, depth + 1)}
        for keyword in ("minItems", "maxItems"):
            if keyword in schema and keyword not in self._subset.moved:
                fitted[keyword] = schema[keyword]
        if self._subset.name == "Anthropic strict" and schema.get("minItems") in (0, 1):
            fitted["minItems"] = schema["minItems"]
        return self._described(fitted, schema, ["minItems"] if "minItems" not in fitted else [])

    def _scalar(self, schema: Mapping[str, Any], kinds: Sequence[str]) -> dict[str, Any]:
        fitted: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else list(kinds)}
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        lost = []
        if values is not None:
            if self._has_room(values):
                fitted["enum"] = list(values)
            else:
                lost.append("enum")
        for keyword in (
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "pattern",
            "format",
        ):
            if keyword not in schema or keyword in self._subset.moved:
                continue
            if self._accepts(keyword, schema[keyword]):
                fitted[keyword] = schema[keyword]
            else:
                lost.append(keyword)
        return self._described(fitted, schema, lost)

    def _has_room(self, values: Sequence[Any]) -> bool:
        """Count the values of an `enum`; return False if they exceed the subset's limits."""
        texts = [str(value) for value in values]
        most = self._subset.max_enum_characters
        if most is not None and len(texts) > _LONG_ENUM and sum(map(len, texts)) > most:
            return False
        if self._values_left is not None and len(texts) > self._values_left:
            return False
        if not self._takes_characters(texts):
            return False
        if self._values_left is not None:
            self._values_left -= len(texts)
        return True

    def _takes_characters(self, texts: Iterable[str]) -> bool:
        """Count the characters of names or values against the subset's limit; return False if they would exceed it."""
        if self._characters_left is None:
            return True
        characters = sum(map(len, texts))
        if characters > self._characters_left:
            return False
        self._characters_left -= characters
        return True

    def _accepts(self, keyword: str, value: Any) -> bool:
        if keyword == "format":
            return self._subset.formats is None or value in self._subset.formats
        return keyword != "pattern" or (isinstance(value, str) and not _LOOK_AROUND.search(value))

    def _described(self, fitted: dict[str, Any], schema: Mapping[str, Any], lost: Sequence[str]) -> dict[str, Any]:
        """Return a fitted schema with its description, which lists the lost constraints."""
        notes = [
            f"{keyword}: {_as_json(schema[keyword])}"
            for keyword in dict.fromkeys([*sorted(self._subset.moved & schema.keys()), *lost])
            if keyword in schema and keyword not in fitted
        ]
        description = schema.get("description") or schema.get("title")
        text = description if isinstance(description, str) else ""
        if notes:
            text = _join(text, "; ".join(notes)[:_MAX_NOTE])
        return {**fitted, "description": text} if text else fitted

    def _plain(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Return a schema for a provider that accepts most of JSON Schema."""
        fitted: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword not in _KNOWN or keyword in self._subset.dropped or keyword in self._subset.moved:
                continue
            if keyword == "properties":
                fitted["properties"] = {
                    (safe := property_name(name)): each if safe == name else _add_note(each, f"the property {name}")
                    for name, each in ((name, self._node(child, depth)) for name, child in value.items())
                }
            elif keyword == "required":
                fitted["required"] = [property_name(name) for name in value]
            elif keyword == "const" and not self._subset.has_const:
                fitted["enum"] = [value]
            elif keyword == "$ref":
                fitted.update(self._reference({"$ref": value}))
            elif keyword in ("patternProperties", "dependentSchemas"):
                fitted[keyword] = {name: self._node(child, depth) for name, child in value.items()}
            elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
                fitted[keyword] = [self._node(child, depth) for child in value]
            elif isinstance(value, (Mapping, bool)) and keyword not in _VALUES:
                fitted[keyword] = value if isinstance(value, bool) else self._node(value, depth)
            else:
                fitted[keyword] = value
        return self._described(fitted, {key: value for key, value in schema.items() if key != "title"}, ())


def _only(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a schema without the keywords and `enum` values that belong to types other than `kind`."""
    others = {*(OF_ARRAYS if kind != "array" else ()), *(OF_OBJECTS if kind != "object" else ()), "description"}
    if kind in ("null", "boolean"):
        others |= _OF_SCALARS
    kept = {keyword: value for keyword, value in schema.items() if keyword not in others}
    if "enum" in kept:
        kept["enum"] = [value for value in kept["enum"] if type_of(value) == kind]
    return kept


def _nests(schema: Mapping[str, Any]) -> bool:
    return bool({"object", "array"} & set(kinds_of(schema))) or "anyOf" in schema or "oneOf" in schema


def _json_text(schema: Any) -> dict[str, Any]:
    """Return the schema of a value that is sent as a JSON string."""
    description = schema.get("description") if isinstance(schema, Mapping) else None
    known = schema.items() if isinstance(schema, Mapping) else ()
    shape = {key: value for key, value in known if key in _KNOWN and key != "description"}
    note = f"{_JSON_TEXT}; schema: {_as_json(shape)}" if shape else _JSON_TEXT
    return {"type": "string", "description": _join(description, note)}


def _is_json_text(fitted: Mapping[str, Any]) -> bool:
    return fitted.get("type") == "string" and _JSON_TEXT in fitted.get("description", "")


def _as_json(value: Any) -> str:
    try:
        text = _encode(value).decode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        text = str(value)
    return text if len(text) <= _MAX_NOTE else f"{text[:_MAX_NOTE]}…"


def _add_note(schema: dict[str, Any], note: str) -> dict[str, Any]:
    if "$ref" in schema:
        return {"description": note, "anyOf": [schema]}
    return {**schema, "description": _join(schema.get("description"), note)}


def _join(description: object, note: str) -> str:
    return f"{description} ({note})" if isinstance(description, str) and description else f"({note})"
