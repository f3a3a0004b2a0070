"""MCPClientConfig: the address, limits and handlers of one MCP server."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPRequest
from operations.schema import Policy
from operations.settings import check_fields, check_seconds, read_settings

MEBIBYTE = 1024 * 1024


class MCPServerRequest(msgspec.Struct, frozen=True):
    """A request of a server during a call: to elicit input from the user, or to sample a model."""

    server: str
    """The server's name in this program."""
    method: str
    params: Mapping[str, Any]
    """The parameters of the request, with the names that the protocol defines."""


ServerRequestHandler = Callable[[MCPServerRequest], Awaitable[Mapping[str, Any] | None]]
"""Function that handles a request of a server. It returns the result in the protocol's format, or None to decline."""


class MCPOAuth(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth for an HTTP server: with a user's consent, or with client credentials."""

    storage: str | Path = "~/.config/operations/mcp"
    """The directory for tokens and registrations: one private file per server URL."""
    scope: str | None = None
    client_id: str | None = None
    """The id of a client registered with the authorisation server. If it is None, this client registers itself."""
    client_secret: str | None = None
    client_name: str = "operations"
    client_metadata_url: str | None = None
    """The https URL of a document about this client; some authorisation servers accept the URL as the client id."""
    redirect_uri: str = "http://localhost:8765/callback"
    open_url: Callable[[str], Awaitable[None]] | None = None
    """Function that shows the user the URL for consent. Without this function, the client credentials grant is used."""
    wait_for_redirect: Callable[[], Awaitable[str]] | None = None
    """Function that returns the whole URL to which the user's browser was redirected after consent."""
    issuer: str | None = None
    """The authorisation server of `client_id` and `client_secret`, by default the MCP server itself.

    The secret is sent to no other server.
    """

    def __post_init__(self) -> None:
        check_fields(self, "oauth")


class MCPClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server: a `command` to run and use over stdio, or the `url` of a streamable HTTP server."""

    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    """Environment variables of the server, in addition to the few that it inherits (PATH, HOME, …)."""
    cwd: str | Path | None = None
    url: str | None = None
    sse: bool = False
    """Whether the server at `url` has only the transport HTTP+SSE of 2024-11-05, with messages of at most 1 MiB."""
    headers: Mapping[str, str] = {}
    oauth: MCPOAuth | None = None
    timeout: float | None = 300.0
    """Seconds a call without a deadline may take; None for no limit."""
    connect_timeout: float = 30.0
    """Time limit in seconds for starting and initialising the server. Listing the tools has a separate limit of the
    same length.
    """
    max_message_bytes: int = 256 * MEBIBYTE
    """Largest message in either direction, after decompression. In an event stream, the limit applies to each event."""
    protocol: str = "auto"
    """`auto` negotiates a version and falls back to the `initialize` handshake. `legacy` uses only the handshake. With
    a version such as `2026-07-28`, the client requests that version, and does not fall back if the server rejects it.
    """
    elicitation: ServerRequestHandler | None = None
    sampling: ServerRequestHandler | None = None
    on_request: Callable[[HTTPRequest], None] | None = None
    """Called with the method, URL and headers of each HTTP request."""
    on_response: Callable[[HTTPRequest, int, Sequence[tuple[str, str]]], None] | None = None
    """Called for each HTTP response with its request, its status and its headers."""
    trace: bool = True
    """Whether `traceparent` and `tracestate` of a call's metadata are sent to the server."""
    identity_fields: Sequence[str] = ()
    """Fields of the caller's identity that are sent to the server, such as `claims.email`; none by default."""
    output_policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.oauth is not None:
            msgspec.structs.force_setattr(self, "oauth", read_settings(self.oauth, MCPOAuth, "oauth"))
        check_fields(self, "MCPClientConfig")
        check_seconds(self, "MCPClientConfig", "timeout", "connect_timeout")
        if (self.command is None) == (self.url is None):
            given = "not both" if self.command is not None else "but neither is set"
            message = f"expected either a command (stdio) or a url (streamable HTTP), {given}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        misplaced = self._misplaced()
        if misplaced:
            kind = "a command" if self.url is None else "a url"
            message = f"{', '.join(misplaced)} cannot be used by an MCP server with {kind}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)

    def _misplaced(self) -> list[str]:
        """Return the names of the fields that do not suit this config.

        With a `command`, these are the fields for a `url`; with a `url`, the fields for a `command`.
        """
        if self.url is None:
            other: dict[str, Any] = {"headers": self.headers, "oauth": self.oauth, "sse": self.sse}
        else:
            other = {"args": self.args, "env": self.env, "cwd": self.cwd}
        return [name for name, value in other.items() if value]


_TEXT = re.compile(r"[^A-Za-z0-9_-]+")
_STDIO_KINDS = frozenset({"stdio", "local"})
_HTTP_KINDS = frozenset({"http", "streamable-http", "streamable_http", "streamableHttp", "remote", "sse"})
_FIELDS = frozenset(MCPClientConfig.__struct_fields__)


def read_servers(configs: Mapping[str, Any]) -> dict[str, MCPClientConfig | CallError | None]:
    """Return the config of each server in `{"name": {…}}` or `{"mcpServers": {…}}`, by name.

    An invalid config is replaced by its error, the config of a disabled server by None.
    """
    servers = configs
    if set(configs) == {"mcpServers"} and isinstance(configs["mcpServers"], Mapping):
        servers = configs["mcpServers"]
    read: dict[str, MCPClientConfig | CallError | None] = {}
    for name, entry in servers.items():
        try:
            read[name] = read_config(name, entry)
        except CallError as error:
            read[name] = error
    return read


def read_config(name: str, entry: Any) -> MCPClientConfig | None:
    """Return the config of an entry of an `mcpServers` mapping; None if the entry is disabled."""
    if isinstance(entry, MCPClientConfig):
        return entry
    if not isinstance(entry, Mapping):
        message = f"MCP server {name!r}: expected a mapping or an MCPClientConfig, not {type(entry).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    if entry.get("disabled") is True:
        return None
    kind = entry.get("type")
    known = {key: value for key, value in entry.items() if key in _FIELDS}
    _check_kind(name, kind, known)
    if kind == "sse":
        known["sse"] = True
    try:
        return MCPClientConfig(**known)
    except CallError as error:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"MCP server {name!r}: {error.message}") from None


def namespace_of(name: str) -> str:
    """Return the namespace for a server's name: the name, with `_` for characters that a namespace cannot have."""
    segments = [_TEXT.sub("_", segment) or "_" for segment in name.split(".")]
    return ".".join(segments)


def _check_kind(name: str, kind: Any, known: Mapping[str, Any]) -> None:
    misplaced = "url" if kind in _STDIO_KINDS else "command" if kind in _HTTP_KINDS else None
    if kind is None or (misplaced is not None and misplaced not in known):
        return
    message = f"MCP server {name!r}: invalid type {kind!r}: expected stdio with command, or http with url"
    raise CallError(ErrorCode.VALIDATION_ERROR, message)
