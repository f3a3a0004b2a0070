"""Adapters for pydantic types. Imported only if a value or type is pydantic's."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pydantic
import pydantic_core
from pydantic.json_schema import GenerateJsonSchema

from operations.errors import CallError
from operations.schema.checking.values import pointer
from operations.schema.types.hints import Mode, unsupported_type
from operations.schema.types.mismatch import mismatch

_OPAQUE = frozenset({"bytes", "any", "is-instance", "is-subclass", "callable", "generator"})
_NOT_SCHEMAS = frozenset({"default", "metadata", "expected", "cls", "config"})
_MODES = {"input": "validation", "output": "serialization"}


class _Generator(GenerateJsonSchema):
    """Pydantic's JSON Schema generator, with bytes as base64."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  as the base declares it

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        """Return the JSON Schema of the type `bytes`; called by pydantic."""
        return {"type": "string", "contentEncoding": "base64"}


def adapt(tp: Any) -> pydantic.TypeAdapter[Any] | None:
    """Return an adapter for the whole of `tp`; None if pydantic does not support a part of it."""
    try:
        adapter = pydantic.TypeAdapter(tp)
    except (pydantic.errors.PydanticUserError, pydantic.errors.PydanticUndefinedAnnotation):
        return None
    if not adapter.pydantic_complete and not adapter.rebuild(raise_errors=False):
        raise unsupported_type(tp, "it refers to undefined types")
    return adapter


def describe(adapter: pydantic.TypeAdapter[Any], mode: Mode) -> dict[str, Any]:
    """Return the JSON Schema document of an adapter's type. Properties have the aliases of the fields as names."""
    try:
        return adapter.json_schema(
            by_alias=True,
            schema_generator=_Generator,
            mode=_MODES[mode],  # type: ignore[arg-type]
        )
    except pydantic.errors.PydanticInvalidForJsonSchema as error:
        raise unsupported_type(adapter._type, error.message.split(" (")[0]) from error


def make_load(adapter: pydantic.TypeAdapter[Any]) -> Callable[[Any], Any]:
    """Return a function that builds values of the adapter's type from JSON-like data, and runs the
    type's validators.
    """
    validate = adapter.validator.validate_python
    prepare: list[Callable[[Any], Any] | None] = []

    def load(value: Any) -> Any:
        if not prepare:
            prepare.append(_bytes_reader(adapter))
        read = prepare[0]
        if read is not None:
            value = read(value)
        try:
            # Lax mode: the data comes from JSON, where a datetime is a string even for a strict model.
            return validate(value, strict=False)
        except pydantic.ValidationError as error:
            raise _load_error(error, value) from error

    return load


_MAX_LISTED = 1_000


def _load_error(error: pydantic.ValidationError, value: Any) -> CallError:
    count = error.error_count()
    if count > _MAX_LISTED:
        return mismatch([("", f"{count:,} problems: too many to list")])
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return mismatch([(_pointer(item["loc"], value, item["type"]), item["msg"]) for item in found])


def _pointer(loc: Sequence[Any], value: Any, kind: str) -> str:
    """Return the JSON pointer of an error; omit the steps of `loc` that are not in the data, such as union members."""
    path = ""
    for index, step in enumerate(loc):
        if (isinstance(value, Mapping) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        ):
            value = value[step]
        elif kind != "missing" or index < len(loc) - 1:
            continue
        path += pointer((step,))
    return path


def make_dump(adapter: pydantic.TypeAdapter[Any], jsonable: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that converts values of the adapter's type to JSON-like data.

    `jsonable` converts bytes, and values that pydantic cannot convert.
    """
    serialize = adapter.serializer.to_python
    as_json = not _may_hold_bytes(adapter.core_schema)

    def dump(value: Any) -> Any:
        try:
            if as_json:
                return serialize(value, mode="json", by_alias=True, warnings=False)
            return jsonable(serialize(value, by_alias=True, warnings=False))
        except (pydantic_core.PydanticSerializationError, UnicodeDecodeError):
            return jsonable(value)

    return dump


def dump_instance(value: Any) -> Any:
    """Convert a pydantic object; a model becomes a dict by the aliases of its fields. Bytes stay bytes."""
    cls: Any = type(value)
    if not hasattr(cls, "__pydantic_core_schema__"):
        return pydantic_core.to_jsonable_python(value)  # a small type: a secret, a URL
    serializer = cls.__pydantic_serializer__
    if _is_json_safe(cls):
        try:
            return serializer.to_python(value, mode="json", by_alias=True, warnings=False)
        except (pydantic_core.PydanticSerializationError, UnicodeDecodeError):
            pass
    return serializer.to_python(value, by_alias=True, warnings=False)


@lru_cache(maxsize=1024)
def _is_json_safe(cls: Any) -> bool:
    return not _may_hold_bytes(cls.__pydantic_core_schema__)


def _may_hold_bytes(node: Any) -> bool:
    """Whether values of a pydantic core schema may contain bytes, which pydantic's JSON mode converts to strings."""
    if isinstance(node, list | tuple):
        return any(_may_hold_bytes(item) for item in node)
    if not isinstance(node, dict):
        return False
    if "allow" in (node.get("extra_behavior"), (node.get("config") or {}).get("extra_fields_behavior")):
        return True
    if "serialization" in node:
        return False
    if node.get("type") in _OPAQUE:
        return True
    return any(_may_hold_bytes(item) for key, item in node.items() if key not in _NOT_SCHEMAS)


def _bytes_reader(adapter: pydantic.TypeAdapter[Any]) -> Callable[[Any], Any] | None:
    """Return a function that decodes base64 text where the type has bytes; None if the type has no bytes."""
    try:
        document = describe(adapter, "input")
    except TypeError:
        return None
    if "'contentEncoding': 'base64'" not in str(document):
        return None
    return lambda value: _read_bytes(value, document, document.get("$defs", {}), "")


def _read_bytes(value: Any, node: Any, defs: Mapping[str, Any], path: str) -> Any:
    if not isinstance(node, dict):
        return value
    if "$ref" in node:
        return _read_bytes(value, defs.get(node["$ref"].rpartition("/")[2]), defs, path)
    options = node.get("anyOf") or node.get("oneOf")
    if options:
        return _read_option(value, options, defs, path)
    if isinstance(value, str):
        # Pydantic's encoded types decode themselves; they are recognised by their format.
        encoded = node.get("contentEncoding") == "base64" and "format" not in node
        return _decoded(value, path) if encoded else value
    if isinstance(value, dict):
        named, rest = node.get("properties", {}), node.get("additionalProperties")
        return {
            key: _read_bytes(item, named.get(key, rest), defs, path + pointer((key,))) for key, item in value.items()
        }
    if isinstance(value, list):
        first, rest = node.get("prefixItems", []), node.get("items")
        return [
            _read_bytes(item, first[index] if index < len(first) else rest, defs, f"{path}/{index}")
            for index, item in enumerate(value)
        ]
    return value


def _read_option(value: Any, options: Sequence[Any], defs: Mapping[str, Any], path: str) -> Any:
    if isinstance(value, str) and {"type": "string"} in options:
        return value
    for option in options:
        read = _read_bytes(value, option, defs, path)
        if read != value:
            return read
    return value


def _decoded(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise mismatch([(path, f"not valid base64: {error}")]) from error
