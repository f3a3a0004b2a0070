"""Names at the server: what an address of the bus is called there."""

from __future__ import annotations

_MOST_CHANNELS = 65_536


class Space:
    """The keys of one namespace; the braces keep them on one server of a cluster, so that a script may use them all."""

    __slots__ = ("dead", "queue", "stored", "workers")

    def __init__(self, prefix: str, namespace: str) -> None:
        space = f"{prefix}:{{{namespace}}}"
        self.queue = f"{space}:queue".encode()
        """A list: the requests that nobody took yet."""
        self.workers = f"{space}:workers".encode()
        """A sorted set: the workers, by the time until which each counts as alive."""
        self.stored = f"{space}:stored".encode()
        """A stream: the requests that are kept until they were dealt with."""
        self.dead = f"{space}:dead".encode()
        """A stream: those that were set aside."""

    def seen(self, key: str) -> bytes:
        """What says that a request was stored already."""
        return self.stored + b":" + key.encode()


class Names:
    """Channels and keys by address, each made once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._channels: dict[str, bytes] = {}
        self._spaces: dict[str, Space] = {}

    def channel(self, address: str) -> bytes:
        """The channel of an address."""
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= _MOST_CHANNELS:
                self._channels.clear()  # callers come and go, and each had an inbox
            channel = self._channels[address] = f"{self._prefix}:{address}".encode()
        return channel

    def space(self, address: str) -> Space:
        """The keys of the namespace that an address ends in."""
        space = self._spaces.get(address)
        if space is None:
            space = self._spaces[address] = Space(self._prefix, address.partition(".")[2])
        return space
