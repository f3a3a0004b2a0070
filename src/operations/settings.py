"""Settings: converts mappings to structs and checks fields. Error messages show no values except numbers of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from operations.errors import CallError, ErrorCode

T = TypeVar("T", bound=msgspec.Struct)


def read_settings(value: object, kind: type[T], name: str) -> T:
    """Return settings unchanged, or read them from a mapping; raise a `VALIDATION_ERROR` that names the problem."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        message = f"{name}: expected {kind.__name__} or a mapping of its fields, not {type(value).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    fields = kind.__struct_fields__
    unknown = [key for key in value if key not in fields]
    if unknown:
        message = f"{name}: unknown key {unknown[0]!r}: expected one of {', '.join(sorted(fields))}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in value]
    if missing:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: missing {missing[0]!r}")
    return kind(**value)


def check_fields(settings: msgspec.Struct, name: str) -> None:
    """Raise `VALIDATION_ERROR` for a field of the wrong type; fields that are not plain data are not checked."""
    for field, kind in _plain_fields(type(settings)):
        try:
            msgspec.convert(getattr(settings, field), kind)
        except msgspec.ValidationError as error:
            # msgspec's message shows types and the choices of a literal, but never the value.
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: invalid {field}: {error}") from None


def check_seconds(settings: msgspec.Struct, name: str, *fields: str) -> None:
    """Raise `VALIDATION_ERROR` for a number of seconds that is not above 0; None means no limit."""
    for field in fields:
        seconds = getattr(settings, field)
        if seconds is not None and not seconds > 0:
            message = f"{name}: invalid {field} {seconds!r}: expected a number of seconds above 0"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)


@lru_cache(64)
def _plain_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the fields that msgspec can check, with their types."""
    found = []
    for field, hint in get_type_hints(kind).items():
        if field not in kind.__struct_fields__:
            continue
        try:
            msgspec.json.schema(hint)
        except TypeError:
            continue  # a protocol, a function or a path
        found.append((field, hint))
    return tuple(found)
