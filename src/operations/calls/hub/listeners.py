"""HubListeners: the listeners of a hub's transport, which has one stream of messages and no addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from operations.pubsub import Arrival, Receive, Stop

NO_ADDRESS = Arrival("")
"""The `Arrival` of every message on a hub's transport, which has no addresses."""


class HubListeners:
    """Passes each message once to each listener, even if the listener was added several times."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.receive: Receive = self._receive_all
        """Function that passes a message to every listener; if there is only one, the listener itself."""
        self._changed = changed
        self._listeners: tuple[Receive, ...] = ()
        self._added: Counter[Receive] = Counter()

    def add(self, receive: Receive) -> Stop:
        """Add a listener; return the function that removes it."""
        self._added[receive] += 1
        self._update()
        added = [receive]
        return lambda: self._remove(added)

    def __len__(self) -> int:
        """Return the number of listeners."""
        return len(self._listeners)

    def _receive_all(self, message: bytes, arrival: Arrival) -> None:
        for receive in self._listeners:
            receive(message, arrival)

    def _update(self) -> None:
        self._listeners = tuple(self._added)
        self.receive = self._listeners[0] if len(self._listeners) == 1 else self._receive_all
        self._changed()

    def _remove(self, added: list[Receive]) -> None:
        while added:
            receive = added.pop()
            self._added[receive] -= 1
            if not self._added[receive]:
                del self._added[receive]
            self._update()
