"""LimitedLog: a log of events that other peers cause, with a limited number of lines."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

LINES_A_MINUTE = 20


class LimitedLog(logging.LoggerAdapter[logging.Logger]):
    """A log that writes at most `LINES_A_MINUTE` lines per minute, and the number of lines that it dropped."""

    def __init__(self, logger: logging.Logger, subject: str) -> None:
        super().__init__(logger, {})
        self._subject = subject
        self._minute = 0
        self._lines = 0
        """Number of lines of this minute, including dropped ones."""

    def log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        """Write a line, unless this minute has too many; lines of level INFO are written as DEBUG."""
        level = logging.DEBUG if level == logging.INFO else level
        if not self.isEnabledFor(level):
            return
        minute = int(monotonic() / 60)
        if minute != self._minute:
            left_out, self._minute, self._lines = self._lines - LINES_A_MINUTE, minute, 0
            if left_out > 0:
                self.logger.warning("%d log lines about %s were dropped", left_out, self._subject)
        self._lines += 1
        if self._lines <= LINES_A_MINUTE:
            super().log(level, msg, *args, **options)
