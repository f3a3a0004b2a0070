"""Configuration of an API: address, credentials, retries and limits."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest
from operations.schema import Policy
from operations.settings import check_fields, check_seconds, read_settings
from operations.sources.openapi.origins import check_origins

RequestHook = Callable[[HTTPRequest], Awaitable[HTTPRequest | None] | HTTPRequest | None]
ResponseHook = Callable[[HTTPRequest, int, Sequence[tuple[str, str]]], Awaitable[None] | None]


class HTTPAuth(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of one type; its repr has no secrets."""

    type: Literal["bearer", "api_key", "apiKey", "basic", "oauth2"]
    """The kind of credential; `apiKey`, the spelling of OpenAPI, is read as `api_key`."""
    token: str | None = None
    """Bearer token or API key. For type `basic`, the base64 text of `username:password`; the fields `username` and
    `password` are then not needed.
    """
    header_name: str | None = None
    """Name of the header, query parameter or cookie (see `location`) with the credentials."""
    location: Literal["header", "query", "cookie"] = "header"
    prefix: str | None = None
    """Prefix of the token: by default `Bearer`, or `Basic` for type `basic`; none for an API key."""
    username: str | None = None
    password: str | None = None
    token_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.type == "apiKey":
            msgspec.structs.force_setattr(self, "type", "api_key")
        check_fields(self, "auth")
        missing = {
            "bearer": None if self.token else "token",
            "api_key": None if self.token else "token",
            "basic": None if self.token or self.username is not None else "username",
            "oauth2": None if self.token or self.client_id else "client_id",
        }[self.type]
        if missing:
            message = f"auth of type {self.type!r} has no {missing}: set {missing}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)

    def __repr__(self) -> str:
        return f"HTTPAuth(type={self.type!r}, …)"


class HTTPRetry(msgspec.Struct, frozen=True, kw_only=True):
    """Retries of calls after the listed statuses and after connection failures.

    By default, only calls that are safe to repeat are retried.
    """

    attempts: int = 3
    statuses: Sequence[int] = (429, 502, 503, 504)
    first_delay: float = 0.25
    longest_delay: float = 20.0
    """Longest delay in seconds before a retry. If `Retry-After` is longer, the call is not retried."""
    mutations: bool = False
    """Whether calls that are not idempotent in HTTP are retried as well."""

    def __post_init__(self) -> None:
        check_fields(self, "retry")


class HTTPLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an API's responses, redirects and connections."""

    response_bytes: int = 64 * 1024 * 1024
    """Maximum size of a decompressed body; downloads to a file are not limited."""
    event_bytes: int = 16 * 1024 * 1024
    redirects: int = 5
    connections: int = 100

    def __post_init__(self) -> None:
        check_fields(self, "limits")


class HTTPServiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An API: namespace of its operations, base URL, credentials and limits."""

    namespace: str | None
    """The namespace of the operations. For the document of another registry: a prefix for its namespaces, None for no
    prefix.
    """
    base_url: str | None = None
    """The base URL of all requests; it replaces the servers that the document declares."""
    server_variables: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    content_types: Sequence[str] = ()
    """Preferred media types of request bodies, best first, for operations with several suitable ones."""
    auth: HTTPAuth | Mapping[str, HTTPAuth] | None = None
    """One credential for every call, or a mapping from the names of the document's security schemes to credentials."""
    credential_origins: Sequence[str] = ()
    """Further origins, such as `https://login.example.com`, that receive `auth` and `headers`.

    The origin of `base_url` always receives them; without `base_url`, the origin that the document was requested from.
    """
    timeout: float = 30.0
    """Time limit in seconds for each request of a call; retries and redirects are separate requests.

    For a streamed response, the limit ends when its headers arrive.
    """
    idle_timeout: float | None = None
    """Time limit in seconds between pieces of an event stream or download; none by default."""
    retry: HTTPRetry = HTTPRetry()
    limits: HTTPLimits = HTTPLimits()
    client: HTTPClient | None = None
    proxy: str | None = None
    output_policy: Policy | None = None
    reconnect: int = 0
    """Maximum number of reconnections of an event stream that ends or fails; each sends the last event id, if any."""
    cache: bool = False
    """Whether responses with a validator (`ETag`, `Last-Modified`) are cached and revalidated."""
    on_request: RequestHook | None = None
    on_response: ResponseHook | None = None

    def __post_init__(self) -> None:
        # Settings from a configuration file are mappings.
        force = msgspec.structs.force_setattr
        force(self, "retry", read_settings(self.retry, HTTPRetry, "retry"))
        force(self, "limits", read_settings(self.limits, HTTPLimits, "limits"))
        auth: Any = self.auth
        if isinstance(auth, Mapping) and not isinstance(auth.get("type"), str):
            force(self, "auth", {name: read_settings(value, HTTPAuth, "auth") for name, value in auth.items()})
        elif auth is not None:
            force(self, "auth", read_settings(auth, HTTPAuth, "auth"))
        check_fields(self, "HTTPServiceConfig")
        check_seconds(self, "HTTPServiceConfig", "timeout", "idle_timeout")
        check_origins(self.credential_origins)
        if self.client is not None and not callable(getattr(self.client, "send", None)):
            message = f"HTTPServiceConfig: invalid client: {type(self.client).__name__} has no method send"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        for name in ("on_request", "on_response"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise CallError(ErrorCode.VALIDATION_ERROR, f"HTTPServiceConfig: invalid {name}: expected a function")


class HTTPCallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one call: pass them as `metadata={"http": HTTPCallOptions(...)}` in the call's context.

    Only an instance of this class is accepted; a mapping is ignored. A remote caller can send only a mapping, and can
    therefore neither set headers nor write files.
    """

    headers: Mapping[str, str] = {}
    auth: HTTPAuth | None = None
    content_type: str | None = None
    """Media type of the request body."""
    timeout: float | None = None
    dry_run: bool = False
    """Whether the call returns the request instead of sending it."""
    download_to: str | os.PathLike[str] | None = None
    """Path that the body is written to as it arrives; `data` is then the path and the size."""
    url: str | None = None
    """URL to send the request to, such as the next page of a list; it must have the origin of the API."""

    def __post_init__(self) -> None:
        if self.auth is not None:
            msgspec.structs.force_setattr(self, "auth", read_settings(self.auth, HTTPAuth, "auth"))
        check_fields(self, "HTTPCallOptions")
        check_seconds(self, "HTTPCallOptions", "timeout")


NO_OPTIONS = HTTPCallOptions()
