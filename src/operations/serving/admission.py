"""Admission: authentication and rate limits of requests, from their headers alone.

Order of the checks: Host, Origin, failed attempts of the address, credentials, audience, rate. An identity in a payload
is ignored. The CORS headers allow pages of configured origins to read responses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from operations.context import Identity
from operations.errors import CallError, ErrorCode
from operations.identity.rate_limits import FailureLimits, RateLimits
from operations.identity.token_cache import TokenCache
from operations.identity.tokens import AnyAuthenticator, Principal
from operations.serving.asgi import Headers, Response, Scope, Send
from operations.serving.exposure import NO_RIGHTS, Exposure, Rights
from operations.serving.refusals import RefusedError

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ONCE = (b"host", b"origin", b"authorization", b"x-api-key", b"content-length", b"content-type", b"idempotency-key")
"""Headers that a request may contain only once: a proxy could use one value, and this server another."""
_log = logging.getLogger("operations")
_MAX_HOSTS = 1_000
_MAX_TOKEN = 16_384
_SITE = b"sec-fetch-site"
_OWN_SITES = (b"same-origin", b"none")
"""Values of `Sec-Fetch-Site` for requests of this server's own pages, and for an address that the user entered."""
_PORT = re.compile(r":[0-9]*\Z")
_PORTS = {"http": "80", "https": "443"}
_PREFLIGHT_SECONDS = b"600"
_EXPOSED_HEADERS = (
    b"Operations-Request-Id, Operations-Source, Operations-Timestamp, Operations-Upstream-Status, "
    b"Operations-Mcp-Error, Idempotency-Replayed, WWW-Authenticate, ETag, Link, Retry-After, Location, "
    b"Preference-Applied"
)
"""Response headers that a page of a configured origin may read."""


class Epoch:
    """The time between two revocations of tokens."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class Caller:
    """The sender of a request. `principal` is None for an anonymous caller."""

    __slots__ = ("_epoch", "_exposure", "client_address", "headers", "identity", "input_bytes", "key", "principal")

    def __init__(
        self,
        principal: Principal | None,
        identity: Identity | None,
        client_address: str = "",
        exposure: Exposure | None = None,
        headers: Mapping[bytes, bytes] | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        self.principal = principal
        self.identity = identity
        self.client_address = client_address
        self.key = f"a:{client_address}" if identity is None else f"i:{identity.id}"
        """Key of the caller for limits and stored responses: the identity, or the address of an anonymous caller."""
        self.headers = headers or {}
        """The headers of the request by name; empty for a caller without HTTP."""
        self.input_bytes = 0
        """Size of the request's body, if the limit on the inputs of running calls includes the body; otherwise 0."""
        self._exposure = exposure
        self._epoch = epoch

    def check_current(self) -> None:
        """Refuse the request if tokens were revoked while it arrived: its own token may be one of them."""
        if self._epoch is not None and self._epoch.is_over:
            message = "tokens were revoked while the request arrived: send it again"
            raise RefusedError(503, ErrorCode.UNAVAILABLE, message, "REVOKED")

    @property
    def has_rights(self) -> bool:
        """Whether the caller has any scope or resource."""
        return self.identity is not None and self.identity.has_rights

    @property
    def rights(self) -> Rights:
        """The rights that decide which operations the caller sees. Cached lists have these rights as key."""
        return self._exposure.rights(self.identity) if self._exposure is not None else NO_RIGHTS


