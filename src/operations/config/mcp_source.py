"""MCP sources: client configuration from settings, user consent for OAuth, and opening a server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from operations.config.settings import (
    CONSENT_SECONDS,
    NO_CALLBACKS,
    MCPSettings,
    ShowConsent,
    Source,
    SourceCallbacks,
)
from operations.config.validation import auth_headers, check_mcp
from operations.config.variables import variables_in
from operations.errors import CallError, ErrorCode
from operations.sources.mcp import MCPClient, MCPClientConfig, MCPOAuth
from operations.sources.mcp.config import MCPServerRequest, ServerRequestHandler

_MAX_HEAD_BYTES = 16 * 1024
_PAGE = "<!doctype html><title>operations</title><p>Done. You may close this page."


async def open_mcp(source: Source, stack: AsyncExitStack, callbacks: SourceCallbacks) -> MCPClient:
    """Connect to the server of a source and return the client; `stack` closes the connection."""
    assert isinstance(source.settings, MCPSettings)
    config = mcp_config(source.settings, source.directory, name=source.name, callbacks=callbacks)
    client = MCPClient(source.namespace, config)
    stack.push_async_callback(client.close)
    await client.open()
    return client


def mcp_config(
    settings: MCPSettings, directory: Path, *, name: str = "", callbacks: SourceCallbacks = NO_CALLBACKS
) -> MCPClientConfig:
    """Return the client configuration for a server; raise if settings contradict each other."""
    check_mcp(settings, directory)
    oauth = _mcp_oauth(settings, directory, name, callbacks.show_consent)
    consent_seconds = CONSENT_SECONDS if callbacks.show_consent is not None and settings.asks_user else 0.0
    headers = {**auth_headers(settings.auth), **settings.headers}
    env = {**variables_in(settings.env_file_path(directory)), **settings.env}
    is_command = settings.command is not None
    return MCPClientConfig(
        command=_command(settings.command, directory),
        args=settings.args,
        env=env or None,
        cwd=directory / Path(settings.cwd).expanduser() if settings.cwd else directory if is_command else None,
        url=settings.url,
        sse=settings.type == "sse",
        headers=headers,
        oauth=oauth,
        timeout=settings.timeout,
        connect_timeout=max(settings.connect_timeout, consent_seconds),
        max_message_bytes=settings.max_message_bytes,
        protocol=settings.protocol,
        elicitation=_elicitation(name, callbacks),
        on_request=callbacks.on_request,
        on_response=callbacks.on_response,
        trace=settings.trace,
        identity_fields=settings.identity_fields,
    )


def _elicitation(name: str, callbacks: SourceCallbacks) -> ServerRequestHandler | None:
    elicit = callbacks.elicit
    if elicit is None:
        return None

    async def answer(request: MCPServerRequest) -> Mapping[str, Any]:
        return await elicit(name, request.params)

    return answer


class Consent:
    """A user's consent for one source: `open_url` shows a URL, `wait` returns the URL of the redirect that follows."""

    def __init__(self, source: str, redirect_uri: str, show: ShowConsent | None) -> None:
        self._source = source
        self._redirect = urlsplit(redirect_uri)
        self._show = show
        self._server: asyncio.Server | None = None
        self._arrived: asyncio.Future[str] | None = None

    async def open_url(self, url: str) -> None:
        """Listen for the redirect, then show the URL; raise `ACCESS_DENIED` if no user can see it."""
        if self._show is None:
            message = "user consent required: run 'ops ls --refresh' once in a terminal to give it"
            raise CallError(ErrorCode.ACCESS_DENIED, message)
        self._arrived = asyncio.get_running_loop().create_future()
        host, port = self._redirect.hostname or "localhost", self._redirect.port or 80
        try:
            self._server = await asyncio.start_server(self._handle_redirect, host, port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            message = (
                f"cannot listen on {host}:{port} for the redirect: {error.strerror or error}; set oauth.redirect_uri"
            )
            raise CallError(ErrorCode.UNAVAILABLE, message) from error
        answer = self._show(self._source, url)
        if inspect.isawaitable(answer):
            await answer

    async def wait(self) -> str:
        """Return the URL that the browser was redirected to."""
        if self._arrived is None or self._server is None:
            raise CallError(ErrorCode.UNAVAILABLE, "consent was not requested: call open_url() first")
        try:
            return await self._arrived
        finally:
            self._server.close()
            self._server = None

    async def _handle_redirect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


def _command(command: str | None, directory: Path) -> str | None:
    """Return a program's path; a relative path starts at `directory`. A name without a slash stays unchanged."""
    if command is None or "/" not in command:
        return command
    return str(directory / Path(command).expanduser())


def _mcp_oauth(settings: MCPSettings, directory: Path, name: str, show_consent: ShowConsent | None) -> MCPOAuth | None:
    auth, oauth = settings.auth, settings.oauth
    if oauth is None:
        if auth is None or auth.type != "oauth2":
            return None
        return MCPOAuth(client_id=auth.client_id, client_secret=auth.client_secret, scope=" ".join(auth.scopes) or None)
    given: dict[str, Any] = msgspec.structs.asdict(oauth)
    del given["grant"]
    storage = given.pop("storage")
    if storage is not None:
        given["storage"] = directory / Path(storage).expanduser()
    if oauth.asks_user:
        consent = Consent(name, oauth.redirect_uri, show_consent)
        given |= {"open_url": consent.open_url, "wait_for_redirect": consent.wait}
    return MCPOAuth(**given)
