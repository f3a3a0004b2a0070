"""Recent: what was noted lately. It forgets the oldest, so that it stays bounded however long a process runs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(Generic[K, T]):
    """Remembers at least the last `least` keys and their values, and at most twice as many.

    Two dictionaries that take turns: taking the oldest out of one, key by key, would search past every key that was
    taken out before it.
    """

    __slots__ = ("least", "newer", "older")

    def __init__(self, least: int) -> None:
        self.least = least
        self.newer: dict[K, T] = {}
        self.older: dict[K, T] = {}

    def __contains__(self, key: K) -> bool:
        return key in self.newer or key in self.older

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def __setitem__(self, key: K, value: T) -> None:
        self.newer[key] = value
        if len(self.newer) >= self.least:
            self.turn()

    def turn(self) -> None:
        """Forget the older half: called once `newer` has `least` keys, also by code that writes there directly."""
        self.older, self.newer = self.newer, {}

    def __getitem__(self, key: K) -> T:
        return self.newer[key] if key in self.newer else self.older[key]

    def get(self, key: K) -> T | None:
        """The value of a key, if it is remembered."""
        value = self.newer.get(key)
        return self.older.get(key) if value is None else value

    def items(self) -> Iterator[tuple[K, T]]:
        """Every key that is remembered, the oldest first, with its latest value."""
        yield from (self.older | self.newer).items()
