"""JSON and MessagePack encodings of JSON-like values and bytes; independent of envelopes and events.

In JSON, bytes are encoded as `{"$bytes": "<base64>"}`. If the only key of a mapping is already `$bytes`, `$$bytes` and
so on, encoding adds one `$` to the key, and decoding removes this `$`. In MessagePack, an integer above 64 bits is
encoded as an extension. Values that a format cannot represent exactly are rejected with their path.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode

PLAIN = frozenset({str, int, bool, type(None)})
"""Types whose values are the same in every format, except integers above 64 bits in MessagePack."""
_BYTES = frozenset({bytes, bytearray, memoryview})
PACKABLE = PLAIN | _BYTES
"""Types whose values MessagePack writes unchanged, except integers above 64 bits."""
JSON_MARKERS = tuple(b"$\\")
"""JSON with encoded bytes contains one of these: a dollar sign, or the backslash of `\\u0024`, the dollar sign's
escape.
"""
_DOLLAR, _BACKSLASH = JSON_MARKERS
_BIG_INTEGER = 1
_LONGEST_INTEGER = 1_785
"""Largest number of bytes of an integer in MessagePack: 4,299 digits.

JSON decoders accept at most 4,300 digits, and the engine that checks schemas accepts any longer integer.
"""
_INDEX_DIGITS = 9
_DEEPEST = 100
"""Maximum depth of values that `encode_any` converts; deeper values become null."""
MAX_VALUES = 100_000
"""Default limit of the number of values in the input of a caller that has neither scopes nor resources.

The limit bounds the time of decoding, which is up to 0.3 µs for each value.
"""
LARGE_MESSAGE = 64 << 10
"""Size in bytes above which the input in a message is decoded only after its caller's rights are checked."""
_OUTLINE = bytes.maketrans(b"123456789E", b"000000000e")
"""Translation table for JSON: every digit becomes `0`, and `E` becomes `e`."""
_SLOW_NUMBERS = (b"e000", b"0" * 180)
"""Parts of numbers that take long to decode, translated by `_OUTLINE`: an exponent of three digits, or 180 digits."""
_SLOW_NUMBER_VALUES = 20
"""Each match of one of `_SLOW_NUMBERS` counts as this number of values, because decoding the number takes up to 7 µs.
"""
_LENGTH_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Size of the length field of binary values, extensions and strings in MessagePack, by the first byte."""
_FIXED_SIZES = bytes(160) + bytes(range(32)) + bytes.fromhex("00000000000000 010101 0408 01020408 01020408 02030509 11")
_FIXED_SIZES += bytes.fromhex("000000 02040204") + bytes(32)
"""Number of further bytes of a value, by its first byte; the items of a container count as separate values.

A length field in `_LENGTH_SIZES` and the bytes that it counts are not included.
"""
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_encode_msgpack = msgspec.msgpack.Encoder().encode


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON; raise `VALIDATION_ERROR` for values that JSON cannot represent, such as NaN or a set."""
    try:
        return _encode_json(mark_json(value))
    except RecursionError:
        raise _refusal("", "nested too deeply for JSON") from None
    except UnicodeEncodeError:
        raise _refusal("", "a string contains a lone surrogate, which is not valid Unicode") from None
    except ValueError as error:
        raise _refusal("", f"cannot be encoded as JSON: {error}") from None


def encode_any(value: Any) -> bytes:
    """Encode any value as JSON: NaN becomes null, lone surrogates are replaced, unsupported types become strings."""
    try:
        return _encode_json(value)
    except (ValueError, TypeError, RecursionError):
        return _encode_json(_expressible(value, 0))


def decode_json(data: bytes | bytearray | memoryview | str) -> Any:
    """Decode JSON, and convert `{"$bytes": …}` in it to bytes; raise `VALIDATION_ERROR` for malformed text."""
    data = data if isinstance(data, (bytes, str)) else bytes(data)
    try:
        value = _decode_json(data)
        # Walk only text that may contain a marker.
        marked = has_json_marks(data) if isinstance(data, bytes) else "bytes" in data
        return _unmark(value) if marked else value
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise CallError(ErrorCode.VALIDATION_ERROR, f"malformed JSON: {reason}") from None
    except RecursionError:
        raise CallError(ErrorCode.VALIDATION_ERROR, "malformed JSON: nested too deeply") from None


def mark_json(value: Any) -> Any:
    """Return `value` in a form that a JSON encoder writes unchanged; raise as `encode_json` does, or RecursionError."""
    return value if is_writable(value, PLAIN) else _mark(value, "")


