"""ProgressSender: sends the progress of one call to its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite

from operations.calls.events import ProgressPayload

_INTERVAL_SECONDS = 0.02
_LONGEST_MESSAGE = 10_000


class ProgressSender:
    """Sends the newest progress at most once every 20 ms, and the last progress before the call ends.

    This limits the number of messages, even if a handler reports progress in every step of a loop.
    """

    def __init__(self, request_id: str, send: Callable[[ProgressPayload], None]) -> None:
        self._request_id = request_id
        self._send: Callable[[ProgressPayload], None] | None = send
        self._latest: ProgressPayload | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress, or buffer it if other progress was sent less than 20 ms ago."""
        if self._send is None or not isfinite(progress) or not isfinite(total or 0.0):
            return
        text = None if message is None else message[:_LONGEST_MESSAGE]
        self._latest = ProgressPayload(self._request_id, progress, total, text)
        if self._timer is None:
            self._send_latest()

    def end(self) -> None:
        """Send the buffered progress; nothing is sent afterwards."""
        self._send_latest()
        if self._timer is not None:
            self._timer.cancel()
        self._send = self._timer = None

    def _send_latest(self) -> None:
        self._timer, latest = None, self._latest
        if latest is not None and self._send is not None:
            self._latest = None
            self._send(latest)
            self._timer = asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self._send_latest)
