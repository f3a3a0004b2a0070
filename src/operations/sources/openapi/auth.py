"""Credentials: selection for an operation, placement in the request, and OAuth2 tokens."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urljoin

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, read_body
from operations.sources.openapi.config import HTTPAuth
from operations.sources.openapi.origins import CredentialOrigins, is_complete, show_origin, withheld_error

_EARLY_SECONDS = 30
_LIFETIME = 3600.0
_MAX_TOKEN_RESPONSE = 1024 * 1024
_MAX_SHOWN = 200


class RequestCredentials(msgspec.Struct, frozen=True):
    """Headers, query parameters and cookies that authenticate a request."""

    headers: Sequence[tuple[str, str]] = ()
    query: Sequence[tuple[str, str]] = ()
    cookies: Sequence[tuple[str, str]] = ()


NO_CREDENTIALS = RequestCredentials()


Scheme = Mapping[str, Any]
"""A security scheme of the document."""


def choose_credentials(
    auth: HTTPAuth | Mapping[str, HTTPAuth] | None,
    schemes: Mapping[str, Scheme],
    security: Sequence[Mapping[str, Any]],
) -> Sequence[tuple[HTTPAuth, Scheme | None]]:
    """Return the credentials for an operation, each with its security scheme in the document.

    If `auth` is a single credential, every operation gets it. If `auth` is a mapping, the operation gets the
    credentials of the first alternative in `security` whose schemes are all in the mapping.
    """
    if auth is None:
        return ()
    if isinstance(auth, HTTPAuth):
        return ((auth, _matching_scheme(auth, schemes, security)),)
    for alternative in security:
        if alternative and all(name in auth for name in alternative):
            return [(auth[name], schemes.get(name)) for name in alternative]
    return []


def credential_places(chosen: Sequence[tuple[HTTPAuth, Scheme | None]]) -> set[tuple[str, str]]:
    """Return the location and the name with which each credential is sent; names of headers are in lower case."""
    places = set()
    for auth, scheme in chosen:
        if auth.type == "api_key":
            location, name = _key_place(auth, scheme)
            places.add((location, name.lower() if location == "header" else name))
        else:
            places.add(("header", (auth.header_name or "Authorization").lower()))
    return places


def _matching_scheme(
    auth: HTTPAuth, schemes: Mapping[str, Scheme], security: Sequence[Mapping[str, Any]]
) -> Scheme | None:
    """Return the document's first scheme of the type of `auth`, if that is API key or OAuth2; None if there is none."""
    wanted = {"api_key": "apiKey", "oauth2": "oauth2"}.get(auth.type)
    names = [name for alternative in security for name in alternative] or list(schemes)
    for name in names:
        scheme = schemes.get(name)
        if scheme is not None and scheme.get("type") == wanted:
            return scheme
    return None


