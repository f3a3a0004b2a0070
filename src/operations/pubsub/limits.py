"""Limits: the numbers that transports and both sides of a call are set up with, refused where they make no sense.

A heartbeat of 0 would keep the loop busy with nothing else, one without end would never notice a lost server.
"""

from __future__ import annotations

from typing import Any

_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1e9


def check_seconds(**settings: Any) -> None:
    """Raise a ValueError that names the first of these that is no sensible number of seconds."""
    for name, value in settings.items():
        if not _is_number(value, (int, float)) or not _LEAST_SECONDS <= value <= _MOST_SECONDS:
            wanted = f"a number of seconds is wanted, from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
            raise ValueError(f"{name} is {value!r}: {wanted}")


def check_counts(*, least: int = 1, **settings: Any) -> None:
    """Raise a ValueError that names the first of these that is no whole number, or one below the least."""
    for name, value in settings.items():
        if not _is_number(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}: a whole number of at least {least} is wanted")


def _is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