def is_writable(value: Any, scalars: frozenset[object]) -> bool:
    """Whether an encoder writes a value unchanged: every part has a type in `scalars`, or is a finite float, list,
    tuple or dict.
    """
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            kind = type(item)
            if type(key) is not str:
                return False
            if kind not in scalars and not (isfinite(item) if kind is float else is_writable(item, scalars)):
                return False
        return len(value) != 1 or key[:1] != "$"  # the only key may be a marker
    if kind is not list and kind is not tuple:
        return kind in scalars or (kind is float and isfinite(value))
    if not scalars.issuperset(map(type, value)):
        for item in value:
            if not (isfinite(item) if type(item) is float else is_writable(item, scalars)):
                return False
    return True


def has_json_marks(data: bytes) -> bool:
    """Whether JSON may contain a `$bytes` marker. Other encoders may write the marker's dollar sign as `\\u0024`."""
    # Searching for one byte is much faster than for a string, and most messages contain neither of the two bytes.
    return (_DOLLAR in data and b'$bytes"' in data) or (_BACKSLASH in data and b"\\u0024" in data)


def encode_msgpack(value: Any) -> bytes:
    """Encode a value as MessagePack; raise `VALIDATION_ERROR` for values that MessagePack cannot represent."""
    try:
        try:
            return _encode_msgpack(value)
        except OverflowError:
            return _encode_msgpack(extend(value))
    except RecursionError:
        raise _refusal("", "nested too deeply for MessagePack") from None
    except UnicodeEncodeError:
        raise _refusal("", "a string contains a lone surrogate, which is not valid Unicode") from None
    except (TypeError, ValueError) as error:
        raise _refusal("", f"cannot be encoded as MessagePack: {error}") from None


def decode_msgpack(data: bytes) -> Any:
    """Decode MessagePack; raise `VALIDATION_ERROR` for malformed input."""
    try:
        return _decode_msgpack(data)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"malformed MessagePack: {error}") from None
    except RecursionError:
        raise CallError(ErrorCode.VALIDATION_ERROR, "malformed MessagePack: nested too deeply") from None


def check_json_values(data: bytes, most: int) -> None:
    """Raise `VALIDATION_ERROR` if JSON contains more than `most` values, without decoding them.

    A number that takes much longer to decode than other values counts as several values.
    """
    if _count_values(data) > most and _has_more_json_values(data, most):
        raise _too_many_values(most)


def check_msgpack_values(data: bytes, most: int) -> None:
    """Raise `VALIDATION_ERROR` if MessagePack contains more than `most` values, without decoding them."""
    if len(data) > most and has_more_values(data, most):
        raise _too_many_values(most)


def _has_more_json_values(data: bytes, most: int) -> bool:
    """Whether JSON contains more than `most` values outside its strings."""
    # Once escapes are removed, every second part of the text between quotes is outside strings. A value has at most
    # four quotes: two of its key and two of its own.
    parts = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 4 * most + 1)
    return len(parts) > 4 * most + 1 or _count_values(b"".join(parts[::2])) > most


def _count_values(data: bytes) -> int:
    """Return the number of `,`, `[` and `{`: one of them precedes each value.

    A slow number adds `_SLOW_NUMBER_VALUES`.
    """
    separators = data.count(b",") + data.count(b"[") + data.count(b"{")
    outline = data.translate(_OUTLINE, b"+-")
    return separators + _SLOW_NUMBER_VALUES * sum(outline.count(form) for form in _SLOW_NUMBERS)


def _too_many_values(most: int) -> CallError:
    message = f"the message has more than {most:,} values, the limit for callers without scopes and resources"
    return CallError(
        ErrorCode.VALIDATION_ERROR, message, {"reason": "TOO_MANY_VALUES", "limit": most, "executed": "no"}
    )


def has_more_values(data: bytes, most: int) -> bool:
    """Whether MessagePack contains more than `most` values, without decoding them; `data` may be malformed."""
    place, end = 0, len(data)
    for _ in range(most):
        if place >= end:
            return False
        first = data[place]
        place += 1
        size = _LENGTH_SIZES.get(first)
        if size is not None:
            place += size + int.from_bytes(data[place : place + size], "big")
        place += _FIXED_SIZES[first]
    return place < end


def encode_portable(value: Any) -> bytes:
    """Encode a value as MessagePack if JSON can represent it as well; raise `VALIDATION_ERROR` otherwise."""
    try:
        converted = portable(value)
    except RecursionError:
        raise _refusal("", "nested too deeply for MessagePack") from None
    return encode_msgpack(converted)


