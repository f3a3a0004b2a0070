"""Reconnecting: what transports with a server share. The first connection is waited for, lost ones come back."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from operations.errors import CallError, ErrorCode
from operations.pubsub import HOPELESS, Stop, reason_of
from operations.pubsub.limits import check_seconds
from operations.pubsub.watchers import Watchers

_log = logging.getLogger("operations")


class Reconnecting(ABC):
    """A transport that a task of its own keeps connected, from entering it until it is closed.

    Entering waits for the first connection. A server that is not there yet is waited for; what waiting will not change
    (it refuses us, it must not be trusted, it speaks another protocol) is raised.
    """

    def __init__(self, *, server: str, shortest_delay: float, longest_delay: float) -> None:
        check_seconds(shortest_delay=shortest_delay, longest_delay=longest_delay)
        self.failures = 0
        """How many tries to connect failed."""
        self._server = server
        self._delays = shortest_delay, longest_delay
        self._watchers = Watchers()
        self._is_closing = False
        self._why_down = ""
        """Why there is no connection now."""
        self._told: set[str] = set()
        self._first: asyncio.Future[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._first = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._stay_connected())
        self._keeper.add_done_callback(self._note_end)
        try:
            await self._first
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Be told when the server is back, and when it is lost."""
        return self._watchers.add(up, down)

    async def close(self) -> None:
        """Write what is buffered, leave the server, and do not come back."""
        self._is_closing = True
        await self._leave()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None

    @abstractmethod
    async def _stay_connected(self) -> None:
        """Connect, and again whenever the connection was lost, until the transport is closed."""

    @abstractmethod
    async def _leave(self) -> None:
        """Write what is buffered and close the connection."""

    @abstractmethod
    async def _diagnose(self, error: Exception) -> CallError | None:
        """What is surely wrong where the first connection failed like this; None where time may mend it."""

    def _arrive(self) -> bool:
        """A connection stands; whether it is the first."""
        self._why_down = ""
        self._told.clear()
        if self._first is None or self._first.done():
            return False
        self._first.set_result(None)
        return True

    async def _give_up(self, error: Exception) -> bool:
        """Whether a try failed that was to be the first connection, and the next would too: whoever waits is told."""
        first = self._first
        if first is None or first.done():
            return False
        certain = error if _is_hopeless(error) else await self._diagnose(error)
        if certain is None or first.done():
            return False
        first.set_exception(certain)
        return True

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        self._why_down = error.message if isinstance(error, CallError) else reason_of(error)

    async def _pause(self, attempt: int) -> None:
        """Wait before the next try: longer each time, and never the same for all clients of a server that restarted."""
        shortest, longest = self._delays
        delay = random.uniform(0.5, 1.0) * min(longest, shortest * 2 ** min(attempt, 16))
        level = logging.INFO if self._why_down in self._told else logging.WARNING
        self._told.add(self._why_down)
        _log.log(level, "no connection to %s (%s); next try in %.2f s", self._server, self._why_down, delay)
        await asyncio.sleep(delay)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """The task that keeps the connection ended: whoever waits for the first one must not wait for ever."""
        waiting = self._first if self._first is not None and not self._first.done() else None
        if task.cancelled():
            if waiting is not None:
                waiting.cancel()
            return
        error = task.exception()
        if error is not None:
            _log.error("the connection to %s is no longer kept", self._server, exc_info=error)
            if waiting is not None:
                waiting.set_exception(error)


def _is_hopeless(error: Exception) -> bool:
    if not isinstance(error, CallError):
        return False
    details = error.details if isinstance(error.details, dict) else {}
    return error.code is ErrorCode.ACCESS_DENIED or details.get("reason") in HOPELESS
