"""Budget: how much work one call may do, counted in steps and not in time, so that the answer is always the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STEPS = 100_000
"""What any value may cost: enough for every ordinary one, and over in about a second."""
STEPS_PER_PART = 50
TOO_MUCH_WORK = "too much work to be cast, and left as it is"


class ExhaustedError(Exception):
    """The budget of a call is used up."""


class Budget:
    """The steps that are left to one call: those any value may cost, and more for a large one."""

    def __init__(self, value: Any = None) -> None:
        self._value = value
        self._measured = False
        self.left = STEPS

    def spend(self, steps: int = 1) -> None:
        """Count steps; raises ExhaustedError when there are none left."""
        self.left -= steps
        if self.left < 0 and not self._measured:
            # Few calls come this far, so the others need not measure their value.
            self._measured = True
            self.left += STEPS_PER_PART * _parts(self._value)
        if self.left < 0:
            raise ExhaustedError


def _parts(value: Any) -> int:
    """How many members and items a value has, shared parts counted once."""
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