class Admission:
    """Authenticates requests by their headers; raises RefusedError for requests that are not admitted.

    `hosts` are the accepted host names; `*` accepts any name. `origins` are web origins that may send requests, in
    addition to the server's own. `audiences` are the token audiences that every endpoint accepts. Without an
    authenticator every caller is anonymous.
    """

    def __init__(
        self,
        exposure: Exposure,
        *,
        authenticator: AnyAuthenticator | None,
        allow_anonymous: bool,
        anonymous: Identity | None,
        hosts: Iterable[str],
        origins: Iterable[str],
        audiences: Iterable[str],
        rate: RateLimits | None,
        failures: FailureLimits,
        challenge: str,
        challenges: Mapping[str, str],
    ) -> None:
        self.exposure = exposure
        self.authenticator = authenticator
        self.cache = TokenCache()
        self._epoch = Epoch()
        self.challenge = challenge
        self._challenges = challenges
        """The `WWW-Authenticate` challenges of endpoints with their own token audience, by that audience."""
        self.rate = rate
        self._failures = failures
        self._allow_anonymous = allow_anonymous
        self._anonymous = anonymous
        self._hosts = frozenset(host.lower() for host in hosts)
        self._any_host = "*" in self._hosts
        self._known_hosts: set[bytes | None] = set()
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._audiences = frozenset(audiences)

    async def admit(
        self,
        scope: Scope,
        audience: str | None = None,
        token: str | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> Caller:
        """Return the caller of a request. `audience` is a token audience that only this endpoint accepts.

        `token` is a token that was sent elsewhere than in `Authorization` or `X-API-Key`. Pass `headers` if they were
        read before.
        """
        if headers is None:
            headers = read_headers(scope)
        caller = self.admit_known(scope, headers, audience, token)
        if caller is None:
            address, epoch = _address(scope), self._epoch
            shown = find_token(headers)
            principal = await self._verify(token or "" if shown is None else shown, address, audience)
            self._check_audience(principal, audience)
            caller = Caller(principal, principal.identity, address, self.exposure, headers, epoch)
            caller.check_current()
            if self.rate is not None:
                self.rate.acquire(caller.key)
        return caller

    def admit_known(
        self, scope: Scope, headers: Mapping[bytes, bytes], audience: str | None, token: str | None = None
    ) -> Caller | None:
        """Return an anonymous caller, or a caller whose token is cached; None if a token must be verified."""
        if headers.get(b"host") not in self._known_hosts or b"origin" in headers or _SITE in headers:
            self.check_source(headers)
        shown = find_token(headers)
        if shown is None:
            shown = token
        if shown is None:
            if not self._allow_anonymous:
                raise self._unauthenticated("credentials are required", audience)
            caller = Caller(None, self._anonymous, _address(scope), self.exposure, headers)
        else:
            principal = self.cache.get(shown)
            if principal is None:
                return None
            if principal.audiences:
                self._check_audience(principal, audience)
            caller = Caller(principal, principal.identity, _address(scope), self.exposure, headers, self._epoch)
        if self.rate is not None:
            self.rate.acquire(caller.key)
        return caller

    def refresh(self) -> bool:
        """Return whether tokens may have been revoked since the last check; if so, forget the verified tokens."""
        has_changed = getattr(self.authenticator, "has_changed", None)
        if has_changed is None or not has_changed():
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Forget the verified tokens, because a token was revoked. Requests that are still arriving are refused."""
        self.cache.clear()
        self._epoch.is_over = True
        self._epoch = Epoch()

    def check_source(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request with a `Host` that is not accepted, or from a page whose origin is not accepted."""
        host = headers.get(b"host", b"")
        if host not in self._known_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        # A page of another site can send a GET without an Origin, for example to load an image.
        is_own_site = origin is not None or headers.get(_SITE, b"none") in _OWN_SITES
        if not is_own_site or (origin is not None and not self.is_own_origin(origin, host)):
            raise RefusedError(403, ErrorCode.ACCESS_DENIED, "this Origin is not allowed", "ORIGIN")

    def is_own_origin(self, origin: bytes, host: bytes) -> bool:
        """Whether an `Origin` is the server's own or a configured one."""
        text = origin.decode("latin-1").strip().lower()
        if text in self._origins:
            return True
        scheme, _, rest = text.partition("://")
        return scheme in _PORTS and bool(rest) and rest == host.decode("latin-1").strip().lower()

    def is_foreign_allowed(self, origin: bytes) -> bool:
        """Whether an `Origin` is one of the configured origins, whose pages may read responses."""
        return origin.decode("latin-1").strip().lower() in self._origins

    def _check_audience(self, principal: Principal, audience: str | None) -> None:
        """Refuse a token that was issued for another audience."""
        named = principal.audiences
        if named and self._audiences and audience not in named and self._audiences.isdisjoint(named):
            raise self._unauthenticated("the token is for another audience", audience, "invalid_token")

    async def _verify(self, token: str, address: str, audience: str | None) -> Principal:
        self._failures.check(address)
        if self.authenticator is None:
            raise self._unauthenticated("this server accepts no credentials", audience, "invalid_token")
        if len(token) > _MAX_TOKEN:
            raise self._unauthenticated("the token is too long", audience, "invalid_token")
        try:
            principal = await self.cache.verify(token, self.authenticator)
        except Exception as error:
            if not isinstance(error, CallError):
                _log.exception("the authenticator failed")
            if not isinstance(error, CallError) or error.code is not ErrorCode.ACCESS_DENIED:
                raise RefusedError(
                    503, ErrorCode.UNAVAILABLE, "credentials cannot be verified now", "AUTHENTICATOR"
                ) from error
            self._failures.count(address)
            raise self._unauthenticated("the credentials are not valid", audience, "invalid_token") from error
        return principal

    def _unauthenticated(self, message: str, audience: str | None, error: str = "") -> RefusedError:
        base = self.challenge if audience is None else self._challenges.get(audience, self.challenge)
        headers: Headers = [challenge(base, error=error)]
        return RefusedError(401, ErrorCode.ACCESS_DENIED, message, "UNAUTHENTICATED", headers)

    def _check_host(self, host: bytes) -> None:
        text = host.decode("latin-1").strip().lower()
        name = _PORT.sub("", text)
        if not self._any_host and name not in self._hosts and text not in self._hosts:
            raise RefusedError(403, ErrorCode.ACCESS_DENIED, "this Host is not allowed", "HOST")
        if len(self._known_hosts) < _MAX_HOSTS:
            self._known_hosts.add(host)


def read_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by name. Refuse a request that repeats one of the headers in `ONCE`."""
    listed: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(listed)
    if len(headers) != len(listed):
        names = [name for name, _ in listed]
        for name in ONCE:
            if names.count(name) > 1:
                message = f"the header {name.decode()} occurs more than once"
                raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "REPEATED_HEADER")
    return headers


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def find_token(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the bearer token or API key of a request; None if neither header is present.

    If `Authorization` has another scheme, return an empty string.
    """
    authorization = headers.get(b"authorization")
    key = headers.get(b"x-api-key")
    if authorization is None:
        return None if key is None else key.decode("latin-1").strip()
    if key is not None:
        message = "both Authorization and X-API-Key are present: send one of them"
        raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "TWO_CREDENTIALS")
    if authorization[:7].lower() == b"bearer ":
        return authorization[7:].decode("latin-1").strip()
    return ""


