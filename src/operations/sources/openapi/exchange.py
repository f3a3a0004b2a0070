"""Exchange: sends a request, follows redirects and retries where that is safe; no credentials leave their origin."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, HTTPResponse
from operations.sources.openapi.auth import Credentials
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.config import HTTPServiceConfig
from operations.sources.openapi.origins import HARMLESS, CredentialOrigins, origin, without_query
from operations.sources.openapi.parameters import query_string
from operations.sources.openapi.requests import PreparedRequest, overridden
from operations.sources.openapi.responses import header

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "QUERY"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNREADABLE = "\ufffd"  # what a client returns for the bytes of a header that it cannot read
_WRITTEN = "".join(map(chr, range(0x21, 0x7F))).replace("\\", "")
"""Characters that stay as they are in an address that a server wrote."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send, with its credentials and its time limits."""

    prepared: PreparedRequest
    credentials: Credentials
    deadline: float | None
    """Monotonic seconds."""
    timeout: float
    streaming: bool = False
    extra: Sequence[tuple[str, str]] = ()


class Sent:
    """A response whose connection is held until `close`."""

    __slots__ = ("_held", "response")

    def __init__(self, response: HTTPResponse, held: AbstractAsyncContextManager[HTTPResponse]) -> None:
        self.response = response
        self._held = held

    def close(self) -> Awaitable[object]:
        """Release the connection."""
        return self._held.__aexit__(None, None, None)


class Exchange:
    """Sender of one service's requests."""

    def __init__(self, client: HTTPClient, config: HTTPServiceConfig, origins: CredentialOrigins) -> None:
        self._client = client
        self._config = config
        self._origins = origins

    async def send(self, outgoing: Outgoing) -> Sent:
        """Return the response to a request, after redirects and retries; the caller closes it."""
        attempt = 1
        while True:
            try:
                request = self._request(outgoing)
                sent = await self._send_one(request)
                if sent.response.status in _REDIRECTS:
                    sent = await self._follow(outgoing, request, sent)
            except CallError as error:
                delay = self._delay_after_error(outgoing, error, attempt)
                if delay is None:
                    raise
            else:
                if sent.response.status not in self._config.retry.statuses:
                    return sent
                delay = self._delay_after(outgoing, sent.response, attempt)
                if delay is None:
                    return sent
                await sent.close()
            await asyncio.sleep(delay)
            attempt += 1

    async def _follow(self, outgoing: Outgoing, request: HTTPRequest, sent: Sent) -> Sent:
        """Follow redirects until a response is none."""
        trail = Trail(request.url, self._origins, outgoing.prepared.body, outgoing.credentials.query)
        for _ in range(self._config.limits.redirects):
            location = header(sent.response.headers, "location")
            following = trail.follow(request, sent.response.status, location)
            if following is None:
                return sent
            await sent.close()
            request = following
            sent = await self._send_one(request)
            if sent.response.status not in _REDIRECTS:
                return sent
        await sent.close()
        message = f"{request.method} {without_query(request.url)}: more than {self._config.limits.redirects} redirects"
        raise CallError(ErrorCode.EXECUTION_ERROR, message)

    async def _send_one(self, request: HTTPRequest) -> Sent:
        config = self._config
        if config.on_request is not None:
            changed = config.on_request(request)
            request = (await changed if inspect.isawaitable(changed) else changed) or request
        held = self._client.send(request)
        sent = Sent(await held.__aenter__(), held)
        if config.on_response is not None:
            try:
                told = config.on_response(request, sent.response.status, sent.response.headers)
                if inspect.isawaitable(told):
                    await told
            except BaseException:
                await sent.close()
                raise
        return sent

    def _request(self, outgoing: Outgoing) -> HTTPRequest:
        prepared, body = outgoing.prepared, outgoing.prepared.body
        headers = prepared.headers_with(outgoing.credentials)
        if outgoing.extra:
            headers = overridden(headers, outgoing.extra)
        if body is not None and body.data is None and body.length is not None:
            headers = [*headers, ("Content-Length", str(body.length))]
        timeout = outgoing.timeout
        if outgoing.deadline is not None:
            timeout = min(timeout, outgoing.deadline - time.monotonic())
            if timeout <= 0:
                raise CallError(
                    ErrorCode.TIMEOUT, f"{prepared.method} {without_query(prepared.url)}: the deadline passed"
                )
        return HTTPRequest(
            method=prepared.method,
            url=prepared.url_with(outgoing.credentials),
            headers=headers,
            body=None if body is None else (body.chunks() if body.data is None else body.data),
            timeout=timeout,
            stream=outgoing.streaming,
        )

    def _delay_after_error(self, outgoing: Outgoing, error: CallError, attempt: int) -> float | None:
        """Return how long to wait before the next attempt; None for no further attempt."""
        if error.code is not ErrorCode.UNAVAILABLE:
            return None
        untouched = isinstance(error.details, dict) and error.details.get("executed") == "no"
        return self._next_delay(outgoing, attempt, safe=untouched)

    def _delay_after(self, outgoing: Outgoing, response: HTTPResponse, attempt: int) -> float | None:
        asked = _retry_after(header(response.headers, "retry-after"))
        return self._next_delay(outgoing, attempt, asked=asked)

    def _next_delay(
        self, outgoing: Outgoing, attempt: int, *, safe: bool = False, asked: float | None = None
    ) -> float | None:
        retry, body = self._config.retry, outgoing.prepared.body
        if body is not None and body.spent:
            return None
        if attempt >= retry.attempts or not (safe or retry.mutations or outgoing.prepared.method in _IDEMPOTENT):
            return None
        delay = asked if asked is not None else retry.first_delay * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
        if delay > retry.longest_delay:
            return None
        if outgoing.deadline is not None and time.monotonic() + delay >= outgoing.deadline:
            return None
        return delay


