"""Connection: one warm session with a server, owned by one task that opens it, renews it and closes it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

from operations.errors import CallError
from operations.sources.mcp.config import MCPClientConfig
from operations.sources.mcp.failures import explain, unavailable
from operations.sources.mcp.server import ServerSession

_log = logging.getLogger("operations.mcp")

MISSING = 'MCP servers need the MCP SDK: pip install "operations[mcp]"'
_SDK = frozenset({"mcp", "mcp_types", "anyio", "httpx2", "pydantic"})
CLOSE_SECONDS = 5.0
"""How long a polite goodbye may take before the connection is torn down."""
SHORTEST_PAUSE = 0.05
SHORT_LIFE = 5.0
"""A session that ends sooner counts as a failed attempt, so that a server that dies at once is not hammered."""


class MCPClientState(StrEnum):
    """Where a client stands with its server."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    CLOSED = "closed"


class Connection:
    """Keeps a session open: callers in any task ask for it, one task of its own opens, watches and closes it."""

    def __init__(
        self, name: str, config: MCPClientConfig, on_changed: Callable[[ServerSession], Awaitable[None]]
    ) -> None:
        self.name = name
        self.state = MCPClientState.CONNECTING
        self.session: ServerSession | None = None
        """The session, while there is one."""
        self._config = config
        self._on_changed = on_changed
        self._owner: asyncio.Task[None] | None = None
        self._scope: Any = None
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_closing = False
        self._has_changed = False
        self._is_over = False
        self._protocol = config.protocol
        self._failures = 0
        self._outcome: asyncio.Future[ServerSession | CallError] | None = None

    async def open(self) -> None:
        """Open the first session; raises the `CallError` that says why there is none."""
        try:
            import anyio

            from operations.sources.mcp import session  # the SDK is imported here and nowhere before
        except ImportError as error:
            self.state = MCPClientState.FAILED
            raise _missing(error) from error
        self._scope = anyio.CancelScope()
        self._open_session = session.open_session
        self._hooks = session.SessionHooks(self._note_end, self._note_change)
        self._outcome = asyncio.get_running_loop().create_future()
        first = self._outcome
        # A context of its own: what the opener keeps in context variables must not live as long as the connection.
        self._owner = asyncio.create_task(self._own(), name=f"mcp-{self.name}", context=contextvars.Context())
        try:
            outcome = await asyncio.shield(first)
        except asyncio.CancelledError:
            await self.close()
            raise
        if isinstance(outcome, CallError):
            await asyncio.wait((self._owner,))
            raise outcome

    async def get_session(self) -> ServerSession:
        """The session, or the next one if it is being renewed; `UNAVAILABLE` where it cannot be."""
        if self.session is not None:
            return self.session
        if self._outcome is None or self._is_closing:
            raise unavailable(self.name, f"the client is {self.state}")
        self._hurry.set()
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, CallError):
            raise outcome
        return outcome

    def renew(self, session: ServerSession) -> None:
        """Give up a session that the server does not know any more; another is opened at once."""
        if self.session is session:
            self._note_end()

    async def close(self) -> None:
        """Say goodbye and end; from any task, any number of times."""
        self._is_closing = True
        owner = self._owner
        if owner is None:
            self.state = MCPClientState.CLOSED
            return
        self._wake.set()
        if self.session is None:
            self._scope.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.wait((owner,))
        if not owner.done():
            self._scope.cancel()
            await asyncio.wait((owner,))

    async def _own(self) -> None:
        """The life of the connection: session after session until it is closed."""
        try:
            with self._scope:
                while not self._is_closing:
                    await self._hold_session()
                    if self.state is MCPClientState.CONNECTING:
                        break
                    if not self._is_closing:
                        self.state = MCPClientState.RECONNECTING
                        await self._pause()
        finally:
            failed = self.state is MCPClientState.CONNECTING and not self._is_closing
            self.state = MCPClientState.FAILED if failed else MCPClientState.CLOSED
            self.session = None
            self._settle(unavailable(self.name, "the client was closed"))
            self._outcome = None

    async def _hold_session(self) -> None:
        """Open one session and stay with it until it ends."""
        clock = asyncio.get_running_loop().time
        self._is_over = False
        self._wake.clear()
        opened = None
        try:
            async with self._open_session(self.name, self._config, self._hooks, protocol=self._protocol) as session:
                opened = clock()
                self._begin(session)
                await self._attend(session)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # told to whoever waits for the session
            self._fail(error, opened is not None)
        finally:
            self.session = None
        lived = 0.0 if opened is None else clock() - opened
        self._failures = 0 if lived > SHORT_LIFE else self._failures + 1

    async def _attend(self, session: ServerSession) -> None:
        """Wait for the end of the session, and meanwhile follow what the server changes."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_closing or self._is_over:
                return
            if self._has_changed:
                self._has_changed = False
                await self._on_changed(session)

    async def _pause(self) -> None:
        """Wait before the next attempt, longer the more often it failed; a call that waits for a session hurries it."""
        if self._outcome is None or self._outcome.done():
            self._outcome = asyncio.get_running_loop().create_future()
        if self._failures <= 1:
            return
        await asyncio.sleep(SHORTEST_PAUSE)
        delay = min(30.0, 0.25 * 2 ** (self._failures - 2)) * random.uniform(0.8, 1.2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._hurry.wait()

    def _begin(self, session: ServerSession) -> None:
        is_first = self.state is MCPClientState.CONNECTING
        self.session = session
        self.state = MCPClientState.CONNECTED
        self._has_changed = not is_first
        if self._has_changed:
            self._wake.set()
        self._settle(session)
        _log.debug("%s: connected, protocol %s", self.name, session.info.protocol_version)

    def _fail(self, error: BaseException, was_open: bool) -> None:
        reason = explain(error)
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if was_open:
            _log.warning("%s: the connection was lost: %s", self.name, reason)
            return
        failure = error if isinstance(error, CallError) else unavailable(self.name, f"cannot connect: {reason}")
        if self.state is not MCPClientState.CONNECTING:
            _log.warning("%s: cannot reconnect: %s", self.name, reason)
        self._settle(failure)

    def _settle(self, outcome: ServerSession | CallError) -> None:
        self._hurry.clear()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    def _note_end(self) -> None:
        self._is_over = True
        self.session = None
        if self._outcome is None or self._outcome.done():
            self._outcome = asyncio.get_running_loop().create_future()
        self._wake.set()

    def _note_change(self) -> None:
        self._has_changed = True
        self._wake.set()


def _missing(error: ImportError) -> ImportError:
    """The one line for an SDK that is not installed; another import that fails is told as it is."""
    return ImportError(MISSING, name=error.name) if (error.name or "").partition(".")[0] in _SDK else error
