"""Batches: several messages written as one, and the choice of their size.

A batch is a zero byte, the number of messages, the length of each, then the messages. Numbers have four bytes,
big-endian. A single message is sent unchanged. A batch of quick responses begins with the byte 2 instead of 0; even a
single quick response is sent as such a batch (see `BatchSizing`).
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Iterator, Sequence

_NUMBER = struct.Struct(">I")
_START = 1 + _NUMBER.size
_TOGETHER, _QUICK = 0, 2
_FEWEST_SHARES = 8
_LARGEST_SHARE = 8
_LARGEST_QUICK_SHARE = 32
"""Limits of shares, the parts of a burst that go to one worker each.

A burst of `_FEWEST_SHARES` or more messages has at least `_FEWEST_SHARES` shares, each of at most `_LARGEST_SHARE`
messages. For quick requests, only `_LARGEST_QUICK_SHARE` applies.
"""
_MOST = 4_096
"""The largest number of messages in a batch. A batch that claims more is refused, to bound memory and handling time."""
_UNREADABLE = b"\0"
BATCH_MARKS = (b"\0", b"\2")
"""The two bytes with which a batch may begin; no other message begins with them."""
_USUAL = 64
"""Largest number of messages in a batch for which the struct formats are prepared."""
QUICK_SECONDS = 0.0002
"""Requests count as quick if handling them takes less than this time on average."""
_RECENT = 18
_MOST_SLOW = 2
"""Requests count as quick if all of the last `_RECENT` responses, except at most this many, have the quick mark."""
_heads = tuple(struct.Struct(f">B{count + 1}I") for count in range(_USUAL + 1))
_lengths = tuple(struct.Struct(f">{count}I") for count in range(_USUAL + 1))


def join(messages: Sequence[bytes], *, quick: bool = False) -> bytes:
    """Return all messages as one batch; a single message is returned unchanged, except with `quick`."""
    if len(messages) == 1 and not quick:
        return messages[0]
    return _put_together(messages, [*map(len, messages)], quick)


def _put_together(messages: Sequence[bytes], sizes: Sequence[int], quick: bool) -> bytes:
    count = len(sizes)
    head = _heads[count] if count <= _USUAL else struct.Struct(f">B{count + 1}I")
    return b"".join((head.pack(_QUICK if quick else _TOGETHER, count, *sizes), *messages))


def batches(messages: Sequence[bytes], most: int, *, quick: bool = False) -> Sequence[bytes]:
    """Return the messages in order, in few batches of at most `most` bytes; a larger message is not combined."""
    sizes = [*map(len, messages)]
    count = len(sizes)
    fit = _START + _NUMBER.size * count + sum(sizes) <= most
    if not count or (count == 1 and not (quick and fit)):
        return messages
    if fit and count <= _MOST:
        return (_put_together(messages, sizes, quick),)  # the usual case
    return [join(messages[share], quick=quick) for share in _cut(messages, most, _MOST)]


def shares(messages: Sequence[bytes], most: int, *, quick: bool = False) -> Sequence[slice]:
    """Divide a burst of messages into slices, each for one worker, so that several workers share the burst.

    The batch of a slice has at most `most` bytes, unless the slice is a single message. Slices of quick requests are
    larger, because waking a worker costs more than handling these requests.
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


def split(batch: bytes) -> Sequence[bytes]:
    """Return the messages of a batch; a message that is not a batch is returned alone.

    The unreadable part of a damaged batch becomes one message, which the receiver counts as unreadable.
    """
    if batch[:1] not in BATCH_MARKS:
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
    ends = itertools.accumulate(sizes, initial=_START + _NUMBER.size * count)
    whole = sum(place <= len(batch) for place in ends) - 1
    return [*messages[:whole], _UNREADABLE]


class BatchSizing:
    """Decides by recent responses whether a burst of requests is divided into few large or many small shares.

    A caller does not know the cost of its requests. Small shares wake many workers for little work each. Large shares
    may give one worker a long queue while others are idle. Workers therefore mark batches of quick responses, and a
    caller makes large shares once nearly all recent responses have that mark.
    """

    def __init__(self) -> None:
        self.marks: deque[bytes] = deque(maxlen=_RECENT)
        """The first bytes of recent responses."""

    @property
    def is_quick(self) -> bool:
        """Whether workers handle requests quickly, according to the marks of recent responses."""
        return self.marks.count(BATCH_MARKS[1]) >= _RECENT - _MOST_SLOW

    def note(self, answers: bytes) -> None:
        """Record the mark of a received response, or of a batch of responses."""
        self.marks.append(answers[:1])


def messages_of(batch: bytes) -> Iterator[bytes]:
    """Yield the messages of a batch one by one; those of a large batch are not copied all at once."""
    count = _NUMBER.unpack_from(batch, 1)[0] if batch[:1] in BATCH_MARKS and len(batch) >= _START else 0
    return _iterate(batch, count) if count > _USUAL else iter(split(batch))


def _iterate(batch: bytes, count: int) -> Iterator[bytes]:
    place = _START + _NUMBER.size * count
    if count > _MOST or place > len(batch):
        yield _UNREADABLE
        return
    for number in range(count):
        start = place
        place += _NUMBER.unpack_from(batch, _START + _NUMBER.size * number)[0]
        if place > len(batch):
            break
        yield batch[start:place]
    if place != len(batch):
        yield _UNREADABLE
