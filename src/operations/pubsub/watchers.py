"""Watchers: those who are told when a transport comes back, and when it is lost."""

from __future__ import annotations

from collections.abc import Callable

from operations.pubsub import Stop


class Watchers:
    """Whom to tell of one transport; each may leave at any time, also while it is being told."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Callable[[], None], Callable[[str], None]]] = []

    def add(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Tell these two, until the watch is stopped."""
        pair = (up, down)
        self._pairs.append(pair)

        def stop() -> None:
            if pair in self._pairs:
                self._pairs.remove(pair)

        return stop

    def up(self) -> None:
        """The transport is back."""
        for up, _ in list(self._pairs):
            up()

    def down(self, reason: str) -> None:
        """The transport is lost."""
        for _, down in list(self._pairs):
            down(reason)
