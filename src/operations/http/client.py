"""The Protocol of HTTP clients: `send` sends a request and returns the response head, and the body in pieces.

A client knows nothing of operations, OpenAPI, retries, redirects, cookies or credentials: it sends what it is given.
This module also has the checks and the errors that all clients share: a request that cannot be sent unchanged is
refused.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, Protocol, TypeVar

import msgspec

from operations.errors import CallError, ErrorCode

T = TypeVar("T")
Executed = Literal["no", "unknown"]

_URL = re.compile(
    r"(?P<origin>https?://(?P<authority>[^/?#\\]*))(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?", re.I | re.S
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSENDABLE = re.compile(r"[^!-\[\]-~]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_DIGITS = re.compile(r"[0-9]{1,18}")


class HTTPRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete request.

    Clients add only framing headers, and `User-Agent`, `Accept` and `Accept-Encoding` headers if they are missing.

    `url` is absolute and sent unchanged, so it must be percent-encoded and contain no credentials. `headers` may repeat
    a name. A `Content-Length` header announces the length of a streamed body; a body without it is sent in chunks. With
    `stream`, the response head is returned when it arrives; without `stream`, a client may read the body first.
    `timeout` is in seconds, for the whole exchange or, with `stream`, until the response head; `None` means the
    client's default, `math.inf` no limit.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | AsyncIterable[bytes] | None = None
    timeout: float | None = None
    stream: bool = False


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connection settings, and timeouts in seconds; `None` means no limit.

    `timeout` is the default of requests. `read_timeout` limits the silence of a server in a streamed exchange, before
    the head and between the pieces of the body. `max_connections` is for all hosts together; further requests are
    queued. `max_idle` connections per host stay open for `idle_timeout` after use; 0 disables keep-alive. `proxy` is
    for every request; proxies from the environment require `trust_env`. `verify=False` disables the check of servers'
    certificates; a path names a PEM file with authorities to trust in addition to the system's. `certificate` is the
    path of a PEM file with the client's certificate and private key.
    """

    timeout: float | None = 60.0
    connect_timeout: float | None = 10.0
    read_timeout: float | None = 60.0
    max_connections: int | None = 256
    max_idle: int | None = None
    idle_timeout: float | None = 30.0
    proxy: str | None = None
    trust_env: bool = False
    verify: bool | str = True
    certificate: str | None = None
    http2: bool = False


class HTTPResponse(Protocol):
    """The head of a response, and its body in decoded pieces as they arrive."""

    @property
    def status(self) -> int:
        """The status code; errors and redirects do not raise exceptions."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers as received: names in any case, repeated ones kept, in order."""

    @property
    def url(self) -> str:
        """The URL of the request."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the decoded body, once; a truncated body raises `UNAVAILABLE`, a silent server `TIMEOUT`."""

    async def close(self) -> None:
        """Release the connection; close it if the body was not read completely."""


class HTTPClient(Protocol):
    """Sends HTTP requests."""

    def send(self, request: HTTPRequest) -> AbstractAsyncContextManager[HTTPResponse]:
        """Send the request on entering the block, and release its connection on leaving it."""

    async def close(self) -> None:
        """Close every connection; pending requests fail, at the latest at their timeout."""


async def read_body(response: HTTPResponse, *, limit: int) -> bytes:
    """Read the whole body; raise `EXECUTION_ERROR` if it exceeds `limit` bytes after decoding."""
    whole = b""
    parts: list[bytes] | None = None
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > limit:
            await response.close()
            raise CallError(
                ErrorCode.EXECUTION_ERROR,
                f"the response body exceeds the limit of {limit} bytes",
                {"status": response.status, "limit": limit},
            )
        if parts is not None:
            parts.append(chunk)
        elif whole:
            parts = [whole, chunk]
        else:
            whole = chunk
    return whole if parts is None else b"".join(parts)


@cache
def user_agent() -> str:
    """Return the default User-Agent."""
    try:
        return f"operations/{version('operations')}"
    except PackageNotFoundError:
        return "operations"


def head_timeout(request: HTTPRequest, options: ClientOptions) -> float | None:
    """Return the request's timeout, else the client's; `None` means no limit."""
    timeout = options.timeout if request.timeout is None else request.timeout
    return None if timeout == math.inf else timeout


class ExpiredError(Exception):
    """The timeout of `within` passed; distinct from a `TimeoutError` of other code."""


async def within(timeout: float | None, waiting: Awaitable[T]) -> T:
    """Await for at most `timeout` seconds, then raise `ExpiredError`."""
    try:
        async with asyncio.timeout(timeout) as scope:
            return await waiting
    except TimeoutError:
        if scope.expired():
            raise ExpiredError from None
        raise


