"""Reconnecting: the base class of transports with a server, which connects and reconnects them."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from operations.errors import CallError
from operations.pubsub.connection_errors import is_permanent, reason_of
from operations.pubsub.limits import check_seconds
from operations.pubsub.protocols import Part, Stop

_log = logging.getLogger("operations")
_SHORT_SECONDS = 1.0
"""A connection that is lost within this time counts as a failed attempt, so that the next attempt is delayed."""
_MOST_KEPT = 16 << 20
"""Largest total size of the messages that are kept for the next connection."""


class ReconnectingTransport(ABC):
    """A transport with a task that connects it, and reconnects it after each loss, until it is closed.

    `async with` waits for the first connection, even if the server is not running yet. A permanent error (a refusal, an
    untrusted certificate, another protocol) is raised.
    """

    def __init__(self, *, server: str, shortest_delay: float, longest_delay: float) -> None:
        check_seconds(shortest_delay=shortest_delay, longest_delay=longest_delay)
        self.attachment: object | None = None
        self.failures = 0
        """How many attempts to connect failed."""
        self.reconnects = 0
        """How often a lost connection was restored."""
        self.unsent = 0
        """Number of messages that were dropped without a report to their sender, mostly while disconnected."""
        self._is_congested = False
        self._congestion_watchers: dict[Callable[[bool], None], None] = {}
        self._server = server
        self._delays = shortest_delay, longest_delay
        self._watchers: list[tuple[Callable[[], None], Callable[[str], None]]] = []
        """The callbacks for the return and the loss of the connection."""
        self._parts: tuple[object, ...] = (self,)
        """The objects that implement the optional Protocols of the transport."""
        self._is_closing = False
        self._why_down = ""
        """Why there is no connection now."""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._logged: set[str] = set()
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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def watch(self, up: Callable[[], None], down: Callable[[str], None]) -> Stop:
        """Call `up` when the connection is established or restored, and `down` when it is lost."""
        pair = (up, down)
        self._watchers.append(pair)

        def stop() -> None:
            if pair in self._watchers:
                self._watchers.remove(pair)

        return stop

    def watch_congestion(self, changed: Callable[[bool], None]) -> Stop:
        """Call `changed` when congestion begins (immediately if it has begun) and when it ends."""
        self._congestion_watchers[changed] = None
        if self._is_congested:
            changed(True)
        return lambda: self._congestion_watchers.pop(changed, None)

    def _note_congestion(self, is_congested: bool) -> None:
        if is_congested is not self._is_congested:
            self._is_congested = is_congested
            for changed in list(self._congestion_watchers):
                changed(is_congested)

    def optional(self, kind: type[Part]) -> Part | None:
        """Return the part of this transport that implements an optional Protocol, or None."""
        return next((part for part in self._parts if isinstance(part, kind)), None)

    async def close(self) -> None:
        """Write the buffer, disconnect, and stay disconnected."""
        self._is_closing = True
        await self._leave()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None

    async def _stay_connected(self) -> None:
        """Connect, and reconnect after each loss, until the transport is closed or its first connection is refused."""
        clock, attempt = asyncio.get_running_loop().time, 0
        while True:
            try:
                await self._connect()
                connected_at = clock()
                self._arrive()
                await self._wait_lost()
                if self._is_closing:
                    return
                if clock() - connected_at < _SHORT_SECONDS:
                    raise ConnectionError(self._why_down)
                attempt = 0
            except (CallError, OSError) as error:
                if await self._give_up(error):
                    return
                self._note_failure(error)
                attempt += 1
                await self._pause(attempt)

    @abstractmethod
    async def _connect(self) -> None:
        """Connect, so that messages can be sent; raise a CallError or an OSError if that fails."""

    @abstractmethod
    async def _wait_lost(self) -> None:
        """Wait until the connection is lost or closed; a loss is passed to `_note_loss`."""

    @abstractmethod
    async def _leave(self) -> None:
        """Write the buffer and close the connection."""

    @abstractmethod
    async def _diagnose(self, error: Exception) -> CallError | None:
        """Return the permanent error behind a failed first connection; None if waiting may help."""

    def _arrive(self) -> None:
        """Handle an established connection: complete the first one or count a reconnection, and notify the watchers."""
        self._why_down = ""
        self._logged.clear()
        if self._first is None or self._first.done():
            self.reconnects += 1
        else:
            self._first.set_result(None)
        for up, _ in list(self._watchers):
            up()

    def _note_loss(self, reason: str) -> None:
        """Store why the connection was lost, and notify the watchers."""
        self._why_down = reason
        self._note_congestion(False)
        for _, down in list(self._watchers):
            down(reason)

    def _keep(self, command: bytes) -> None:
        """Keep an encoded message for the next connection, or drop it if too many bytes are kept.

        The receiver of the message has to expect a duplicate.
        """
        if self._kept_bytes + len(command) <= _MOST_KEPT:
            self._kept.append(command)
            self._kept_bytes += len(command)
        else:
            self.unsent += 1

    def _take_kept(self) -> list[bytes]:
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        return kept

    async def _give_up(self, error: Exception) -> bool:
        """Return whether the first connection failed permanently.

        If so, raise the error in the task that waits for this connection.
        """
        first = self._first
        if first is None or first.done():
            return False
        certain = error if is_permanent(error) else await self._diagnose(error)
        if certain is None or first.done():
            return False
        first.set_exception(certain)
        return True

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        self._why_down = error.message if isinstance(error, CallError) else reason_of(error)

    async def _pause(self, attempt: int) -> None:
        """Wait after failed attempt number `attempt` (the first is 1), with exponential back-off and jitter."""
        shortest, longest = self._delays
        delay = random.uniform(0.5, 1.0) * min(longest, shortest * 2 ** min(attempt - 1, 16))
        level = logging.INFO if self._why_down in self._logged else logging.WARNING
        self._logged.add(self._why_down)
        reason = self._why_down
        if not reason.startswith("no connection to "):
            reason = f"no connection to {self._server} ({reason})"
        _log.log(level, "%s; next try in %.2f s", reason, delay)
        await asyncio.sleep(delay)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Handle the end of the task that connects: raise its error in code that waits for the first connection."""
        waiting = self._first if self._first is not None and not self._first.done() else None
        if task.cancelled():
            if waiting is not None:
                waiting.cancel()
            return
        error = task.exception()
        if error is not None:
            _log.error("reconnecting to %s has stopped", self._server, exc_info=error)
            if waiting is not None:
                waiting.set_exception(error)
