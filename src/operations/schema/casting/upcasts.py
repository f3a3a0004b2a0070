"""Lossless upcasts: conversions between JSON types that keep the meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_MAX_LENGTH = 400
_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    bool: "boolean",
    type(None): "null",
}


def kind_of(value: Any) -> str | None:
    """Return the JSON type of a value, with bytes as strings; None for values that are not JSON."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, dict):
        return "object"
    if isinstance(value, str | bytes | bytearray | memoryview):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    if isinstance(value, list | tuple):
        return "array"
    return "number" if type(value).__name__ == "Decimal" else None


def upcasts(value: Any) -> Iterator[Any]:
    """Yield the values of other types that `value` can be converted to without loss, best first.

    `"42"` → 42, `"1.5"` → 1.5, `"true"` → true, 42 → `"42"`, 1.5 → `"1.5"`; never 1 → true, never null.
    """
    if isinstance(value, str):
        if value in ("true", "false"):
            yield value == "true"
        elif len(value) <= _MAX_LENGTH and _NUMBER.fullmatch(value):
            yield from _numbers(value)
    elif isinstance(value, float):
        if value.is_integer() and abs(value) < 2**53:
            yield str(int(value))
        elif value == value and abs(value) != float("inf"):
            yield repr(value)
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1000:
        yield str(value)


def _numbers(text: str) -> Iterator[int | float]:
    from decimal import Decimal

    exact = Decimal(text)
    if text.startswith("-") and not exact:
        return
    if text.lstrip("-").isdigit():
        yield int(text)
        return
    number = float(text)
    if abs(number) != float("inf") and Decimal(repr(number)) == exact:
        yield int(number) if number.is_integer() and abs(number) < 2**53 else number
