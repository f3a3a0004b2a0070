"""MCPConnection: one session with a server, kept open by an owner task that opens, renews and closes it."""

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
from operations.sources.mcp.protocol import ServerSession, explain, unavailable

_log = logging.getLogger("operations.mcp")

MISSING = 'MCP servers require the MCP SDK: pip install "operations[mcp]"'
_SDK = frozenset({"mcp", "mcp_types", "anyio", "httpx2", "pydantic"})
CLOSE_SECONDS = 5.0
"""Time limit of an orderly close, after which the connection is aborted."""
MIN_PAUSE_SECONDS = 0.05
MIN_SESSION_SECONDS = 5.0
"""A session that lasts less than this time counts as a failed attempt, so that back-off applies."""


class MCPClientState(StrEnum):
    """State of a client's connection."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    CLOSED = "closed"


class MCPConnection:
    """Keeps a session open for callers in any task; one owner task opens, watches and closes it."""

    def __init__(
        self, name: str, config: MCPClientConfig, on_changed: Callable[[ServerSession], Awaitable[None]]
    ) -> None:
        self.name = name
        self.state = MCPClientState.CONNECTING
        self.session: ServerSession | None = None
        """The open session, if any."""
        self._config = config
        self._on_changed = on_changed
        self._owner: asyncio.Task[None] | None = None
        self._scope: Any = None
        self._wake = asyncio.Event()
        self._retry_now = asyncio.Event()
        self._is_closing = False
        self._has_changed = False
        self._is_over = False
        self._protocol = config.protocol
        self._failures = 0
        self._outcome: asyncio.Future[ServerSession | CallError] | None = None

    async def open(self) -> None:
        """Open the first session; raise `CallError` if that fails, and `ImportError` if the SDK is not installed."""
        try:
            import anyio

            from operations.sources.mcp import session  # imports the SDK
        except ImportError as error:
            self.state = MCPClientState.FAILED
            raise _missing(error) from error
        self._scope = anyio.CancelScope()
        self._open_session = session.open_session
        self._hooks = session.SessionHooks(self._on_end, self._on_list_changed)
        self._outcome = asyncio.get_running_loop().create_future()
        first = self._outcome
        # An empty context: the opener's context variables must not live as long as the connection.
        self._owner = asyncio.create_task(self._run(), name=f"mcp-{self.name}", context=contextvars.Context())
        try:
            outcome = await asyncio.shield(first)
        except asyncio.CancelledError:
            await self.close()
            raise
        if isinstance(outcome, CallError):
            await asyncio.wait((self._owner,))
            raise outcome

    async def get_session(self) -> ServerSession:
        """Return the session, or wait until one is open. Raise `CallError` if opening fails or the client is closed."""
        if self.session is not None:
            return self.session
        if self._outcome is None or self._is_closing:
            raise unavailable(self.name, f"the client is {self.state}")
        self._retry_now.set()
        outcome = await asyncio.shield(self._outcome)
        if isinstance(outcome, CallError):
            raise outcome
        return outcome

    def renew(self, session: ServerSession) -> None:
        """Replace a session that the server ended."""
        if self.session is session:
            self._on_end()

    async def close(self) -> None:
        """Close the session; callable from any task, any number of times."""
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

    async def _run(self) -> None:
        """Open one session after another, until the connection is closed or the first session cannot be opened."""
        try:
            with self._scope:
                while not self._is_closing:
                    await self._run_session()
                    if self.state is MCPClientState.CONNECTING:
                        break
                    if not self._is_closing:
                        self.state = MCPClientState.RECONNECTING
                        await self._pause()
        finally:
            failed = self.state is MCPClientState.CONNECTING and not self._is_closing
            self.state = MCPClientState.FAILED if failed else MCPClientState.CLOSED
            self.session = None
            self._set_outcome(unavailable(self.name, "the client was closed"))
            self._outcome = None

    async def _run_session(self) -> None:
        """Open one session and wait for its end."""
        clock = asyncio.get_running_loop().time
        self._is_over = False
        self._wake.clear()
        opened = None
        try:
            async with self._open_session(self.name, self._config, self._hooks, protocol=self._protocol) as session:
                opened = clock()
                self._start(session)
                await self._watch(session)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # passed to the callers that wait for the session
            self._fail(error, opened is not None)
        finally:
            self.session = None
        lived = 0.0 if opened is None else clock() - opened
        self._failures = 0 if lived > MIN_SESSION_SECONDS else self._failures + 1

    async def _watch(self, session: ServerSession) -> None:
        """Wait for the end of the session; report changes of the list of tools meanwhile."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_closing or self._is_over:
                return
            if self._has_changed:
                self._has_changed = False
                await self._on_changed(session)

    async def _pause(self) -> None:
        """Wait before an attempt, except after a first failure; while a call waits, only for `MIN_PAUSE_SECONDS`."""
        if self._outcome is None or self._outcome.done():
            self._outcome = asyncio.get_running_loop().create_future()
        if self._failures <= 1:
            return
        await asyncio.sleep(MIN_PAUSE_SECONDS)
        delay = min(30.0, 0.25 * 2 ** (self._failures - 2)) * random.uniform(0.8, 1.2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._retry_now.wait()

    def _start(self, session: ServerSession) -> None:
        is_first = self.state is MCPClientState.CONNECTING
        self.session = session
        self.state = MCPClientState.CONNECTED
        self._has_changed = not is_first
        if self._has_changed:
            self._wake.set()
        self._set_outcome(session)
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
        self._set_outcome(failure)

    def _set_outcome(self, outcome: ServerSession | CallError) -> None:
        self._retry_now.clear()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    def _on_end(self) -> None:
        self._is_over = True
        self.session = None
        if self._outcome is None or self._outcome.done():
            self._outcome = asyncio.get_running_loop().create_future()
        self._wake.set()

    def _on_list_changed(self) -> None:
        self._has_changed = True
        self._wake.set()


def _missing(error: ImportError) -> ImportError:
    """Return the error with install instructions if the SDK is missing, else the error itself."""
    return ImportError(MISSING, name=error.name) if (error.name or "").partition(".")[0] in _SDK else error
