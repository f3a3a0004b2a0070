"""IssuerTokens: JWTs of an OAuth or OpenID issuer. The issuer's public keys are fetched and refreshed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, default_client
from operations.http.client import read_body
from operations.identity.tokens import JWTTokens, Principal

ALGORITHMS = ("RS256", "ES256", "PS256", "EdDSA")
_MAX_DOCUMENT_BYTES = 1 << 20
_FETCH_SECONDS = 10.0
_KEPT_SECONDS = 300.0
"""Seconds after which the keys are fetched again."""
_AGAIN_SECONDS = 30.0
"""Minimum interval between fetches: any caller can cause a fetch by a token with an unknown key id."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class IssuerTokens:
    """An asynchronous authenticator for tokens that `issuer` signed for `audience`; a list allows several audiences.

    The keys are fetched from `keys_url`, or from the URL in the issuer's metadata: on first use, when they are older
    than five minutes, and for a token with an unknown key id. While the issuer is unreachable, the known keys stay
    valid.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Sequence[str],
        keys_url: str | None = None,
        algorithms: Sequence[str] = ALGORITHMS,
        leeway: float = 10.0,
        client: HTTPClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not audience:
            raise ValueError(
                "missing audience: expected the name of this server, so that tokens for other servers are refused"
            )
        for url in (issuer, keys_url):
            if url is not None:
                _check_url(url)
        self._issuer = issuer
        self._audience = audience
        self._keys_url = keys_url
        self._algorithms = algorithms
        self._leeway = leeway
        self._client = client
        self._clock = clock
        self._tokens: JWTTokens | None = None
        self._ids: frozenset[str | None] = frozenset()
        self._fetched = -_KEPT_SECONDS
        self._tried = -_AGAIN_SECONDS
        self._fetching: asyncio.Task[None] | None = None
        # Reports a missing extra and invalid algorithms immediately.
        JWTTokens("-", algorithms=algorithms)

    async def authenticate(self, token: str | None) -> Principal:
        """Verify a token and return its principal.

        Raise `ACCESS_DENIED` for an invalid token, and `UNAVAILABLE` if no keys could be fetched.
        """
        key_id = _key_id(token)
        if self._tokens is None or self._clock() - self._fetched > _KEPT_SECONDS or key_id not in self._ids:
            await self._refresh()
        if self._tokens is None:
            raise CallError(ErrorCode.UNAVAILABLE, f"the keys of {self._issuer} cannot be fetched")
        return self._tokens.authenticate(token)

    async def _refresh(self) -> None:
        """Fetch the keys, one fetch at a time and at a limited rate."""
        if self._fetching is None:
            if self._clock() - self._tried < _AGAIN_SECONDS:
                return
            self._tried = self._clock()
            self._fetching = asyncio.ensure_future(self._fetch())
            self._fetching.add_done_callback(self._fetch_ended)
        await asyncio.shield(self._fetching)

    def _fetch_ended(self, _: object) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        client = self._client or default_client()
        try:
            url = self._keys_url or await self._discover(client)
            document = await _get(client, url)
            keys = document.get("keys")
            if not isinstance(keys, list) or not keys:
                return
            tokens = JWTTokens(
                {"keys": keys},
                algorithms=self._algorithms,
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway,
            )
        except (CallError, ValueError, msgspec.DecodeError):
            return  # the known keys stay valid
        except Exception as error:  # an invalid key set must not fail the request
            if type(error).__module__.partition(".")[0] != "jwt":
                raise
            return
        finally:
            if self._client is None:
                await client.close()
        self._tokens = tokens
        self._ids = frozenset(key.get("kid") for key in keys if isinstance(key, dict))
        self._fetched = self._clock()

    async def _discover(self, client: HTTPClient) -> str:
        """Return the URL of the keys, which is in the issuer's metadata."""
        parts = urlsplit(self._issuer)
        origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        problem: Exception = ValueError("no metadata")
        for url in (
            f"{origin}{path}/.well-known/openid-configuration",
            f"{origin}/.well-known/oauth-authorization-server{path}",
        ):
            try:
                metadata = await _get(client, url)
                found = metadata.get("jwks_uri")
                if metadata.get("issuer") == self._issuer and isinstance(found, str):
                    _check_url(found)
                    return found
            except (CallError, ValueError, msgspec.DecodeError) as error:
                problem = error
        raise problem


async def _get(client: HTTPClient, url: str) -> dict[str, Any]:
    request = HTTPRequest(method="GET", url=url, headers=[("accept", "application/json")], timeout=_FETCH_SECONDS)
    async with client.send(request) as response:
        if response.status != 200:
            raise ValueError(f"{url} responded with {response.status}")
        document = msgspec.json.decode(await read_body(response, limit=_MAX_DOCUMENT_BYTES))
    if not isinstance(document, dict):
        raise ValueError(f"{url} is not a JSON object")
    return document


def _key_id(token: str | None) -> str | None:
    """Return the unverified key id of a token, None if it has none; raise `ACCESS_DENIED` if the token is not a JWT."""
    import jwt

    try:
        name = jwt.get_unverified_header(token or "").get("kid")
    except jwt.PyJWTError:
        raise CallError(ErrorCode.ACCESS_DENIED, "the token is not a JWT") from None
    return name if isinstance(name, str) else None


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError(f"invalid URL {url}: expected https, because its response decides which tokens are accepted")
