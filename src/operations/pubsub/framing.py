"""Several messages as one: a zero byte, how many they are, the length of each, then all of them one after the other.

Numbers have four bytes, the highest first. A message alone stays as it is. Answers that were made as soon as their
requests were read (see `pace`) have a two in the zero's place, one alone as well.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

_NUMBER = struct.Struct(">I")
_START = 1 + _NUMBER.size
_TOGETHER, _QUICK = 0, 2
_FEWEST_SHARES = 8
_LARGEST_SHARE = 8
_LARGEST_QUICK_SHARE = 32
_MOST = 65_536
"""How many messages there may be in one: what says that it holds more is not believed, as each costs memory."""
_UNREADABLE = b"\0"
_MARKS = (b"\0", b"\2")
_USUAL = 64
_heads = tuple(struct.Struct(f">B{count + 1}I") for count in range(_USUAL + 1))
_lengths = tuple(struct.Struct(f">{count}I") for count in range(_USUAL + 1))


def join(messages: Sequence[bytes], *, quick: bool = False) -> bytes:
    """One message for all of them; no message of ours begins with such a byte by itself."""
    if len(messages) == 1 and not quick:
        return messages[0]
    return _put_together(messages, [*map(len, messages)], quick)


def _put_together(messages: Sequence[bytes], sizes: Sequence[int], quick: bool) -> bytes:
    count = len(sizes)
    head = _heads[count] if count <= _USUAL else struct.Struct(f">B{count + 1}I")
    return b"".join((head.pack(_QUICK if quick else _TOGETHER, count, *sizes), *messages))


def batches(messages: Sequence[bytes], most: int, *, quick: bool = False) -> Sequence[bytes]:
    """The same messages in their order as few as fit in `most` bytes each; one that is larger goes alone."""
    sizes = [*map(len, messages)]
    count = len(sizes)
    fit = _START + _NUMBER.size * count + sum(sizes) <= most
    if not count or (count == 1 and not (quick and fit)):
        return messages
    if fit and count <= _MOST:
        return (_put_together(messages, sizes, quick),)  # as nearly always
    return [join(messages[share], quick=quick) for share in _cut(messages, most, _MOST)]


def shares(messages: Sequence[bytes], most: int, *, quick: bool = False) -> Sequence[slice]:
    """Which messages go together to one of those who share the work: few enough that each gets some of a burst.

    Those that are worked off quickly go many together: to wake a worker costs more than its share.
    """
    largest = _LARGEST_QUICK_SHARE if quick else max(1, min(_LARGEST_SHARE, len(messages) // _FEWEST_SHARES))
    return _cut(messages, most, largest)


def _cut(messages: Sequence[bytes], most_bytes: int, most: int) -> Sequence[slice]:
    count = len(messages)
    if _START + _NUMBER.size * count + sum(map(len, messages)) <= most_bytes:
        return [slice(start, min(start + most, count)) for start in range(0, count, most)]
    cut = []
    start, size = 0, _START
    for number, message in enumerate(messages):
        size += _NUMBER.size + len(message)
        if number > start and (size > most_bytes or number - start >= most):
            cut.append(slice(start, number))
            start, size = number, _START + _NUMBER.size + len(message)
    cut.append(slice(start, count))
    return cut


def is_quick(batch: bytes) -> bool:
    """Whether these answers were made as soon as their requests were read."""
    return batch[:1] == b"\2"


def split(batch: bytes) -> Sequence[bytes]:
    """The messages in one; what is cut short at its end is a message that nobody can read, and so is counted."""
    if batch[:1] not in _MARKS:
        return (batch,)
    try:
        (count,) = _NUMBER.unpack_from(batch, 1)
        if not 0 < count <= _MOST:
            return (_UNREADABLE,)
        lengths = _lengths[count] if count <= _USUAL else struct.Struct(f">{count}I")
        sizes = lengths.unpack_from(batch, _START)
    except struct.error:
        return (_UNREADABLE,)
    messages = []
    place = _START + _NUMBER.size * count
    for size in sizes:
        start, place = place, place + size
        messages.append(batch[start:place])
    if place == len(batch):
        return messages
    places = itertools.accumulate(sizes, initial=_START + _NUMBER.size * count)
    whole = sum(place <= len(batch) for place in places) - 1
    return [*messages[:whole], _UNREADABLE]
