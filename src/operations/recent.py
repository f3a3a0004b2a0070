"""Recent: a bounded mapping of the most recent keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(Generic[K, T]):
    """Mapping that keeps the most recently set keys: at least the last `minimum`, and fewer than twice as many.

    It rotates two dictionaries, because finding the oldest key of a single dictionary gets slower with every
    deleted key.
    """

    __slots__ = ("minimum", "newer", "older")

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum
        self.newer: dict[K, T] = {}
        self.older: dict[K, T] = {}

    def __contains__(self, key: K) -> bool:
        return key in self.newer or key in self.older

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def __setitem__(self, key: K, value: T) -> None:
        self.newer[key] = value
        if len(self.newer) >= self.minimum:
            self.rotate()

    def rotate(self) -> None:
        """Drop the older half; called when `newer` has `minimum` keys, also by code that writes to `newer` directly."""
        self.older, self.newer = self.newer, {}

    def __getitem__(self, key: K) -> T:
        return self.newer[key] if key in self.newer else self.older[key]

    def get(self, key: K) -> T | None:
        """Return the value of a key, or None."""
        value = self.newer.get(key)
        return self.older.get(key) if value is None else value

    def items(self) -> Iterator[tuple[K, T]]:
        """Yield every key once, with its latest value."""
        yield from (self.older | self.newer).items()
