"""Regular expressions in schemas: the engine that a pattern needs, and sample strings that match it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import Any, Literal

import jsonschema_rs

BACKTRACK_LIMIT = 100_000
"""Maximum number of steps to match one string with a pattern that has look-around; beyond it, there is no match."""

SIZE_LIMIT = 1 << 20
"""Maximum compiled size of a pattern for the engine `linear`, in bytes: the time per character grows with the size."""
_MAX_UNROLLED = 12_000
"""Largest `unrolled_length` of a pattern that needs another engine than `linear`."""

Engine = Literal["linear", "large", "fancy"]
"""Regex engine of jsonschema-rs: `linear`, `large` (without our size limit) or `fancy` (with look-around)."""
_ENGINES: tuple[Engine, ...] = ("linear", "large", "fancy")

MOST_CHARACTERS = 1_000
"""Maximum length of a string for a pattern that is not steady (see `_is_steady`); a longer string does not match."""
_GUARD = rf"^(?![\s\S]{{{MOST_CHARACTERS + 1}}})(?=[\s\S]*?(?:"
_GUARD_END = "))"
_SHORT = 256
"""Largest number of characters that a short part of a pattern may match."""
_WIDE = 100
"""Largest `_width` of a pattern that is matched with long strings.

A wider pattern is limited to short strings if possible.
"""
_WIDEST = 500
"""Largest `_width` of a pattern that cannot be limited to short strings; a wider one is not supported."""
_COUNT = r"(?<!\\[xu])\{(?:\d*,)?(\d+),?\}"
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_LOOKS = frozenset({"ASSERT", "ASSERT_NOT"})

_MAX_REPEAT = 2000
_UNBOUNDED = 2**31
_PIECE = r"(?s)\\[pP]\{[^}]*\}|\\.|\(\?<(?![=!])|\(\?[imsx]+\)|."
_MIXED = "Aa0-"
"""Characters of several kinds, as password rules require."""
_FAMILIAR = "a0A _-z9Z~!/:"
_ALPHANUMERIC = frozenset(["CATEGORY_DIGIT", "CATEGORY_WORD"])
_SPELLINGS = {"(?<": "(?P<", "\\/": "/", "\\z": "\\Z"}
_PROPERTIES = {"\\p{N}": "0-9", "\\p{Nd}": "0-9", "\\p{Lu}": "A-Z", "\\p{P}": "!.,-", "\\p{Z}": " ", "\\p{Zs}": " "}


@lru_cache(maxsize=4096)
def engine_of(pattern: str) -> Engine | None:
    """Return the cheapest engine that runs `pattern` in bounded time; None if there is none."""
    width = _width(pattern)
    if width > _WIDE and not _repeats_too_often(pattern) and _compiles(_guarded(pattern), "fancy"):
        return "fancy"
    for engine in () if width > _WIDEST else _ENGINES:
        if _compiles(pattern, engine):
            is_refused = engine != "linear" and _repeats_too_often(pattern)
            return None if is_refused or (engine == "fancy" and not _compiles(_guarded(pattern), engine)) else engine
    return None


def _compiles(pattern: str, engine: Engine) -> bool:
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True, pattern_options=engine_options(engine))
    except ValueError:
        return False
    return True


def is_linear(pattern: str) -> bool:
    """Whether a pattern is supported, and takes linear time for strings of any length."""
    return engine_of(pattern) is not None and native_pattern(pattern) == pattern


@lru_cache(maxsize=4096)
def native_pattern(pattern: str) -> str:
    """Return a pattern for the native engine.

    If matching may take more than linear time, the result matches only short strings.
    """
    return pattern if engine_of(pattern) != "fancy" else _guarded(pattern)


def _guarded(pattern: str) -> str:
    return pattern if _is_steady(pattern) and _width(pattern) <= _WIDE else f"{_GUARD}{pattern}{_GUARD_END}"


def written_pattern(pattern: str) -> str:
    """Return the original of a pattern that `native_pattern` returned."""
    return pattern[len(_GUARD) : -len(_GUARD_END)] if pattern.startswith(_GUARD) else pattern


def _is_steady(pattern: str) -> bool:
    """Whether a pattern with look-around takes linear time: at most one long part is tried from several positions.

    The number of steps is limited, but one step may read the rest of the string.
    """
    tree = _parsed(pattern)
    if not tree:
        return tree is not None
    is_movable, was_plain = not _is_anchored(tree, pattern), False
    for index in range(len(tree)):
        op, value = str(tree[index][0]), tree[index][1]
        is_long = tree[index : index + 1].getwidth()[1] > _SHORT
        is_plain = not _looks_around(tree[index : index + 1])
        if op in _LOOKS:
            is_long, is_steady = value[1].getwidth()[1] > _SHORT, not _looks_around(value[1])
        else:
            is_steady = is_plain or _has_short_looks(tree[index : index + 1])
        if not is_steady or (is_long and is_movable and not (is_plain and was_plain)):
            return False
        is_movable = is_movable or (is_long and op not in _LOOKS)
        was_plain = is_plain
    return True


@lru_cache(maxsize=4096)
def _width(pattern: str) -> int:
    """Return the largest number of parts of a pattern that an engine follows at once: each takes time per character.

    For `^.{1,2000}$` this is one part, because each character can match only one. For `a.{2000}[bc]`, it is 2,000.
    """
    if len(pattern) <= _WIDE and "{" not in pattern:
        return 0
    tree = _parsed(pattern)
    if tree is None:
        return _repetitions(pattern)
    if tree and str(tree[-1][0]) in _REPEATS:  # a match ends with the fewest repetitions
        low, _, inner = tree[-1][1]
        tree[-1] = (tree[-1][0], (low, low, inner))
    return _parts_at_once(tree, is_movable=not _is_anchored(tree, pattern))


def _parts_at_once(tree: Any, *, is_movable: bool) -> int:
    """Return an upper limit of the parts of a parsed pattern that may match one character of a string.

    With `is_movable`, the match may begin at several characters.
    """
    count = 0
    for index in range(len(tree)):
        op, value = str(tree[index][0]), tree[index][1]
        low, high = tree[index : index + 1].getwidth()
        if op in _REPEATS:
            inner = value[-1]
            steady = not is_movable and len(set(inner.getwidth())) == 1
            count += _parts_at_once(inner, is_movable=False) if steady else _unrolled_length(tree[index : index + 1])
        elif op in ("SUBPATTERN", *_LOOKS, "BRANCH"):
            parts = value[1] if op == "BRANCH" else value[-1:]
            count += sum(_parts_at_once(part, is_movable=is_movable) for part in parts)
        else:
            count += is_movable
        is_movable = is_movable or low != high
    return count


def _is_anchored(tree: Any, pattern: str) -> bool:
    """Whether a pattern matches only at the beginning of a string."""
    return str(tree[0][1]).startswith("AT_BEGINNING") and not re.search(r"\(\?[a-z]*m", pattern)


def _looks_around(tree: Any) -> bool:
    """Whether a part of a pattern contains something for which an engine backtracks."""
    return any(True for _ in _looks_in(tree))


def _has_short_looks(tree: Any) -> bool:
    """Whether every look-around in a part of a pattern reads few characters; false with atomic groups or references."""
    return all(name in _LOOKS and value[1].getwidth()[1] <= _SHORT for name, value in _looks_in(tree))


def _looks_in(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield all look-around, group references, atomic groups and possessive repetitions of a pattern, at any depth."""
    for op, value in tree:
        name = str(op)
        if name in _LOOKS or name.startswith(("GROUPREF", "ATOMIC", "POSSESSIVE")):
            yield name, value
        inside = value[1] if name == "BRANCH" else value if isinstance(value, tuple) else (value,)
        for part in inside:
            if hasattr(part, "getwidth"):
                yield from _looks_in(part)


