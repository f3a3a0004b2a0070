"""Settings of a source as the settings of the client that opens it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec

from operations.config.consent import CONSENT_SECONDS, Consent, ShowConsent
from operations.config.models import Source
from operations.config.settings import AuthSettings, MCPSettings, OpenAPISettings
from operations.config.variables import read_variable_file
from operations.errors import CallError, ErrorCode
from operations.sources.mcp.config import MCPClientConfig, MCPOAuth, namespace_of
from operations.sources.openapi.config import HTTPAuth, HTTPLimits, HTTPRetry, HTTPServiceConfig


def namespace_for(source: Source) -> str:
    """The namespace of a source whose operations have none of their own."""
    return source.settings.namespace or namespace_of(source.name)


def mcp_config(
    settings: MCPSettings, folder: Path, *, name: str = "", show_consent: ShowConsent | None = None
) -> MCPClientConfig:
    """How an MCP server is reached; raises where the settings do not fit together."""
    oauth = _mcp_oauth(settings, folder, name, show_consent)
    patience = CONSENT_SECONDS if show_consent is not None and asks_user(settings) else 0.0
    headers = {**_auth_headers(settings.auth), **settings.headers}
    env = {**_env_file(settings, folder), **settings.env}
    is_command = settings.command is not None
    return MCPClientConfig(
        command=_command(settings.command, folder),
        args=settings.args,
        env=env or None,
        cwd=folder / Path(settings.cwd).expanduser() if settings.cwd else folder if is_command else None,
        url=settings.url,
        headers=headers,
        oauth=oauth,
        timeout=settings.timeout,
        connect_timeout=max(settings.connect_timeout, patience),
        max_message_bytes=settings.max_message_bytes,
        protocol=settings.protocol,
        trace=settings.trace,
        identity_fields=settings.identity_fields,
    )


def service_config(settings: OpenAPISettings, namespace: str) -> HTTPServiceConfig:
    """How an API is called."""
    if settings.auth is not None and settings.security:
        message = "auth is for every request and security for each scheme: give one of the two"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    security = {name: _http_auth(auth) for name, auth in settings.security.items()}
    return HTTPServiceConfig(
        namespace=namespace,
        base_url=settings.base_url,
        server_variables=settings.server_variables,
        headers=settings.headers,
        auth=security or (_http_auth(settings.auth) if settings.auth is not None else None),
        timeout=settings.timeout,
        idle_timeout=settings.idle_timeout,
        retry=HTTPRetry(**msgspec.structs.asdict(settings.retry)),
        limits=HTTPLimits(**msgspec.structs.asdict(settings.limits)),
        proxy=settings.proxy,
        reconnect=settings.reconnect,
        cache=settings.cache,
    )


def check_auth(auth: AuthSettings) -> None:
    """Raise where credentials lack what their type needs."""
    needed = {
        "bearer": ("token",),
        "api_key": ("token",),
        "basic": ("username", "password"),
        "oauth2": ("client_id", "client_secret"),
    }[auth.type]
    missing = [name for name in needed if getattr(auth, name) is None]
    if missing:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{auth.type} needs {' and '.join(missing)}")


def _command(command: str | None, folder: Path) -> str | None:
    """A program by its path, relative to the file, or by a name that is looked up as always."""
    if command is None or "/" not in command:
        return command
    return str(folder / Path(command).expanduser())


def _http_auth(auth: AuthSettings) -> HTTPAuth:
    check_auth(auth)
    return HTTPAuth(**msgspec.structs.asdict(auth))


def asks_user(settings: MCPSettings) -> bool:
    """Whether opening a server may need a user's consent."""
    return settings.oauth is not None and settings.oauth.asks_user


def _mcp_oauth(settings: MCPSettings, folder: Path, name: str, show_consent: ShowConsent | None) -> MCPOAuth | None:
    auth, oauth = settings.auth, settings.oauth
    if oauth is None:
        if auth is None or auth.type != "oauth2":
            return None
        check_auth(auth)
        return MCPOAuth(client_id=auth.client_id, client_secret=auth.client_secret, scope=" ".join(auth.scopes) or None)
    if not oauth.asks_user and (oauth.client_id is None or oauth.client_secret is None):
        message = "oauth: client_credentials needs client_id and client_secret"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    given: dict[str, Any] = msgspec.structs.asdict(oauth)
    del given["grant"]
    storage = given.pop("storage")
    if storage is not None:
        given["storage"] = folder / Path(storage).expanduser()
    if oauth.asks_user:
        consent = Consent(name, oauth.redirect_uri, show_consent)
        given |= {"open_url": consent.open_url, "wait_for_redirect": consent.wait}
    return MCPOAuth(**given)


def _auth_headers(auth: AuthSettings | None) -> dict[str, str]:
    """The header that shows credentials to an MCP server."""
    if auth is None or auth.type == "oauth2":
        return {}
    check_auth(auth)
    if auth.type == "basic":
        pair = base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    if auth.type == "bearer":
        return {auth.header_name or "Authorization": f"{auth.prefix or 'Bearer'} {auth.token}"}
    if auth.location != "header":
        raise CallError(ErrorCode.VALIDATION_ERROR, "an API key of an MCP server goes in a header")
    return {auth.header_name or "X-API-Key": f"{auth.prefix} {auth.token}" if auth.prefix else str(auth.token)}


def _env_file(settings: MCPSettings, folder: Path) -> dict[str, str]:
    if settings.env_file is None:
        return {}
    path = folder / Path(settings.env_file).expanduser()
    file = read_variable_file(path)
    if file.unreadable is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"env_file: {file.unreadable}")
    if file.bad_lines:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"env_file: {path}:{file.bad_lines[0]}: a line is NAME=value")
    return dict(file.values)