def _retry_after(value: str) -> float | None:
    """Return the seconds that a `Retry-After` header asks for; None without any."""
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except (ValueError, TypeError):
        return None


class Trail:
    """The redirects of one request: it stays as it is within its origin and those that get credentials.

    Elsewhere nothing on it may be a secret, and it gets nothing back when it returns.
    """

    __slots__ = ("_body", "_home", "_is_intact", "_key", "_origins")

    def __init__(
        self, url: str, origins: CredentialOrigins, body: Body | None = None, key: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._home = origin(url)
        self._origins = origins
        self._body = body
        self._key = key
        """Credentials that go in the query."""
        self._is_intact = True

    def follow(self, request: HTTPRequest, status: int, location: str) -> HTTPRequest | None:
        """Return the request that a redirect asks for; None where it is not followed.

        Another origin gets the harmless headers only: any other one may be a secret.
        """
        url = _address(request.url, location)
        if url is None or (self._home[0] == "https" and origin(url)[0] != "https"):
            return None
        self._is_intact = self._is_intact and (origin(url) == self._home or url in self._origins)
        if self._is_intact:
            url, headers = self._with_key(url), list(request.headers)
        else:
            headers = [pair for pair in request.headers if pair[0].lower() in HARMLESS]
        if request.method in ("GET", "HEAD"):
            return msgspec.structs.replace(request, url=url, headers=headers)
        if status == 303 or (status in (301, 302) and request.method == "POST"):
            kept = [pair for pair in headers if pair[0].lower() not in ("content-type", "content-length")]
            return msgspec.structs.replace(request, method="GET", url=url, headers=kept, body=None)
        body = self._body
        if not self._is_intact or (body is not None and body.spent):
            return None
        again = body.chunks() if body is not None and body.data is None else request.body
        return msgspec.structs.replace(request, url=url, headers=headers, body=again)

    def _with_key(self, url: str) -> str:
        """Return the address with the credentials of the query, where the redirect left them out."""
        given = {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
        missing = [pair for pair in self._key if pair[0] not in given]
        if not missing:
            return url
        whole, _, fragment = url.partition("#")
        return (
            f"{whole}{'&' if '?' in whole else '?'}{query_string((), {}, missing)}{'#' if fragment else ''}{fragment}"
        )


def _address(base: str, location: str) -> str | None:
    """Return the target of a redirect, percent-encoded as browsers do it; None where it is not an HTTP address."""
    if not location or _UNREADABLE in location:
        return None
    try:
        url = quote(urljoin(base, location), safe=_WRITTEN)
        return url if origin(url)[0] in ("http", "https") else None
    except ValueError:
        return None  # no host, or no port, that could be one