def _repeats_too_often(pattern: str) -> bool:
    return unrolled_length(pattern) > _MAX_UNROLLED


def engine_options(engine: Engine) -> jsonschema_rs.PatternOptionsType:
    """Return the validator option that selects `engine`."""
    if engine == "fancy":
        return jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
    return jsonschema_rs.RegexOptions(size_limit=SIZE_LIMIT) if engine == "linear" else jsonschema_rs.RegexOptions()


def weakest_engine(patterns: Iterable[str]) -> Engine:
    """Return the engine that can run all `patterns`: the linear one, unless one of them needs more."""
    return max((engine_of(pattern) or "linear" for pattern in patterns), key=_ENGINES.index, default="linear")


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> Callable[[Any], bool]:
    """Return a function that matches strings with the validating engine; an invalid pattern matches nothing."""
    engine = engine_of(pattern)
    if engine is None:
        return lambda text: False
    validator = jsonschema_rs.Draft202012Validator(
        {"type": "string", "pattern": native_pattern(pattern)}, offline=True, pattern_options=engine_options(engine)
    )
    return validator.is_valid


def sample_strings(pattern: str, minimum: int = 0) -> Iterator[str]:
    """Yield strings that may match `pattern`, longer ones for a larger `minimum`; none for an unsupported pattern."""
    tree = _parsed(pattern)
    if tree is None:
        return
    lacking = max(minimum - len(_text(tree, 0, 0)), 0)
    for extra in dict.fromkeys((0, 1, 2, lacking, minimum)):
        yield from dict.fromkeys(_text(tree, extra, choice) for choice in (0, 1, 2))
    if "(?=" in pattern or "(?!" in pattern:
        yield from (_text(tree, extra, 0, ahead=True) for extra in (0, 1))
        yield from (_MIXED * count for count in (1, 2, 4, 8))


