"""Any Python value as JSON-shaped data; bytes stay bytes, because every transport here can carry them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema.checking.values import pointer

DEPTH_LIMIT = 500
"""How deep a value may be nested; circular values run into it."""

_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_PLAIN = frozenset({dict, list})
_KEPT = (bytes, bytearray, memoryview)
_KEYS_ARE_TEXT = frozenset({str})


class _TooDeepError(Exception):
    """The value is nested beyond `DEPTH_LIMIT`, or contains itself."""


def jsonable(value: Any) -> Any:
    """Turn anything into JSON-shaped data; raises `EXECUTION_ERROR` naming the place that cannot be turned.

    What is JSON-shaped already comes back as it is, never a changed copy. The floats NaN and infinity pass.
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
            f"the value contains itself or is nested deeper than {DEPTH_LIMIT} levels, so it is no JSON",
        ) from None


def dump_of_class(cls: Any, *, flat: bool) -> Callable[[Any], Any]:
    """`jsonable` for one class whose instances hold no bytes and no keys but text, which is several times faster.

    A list of them is as fast; anything else that it is given goes the general way. `flat` says that the
    instances hold no containers, so that none need be turned into lists.
    """
    to_builtins = msgspec.to_builtins
    only = {cls}

    def dump(value: Any) -> Any:
        kind = type(value)
        if kind is cls or (kind is list and only.issuperset(map(type, value))):
            try:
                return to_builtins(value) if flat else _with_lists(to_builtins(value), 0)
            except Exception:  # noqa: BLE001  the general way tells what is wrong, and where
                return jsonable(value)
        return jsonable(value)

    return dump


def _is_plain(node: Any, depth: int) -> bool:
    """Whether a dict or list holds JSON-shaped data only, all the way down."""
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
    """Go through msgspec where it can, else step by step in Python, which finds the pointer of what cannot."""
    is_pydantic = hasattr(type(value), "__pydantic_serializer__")
    try:
        if is_pydantic:
            data = _step(value)
        else:
            data = msgspec.to_builtins(value, builtin_types=_KEPT, str_keys=True, enc_hook=_step)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001  whatever an object's own code raises is told by the walk, with its place
        return _walk(value, "", 0)
    return jsonable(data) if is_pydantic else _with_lists(data, 0)


def _with_lists(node: Any, depth: int) -> Any:
    """Replace in a fresh structure what msgspec leaves: tuples by lists, and the other byte types by bytes."""
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
    """One step of an object that msgspec does not know towards JSON; `TypeError` when there is none."""
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
    raise TypeError(f"{kind.__qualname__} cannot be turned into JSON")


def _walk(value: Any, path: str, depth: int) -> Any:
    """Turn `value` step by step, knowing where it is."""
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
    """One level of an object: its members as they are, or its text."""
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
    """A struct's or dataclass's members by their JSON names, each as it is."""
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
    # An instance of an enum exists only when `enum` is loaded; looking it up spares the import elsewhere.
    return sys.modules["enum"].Enum


def _key_text(key: Any, path: str) -> str:
    """A key as JSON writes it."""
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
    text = f"at {path or '(the value itself)'}: {what}{name} cannot be turned into JSON"
    reason = "" if isinstance(error, TypeError) and "is unsupported" in str(error) else f": {error_text(error)}"
    return CallError(ErrorCode.EXECUTION_ERROR, text + reason, {"path": path})


def error_text(error: BaseException) -> str:
    """An exception's message, or its type's name when it has none (or cannot say)."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  a message that raises is no message
        return type(error).__name__
