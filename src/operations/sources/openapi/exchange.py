"""Exchange: sends a request, follows its redirects, and retries it if this is safe.

`ValidatorCache` keeps responses that have a validator (`ETag`, `Last-Modified`), so that they can be revalidated.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

import msgspec

from operations.envelope import HTTPResponseMeta, ResponseEnvelope, http_meta
from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, HTTPResponse
from operations.sources.openapi.auth import RequestCredentials
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.config import HTTPServiceConfig
from operations.sources.openapi.origins import HARMLESS, CredentialOrigins, origin, without_query
from operations.sources.openapi.parameters import query_string
from operations.sources.openapi.requests import PreparedRequest, override_headers
from operations.sources.openapi.responses import header
from operations.telemetry import tracing
from operations.telemetry.observer import current_observed_call

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "QUERY"})
_MAX_RESPONSES = 500
"""Largest number of responses that a `ValidatorCache` keeps."""
_MAX_BYTES = 64 * 1024 * 1024
"""Largest total size of the bodies that a `ValidatorCache` keeps, in bytes."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNREADABLE = "\ufffd"  # clients return it for undecodable header bytes
_WRITTEN = "".join(map(chr, range(0x21, 0x7F))).replace("\\", "")
"""Characters that stay unencoded in a redirect URL."""


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send, with its credentials and time limits."""

    prepared: PreparedRequest
    credentials: RequestCredentials
    deadline: float | None
    """Time at which the request fails, in seconds of the monotonic clock."""
    timeout: float
    streaming: bool = False
    extra: Sequence[tuple[str, str]] = ()


class OpenResponse(msgspec.Struct, frozen=True):
    """A response whose connection stays open until `close`."""

    response: HTTPResponse
    connection: AbstractAsyncContextManager[HTTPResponse]

    def close(self) -> Awaitable[object]:
        """Release the connection."""
        return self.connection.__aexit__(None, None, None)


class Exchange:
    """Sender of one service's requests."""

    def __init__(self, client: HTTPClient, config: HTTPServiceConfig, origins: CredentialOrigins) -> None:
        self._client = client
        self._config = config
        self._origins = origins

    async def send(self, outgoing: OutgoingRequest) -> OpenResponse:
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
                failed = error
            else:
                if sent.response.status not in self._config.retry.statuses:
                    return sent
                delay = self._delay_after(outgoing, sent.response, attempt)
                if delay is None:
                    return sent
                await sent.close()
                status = sent.response.status
                failed = CallError(
                    ErrorCode.EXECUTION_ERROR, f"the server responded with {status}", {"statusCode": status}
                )
            if (observed := current_observed_call()) is not None:
                observed.retried(attempt, failed, delay)
            await asyncio.sleep(delay)
            attempt += 1

    async def _follow(self, outgoing: OutgoingRequest, request: HTTPRequest, sent: OpenResponse) -> OpenResponse:
        """Follow redirects to the final response."""
        trail = RedirectChain(request.url, self._origins, outgoing.prepared.body, outgoing.credentials.query)
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

    async def _send_one(self, request: HTTPRequest) -> OpenResponse:
        config = self._config
        if config.on_request is not None:
            changed = config.on_request(request)
            request = (await changed if inspect.isawaitable(changed) else changed) or request
        if tracing.SDK in tracing.modules and tracing.is_active():
            sent = await self._send_traced(request)
        else:
            connection = self._client.send(request)
            sent = OpenResponse(await connection.__aenter__(), connection)
        if config.on_response is not None:
            try:
                returned = config.on_response(request, sent.response.status, sent.response.headers)
                if inspect.isawaitable(returned):
                    await returned
            except BaseException:
                await sent.close()
                raise
        return sent

    async def _send_traced(self, request: HTTPRequest) -> OpenResponse:
        """Send a request within a client span; headers pass the trace context of the span to the server."""
        from operations.telemetry import otel

        trace_context: dict[str, str] = {}
        with otel.http_span(request.method, without_query(request.url), trace_context) as span:
            headers = override_headers(request.headers, list(trace_context.items()))
            connection = self._client.send(msgspec.structs.replace(request, headers=headers))
            sent = OpenResponse(await connection.__aenter__(), connection)
            otel.note_status(span, sent.response.status)
            return sent

    def _request(self, outgoing: OutgoingRequest) -> HTTPRequest:
        prepared, body = outgoing.prepared, outgoing.prepared.body
        headers = prepared.headers_with(outgoing.credentials)
        if outgoing.extra:
            headers = override_headers(headers, outgoing.extra)
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

    def _delay_after_error(self, outgoing: OutgoingRequest, error: CallError, attempt: int) -> float | None:
        """Return the delay before the next attempt in seconds; None if there is no further attempt."""
        if error.code is not ErrorCode.UNAVAILABLE:
            return None
        untouched = isinstance(error.details, dict) and error.details.get("executed") == "no"
        return self._next_delay(outgoing, attempt, safe=untouched)

    def _delay_after(self, outgoing: OutgoingRequest, response: HTTPResponse, attempt: int) -> float | None:
        requested = _retry_after(header(response.headers, "retry-after"))
        return self._next_delay(outgoing, attempt, requested=requested)

    def _next_delay(
        self, outgoing: OutgoingRequest, attempt: int, *, safe: bool = False, requested: float | None = None
    ) -> float | None:
        retry, body = self._config.retry, outgoing.prepared.body
        if body is not None and body.consumed:
            return None
        if attempt >= retry.attempts or not (safe or retry.mutations or outgoing.prepared.method in _IDEMPOTENT):
            return None
        backoff = min(retry.longest_delay, retry.first_delay * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        delay = backoff if requested is None else requested
        if delay > retry.longest_delay:
            return None
        if outgoing.deadline is not None and time.monotonic() + delay >= outgoing.deadline:
            return None
        return delay


def _retry_after(value: str) -> float | None:
    """Return the seconds until the time in a `Retry-After` header; None if the value is empty or invalid."""
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except (ValueError, TypeError, OverflowError):
        return None


class RedirectChain:
    """The redirects of one request.

    A redirect to the request's origin or to a credential origin keeps headers and credentials. A redirect to any other
    origin removes all possible secrets; a later redirect back does not restore them.
    """

    __slots__ = ("_body", "_home", "_is_intact", "_key", "_origins")

    def __init__(
        self, url: str, origins: CredentialOrigins, body: Body | None = None, key: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._home = origin(url)
        self._origins = origins
        self._body = body
        self._key = key
        """Credentials that are sent in the query."""
        self._is_intact = True

    def follow(self, request: HTTPRequest, status: int, location: str) -> HTTPRequest | None:
        """Return the request for a redirect; None if it is not followed.

        An origin that may not receive the credentials gets only harmless headers: any other header may be a secret.
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
        if not self._is_intact or (body is not None and body.consumed):
            return None
        content = body.chunks() if body is not None and body.data is None else request.body
        return msgspec.structs.replace(request, url=url, headers=headers, body=content)

    def _with_key(self, url: str) -> str:
        """Return the URL with the credentials that are sent in the query, if the redirect dropped them."""
        given = {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
        missing = [pair for pair in self._key if pair[0] not in given]
        if not missing:
            return url
        whole, _, fragment = url.partition("#")
        return (
            f"{whole}{'&' if '?' in whole else '?'}{query_string((), {}, missing)}{'#' if fragment else ''}{fragment}"
        )


def _address(base: str, location: str) -> str | None:
    """Return the target of a redirect, percent-encoded as in browsers; None if it is not an HTTP URL."""
    if not location or _UNREADABLE in location:
        return None
    try:
        url = quote(urljoin(base, location), safe=_WRITTEN)
        return url if origin(url)[0] in ("http", "https") else None
    except ValueError:
        return None  # invalid host or port


_VALIDATORS = {"if-none-match": "etag", "if-modified-since": "last-modified"}
CONDITIONS = frozenset({*_VALIDATORS, "if-match", "if-unmodified-since", "if-range"})
"""Headers that make a request conditional."""


class CachedResponse(msgspec.Struct, frozen=True):
    """A cached response with a validator."""

    envelope: ResponseEnvelope[Any]
    meta: HTTPResponseMeta
    size: int
    """Size of the body."""

    def conditions(self) -> list[tuple[str, str]]:
        """Return the headers that make a request conditional: the server sends the body only if it has changed."""
        headers = self.meta.headers
        return [
            (condition.title(), headers[validator])
            for condition, validator in _VALIDATORS.items()
            if validator in headers
        ]

    def renewed(self, headers: Sequence[tuple[str, str]]) -> ResponseEnvelope[Any]:
        """Return the cached response with the headers of the 304 response."""
        fresh = http_meta(304, headers)
        updated = {name: value for name, value in fresh.headers.items() if not name.startswith("content-")}
        meta = msgspec.structs.replace(self.meta, headers={**self.meta.headers, **updated})
        return ResponseEnvelope(copy.deepcopy(self.envelope.data), meta)


class ValidatorCache:
    """Cache of the latest responses to GET requests, limited in number and bytes."""

    def __init__(self) -> None:
        self._bytes = 0
        self._responses: OrderedDict[Any, CachedResponse] = OrderedDict()

    def find(self, request: PreparedRequest, credentials: RequestCredentials) -> CachedResponse | None:
        """Return the cached response to an equal request; None if there is none."""
        return self._responses.get(_key(request, credentials))

    def store(
        self, request: PreparedRequest, credentials: RequestCredentials, envelope: ResponseEnvelope[Any], size: int
    ) -> None:
        """Cache a response with a body of `size` bytes if it has a validator and caching is allowed."""
        meta = envelope.meta
        if request.method != "GET" or not isinstance(meta, HTTPResponseMeta) or meta.status_code != 200:
            return
        may_not = "no-store" in meta.headers.get("cache-control", "") or meta.headers.get("vary") == "*"
        if may_not or not ("etag" in meta.headers or "last-modified" in meta.headers):
            return
        key = _key(request, credentials)
        before = self._responses.pop(key, None)
        self._bytes += size - (0 if before is None else before.size)
        # A copy: the caller may change its data.
        self._responses[key] = CachedResponse(ResponseEnvelope(copy.deepcopy(envelope.data), meta), meta, size)
        while len(self._responses) > _MAX_RESPONSES or self._bytes > _MAX_BYTES:
            self._bytes -= self._responses.popitem(last=False)[1].size


def _key(request: PreparedRequest, credentials: RequestCredentials) -> Any:
    """Return the cache key; it includes the credentials, so that callers never share responses."""
    return request.method, request.url_with(credentials), tuple(request.headers_with(credentials))
