"""Fields in `_meta` that this library's MCP server and client exchange, beyond those of the protocol.

Bytes are sent as base64 strings. `_meta` has the JSON pointers of these strings, so that the receiver can decode them.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.wire import PLAIN, member, pointer, pointer_parts

OWN = "operations/client"
"""The `_meta` key by which a client of this library requests whole envelopes."""
STREAM = "operations/stream"
"""The `_meta` key of a request that asks for the items of a stream as progress notifications."""
SPEC = "operations/spec"
"""The `_meta` key of a listed tool. Its value has the id, type and version of the tool's operation."""
ERROR = "operations/error"
"""The `_meta` key of an error result. Its value has the code, message and details of the error."""
ENVELOPE = "operations/envelope"
"""The `_meta` key of a result for a client of this library: the envelope as JSON text in which
bytes are `{"$bytes": …}`.
"""
BYTES = "operations/bytes"
"""The `_meta` key of a request or a result; its value has the JSON pointers of the strings that are bytes in base64."""
WRAPPED = "operations/wrapped"
"""The `_meta` key that marks structured content whose value is under `result`."""
INPUT = "input"
"""The property that contains an input which is not an object."""
RESULT = "result"
"""The property that contains structured content which is not an object."""

_BYTES = frozenset({bytes, bytearray, memoryview})
_DEEPEST = 1_000


def plain_json(value: Any) -> tuple[Any, list[str]]:
    """Return a value with bytes as base64 strings, and the JSON pointers of these strings.

    Raise a CallError for types that JSON does not have. A flat dict without bytes is returned itself, not copied.
    """
    if type(value) is dict and PLAIN.issuperset(map(type, value.values())) and all(type(key) is str for key in value):
        return value, []
    places: list[str] = []
    try:
        return _plain(value, "", places), places
    except RecursionError:
        raise _refused("", "it is nested too deeply") from None


def _plain(value: Any, path: str, places: list[str]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _refused(path, f"{value} is not JSON")
        return value
    if kind is list or kind is tuple:
        return [_plain(item, f"{path}/{index}", places) for index, item in enumerate(value)]
    if kind in _BYTES:
        places.append(path)
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise _refused(path, "a mapping has a key that is not a string")
        return {str(key): _plain(item, pointer(path, key), places) for key, item in value.items()}
    for base in (str, int, float):
        if isinstance(value, base):
            return _plain(base(value), path, places)
    raise _refused(path, f"a value of type {kind.__name__} is not JSON")


def _refused(path: str, reason: str) -> CallError:
    return CallError(ErrorCode.EXECUTION_ERROR, f"cannot be written as JSON: {path or '(value)'}: {reason}")


def put_bytes(value: Any, places: Any) -> Any:
    """Replace the base64 strings at the JSON pointers `places` in a value by their bytes; return the value.

    Pointers to other values are ignored. The value is changed in place.
    """
    for place in places if isinstance(places, list) else ():
        if not isinstance(place, str) or place.count("/") > _DEEPEST:
            continue
        parts = pointer_parts(place)
        if not parts:
            value = _read_base64(value)
            continue
        with suppress(LookupError):
            holder = reduce(member, parts[:-1], value)
            found = _read_base64(member(holder, parts[-1]))
            holder[parts[-1] if isinstance(holder, dict) else int(parts[-1])] = found
    return value


def _read_base64(value: Any) -> Any:
    try:
        return binascii.a2b_base64(value, strict_mode=True) if isinstance(value, str) else value
    except ValueError:
        return value


_LITERAL = frozenset({"const", "enum", "default", "examples", "example"})
_NAMES = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas", "definitions"})


def move_references(node: Any, old: str, new: str, *, _names: bool = False) -> Any:
    """Return a copy of a JSON Schema in which references to `old`, or to a path below it, refer to `new` instead."""
    if isinstance(node, list):
        return [move_references(item, old, new) for item in node]
    if not isinstance(node, Mapping):
        return node
    copy: dict[str, Any] = {}
    for key, value in node.items():
        if not _names and key in ("$ref", "$dynamicRef") and isinstance(value, str) and _is_below(value, old):
            copy[key] = new + value[len(old) :]
        elif not _names and key in _LITERAL:
            copy[key] = value
        else:
            copy[key] = move_references(value, old, new, _names=not _names and key in _NAMES)
    return copy


def _is_below(reference: str, place: str) -> bool:
    return reference == place or reference.startswith(f"{place}/")
