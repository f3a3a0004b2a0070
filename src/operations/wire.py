"""JSON and MessagePack of JSON-shaped values, bytes included; knows nothing of envelopes or events.

JSON has no bytes, so they travel as `{"$bytes": "<base64>"}`; a real mapping whose only key has that form gets one
more `$`, which reading takes off again. MessagePack has bytes but no integers above 64 bits: those travel as an
extension. What neither format can carry unchanged is refused, with the place it was found at.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode

PLAIN = frozenset({str, int, bool, type(None)})
"""The types whose values are the same in every format."""
_BYTES = frozenset({bytes, bytearray, memoryview})
_PACKABLE = PLAIN | _BYTES
JSON_MARKERS = tuple(b"$\\")
"""The bytes without which JSON holds no marked bytes: a dollar, or what a foreign writer may spell it with."""
_DOLLAR, _BACKSLASH = JSON_MARKERS
_BIG_INTEGER = 1
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_encode_msgpack = msgspec.msgpack.Encoder().encode


def encode_json(value: Any) -> bytes:
    """Write a value as JSON; raises `VALIDATION_ERROR` for what JSON cannot carry unchanged (NaN, other types)."""
    try:
        return _encode_json(_mark(value, ""))
    except RecursionError:
        raise _refusal("", "nested too deeply to be written as JSON") from None
    except UnicodeEncodeError:
        raise _refusal("", "a string holds a lone surrogate, which is not Unicode text") from None
    except ValueError as error:
        raise _refusal("", f"cannot be written as JSON: {error}") from None


def decode_json(data: bytes | bytearray | memoryview | str) -> Any:
    """Read JSON, with the bytes it carries; raises `VALIDATION_ERROR` for malformed text."""
    data = data if isinstance(data, (bytes, str)) else bytes(data)
    try:
        value = _decode_json(data)
        # Only text that may hold a marker is walked.
        marked = has_json_marks(data) if isinstance(data, bytes) else "bytes" in data
        return _unmark(value) if marked else value
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"malformed JSON: {_reason(error)}") from None
    except RecursionError:
        raise CallError(ErrorCode.VALIDATION_ERROR, "malformed JSON: nested too deeply") from None


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")


def mark_json(value: Any) -> Any:
    """A value as an encoder of JSON writes it unchanged; raises as `encode_json` does, or RecursionError."""
    return _mark_mapping(value, "") if type(value) is dict else _mark(value, "")


def has_json_marks(data: bytes) -> bool:
    """Whether JSON may hold marked bytes; `\\u0024` is how a foreign writer may spell the dollar."""
    # One byte, given as its number, is found many times faster than a word, and most text has neither.
    return (_DOLLAR in data and b'$bytes"' in data) or (_BACKSLASH in data and b"\\u0024" in data)


def encode_msgpack(value: Any) -> bytes:
    """Write a value as MessagePack; raises `VALIDATION_ERROR` for what it cannot carry."""
    try:
        try:
            return _encode_msgpack(value)
        except OverflowError:
            return _encode_msgpack(extend(value))
    except RecursionError:
        raise _refusal("", "nested too deeply to be written as MessagePack") from None
    except UnicodeEncodeError:
        raise _refusal("", "a string holds a lone surrogate, which is not Unicode text") from None
    except (TypeError, ValueError) as error:
        raise _refusal("", f"cannot be written as MessagePack: {error}") from None


def decode_msgpack(data: bytes) -> Any:
    """Read MessagePack; raises `VALIDATION_ERROR` for malformed input."""
    try:
        return _decode_msgpack(data)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"malformed MessagePack: {error}") from None
    except RecursionError:
        raise CallError(ErrorCode.VALIDATION_ERROR, "malformed MessagePack: nested too deeply") from None


def encode_tidy(value: Any) -> bytes:
    """Write as MessagePack what JSON can carry as well; raises `VALIDATION_ERROR` for anything else."""
    try:
        tidied = tidy(value)
    except RecursionError:
        raise _refusal("", "nested too deeply to be written as MessagePack") from None
    return encode_msgpack(tidied)


def tidy(value: Any) -> Any:
    """A value as an encoder of MessagePack writes it, the same object where it is so already.

    Raises what `encode_json` would: MessagePack carries more than JSON does, and who gets it need not expect that.
    """
    if type(value) is dict:
        for key, item in value.items():
            if type(item) not in _PACKABLE or type(key) is not str:
                return _tidy_members(value, "")
        return value
    return _tidy(value, "")


def pointer(path: str, key: object) -> str:
    """The JSON pointer of member `key` of the place at `path`."""
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _refusal(path: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{path or '(value)'}: {reason}", {"path": path})


def _mark(value: Any, path: str) -> Any:
    """The value with its bytes marked; the same object where there is nothing to mark."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return _mark_mapping(value, path)
    if kind is list or kind is tuple:
        if PLAIN.issuperset(set(map(type, value))):
            return value
        return [_mark(item, f"{path}/{index}") for index, item in enumerate(value)]
    if kind in _BYTES:
        return {"$bytes": binascii.b2a_base64(value, newline=False).decode("ascii")}
    return _derive(value, kind, path, _mark)