def challenge(base: str, **parameters: str) -> tuple[bytes, bytes]:
    """Return a `WWW-Authenticate` header. Parameters whose value a header cannot contain are left out."""
    header = base
    for name, value in parameters.items():
        if value and value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
            header += f'{"," if " " in header else ""} {name}="{value}"'
    return b"www-authenticate", header.encode("ascii", errors="replace")


def is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is a CORS preflight request of a browser."""
    return bool(scope["method"] == "OPTIONS" and b"access-control-request-method" in headers)


def preflight_response(headers: Mapping[bytes, bytes]) -> Response:
    """Return the response to a preflight request of a configured origin."""
    allowed: Headers = [
        (b"access-control-allow-origin", headers[b"origin"]),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-max-age", _PREFLIGHT_SECONDS),
        (b"vary", b"Origin"),
    ]
    wanted = headers.get(b"access-control-request-headers")
    if wanted is not None:
        allowed.append((b"access-control-allow-headers", wanted))
    return Response(204, allowed)


def readable_by(origin: bytes, send: Send) -> Send:
    """Return a `send` that adds CORS headers to responses, so that pages of `origin` may read them."""

    async def send_readable(event: Any) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [
                *event["headers"],
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED_HEADERS),
                (b"vary", b"Origin"),
            ]
        await send(event)

    return send_readable
