"""Several messages as one: a zero byte, then each behind its length. A message alone stays as it is."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

_LENGTH = struct.Struct(">I")


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
    start, size = 0, 1
    for number, message in enumerate(messages):
        size += _LENGTH.size + len(message)
        if size > most and number > start:
            yield join(messages[start:number])
            start, size = number, 1 + _LENGTH.size + len(message)
    yield join(messages[start:])


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
