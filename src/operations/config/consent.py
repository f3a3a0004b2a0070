"""A user's consent for an MCP server: shown to the user, and heard of where their browser is sent back to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from operations.errors import CallError, ErrorCode

ShowConsent = Callable[[str, str], Awaitable[None] | None]
"""Shows a user the address at which consent for a source (its name comes first) is given: opens it, or prints it."""

CONSENT_SECONDS = 300.0
"""How long a user may take."""

_LONGEST_HEAD = 16 * 1024
_PAGE = "<!doctype html><title>operations</title><p>That is all. You may close this page."


class Consent:
    """One source's consent: `open_url` shows the address and begins to listen, `wait` gives what came back."""

    def __init__(self, source: str, redirect_uri: str, show: ShowConsent | None) -> None:
        self._source = source
        self._redirect = urlsplit(redirect_uri)
        self._show = show
        self._server: asyncio.Server | None = None
        self._arrived: asyncio.Future[str] | None = None

    async def open_url(self, url: str) -> None:
        """Listen, then show the address."""
        if self._show is None:
            message = "it asks for a user's consent, and there is no user to ask: give it once at a terminal"
            raise CallError(ErrorCode.ACCESS_DENIED, message)
        self._arrived = asyncio.get_running_loop().create_future()
        host, port = self._redirect.hostname or "localhost", self._redirect.port or 80
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=_LONGEST_HEAD)
        except OSError as error:
            message = (
                f"cannot listen at {host}:{port} for the answer: {error.strerror or error}; set oauth.redirect_uri"
            )
            raise CallError(ErrorCode.UNAVAILABLE, message) from error
        answer = self._show(self._source, url)
        if inspect.isawaitable(answer):
            await answer

    async def wait(self) -> str:
        """The whole address that the browser was sent back to."""
        if self._arrived is None or self._server is None:
            raise CallError(ErrorCode.UNAVAILABLE, "consent was not asked for")
        try:
            return await self._arrived
        finally:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            target = head.split(b" ", 2)[1].decode("ascii", "replace")
            expected = urlsplit(target).path == (self._redirect.path or "/")
            status = "200 OK" if expected else "404 Not Found"
            body = _PAGE.encode() if expected else b""
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            )
            writer.write(body)
            await writer.drain()
            if expected and self._arrived is not None and not self._arrived.done():
                self._arrived.set_result(f"{self._redirect.scheme}://{self._redirect.netloc}{target}")
        except (OSError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()
