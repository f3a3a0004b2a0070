"""Several messages as one: a zero byte, then each behind its length. A message alone stays as it is."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

_LENGTH = struct.Struct(">I")
_FEWEST_SHARES = 8
_LARGEST_SHARE = 8


def join(messages: Sequence[bytes]) -> bytes:
    """One message for all of them; no message of ours begins with a zero byte by itself."""
    if len(messages) == 1:
        return messages[0]
    parts = [b"\0"]
    for message in messages:
        parts += (_LENGTH.pack(len(message)), message)
    return b"".join(parts)


def batches(messages: Sequence[bytes], most: int) -> Iterator[bytes]:
    """The same messages in their order as few as fit in `most` bytes each; one that is larger goes alone."""
    for share in _cut(messages, most, len(messages)):
        yield join(messages[share])


def shares(messages: Sequence[bytes], most: int) -> Iterator[slice]:
    """Which messages go together to one of those who share the work: few enough that each gets some of a burst."""
    return _cut(messages, most, max(1, min(_LARGEST_SHARE, len(messages) // _FEWEST_SHARES)))


def _cut(messages: Sequence[bytes], most_bytes: int, most: int) -> Iterator[slice]:
    start, size = 0, 1
    for number, message in enumerate(messages):
        size += _LENGTH.size + len(message)
        if number > start and (size > most_bytes or number - start >= most):
            yield slice(start, number)
            start, size = number, 1 + _LENGTH.size + len(message)
    yield slice(start, len(messages))


def split(batch: bytes) -> Sequence[bytes]:
    """The messages in one; what is cut short at its end is a message that nobody can read, and so is counted."""
    if batch[:1] != b"\0":
        return (batch,)
    messages = []
    position, end = 1, len(batch)
    while position + 4 <= end:
        (size,) = _LENGTH.unpack_from(batch, position)
        position += 4
        if position + size > end:
            messages.append(b"\0")
            break
        messages.append(batch[position : position + size])
        position += size
    return messages
