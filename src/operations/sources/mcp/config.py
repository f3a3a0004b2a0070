"""MCPClientConfig: how one MCP server is reached and what it may ask of us; nothing here opens anything."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from operations.errors import CallError, ErrorCode
from operations.schema import Policy

MEBIBYTE = 1024 * 1024


class MCPServerRequest(msgspec.Struct, frozen=True):
    """What a server asks of its client in the middle of a call: to elicit from the user, or to sample a model."""

    server: str
    """The name the server was given here."""
    method: str
    params: Mapping[str, Any]
    """The request's parameters with the names the protocol gives them."""


ServerRequestHandler = Callable[[MCPServerRequest], Awaitable[Mapping[str, Any] | None]]
"""Answers with the protocol's result as a mapping; None declines."""


class MCPOAuth(msgspec.Struct, frozen=True, kw_only=True):
    """How to be authorised by an HTTP server: a user's consent, or with a secret as the client itself."""

    storage: str | Path = "~/.config/operations/mcp"
    """The folder for tokens and registrations: one private file for each server address."""
    scope: str | None = None
    client_id: str | None = None
    """A client registered beforehand; without one the client registers itself."""
    client_secret: str | None = None
    client_name: str = "operations"
    client_metadata_url: str | None = None
    """An https address that describes this client, for authorisation servers that take it as the client's id."""
    redirect_uri: str = "http://localhost:8765/callback"
    open_url: Callable[[str], Awaitable[None]] | None = None
    """Shows the user the address at which consent is given. Without it the client credentials grant is used."""
    wait_for_redirect: Callable[[], Awaitable[str]] | None = None
    """Gives the whole address that the user's browser was sent back to."""
    issuer: str | None = None
    """The authorisation server that the client credentials belong to; they are shown to no other."""


class MCPClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server: a `command` to talk to over its standard streams, or the `url` of a streamable HTTP server."""

    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    """Added to the few variables a server inherits (PATH, HOME, …): not everything of ours is its business."""
    cwd: str | Path | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    oauth: MCPOAuth | None = None
    timeout: float | None = 300.0
    """Seconds a call without a deadline may take; None for no limit."""
    connect_timeout: float = 30.0
    """Seconds for starting and greeting the server, and again for listing what it offers."""
    max_message_bytes: int = 256 * MEBIBYTE
    protocol: str = "auto"
    """`auto` asks the server; `legacy` is the initialize handshake; or a version without one, such as `2026-07-28`."""
    elicitation: ServerRequestHandler | None = None
    sampling: ServerRequestHandler | None = None
    trace: bool = True
    """Whether `traceparent` and `tracestate` of a call's metadata travel to the server."""
    identity_fields: Sequence[str] = ()
    """Fields of the caller's identity that the server is told (`id`, `scopes`, `claims.email`); none by default."""
    output_policy: Policy | None = None

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            given = "both" if self.command is not None else "neither"
            message = f"an MCP server has either a command (stdio) or a url (streamable HTTP); {given} was given"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        misplaced = self._misplaced()
        if misplaced:
            kind = "a command" if self.url is None else "a url"
            message = f"{', '.join(misplaced)} cannot be given for an MCP server with {kind}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)

    def _misplaced(self) -> list[str]:
        """The names of what is given and belongs to the other kind of server."""
        if self.url is None:
            other: dict[str, Any] = {"headers": self.headers, "oauth": self.oauth}
        else:
            other = {"args": self.args, "env": self.env, "cwd": self.cwd}
        return [name for name, value in other.items() if value]


_TEXT = re.compile(r"[^A-Za-z0-9_-]+")
_STDIO_KINDS = frozenset({"stdio", "local"})
_HTTP_KINDS = frozenset({"http", "streamable-http", "streamable_http", "streamableHttp", "remote"})
_FIELDS = frozenset(MCPClientConfig.__struct_fields__)


def read_servers(configs: Mapping[str, Any]) -> dict[str, MCPClientConfig | CallError | None]:
    """Each server of `{"name": {…}}` or `{"mcpServers": {…}}`: its config, what is wrong with it, None if disabled."""
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
    """The config that an entry of an `mcpServers` mapping describes; None for one that is disabled."""
    if isinstance(entry, MCPClientConfig):
        return entry
    if not isinstance(entry, Mapping):
        message = f"MCP server {name!r}: a mapping or an MCPClientConfig is wanted, not {type(entry).__name__}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    if entry.get("disabled") is True:
        return None
    kind = entry.get("type")
    known = {key: value for key, value in entry.items() if key in _FIELDS}
    _check_kind(name, kind, known)
    try:
        return _convert(known)
    except (msgspec.ValidationError, CallError) as error:
        reason = error.message if isinstance(error, CallError) else str(error)
        raise CallError(ErrorCode.VALIDATION_ERROR, f"MCP server {name!r}: {reason}") from None


def namespace_of(name: str) -> str:
    """The namespace for a server's name: the name itself, other characters than a namespace may have as `_`."""
    segments = [_TEXT.sub("_", segment) or "_" for segment in name.split(".")]
    return ".".join(segments)


def _check_kind(name: str, kind: Any, known: Mapping[str, Any]) -> None:
    misfit = "url" if kind in _STDIO_KINDS else "command" if kind in _HTTP_KINDS else None
    if kind is None or (misfit is not None and misfit not in known):
        return
    message = f"MCP server {name!r}: type {kind!r} is not one of stdio and http, or does not fit the rest"
    raise CallError(ErrorCode.VALIDATION_ERROR, message)


def _convert(known: dict[str, Any]) -> MCPClientConfig:
    """A config from plain data; functions and an `MCPOAuth` in it are taken as they are."""
    oauth = known.get("oauth")
    if isinstance(oauth, Mapping):
        known = {**known, "oauth": MCPOAuth(**oauth)}
    for field in ("command", "url"):
        if not isinstance(known.get(field), str | None):
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{field} is text")
    if isinstance(known.get("args"), str):
        raise CallError(ErrorCode.VALIDATION_ERROR, "args is a list of texts")
    return MCPClientConfig(**known)