def _tidy(value: Any, path: str) -> Any:
    kind = type(value)
    if kind in _PACKABLE:
        return value
    if kind is dict:
        return _tidy_members(value, path)
    if kind is list or kind is tuple:
        if _PACKABLE.issuperset(set(map(type, value))):
            return value
        return [_tidy(item, f"{path}/{index}") for index, item in enumerate(value)]
    return _derive(value, kind, path, _tidy)


def _tidy_members(value: dict[Any, Any], path: str) -> dict[str, Any]:
    _require_text(value, path)
    return {key: _tidy(item, pointer(path, key)) for key, item in value.items()}


def _mark_mapping(value: dict[Any, Any], path: str) -> dict[str, Any]:
    for key, item in value.items():
        if type(item) not in PLAIN or type(key) is not str or key[:1] == "$":
            value = _mark_members(value, path)
            break
    else:
        return value  # nothing in it needs a mark, nor looks like one
    if len(value) == 1:
        ((key, item),) = value.items()
        if key[:1] == "$" and _is_marker(key):
            return {f"${key}": item}
    return value


def _mark_members(value: dict[Any, Any], path: str) -> dict[str, Any]:
    _require_text(value, path)
    return {key: _mark(item, pointer(path, key)) for key, item in value.items()}


def _require_text(value: dict[Any, Any], path: str) -> None:
    for key in value:
        if not isinstance(key, str):
            raise _refusal(path, f"a mapping has the key {key!r}, and JSON has only text for keys")


def _derive(value: Any, kind: type, path: str, go_on: Callable[[Any, str], Any]) -> Any:
    """A value of none of the usual types as what it derives from (an IntEnum, an OrderedDict), if that is JSON."""
    if kind is float:
        if not math.isfinite(value):
            raise _refusal(path, f"{value} is a number that JSON cannot carry")
        return value
    for base in (str, int, float):
        if isinstance(value, base):
            return go_on(base(value.value if hasattr(value, "value") else value), path)
    if isinstance(value, dict):
        return go_on(dict(value), path)
    if isinstance(value, (list, tuple)):
        return go_on(list(value), path)
    raise _refusal(path, f"a value of type {kind.__name__} is not JSON")


def _is_marker(key: str) -> bool:
    return key.endswith("$bytes") and not key.removesuffix("bytes").strip("$")


def _unmark(value: Any) -> Any:
    if type(value) is list:
        return [_unmark(item) for item in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((key, item),) = value.items()
        if _is_marker(key):
            return _read_marker(key, item)
    return {key: _unmark(item) for key, item in value.items()}


def _read_marker(key: str, item: Any) -> Any:
    if key != "$bytes":
        return {key[1:]: _unmark(item)}
    try:
        return binascii.a2b_base64(item, strict_mode=True) if isinstance(item, str) else {key: _unmark(item)}
    except ValueError:
        # Somebody else's mapping, not a marker of ours.
        return {key: item}


def extend(value: Any) -> Any:
    """The value with each integer above 64 bits as a MessagePack extension."""
    if type(value) is dict:
        return {key: extend(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [extend(item) for item in value]
    if type(value) is int and not -(2**63) <= value < 2**64:
        size = value.bit_length() // 8 + 1
        return msgspec.msgpack.Ext(_BIG_INTEGER, value.to_bytes(size, "big", signed=True))
    return value


def read_extension(code: int, data: memoryview) -> Any:
    """An integer above 64 bits in MessagePack."""
    if code != _BIG_INTEGER:
        raise ValueError(f"unknown extension {code}")
    return int.from_bytes(data, "big", signed=True)


_decode_msgpack = msgspec.msgpack.Decoder(ext_hook=read_extension).decode
