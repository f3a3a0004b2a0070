"""Seen: which requests came lately, and at which attempt, so that none is run twice."""

from __future__ import annotations

from operations.recent import Recent

Block = bytearray
"""Of requests whose ids differ in their last digit only, at which attempt each came, counted from 1; 0 if none did."""
_DIGITS = {digit: number for number, digit in enumerate("0123456789abcdef")}
_WHOLE = len(_DIGITS)
KEPT = _WHOLE + 1
"""Where in a block it says whether it is kept already."""
_MOST_ATTEMPTS = 254


class Seen:
    """Remembers the requests of at least the last `least` blocks.

    Ids of one peer are its name and a count, and so most share a block with the one before. To keep the id itself of
    each would cost more than all else about it: memory that was in no cache, each time.
    """

    __slots__ = ("_block", "_blocks", "_start")

    def __init__(self, least: int) -> None:
        self._blocks: Recent[str, Block] = Recent(least)
        self._start: str | None = None
        """What the ids of the last block begin with."""
        self._block = Block()

    def place(self, request_id: str) -> tuple[Block, int]:
        """The block of a request, and where in it the request is; what is marked there is to be kept by `mark`."""
        number = _DIGITS.get(request_id[-1:], _WHOLE)
        start = request_id if number == _WHOLE else request_id[:-1]
        if start != self._start:
            self._block = self._find(start)
            self._start = start
        return self._block, number

    def mark(self, request_id: str, block: Block, number: int, attempt: int) -> None:
        """Remember that a request came, at the place where it is."""
        block[number] = mark_of(attempt)
        if not block[KEPT]:
            block[KEPT] = 1
            self._blocks[request_id if number == _WHOLE else request_id[:-1]] = block

    def _find(self, start: str) -> Block:
        """What is new, or nearly forgotten, has yet to be kept: a request that is refused is not remembered."""
        block = self._blocks.newer.get(start)
        if block is None:
            block = self._blocks.older.get(start) or Block(KEPT + 1)
            block[KEPT] = 0
        return block


def mark_of(attempt: int) -> int:
    """An attempt as a block has it."""
    return min(max(attempt, 0), _MOST_ATTEMPTS) + 1
