"""How an API is called: where it is, as whom, how patiently, and how much of an answer is too much."""

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
    """Credentials of one kind; secrets never appear in its text."""

    type: Literal["bearer", "api_key", "basic", "oauth2"]
    token: str | None = None
    """The bearer token or the API key."""
    header_name: str | None = None
    """The header (or, by `location`, the query parameter or cookie) that an API key goes in."""
    location: Literal["header", "query", "cookie"] = "header"
    prefix: str | None = None
    """What stands before the token: `Bearer` unless said otherwise; nothing before an API key."""
    username: str | None = None
    password: str | None = None
    token_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    scopes: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"HTTPAuth(type={self.type!r}, …)"


class HTTPRetry(msgspec.Struct, frozen=True, kw_only=True):
    """When a call is made again: only one that may be repeated safely, and only for answers that ask for it."""

    attempts: int = 3
    statuses: Sequence[int] = (429, 502, 503, 504)
    first_delay: float = 0.25
    longest_delay: float = 20.0
    """Also the longest `Retry-After` that is waited for."""
    mutations: bool = False
    """Whether calls that are not idempotent by HTTP's rules are repeated as well."""


class HTTPLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much is accepted before a call fails with a clear error."""

    response_bytes: int = 64 * 1024 * 1024
    """The largest body after decompression; a download to a file is not limited by it."""
    event_bytes: int = 16 * 1024 * 1024
    redirects: int = 5
    connections: int = 100


class HTTPServiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An API: the namespace of its operations, its address, its credentials, its limits."""

    namespace: str
    base_url: str | None = None
    """Replaces the document's servers."""
    server_variables: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    content_types: Sequence[str] = ()
    """Media types of request bodies to prefer where an operation offers several that fit, the best first."""
    auth: HTTPAuth | Mapping[str, HTTPAuth] | None = None
    """One for every call, or by the names of the document's security schemes."""
    credential_origins: Sequence[str] = ()
    """Origins such as `https://login.example.com` that get `auth` and `headers` too.

    The origin of `base_url`, or without it the origin that the document was requested from, gets them anyway.
    """
    timeout: float = 30.0
    """Seconds for a call, or until the head of an answer that comes in parts."""
    idle_timeout: float | None = None
    """Seconds that a stream of events or a download may be silent; not limited by default."""
    retry: HTTPRetry = HTTPRetry()
    limits: HTTPLimits = HTTPLimits()
    client: HTTPClient | None = None
    proxy: str | None = None
    output_policy: Policy | None = None
    reconnect: int = 0
    """How often a stream that broke off is taken up again with `Last-Event-ID`."""
    cache: bool = False
    """Whether answers with a validator (`ETag`, `Last-Modified`) are kept and asked for conditionally."""
    on_request: RequestHook | None = None
    on_response: ResponseHook | None = None

    def __post_init__(self) -> None:
        check_origins(self.credential_origins)
        # Settings that came out of a configuration file are mappings.
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
    """A setting given as a mapping; raises `VALIDATION_ERROR` that names what is wrong with it."""
    if isinstance(value, kind):
        return value
    try:
        known = {field.name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
        unknown = [key for key in value if key not in known]
        if unknown:
            raise msgspec.ValidationError(f"{unknown[0]!r} is not known; there are {', '.join(sorted(known))}")
        return msgspec.convert(dict(value), kind)
    except (msgspec.ValidationError, TypeError) as error:
        # The text of such an error names fields and types, never values.
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{name}: {error}") from None


class HTTPCallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one call does differently: pass it as `metadata={"http": HTTPCallOptions(...)}` in the call's context.

    Only an object of this class counts, never a mapping that travelled: a caller from elsewhere cannot set headers or
    write files with it.
    """

    headers: Mapping[str, str] = {}
    auth: HTTPAuth | None = None
    content_type: str | None = None
    """Which of the operation's request bodies to send."""
    timeout: float | None = None
    dry_run: bool = False
    """Return the request that would be sent instead of sending it."""
    download_to: str | os.PathLike[str] | None = None
    """Write the body to this path as it arrives; `data` is then the path and the size."""
    url: str | None = None
    """Send to this address instead, for the next page of a list; it must be of the same origin."""


NO_OPTIONS = HTTPCallOptions()
