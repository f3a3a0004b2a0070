"""Pace: whether requests are answered as soon as they are read. A burst of such ones is cut into few large shares.

Whoever shares work out does not know what it will take. Cut fine, a burst wakes many workers, each for very little; cut
coarse, one worker has a long row before it while others idle. So workers say with their answers that these took them no
time, nor had to wait for anything; and callers who hear that often enough, and hardly anything else, cut coarsely.
"""

from __future__ import annotations

from operations.pubsub.framing import is_quick

QUICK_SECONDS = 0.0002
"""What a request may take on average that takes no time worth mentioning."""
_SURE = 16
_MOST = 32
_DOUBT = 8


class Pace:
    """What a caller has heard of late."""

    def __init__(self) -> None:
        self._sure = 0

    @property
    def is_quick(self) -> bool:
        """Whether a burst is worked off at once, whoever gets it."""
        return self._sure >= _SURE

    def note(self, answers: bytes) -> None:
        """An answer came, or several in one."""
        self._sure = min(_MOST, self._sure + 1) if is_quick(answers) else max(0, self._sure - _DOUBT)