class CredentialSource:
    """Source of credentials for one API; fetched tokens are cached until they expire."""

    def __init__(
        self,
        auth: HTTPAuth | Mapping[str, HTTPAuth] | None,
        schemes: Mapping[str, Scheme],
        client: HTTPClient,
        home: str,
        origins: CredentialOrigins,
    ) -> None:
        self._auth = auth
        self._schemes = schemes
        self._client = client
        self._home = home
        """Base URL for relative token URLs."""
        self._origins = origins
        self._tokens: dict[tuple[str, str, str, tuple[str, ...]], tuple[str, float]] = {}
        self._fetching = asyncio.Lock()

    def choose(
        self, security: Sequence[Mapping[str, Any]], own: HTTPAuth | None
    ) -> Sequence[tuple[HTTPAuth, Scheme | None]]:
        """Return the credentials for an operation: `own`, the credential of the call, or else configured ones."""
        return choose_credentials(self._auth if own is None else own, self._schemes, security)

    async def resolve(self, chosen: Sequence[tuple[HTTPAuth, Scheme | None]], timeout: float) -> RequestCredentials:
        """Return the chosen credentials as headers, query parameters and cookies.

        Fetching a token may take at most `timeout` seconds.
        """
        shown = [await self._resolve(auth, scheme, timeout) for auth, scheme in chosen]
        return RequestCredentials(
            [pair for part in shown for pair in part.headers],
            [pair for part in shown for pair in part.query],
            [pair for part in shown for pair in part.cookies],
        )

    def renew(self, refused: RequestCredentials) -> bool:
        """Drop a rejected token; return whether a retry may succeed."""
        used = {value.rpartition(" ")[2] for _, value in refused.headers}
        fetched = [key for key, (token, _) in self._tokens.items() if token in used]
        for key in fetched:
            del self._tokens[key]
        # If the token is already gone, a concurrent call was rejected first and has fetched a new one.
        return bool(fetched) or (bool(self._tokens) and bool(used))

    async def _resolve(self, auth: HTTPAuth, scheme: Mapping[str, Any] | None, timeout: float) -> RequestCredentials:
        if auth.type == "basic":
            pair = f"{auth.username or ''}:{auth.password or ''}" if auth.token is None else auth.token
            encoded = base64.b64encode(pair.encode()).decode() if auth.token is None else auth.token
            name = auth.header_name or "Authorization"
            return RequestCredentials(headers=[(name, f"{auth.prefix or 'Basic'} {encoded}")])
        if auth.type == "api_key":
            return _api_key(auth, scheme)
        token = auth.token
        if token is None and auth.type == "oauth2":
            token = await self._token(auth, scheme, timeout)
        prefix = "Bearer" if auth.prefix is None else auth.prefix
        return RequestCredentials(headers=[(auth.header_name or "Authorization", f"{prefix} {token or ''}".strip())])

    async def _token(self, auth: HTTPAuth, scheme: Mapping[str, Any] | None, timeout: float) -> str:
        url = self._token_endpoint(auth, scheme)
        key = (url, auth.client_id or "", auth.client_secret or "", tuple(auth.scopes))
        token, expires = self._tokens.get(key, ("", 0.0))
        if time.monotonic() < expires:
            return token
        try:
            async with asyncio.timeout(timeout) as wait_seconds, self._fetching:
                token, expires = self._tokens.get(key, ("", 0.0))
                if time.monotonic() >= expires:
                    token, lifetime = await self._fetch(url, auth, timeout)
                    self._tokens[key] = token, time.monotonic() + lifetime - _EARLY_SECONDS
                return token
        except TimeoutError:
            if not wait_seconds.expired():
                raise
            raise CallError(ErrorCode.TIMEOUT, "oauth2: the token endpoint did not respond in time") from None

    def _token_endpoint(self, auth: HTTPAuth, scheme: Mapping[str, Any] | None) -> str:
        """Return the URL of the token endpoint; raise `VALIDATION_ERROR` if no known URL may receive credentials."""
        if auth.token_url is not None and is_complete(auth.token_url):
            return auth.token_url
        url = auth.token_url or _token_url(scheme)
        if url is None:
            message = "oauth2: neither the configuration nor the document has a token URL: set token_url"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        url = urljoin(self._home, url)
        if not is_complete(url):
            message = f"oauth2: invalid token URL {url!r}: expected a URL such as https://login.example.com/token"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
        if url not in self._origins:
            instead = f"set token_url, or add {show_origin(url)!r} to credential_origins"
            raise withheld_error("oauth2: the token endpoint", url, instead)
        return url

    async def _fetch(self, url: str, auth: HTTPAuth, timeout: float) -> tuple[str, float]:
        """Fetch a token with the client's credentials; return the token and its lifetime in seconds."""
        form = {"grant_type": "client_credentials"}
        if auth.scopes:
            form["scope"] = " ".join(auth.scopes)
        pair = f"{quote(auth.client_id or '', safe='')}:{quote(auth.client_secret or '', safe='')}"
        headers = [
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Accept", "application/json"),
            ("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"),
        ]
        body = urlencode(form).encode()
        request = HTTPRequest(method="POST", url=url, headers=headers, body=body, timeout=timeout)
        async with self._client.send(request) as response:
            body = await read_body(response, limit=_MAX_TOKEN_RESPONSE)
            status = response.status
        return _read_token(status, body)


def _read_token(status: int, body: bytes) -> tuple[str, float]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        answer = None
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if status != 200 or not isinstance(token, str):
        error = answer.get("error") if isinstance(answer, dict) else None
        reason = f" ({error[:_MAX_SHOWN]})" if isinstance(error, str) else ""
        message = f"oauth2: the token endpoint returned {status}{reason}"
        raise CallError(ErrorCode.EXECUTION_ERROR, message, {"statusCode": status})
    return token, _lifetime(answer.get("expires_in"))


def _lifetime(expires_in: Any) -> float:
    """Return the lifetime of a token in seconds; one hour by default."""
    try:
        seconds = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        return _LIFETIME
    return seconds if seconds >= 0 and not isinstance(expires_in, bool) else _LIFETIME


def _key_place(auth: HTTPAuth, scheme: Scheme | None) -> tuple[str, str]:
    """Return the location and the name of an API key: as configured, or as in the document's scheme."""
    if auth.header_name is None and scheme is not None:
        return str(scheme.get("in", "header")), str(scheme.get("name"))
    return auth.location, auth.header_name or "X-API-Key"


def _api_key(auth: HTTPAuth, scheme: Scheme | None) -> RequestCredentials:
    location, name = _key_place(auth, scheme)
    value = f"{auth.prefix} {auth.token or ''}" if auth.prefix else auth.token or ""
    pair = (name, value)
    if location == "query":
        return RequestCredentials(query=[pair])
    if location != "cookie":
        return RequestCredentials(headers=[pair])
    if ";" in name + value:
        message = "an API key cannot be sent as a cookie if its name or its value has a semicolon"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return RequestCredentials(cookies=[pair])


def _token_url(scheme: Mapping[str, Any] | None) -> str | None:
    flows = scheme.get("flows") if scheme is not None else None
    flows = flows if isinstance(flows, Mapping) else {}
    for flow in (flows.get("clientCredentials"), *flows.values()):
        url = flow.get("tokenUrl") if isinstance(flow, Mapping) else None
        if isinstance(url, str) and url:
            return url
    return None
