"""Configuration of an API: address, credentials, retries and limits."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest
from operations.schema import Policy
from operations.sources.openapi.origins import check_origins

T = TypeVar("T")

RequestHook = Callable[[HTTPRequest], Awaitable[HTTPRequest | None] | HTTPRequest | None]
ResponseHook = Callable[[HTTPRequest, int, Sequence[tuple[str, str]]], Awaitable[None] | None]


class HTTPAuth(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of one type; its repr has no secrets."""

    type: Literal["bearer", "api_key", "basic", "oauth2"]
    token: str | None = None
    """Bearer token or API key."""
    header_name: str | None = None
    """Header (or, by `location`, query parameter or cookie) with the API key."""
    location: Literal["header", "query", "cookie"] = "header"
    prefix: str | None = None
    """Prefix of the token: `Bearer` by default, none for an API key."""
    username: str | None = None
    password: str | None = None
    token_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"HTTPAuth(type={self.type!r}, …)"


class HTTPRetry(msgspec.Struct, frozen=True, kw_only=True):
    """Retries: only of calls that are safe to repeat, and only after the listed statuses or connection failures."""

    attempts: int = 3
    statuses: Sequence[int] = (429, 502, 503, 504)
    first_delay: float = 0.25
    longest_delay: float = 20.0
    """Maximum delay in seconds, also for `Retry-After`."""
    mutations: bool = False
    """Whether calls that are not idempotent in HTTP are retried as well."""


class HTTPLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits above which a call fails with an error."""

    response_bytes: int = 64 * 1024 * 1024
    """Maximum size of a decompressed body; downloads to a file are not limited."""
    event_bytes: int = 16 * 1024 * 1024
    redirects: int = 5
    connections: int = 100


class HTTPServiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An API: namespace of its operations, base URL, credentials and limits."""

    namespace: str | None
    """The namespace of the operations. For a document of another registry the prefix of theirs; None for no prefix."""
    base_url: str | None = None
    """Replaces the document's servers."""
    server_variables: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    content_types: Sequence[str] = ()
    """Preferred media types of request bodies, best first, for operations with several suitable ones."""
    auth: HTTPAuth | Mapping[str, HTTPAuth] | None = None
    """One credential for every call, or several by the document's security scheme names."""
    credential_origins: Sequence[str] = ()
    """Further origins, such as `https://login.example.com`, that receive `auth` and `headers`.

    The origin of `base_url`, or without it the origin that the document was requested from, always receives them.
    """
    timeout: float = 30.0
    """Time limit in seconds for a call; for a streamed response, until its headers."""
    idle_timeout: float | None = None
    """Time limit in seconds between pieces of an event stream or download; none by default."""
    retry: HTTPRetry = HTTPRetry()
    limits: HTTPLimits = HTTPLimits()
    client: HTTPClient | None = None
    proxy: str | None = None
    output_policy: Policy | None = None
    reconnect: int = 0
    """Maximum number of reconnections of a stream with `Last-Event-ID`."""
    cache: bool = False
    """Whether responses with a validator (`ETag`, `Last-Modified`) are cached and revalidated."""
    on_request: RequestHook | None = None
    on_response: ResponseHook | None = None

    def __post_init__(self) -> None:
        check_origins(self.credential_origins)
        # Settings from a configuration file are mappings.
        force = msgspec.structs.force_setattr
        for name, kind in (("retry", HTTPRetry), ("limits", HTTPLimits)):
            if isinstance(getattr(self, name), Mapping):
                force(self, name, _read(name, getattr(self, name), kind))
        auth = self.auth
        if isinstance(auth, Mapping):
            if isinstance(auth.get("type"), str):
                force(self, "auth", _read("auth", auth, HTTPAuth))
            else:
                force(self, "auth", {name: _read("auth", value, HTTPAuth) for name, value in auth.items()})


def _read(name: str, value: Any, kind: type[T]) -> T:
    """Convert a mapping to a settings struct; raise `VALIDATION_ERROR` that names the problem."""
    if isinstance(value, kind):
        return value
    try:
        known = {field.name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
        unknown = [key for key in value if key not in known]
        if unknown:
            raise msgspec.ValidationError(f"unknown key {unknown[0]!r}: expected one of {', '.join(sorted(known))}")
        return msgspec.convert(dict(value), kind)
    except (msgspec.ValidationError, TypeError) as error:
        # msgspec's message has field names and types, never values.
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: {error}") from None


class HTTPCallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one call: pass them as `metadata={"http": HTTPCallOptions(...)}` in the call's context.

    Only an instance of this class counts, never a mapping from a message: a remote caller cannot set headers or write
    files with it.
    """

    headers: Mapping[str, str] = {}
    auth: HTTPAuth | None = None
    content_type: str | None = None
    """Media type of the request body."""
    timeout: float | None = None
    dry_run: bool = False
    """Return the request that would be sent instead of sending it."""
    download_to: str | os.PathLike[str] | None = None
    """Path that the body is written to as it arrives; `data` is then the path and the size."""
    url: str | None = None
    """URL to send the request to, for the next page of a list; must have the same origin."""


NO_OPTIONS = HTTPCallOptions()
