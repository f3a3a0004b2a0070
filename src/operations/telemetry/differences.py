"""Differences between a result and its output schema: the changes by normalising, and the remaining mismatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from operations.redaction import Redactor
from operations.schema import Problem
from operations.wire import pointer, valid_text

Action = Literal["cast", "stripped", "default", "replaced", "kept"]
MOST_DIFFERENCES = 50
_LONGEST_TEXT = 80
_LONGEST_POINTER = 300
_MISSING: Any = object()
_SECRETS = Redactor()


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path at which a result differs from its declaration, and the action that was taken."""

    pointer: str
    action: Action
    """`cast` to the declared type, `stripped` as undeclared, `default` filled in, `replaced`, or `kept` as it is."""
    got: str | None = None
    """The original value in a few characters; None if there was none."""
    became: str | None = None
    detail: str | None = None
    """The problem of a value that was kept or replaced."""


def differences_of(given: Any, data: Any, problems: Sequence[Problem]) -> list[Difference]:
    """Return the first differences: the changes from `given` to `data`, then the unchanged values
    that have problems.
    """
    wrong = {problem.path: problem for problem in problems[:MOST_DIFFERENCES]}
    found: list[Difference] = []
    for path, before, after in _changes(given, data, ""):
        if len(found) == MOST_DIFFERENCES:
            return found
        problem = wrong.pop(path, None)
        found.append(_difference(path, before, after, problem))
    remaining = [problem for problem in problems[:MOST_DIFFERENCES] if problem.path in wrong]
    for problem in remaining[: MOST_DIFFERENCES - len(found)]:
        got = None if problem.value is msgspec.UNSET else _text(problem.value, problem.path)
        found.append(Difference(_cut(problem.path, _LONGEST_POINTER), "kept", got, detail=_cut(problem.message, 200)))
    return found


def _difference(path: str, before: Any, after: Any, problem: Problem | None) -> Difference:
    action: Action = "replaced" if problem is not None else "cast"
    if after is _MISSING:
        action = "stripped"
    elif before is _MISSING:
        action = "default"
    return Difference(
        _cut(path, _LONGEST_POINTER),
        action,
        None if before is _MISSING else _text(before, path),
        None if after is _MISSING else _text(after, path),
        None if problem is None else _cut(problem.message, 200),
    )


def _changes(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the pointer, the old value and the new value of each changed part; skip parts that are the same object."""
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from _changes(value, after.get(name, _MISSING), pointer(path, name))
        for name, value in after.items():
            if name not in before:
                yield pointer(path, name), _MISSING, value
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for index, value in enumerate(before):
            yield from _changes(value, after[index] if index < len(after) else _MISSING, f"{path}/{index}")
    elif type(before) is not type(after) or before != after:
        yield path, before, after


def _text(value: Any, path: str) -> str:
    """Return a value in a few characters, as JSON if possible; a value whose name denotes a secret is hidden."""
    text = _short(value)
    for name in path.split("/")[1:]:
        (text,) = _SECRETS.data({name: text}).values()
    return text


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"array of {len(value)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    try:
        shown = value[:_LONGEST_TEXT] + "…" if isinstance(value, str) and len(value) > _LONGEST_TEXT else value
        return _cut(msgspec.json.encode(shown).decode(), _LONGEST_TEXT)
    except (TypeError, ValueError):
        return type(value).__name__


def _cut(text: str, most: int) -> str:
    return valid_text(text if len(text) <= most else f"{text[: most - 1]}…")