def unrolled_length(pattern: str) -> int:
    """Return the number of parts of a pattern after all counted repetitions are unrolled: 8 for `(ab{3}){2}`.

    For a pattern that cannot be parsed, return an upper limit: 10**9 if it may have several counted repetitions.
    """
    tree = _parsed(pattern)
    if tree is not None:
        return _unrolled_length(tree)
    before, _, after = pattern.partition("{")
    repeated = len(pattern) if before.rstrip("*+?").endswith(")") else 1
    return 10**9 if "{" in after else len(pattern) + repeated * _repetitions(pattern)


def _repetitions(pattern: str) -> int:
    """Return the product of the counts of all repetitions in a pattern that cannot be parsed."""
    return prod(int(count) if len(count) < 10 else 10**9 for count in re.findall(_COUNT, pattern))


def _unrolled_length(tree: Any) -> int:
    length = 0
    for op, value in tree:
        name = str(op)
        if name in _REPEATS:
            low, high, inner = value
            length += (int(high) if int(high) < _UNBOUNDED else max(int(low), 1)) * _unrolled_length(inner)
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            length += _unrolled_length(value[-1])
        elif name == "BRANCH":
            length += sum(map(_unrolled_length, value[1]))
        else:
            length += 1
    return length


def _parsed(pattern: str) -> Any:
    from re import _parser  # type: ignore[attr-defined]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _parser.parse(_pythonic(pattern))
    except (re.error, OverflowError, RecursionError, ValueError):  # ValueError: a count of thousands of digits
        return None


def _pythonic(pattern: str) -> str:
    """Return a pattern in Python's syntax, with common characters for Unicode properties and without inline flags."""
    out: list[str] = []
    inside = False
    for piece in re.findall(_PIECE, pattern):
        if piece.startswith(("\\p", "\\P")) and len(piece) > 2:
            letters = _PROPERTIES.get(piece, "A-Za-z")
            out.append(letters if inside else f"[{letters}]")
            continue
        if piece == "[" and not inside:
            inside = True
        elif piece == "]":
            inside = False
        if piece[:2] != "(?" or piece[-1] != ")":  # drop inline flags, which Python does not support
            out.append(_SPELLINGS.get(piece, piece))
    return "".join(out)


def _text(tree: Any, extra: int, choice: int, *, ahead: bool = False) -> str:
    """Return a string for a parsed sequence; with `ahead`, the string for a look-ahead replaces everything after it."""
    out = []
    for op, value in tree:
        if ahead and str(op) == "ASSERT" and value[0] == 1:
            out.append(_text(value[1], extra or 1, choice))
            break
        out.append(_piece(str(op), value, extra, choice))
    return "".join(out)


def _piece(op: str, value: Any, extra: int, choice: int) -> str:
    if op == "LITERAL":
        return chr(value)
    if op == "NOT_LITERAL":
        return "a" if value != 97 else "b"
    if op == "ANY":
        return "a"
    if op == "IN":
        return _member(value, choice)
    if op in _REPEATS:
        low, high, inner = value
        count: int = min(max(low, min(extra, int(high))), _MAX_REPEAT)
        return _text(inner, 0, choice) * count
    if op == "SUBPATTERN":
        return _text(value[-1], extra, choice)
    if op == "BRANCH":
        return _text(value[1][min(choice, len(value[1]) - 1)], extra, choice)
    return ""


def _member(items: Any, choice: int) -> str:
    if str(items[0][0]) == "NEGATE":
        return next((char for char in _FAMILIAR if not any(_holds(item, char) for item in items[1:])), "\u00e9")
    # Prefer letters and digits to punctuation, which may have a meaning in the text.
    ordered = sorted(items, key=lambda item: not _is_alphanumeric(item))
    op, value = ordered[min(choice, len(ordered) - 1)]
    samples = {"CATEGORY_DIGIT": "0", "CATEGORY_SPACE": " "}
    if str(op) == "RANGE":
        return chr(min(value[0] + choice, value[1]))
    if str(op) == "LITERAL":
        return chr(value)
    return samples.get(str(value), "a")


def _is_alphanumeric(item: Any) -> bool:
    op, value = item
    if str(op) == "CATEGORY":
        return str(value) in _ALPHANUMERIC
    return chr(value if str(op) == "LITERAL" else value[0]).isalnum()


def _holds(item: Any, char: str) -> bool:
    """Whether a character is in a part of a character class."""
    op, value = item
    if str(op) == "LITERAL":
        return ord(char) == int(value)
    if str(op) == "RANGE":
        return int(value[0]) <= ord(char) <= int(value[1])
    tests = {"DIGIT": char.isdigit(), "SPACE": char.isspace(), "WORD": char.isalnum() or char == "_"}
    found = tests.get(str(value).rpartition("_")[2], True)
    return found is not ("_NOT_" in str(value))
