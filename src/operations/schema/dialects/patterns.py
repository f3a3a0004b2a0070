"""Regular expressions in schemas: which engine a pattern needs, and whether it is one at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal

import jsonschema_rs

BACKTRACK_LIMIT = 100_000
"""Steps a pattern with look-around may take on one string before it counts as not matching."""

SIZE_LIMIT = 1 << 20
"""Bytes a pattern may compile to unless its counts are not nested: the time per character grows with it."""
_MAX_REPETITION = 12_000

Engine = Literal["linear", "large", "fancy"]
_ENGINES: tuple[Engine, ...] = ("linear", "large", "fancy")


@lru_cache(maxsize=4096)
def engine_of(pattern: str) -> Engine | None:
    """The cheapest engine that runs `pattern` in bounded time; None when no engine does."""
    for engine in _ENGINES:
        try:
            jsonschema_rs.Draft202012Validator(
                {"pattern": pattern}, offline=True, pattern_options=engine_options(engine)
            )
        except ValueError:
            continue
        return None if engine != "linear" and _repeats_too_often(pattern) else engine
    return None


def _repeats_too_often(pattern: str) -> bool:
    from operations.schema.casting.samples import largest_repetition

    return largest_repetition(pattern) > _MAX_REPETITION


def engine_options(engine: Engine) -> jsonschema_rs.PatternOptionsType:
    """The validator option that selects `engine`."""
    if engine == "fancy":
        return jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
    return jsonschema_rs.RegexOptions(size_limit=SIZE_LIMIT) if engine == "linear" else jsonschema_rs.RegexOptions()


def weakest_engine(patterns: Iterable[str]) -> Engine:
    """The one engine that can run all `patterns`: the linear one, unless one of them needs more."""
    return max((engine_of(pattern) or "linear" for pattern in patterns), key=_ENGINES.index, default="linear")


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> Callable[[Any], bool]:
    """A test of whether a string matches, by the same engine that validates; a bad pattern matches nothing."""
    engine = engine_of(pattern)
    if engine is None:
        return lambda text: False
    validator = jsonschema_rs.Draft202012Validator(
        {"type": "string", "pattern": pattern}, offline=True, pattern_options=engine_options(engine)
    )
    return validator.is_valid
