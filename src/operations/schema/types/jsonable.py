"""Conversion of any Python value to JSON-like data; bytes stay bytes, which every transport supports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema.checking.values import pointer

DEPTH_LIMIT = 500
"""Maximum depth of a value; circular values exceed it."""

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_PLAIN = frozenset({dict, list})
_KEPT = (bytes, bytearray, memoryview)
_KEYS_ARE_TEXT = frozenset({str})


class _TooDeepError(Exception):
    """The value is nested deeper than `DEPTH_LIMIT`, or circular."""


def jsonable(value: Any) -> Any:
    """Convert any value to JSON-like data; raise `EXECUTION_ERROR` with the path of a value that cannot be converted.

    JSON-like data is returned as the same object. NaN and infinity are allowed.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    try:
        if kind in _PLAIN and _is_plain(value, 0):
            return value
        return _simplify(value)
    except (_TooDeepError, RecursionError):
        raise CallError(
            ErrorCode.EXECUTION_ERROR,
            f"the value is circular or nested deeper than {DEPTH_LIMIT} levels",
        ) from None


def dump_of_class(cls: Any, *, flat: bool) -> Callable[[Any], Any]:
    """Return a function like `jsonable`, but several times faster, for a class without bytes and with string keys only.

    Lists of instances are converted as fast; other values are passed to `jsonable`. With `flat`, the instances must
    contain no containers, so that no tuples or sets have to be converted to lists.
    """
    to_builtins = msgspec.to_builtins
    only = {cls}

    def dump(value: Any) -> Any:
        kind = type(value)
        if kind is cls or (kind is list and only.issuperset(map(type, value))):
            try:
                return to_builtins(value) if flat else _with_lists(to_builtins(value), 0)
            except Exception:  # noqa: BLE001  the general path finds the problem
                return jsonable(value)
        return jsonable(value)

    return dump


def _is_plain(node: Any, depth: int) -> bool:
    """Whether a dict or list contains only JSON-like data."""
    if depth > DEPTH_LIMIT:
        raise _TooDeepError
    if type(node) is dict:
        if node and not _KEYS_ARE_TEXT.issuperset(map(type, node)):
            return False
        node = node.values()
    kinds = {*map(type, node)} - _SCALARS
    if not kinds:
        return True
    if kinds - _PLAIN:
        return False
    for member in node:  # noqa: SIM110  a generator would take a second frame for each level
        if type(member) in _PLAIN and not _is_plain(member, depth + 1):
            return False
    return True


def _simplify(value: Any) -> Any:
    """Convert with msgspec if possible, else step by step in Python, which finds the path of a failure."""
    is_pydantic = hasattr(type(value), "__pydantic_serializer__")
    try:
        if is_pydantic:
            data = _step(value)
        else:
            data = msgspec.to_builtins(value, builtin_types=_KEPT, str_keys=True, enc_hook=_step)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001  user code may raise anything; the walk finds the path
        return _walk(value, "", 0)
    return jsonable(data) if is_pydantic else _with_lists(data, 0)


def _with_lists(node: Any, depth: int) -> Any:
    """Convert values that msgspec leaves unchanged: tuples to lists, other byte types to bytes."""
    kind = type(node)
    if kind in _SCALARS:
        return node
    if kind is bytearray or kind is memoryview:
        return bytes(node)
    if depth > DEPTH_LIMIT:
        raise _TooDeepError
    if kind is dict:
        if not _SCALARS.issuperset(map(type, node.values())):
            for key, member in node.items():
                if type(member) not in _SCALARS:
                    node[key] = _with_lists(member, depth + 1)
        return node
    if kind is list and _SCALARS.issuperset(map(type, node)):
        return node
    return [_with_lists(member, depth + 1) for member in node]


def _step(value: Any) -> Any:
    """Convert an object that msgspec does not support to a simpler object; raise `TypeError` if impossible."""
    kind = type(value)
    if hasattr(kind, "__pydantic_serializer__") or kind.__module__.startswith("pydantic"):
        from operations.schema.types.pydantic_types import dump_instance

        return dump_instance(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return int.__int__(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return bytes(value)
    if issubclass(kind, Mapping):
        return dict(value)
    if issubclass(kind, Collection):
        return list(value)
    if issubclass(kind, os.PathLike):
        return os.fspath(value)
    if kind.__module__ == "ipaddress":
        return str(value)
    raise TypeError(f"{kind.__qualname__} cannot be converted to JSON")


def _walk(value: Any, path: str, depth: int) -> Any:
    """Convert `value` step by step; an error has the path of the part that cannot be converted."""
    if depth > DEPTH_LIMIT:
        raise _TooDeepError
    kind = type(value)
    if kind in _SCALARS:
        return value
    if issubclass(kind, dict):
        return {
            (name := _key_text(key, path)): _walk(member, path + pointer((name,)), depth + 1)
            for key, member in value.items()
        }
    if issubclass(kind, (list, tuple, set, frozenset)):
        return [_walk(member, f"{path}/{index}", depth + 1) for index, member in enumerate(value)]
    return _walk(_unfold(value, path), path, depth + 1)


def _unfold(value: Any, path: str) -> Any:
    """Convert only the outermost level of an object: return the fields of the object, or its text."""
    kind = type(value)
    try:
        if _is_record(value):
            return _members(value)
        if issubclass(kind, _enum_type()):
            return value.value
        if issubclass(kind, (bytearray, memoryview)):
            return bytes(value)
        try:
            return _step(value)
        except TypeError:
            return msgspec.to_builtins(value, builtin_types=_KEPT, str_keys=True)
    except RecursionError:
        raise
    except Exception as error:
        raise _refusal(value, path, error) from error


def _is_record(value: Any) -> bool:
    kind = type(value)
    if hasattr(kind, "__pydantic_serializer__"):
        return False
    return issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")


def _members(value: Any) -> Any:
    """Return a struct's or dataclass's fields by their JSON names; for an array-like struct, a list of their values."""
    if not issubclass(type(value), msgspec.Struct):
        return {
            name: getattr(value, name)
            for name in type(value).__dataclass_fields__
            if not name.startswith("_") and hasattr(value, name)
        }
    config = value.__struct_config__
    items = [
        (name, member)
        for field, name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        if (member := getattr(value, field)) is not msgspec.UNSET
    ]
    if config.tag is not None:
        items.insert(0, (str(config.tag_field), config.tag))
    return [member for _, member in items] if config.array_like else dict(items)


def _enum_type() -> Any:
    # Enum instances exist only if `enum` is loaded; looking it up avoids the import.
    return sys.modules["enum"].Enum


def _key_text(key: Any, path: str) -> str:
    """Return a key as JSON writes it."""
    if type(key) is str:
        return key
    if key is None or key is True or key is False:
        return {None: "null", True: "true", False: "false"}[key]
    try:
        if isinstance(key, str) and not isinstance(key, _enum_type()):
            return str.__str__(key)
        return str(next(iter(msgspec.to_builtins({key: None}, str_keys=True))))
    except Exception as error:
        raise _refusal(key, path, error, what="a key of type ") from error


def _refusal(value: Any, path: str, error: Exception, *, what: str = "") -> CallError:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = f"at {path or '(the value itself)'}: {what}{name} cannot be converted to JSON"
    reason = "" if isinstance(error, TypeError) and "is unsupported" in str(error) else f": {error_text(error)}"
    return CallError(ErrorCode.EXECUTION_ERROR, text + reason, {"path": path})


def error_text(error: BaseException) -> str:
    """Return an exception's message, or the name of its type if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  str() of an exception may raise
        return type(error).__name__
