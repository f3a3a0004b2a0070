"""Literals in schemas and messages: plain JSON copies, equality by JSON's rules, bounded printing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

_UNPRINTABLE = "[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
MAX_LITERAL_DEPTH = 100
MAX_LITERAL_SIZE = 500_000
"""Maximum number of values in the literals of one document; repeated ones count each time."""


class NotPlainError(ValueError):
    """A value that is not JSON: of a foreign type, nested too deeply, with a key that is no string, or a non-finite
    number.
    """


class LiteralBudget:
    """Remaining number of values in the literals of a document; shared parts count each time,
    because they are copied.
    """

    def __init__(self) -> None:
        self._left = MAX_LITERAL_SIZE

    def take(self, count: int) -> None:
        """Reserve `count` values; raise NotPlainError if fewer are left."""
        self._left -= count
        if self._left < 0:
            raise NotPlainError("too many literals in one document")


def plain(value: Any, budget: LiteralBudget, depth: int = MAX_LITERAL_DEPTH) -> Any:
    """Return a copy of `value` of plain dicts, lists and scalars; raise NotPlainError if JSON cannot represent it."""
    if value.__class__ is str and value.isascii():  # fast path: most literals
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _plain_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise NotPlainError(f"{value} is not a JSON number")
        return float(value)
    return _plain_container(value, budget, depth - 1)


def _plain_container(value: Any, budget: LiteralBudget, depth: int) -> Any:
    if depth < 0:
        raise NotPlainError("nested too deeply")
    if not isinstance(value, (list, tuple, dict, Mapping)):
        raise NotPlainError(f"{type(value).__name__} is not JSON")
    budget.take(len(value))
    if isinstance(value, (list, tuple)):
        return [plain(item, budget, depth) for item in value]
    return {_plain_key(key): plain(item, budget, depth) for key, item in value.items()}


def _plain_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise NotPlainError("a string that is not valid Unicode") from error
    return str(value)


def _plain_key(key: Any) -> str:
    if not isinstance(key, str):
        raise NotPlainError(f"a key of type {type(key).__name__}")
    return _plain_text(key)


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal in JSON: `1` and `1.0` are, `1` and `true` are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping):
        return (
            isinstance(right, Mapping)
            and len(left) == len(right)
            and all(key in right and same(item, right[key]) for key, item in left.items())
        )
    if isinstance(left, list | tuple):
        return (
            isinstance(right, list | tuple)
            and len(left) == len(right)
            and all(same(a, b) for a, b in zip(left, right, strict=True))
        )
    return bool(left == right)


def escaped(text: str) -> str:
    """Escape control characters, line separators and lone surrogates as in JSON."""
    return text if text.isprintable() else re.sub(_UNPRINTABLE, _escape, text)


def _escape(match: re.Match[str]) -> str:
    import json  # few texts have anything to escape

    written = json.dumps(match[0])[1:-1]
    return written if written != match[0] else f"\\u{ord(written):04x}"


def fragment(part: str) -> str:
    """Return a segment of a JSON pointer, encoded for a URL fragment."""
    if part.isascii() and (part.isidentifier() or part.isdecimal()):  # fast path: most names
        return part
    return quote(part.replace("~", "~0").replace("/", "~1"), safe="~$")


def copied(value: Any) -> Any:
    """Return a copy of a plain literal; scalars are shared."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def weight(value: Any) -> int:
    """Return the number of values in a plain literal, including itself."""
    if isinstance(value, dict):
        return 1 + sum(map(weight, value.values()))
    return 1 + sum(map(weight, value)) if isinstance(value, list) else 1
