"""read_arguments: converts the arguments that a model sent for an operation to the operation's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.exports.definitions import assign_names, hoist
from operations.exports.names import property_name
from operations.exports.schema_fitting import JSON_PREFIX, OMIT, is_object_schema
from operations.schema import Schema
from operations.schema.parts import SchemaParts, kinds_of

WRAPPED = "input"
"""Name of the only argument of a tool whose operation does not take an object: its value is the whole input."""
_MAX_CHARACTERS = 16 * 1024 * 1024
_MAX_BRANCHES = 50
_MAX_DEPTH = 60


def parse_arguments(arguments: Mapping[str, Any] | str | bytes | None) -> dict[str, Any]:
    """Return arguments as a dict; a JSON string is decoded, an empty string means no arguments."""
    if arguments is None or arguments in ("", b""):
        return {}
    if isinstance(arguments, (str, bytes)):
        arguments = _decode(arguments)
    if not isinstance(arguments, Mapping):
        raise CallError(
            ErrorCode.VALIDATION_ERROR, f"the arguments must be a JSON object, not {type(arguments).__name__}"
        )
    return dict(arguments)


def read_arguments(arguments: dict[str, Any], schema: Schema) -> Any:
    """Return the operation's input for the arguments that a model sent.

    Exported property names are replaced by those of the schema, and JSON strings are decoded. Properties that the model
    marked as omitted are removed. Values that the schema accepts are not changed.
    """
    document = argument_schema(schema)

    def read(*, keep_nulls: bool) -> Any:
        value = _Reader(document, keep_nulls=keep_nulls).read(arguments, [document])
        return value if document is schema.document else value.get(WRAPPED)

    value = read(keep_nulls=True)
    if not schema.check(value):
        # Branches of a union may differ in whether null is a value or an omitted property.
        other = read(keep_nulls=False)
        return other if schema.check(other) else value
    return value


def argument_schema(schema: Schema) -> Mapping[str, Any] | bool:
    """Return the schema of a tool's arguments: the input schema, or an object schema with the input as a property."""
    document = schema.document
    if isinstance(document, bool) or is_object_schema(document):
        return document
    hoisted = hoist(document, WRAPPED)
    names = assign_names(hoisted.definitions.values())

    def place(key: str) -> str:
        return f"#/$defs/{names[key]}"

    return {
        "type": "object",
        "properties": {WRAPPED: hoisted.schema(place)},
        "required": [WRAPPED],
        "additionalProperties": False,
        "$defs": {names[key]: each.schema(place) for key, each in hoisted.definitions.items()},
    }


class _Reader:
    """Converts arguments to input values according to one schema document."""

    def __init__(self, document: Mapping[str, Any] | bool, *, keep_nulls: bool) -> None:
        self._parts = SchemaParts(document)
        self._keep_nulls = keep_nulls

    def read(self, value: Any, schemas: Sequence[Any], depth: int = 0) -> Any:
        """Return a value with its property names and types converted to those of the schemas that may apply to it."""
        if depth > _MAX_DEPTH:
            return value
        if not isinstance(value, (str, dict, list)):
            return value
        variants = [each for schema in schemas[:_MAX_BRANCHES] for each in self._parts.variants(schema)]
        if isinstance(value, str):
            value = _from_text(value, variants)
        if isinstance(value, dict):
            definite = [self._parts.merged(schema) for schema in schemas[:1]]
            return self._object(value, variants, definite if len(schemas) == 1 else [], depth)
        if isinstance(value, list):
            items = [each["items"] for each in variants if isinstance(each.get("items"), Mapping)]
            return [self.read(each, items, depth + 1) for each in value] if items else value
        return value

    def _object(
        self, value: dict[str, Any], variants: Sequence[Mapping[str, Any]], definite: Sequence[Any], depth: int
    ) -> dict[str, Any]:
        children: dict[str, list[Any]] = {}
        for variant in variants:
            for name, child in variant.get("properties", {}).items():
                children.setdefault(name, []).append(child)
        # A property that only some branches of a union require may be left out.
        required = {name for node in definite for name in node.get("required", ())}
        exported = {safe: name for name in children if (safe := property_name(name)) != name}
        read: dict[str, Any] = {}
        for key, each in value.items():
            name = key if key in children else exported.get(key, key)
            found = children.get(name, [])
            if found and name not in required and self._is_omitted(each, found):
                continue
            read[name] = self.read(each, found, depth + 1) if found else each
        return read

    def _is_omitted(self, value: Any, schemas: Sequence[Any]) -> bool:
        """Whether a value means that an optional property is omitted: `OMIT`, or a null that is not a valid value."""
        if value is None:
            accept = any if self._keep_nulls else all
            return not accept(self._parts.accepts_null(schema) for schema in schemas)
        return isinstance(value, str) and value == OMIT


def _from_text(value: str, variants: Sequence[Mapping[str, Any]]) -> Any:
    """Decode the JSON in `value` if it starts with `json:` or the schema accepts no string;
    otherwise return `value`.
    """
    kinds = {kind for variant in variants for kind in kinds_of(variant)}
    if value.startswith(JSON_PREFIX) and (kinds - {"string"} or not kinds):
        value = value.removeprefix(JSON_PREFIX)
    elif "string" in kinds or (not kinds and value[:1] not in ("{", "[", '"')):
        return value
    try:
        return _decode(value)
    except CallError:
        return value


def _decode(text: str | bytes) -> Any:
    if len(text) > _MAX_CHARACTERS:
        raise CallError(
            ErrorCode.VALIDATION_ERROR,
            f"the arguments have {len(text):,} characters: at most {_MAX_CHARACTERS:,} are allowed",
        )
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"the arguments are not JSON: {error}") from None
