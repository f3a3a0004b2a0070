"""HeldRequests: limits the memory of the requests that a worker queues or runs for each caller without rights."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from operations.context import Identity
from operations.dispatch import Request

_MOST_BYTES = 256 << 20
"""Memory of the queued and running requests of one caller above which further ones are refused."""
_REQUEST_BYTES = 2_048
"""Memory of a request without its input and metadata."""
_CONTAINER_BYTES, _ITEM_BYTES, _PROPERTY_BYTES = 64, 32, 128
"""Memory of an empty list or dict, and of each item and property without its string."""
Holder = tuple[bool, str | None]
"""A caller for which requests are counted: whether it is an identity, and its name."""


class HeldRequests:
    """The memory of the queued and running requests of each caller without rights."""

    def __init__(self) -> None:
        self._held: Counter[Holder] = Counter()

    def is_full(self, holder: Holder) -> bool:
        """Return whether a caller's further requests are refused."""
        return bool(self._held) and self._held.get(holder, 0) > _MOST_BYTES

    def add(self, holder: Holder, request: Request, encoded: object) -> int:
        """Count a request, and its encoded input if it is kept; return the size to pass to `remove`."""
        size = _REQUEST_BYTES + memory_of(request.input) + memory_of(request.metadata)
        if isinstance(encoded, msgspec.Raw):
            size += memoryview(encoded).nbytes
        self._held[holder] += size
        return size

    def remove(self, holder: Holder, size: int) -> None:
        """Remove a request that has ended."""
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]


def holder_of(identity: Identity | None, sender: str | None) -> Holder:
    """Return the caller for which a request counts.

    Without an identity it is the sender that the broker names. Other peers count as one caller, because each can use
    any number of names.
    """
    return (False, sender) if identity is None else (True, identity.id)


def memory_of(value: Any) -> int:
    """Return about how many bytes of memory a decoded value takes."""
    size, rest = 0, [value]
    while rest:
        each = rest.pop()
        kind = type(each)
        if kind is dict:
            size += _CONTAINER_BYTES + _PROPERTY_BYTES * len(each) + sum(map(len, each))
            rest.extend(each.values())
        elif kind is list:
            size += _CONTAINER_BYTES + _ITEM_BYTES * len(each)
            rest.extend(each)
        elif kind is str or kind is bytes:
            size += len(each)
    return size
