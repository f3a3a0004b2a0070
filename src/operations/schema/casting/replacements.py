"""What `total` replaced, found by comparing the two casts: one Problem for each place, old and new value named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from operations.schema.checking.explaining import Explainer
from operations.schema.checking.messages import show
from operations.schema.checking.secrets import REDACTED
from operations.schema.checking.values import pointer
from operations.schema.dialects.literals import same
from operations.schema.problems import Problem

Path = tuple[str | int, ...]
_MAX_PROBLEMS = 100_000
_MISSING = object()


def replacements(before: Any, after: Any, explainer: Explainer) -> list[Problem]:
    """A Problem for each place where `after` holds another value than `before`."""
    if before is after:
        return []
    secrets = (explainer.hidden(before), explainer.hidden(after))
    found = []
    for path, old, new in _differences(before, after, ()):
        hidden = any(places.touches(path) for places in secrets)
        found.append(_problem(path, old, new, hidden=hidden))
        if len(found) == _MAX_PROBLEMS:
            break
    return found


def _problem(path: Path, old: Any, new: Any, *, hidden: bool) -> Problem:
    shown = REDACTED if hidden else show(new)
    if old is _MISSING:
        return Problem(pointer(path), "", f"was missing and is now {shown}")
    if new is _MISSING:
        return Problem(
            pointer(path), "", f"{REDACTED if hidden else show(old)} was removed", REDACTED if hidden else old
        )
    before = REDACTED if hidden else show(old)
    return Problem(pointer(path), "", f"{before} was replaced by {shown}", REDACTED if hidden else old)


def _differences(before: Any, after: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if before is after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from _pair(before.get(name, _MISSING), after.get(name, _MISSING), (*path, name))
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for index in range(max(len(before), len(after))):
            old = before[index] if index < len(before) else _MISSING
            yield from _pair(old, after[index] if index < len(after) else _MISSING, (*path, index))
    elif not same(before, after):
        yield path, before, after


def _pair(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if old is _MISSING or new is _MISSING:
        yield path, old, new
    else:
        yield from _differences(old, new, path)
