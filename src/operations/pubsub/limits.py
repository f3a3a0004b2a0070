"""Checks of settings: the numbers and names of transports and calls.

A heartbeat of 0 would occupy the event loop; with an infinite heartbeat, the loss of a server would never be detected.
A name that contains a separator of addresses could be part of another peer's address.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1e9


def check_seconds(**settings: Any) -> None:
    """Raise a ValueError for the first setting that is not a valid number of seconds."""
    for name, value in settings.items():
        if not _is_number(value, (int, float)) or not _LEAST_SECONDS <= value <= _MOST_SECONDS:
            wanted = f"expected a number of seconds from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}"
            raise ValueError(f"{name} is {value!r}: {wanted}")


def check_counts(*, least: int = 1, **settings: Any) -> None:
    """Raise a ValueError for the first setting that is not a whole number of at least `least`."""
    for name, value in settings.items():
        if not _is_number(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}: expected a whole number of at least {least}")


def check_name(name: str) -> None:
    """Raise a ValueError for an invalid name of a peer; names are parts of addresses and of permissions."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"invalid name {name!r}: expected 1 to 64 letters, digits, _ and -")


def _is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