def describe(request: HTTPRequest) -> str:
    """Return the method and the URL of a request for error messages, without query, fragment and credentials."""
    match = _URL.fullmatch(request.url)
    if match is None:
        return f"{request.method!a} request"
    scheme, _, authority = match["origin"].partition("://")
    return f"{request.method} {scheme}://{authority.rpartition('@')[2]}{match['path']}"


def error_text(data: object) -> str:
    """Return the message in the body of an error, from one of the usual properties; empty if there is none."""
    if isinstance(data, str):
        return data.strip()[:200]
    for key in ("message", "detail", "title", "error_description", "error"):
        value = data.get(key) if isinstance(data, dict) else None
        if isinstance(value, str) and value:
            return value[:200]
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])[:200]
    return ""


def failure(
    request: HTTPRequest, reason: str, *, executed: Executed, code: ErrorCode = ErrorCode.UNAVAILABLE
) -> CallError:
    """Return the error of a request without a complete response.

    `executed` is `no` if the server cannot have handled the request, else `unknown`.
    """
    return CallError(code, f"{describe(request)}: {reason}", {"executed": executed})


def refusal(request: HTTPRequest, reason: str) -> CallError:
    """Return the error of a request that cannot be sent unchanged, and so is not sent."""
    return failure(request, reason, executed="no", code=ErrorCode.VALIDATION_ERROR)


def request_target(request: HTTPRequest) -> str:
    """Return path and query exactly as in the URL; refuse a URL that a client would rewrite."""
    match = _URL.fullmatch(request.url)
    if match is None:
        raise refusal(request, "not an absolute http or https URL")
    if not match["authority"]:
        raise refusal(request, "the URL has no host")
    if "@" in match["authority"]:
        raise refusal(request, "the URL contains credentials; send them in a header")
    port = match["authority"].rpartition(":")[2]
    if port.isdecimal() and int(port[:9]) > 65535:
        raise refusal(request, "the port of the URL is out of range")
    target = (match["path"] or "/") + (match["query"] or "")
    if _UNSENDABLE.search(target):
        raise refusal(request, "the URL has unencoded characters")
    if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in match["path"].split("/")):
        raise refusal(request, "the path has a dot segment, which would change the path")
    return target


def check_method_and_headers(request: HTTPRequest) -> None:
    """Refuse a method or header that could inject header lines; error messages never show header values."""
    if not _TOKEN.fullmatch(request.method):
        raise refusal(request, "invalid method")
    for name, value in request.headers:
        if not _TOKEN.fullmatch(name):
            raise refusal(request, f"invalid header name {name!a}")
        if _CONTROL.search(value):
            raise refusal(request, f"the value of header {name} has control characters")


def sent_headers(request: HTTPRequest) -> Sequence[tuple[str, str]]:
    """Return the headers with correct framing.

    With a wrong `Content-Length` or `Transfer-Encoding`, a server would read the body of one request as the next
    request. `Content-Length: 0` is added for an empty body, because not every client adds it.
    """
    empty = not request.body and (request.body is not None or request.method in _WITH_BODY)
    for name, _ in request.headers:
        if name.lower() in _FRAMING:
            break
    else:
        if not empty:
            return request.headers
    length = 0 if empty else announced_length(request)
    kept = [(name, value) for name, value in request.headers if name.lower() not in _FRAMING]
    return kept if length is None else [*kept, ("Content-Length", str(length))]


def announced_length(request: HTTPRequest) -> int | None:
    """Return the length of a streamed body from the headers; None if they do not state it."""
    if request.body is None or isinstance(request.body, bytes):
        return None
    lengths = {value.strip() for name, value in request.headers if name.lower() == "content-length"}
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or not _DIGITS.fullmatch(length):
        raise refusal(request, "invalid Content-Length: expected one number")
    return int(length)


def checked_body(request: HTTPRequest) -> AsyncIterable[bytes]:
    """Return the request's body; reading it fails if its length differs from the announced length."""
    assert request.body is not None
    assert not isinstance(request.body, bytes)
    length = announced_length(request)
    return request.body if length is None else _counted(request, request.body, length)


async def _counted(request: HTTPRequest, body: AsyncIterable[bytes], length: int) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > length:
            break
        yield chunk
    if size != length:
        difference = "longer" if size > length else "shorter"
        reason = f"the body is {difference} than its Content-Length of {length}"
        raise failure(request, reason, executed="unknown", code=ErrorCode.VALIDATION_ERROR)
