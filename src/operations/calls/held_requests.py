"""HeldRequests: counts a worker's memory for the waiting requests of callers without rights."""

from __future__ import annotations

from collections import Counter
from typing import Any

from operations.context import Identity
from operations.dispatch import Request

_MOST_BYTES = 256 << 20
"""Bytes of memory for the queued and running requests of one caller; above this, further requests are refused."""
_REQUEST_BYTES = 2_048
"""Bytes of memory of a request without its input and metadata."""
_CONTAINER_BYTES, _ITEM_BYTES, _PROPERTY_BYTES = 64, 32, 128
"""Bytes of memory of an empty list or dict, of each item, and of each property. The lengths of strings are added."""
Holder = tuple[bool, str | None]
"""A caller whose requests are counted: whether the caller has an identity, and the name of the identity or sender."""
NO_HOLDER: Holder = False, None


class HeldRequests:
    """Counts the memory of requests that are queued or whose handlers are suspended, for each caller without rights."""

    def __init__(self) -> None:
        self.sizes: Counter[Holder] = Counter()
        """The bytes of memory of these requests, by caller."""

    def is_full(self, holder: Holder) -> bool:
        """Return whether a caller's further requests are refused."""
        return self.sizes[holder] > _MOST_BYTES

    def add(self, holder: Holder, request: Request) -> int:
        """Count a request; return the size to pass to `remove`."""
        size = _REQUEST_BYTES + memory_of(request.input) + memory_of(request.metadata)
        self.sizes[holder] += size
        return size

    def remove(self, holder: Holder, size: int) -> None:
        """Remove a request that has ended."""
        self.sizes[holder] -= size
        if not self.sizes[holder]:
            del self.sizes[holder]


def holder_of(identity: Identity | None, sender: str | None) -> Holder:
    """Return the caller to whose memory a request is added.

    Without an identity, this is the sender that the broker names. All peers that the broker does not name count as one
    caller, because each of them can use any number of names.
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
