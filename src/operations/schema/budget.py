"""Budget: a limit on the work of one call, counted in steps rather than time, so that results are deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEPS = 100_000
"""Steps of every call: about a second of work. A large value gets more steps."""
STEPS_PER_PART = 50
TOO_MUCH_WORK = "too much work to cast: the value is unchanged"


class ExhaustedError(Exception):
    """The budget of a call is used up."""


class Budget:
    """The remaining steps of one call; large values get more."""

    def __init__(self, value: Any = None) -> None:
        self._value = value
        self._measured = False
        self.left = STEPS

    def spend(self, steps: int = 1) -> None:
        """Count steps; raise ExhaustedError if none are left."""
        self.left -= steps
        if self.left < 0 and not self._measured:
            # Measure the value only when the basic steps are used up, which is rare.
            self._measured = True
            self.left += STEPS_PER_PART * _parts(self._value)
        if self.left < 0:
            raise ExhaustedError


def _parts(value: Any) -> int:
    """Return the number of properties and items of a value; shared parts count once."""
    seen: set[int] = set()
    pending = [value]
    parts = 0
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            parts += len(item)
            pending += item.values() if isinstance(item, Mapping) else item
    return parts