def portable(value: Any) -> Any:
    """Return a value that a MessagePack encoder writes unchanged; return `value` itself if no change is needed.

    Raise for values that `encode_json` rejects, even if MessagePack supports them: every receiver must be able to
    encode them as JSON.
    """
    return value if is_writable(value, PACKABLE) else _portable(value, "")


def pointer(path: str, key: object) -> str:
    """Return the JSON pointer of the property `key` of the value at `path`."""
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def pointer_parts(path: str) -> list[str]:
    """Return the names of properties and the indexes of items in a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def member(value: Any, part: str) -> Any:
    """Return the property or item that a part of a JSON pointer names; raise LookupError if there is none."""
    if isinstance(value, Mapping):
        return value[part]
    if isinstance(value, list) and part.isascii() and part.isdecimal() and len(part) <= _INDEX_DIGITS:
        return value[int(part)]
    raise LookupError(part)


def valid_text(text: str) -> str:
    """Return text with a question mark for each lone surrogate, which UTF-8 cannot express."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _refusal(path: str, reason: str) -> CallError:
    return CallError(ErrorCode.VALIDATION_ERROR, f"{path or '(value)'}: {reason}", {"path": path})


def _expressible(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, Mapping):
        return {_expressible(str(key), 0): _expressible(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expressible(item, depth + 1) for item in value]
    return value if isinstance(value, (int, float)) or value is None else _expressible(repr(value), 0)


def has_invalid_number(value: Any) -> bool:
    """Whether a value contains NaN or an infinity, which msgspec encodes as null in JSON."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, float) and not isfinite(item):
            return True
    return False


def _mark(value: Any, path: str) -> Any:
    """Return the value with its bytes encoded."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is dict:
        return _mark_mapping(value, path)
    if kind is list or kind is tuple:
        return [_mark(item, f"{path}/{index}") for index, item in enumerate(value)]
    if kind in _BYTES:
        return {"$bytes": binascii.b2a_base64(value, newline=False).decode("ascii")}
    return _derive(value, kind, path, _mark)


def _portable(value: Any, path: str) -> Any:
    kind = type(value)
    if kind in PACKABLE:
        return value
    if kind is dict:
        _require_text(value, path)
        return {key: _portable(item, pointer(path, key)) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_portable(item, f"{path}/{index}") for index, item in enumerate(value)]
    return _derive(value, kind, path, _portable)


def _mark_mapping(value: dict[Any, Any], path: str) -> dict[str, Any]:
    _require_text(value, path)
    marked = {key: _mark(item, pointer(path, key)) for key, item in value.items()}
    if len(marked) == 1:
        ((key, item),) = marked.items()
        if _is_marker(key):
            return {f"${key}": item}
    return marked


def _require_text(value: dict[Any, Any], path: str) -> None:
    for key in value:
        if not isinstance(key, str):
            raise _refusal(path, f"invalid key {key!r}: JSON keys are strings")


def _derive(value: Any, kind: type, path: str, convert: Callable[[Any, str], Any]) -> Any:
    """Convert an instance of a subclass, such as an IntEnum, to its JSON type; return finite floats; else raise."""
    if kind is float:
        if not isfinite(value):
            raise _refusal(path, f"JSON has no number {value}")
        return value
    for base in (str, int, float):
        if isinstance(value, base):
            return convert(base(value.value if hasattr(value, "value") else value), path)
    if isinstance(value, dict):
        return convert(dict(value), path)
    if isinstance(value, (list, tuple)):
        return convert(list(value), path)
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
        # Not encoded bytes: a mapping of another encoder with the same key.
        return {key: item}


def extend(value: Any) -> Any:
    """Return the value with integers above 64 bits as MessagePack extensions."""
    if type(value) is dict:
        return {key: extend(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [extend(item) for item in value]
    if type(value) is int and not -(2**63) <= value < 2**64:
        size = value.bit_length() // 8 + 1
        if size > _LONGEST_INTEGER:
            raise ValueError("an integer has more than 4,299 digits")
        return msgspec.msgpack.Ext(_BIG_INTEGER, value.to_bytes(size, "big", signed=True))
    return value


def read_extension(code: int, data: memoryview) -> Any:
    """Decode an integer above 64 bits from MessagePack."""
    if code != _BIG_INTEGER:
        raise ValueError(f"unknown extension {code}")
    if len(data) > _LONGEST_INTEGER:
        raise ValueError("an integer has more than 4,299 digits")
    return int.from_bytes(data, "big", signed=True)


_decode_msgpack = msgspec.msgpack.Decoder(ext_hook=read_extension).decode
