"""One exchange with an API: send, follow redirects, try again where that is safe, carry no credentials abroad."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime

import msgspec

from operations.errors import CallError, ErrorCode
from operations.http import HTTPClient, HTTPRequest, HTTPResponse
from operations.sources.openapi.auth import Credentials
from operations.sources.openapi.config import HTTPServiceConfig
from operations.sources.openapi.redirects import Trail
from operations.sources.openapi.requests import PreparedRequest, origin, overridden, without_query
from operations.sources.openapi.responses import header

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "QUERY"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request on its way, with what to do about time."""

    prepared: PreparedRequest
    credentials: Credentials
    deadline: float | None
    """Monotonic seconds."""
    timeout: float
    streaming: bool = False
    extra: Sequence[tuple[str, str]] = ()


class Sent:
    """An answer whose connection is held until `close`."""

    __slots__ = ("_held", "response")

    def __init__(self, response: HTTPResponse, held: AbstractAsyncContextManager[HTTPResponse]) -> None:
        self.response = response
        self._held = held

    def close(self) -> Awaitable[object]:
        """Let the connection go."""
        return self._held.__aexit__(None, None, None)


First = Sent | CallError


class Exchange:
    """Sends requests of one service."""

    def __init__(self, client: HTTPClient, config: HTTPServiceConfig) -> None:
        self.client = client
        self._config = config

    async def send(self, outgoing: Outgoing, first: First | None = None) -> Sent:
        """The answer to a request, after redirects and retries; the caller closes it.

        `first` is what the first attempt came to, where it was made already.
        """
        attempt = 1
        while True:
            try:
                request = self._request(outgoing)
                if isinstance(first, CallError):
                    raise first
                sent = await self._send_one(request) if first is None else first
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
            first = None
            await asyncio.sleep(delay)
            attempt += 1

    async def _follow(self, outgoing: Outgoing, request: HTTPRequest, sent: Sent) -> Sent:
        """Go where an answer leads, as long as it leads on."""
        trail = Trail(origin(request.url), outgoing.prepared.body, outgoing.credentials.query)
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
        held = self.client.send(request)
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
        """How long to wait before the next attempt; None when there is none."""
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
    """Seconds that a `Retry-After` header asks for; None when it does not say."""
    if value.isascii() and value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time()) if value else None
    except (ValueError, TypeError):
        return None
