"""The Protocol of HTTP clients: `send` sends a request and returns the response head, and the body in pieces.

A client sends each request unchanged, or raises an error. It does not retry, follow redirects, store cookies or add
credentials. This module also has the checks and the errors that all clients share.
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

    Clients add only `Content-Length` or `Transfer-Encoding`, and default `User-Agent`, `Accept` and `Accept-Encoding`
    headers.

    `url` is absolute and sent unchanged, so it must be percent-encoded and contain no credentials. `headers` may repeat
    a name. A streamed body is sent in chunks, unless a `Content-Length` header announces its length. With `stream`, the
    client returns the response when the head has arrived; without `stream`, it may read the body first. `timeout` is in
    seconds: `None` means the client's default, `math.inf` no limit. The timeout limits the whole exchange; with
    `stream`, only the time until the response head.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | AsyncIterable[bytes] | None = None
    timeout: float | None = None
    stream: bool = False


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connection settings, and timeouts in seconds. A timeout or maximum of `None` means no limit.

    `timeout` applies to requests without a timeout. `read_timeout` applies to requests with `stream`: it limits the
    wait for the head, in addition to the timeout, and the wait for each piece of the body. `max_connections` is for all
    hosts together; further requests are queued. After use, at most `max_idle` connections stay open, each for
    `idle_timeout`; pyreqwest counts them for each host, httpx2 for all hosts together. `max_idle=0` disables
    keep-alive. `proxy` is the URL of a proxy for all requests; `trust_env` enables the proxies that environment
    variables name. `verify=False` disables the check of servers' certificates; a path names a PEM file with authorities
    to trust in addition to the system's. `certificate` is the path of a PEM file with the client's certificate and
    private key. `http2` enables HTTP/2.
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
    """The head of a response, and its decompressed body in pieces as they arrive."""

    @property
    def status(self) -> int:
        """The status code. Error statuses and redirects do not raise exceptions."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers. A name may be in any case, and may occur several times."""

    @property
    def url(self) -> str:
        """The URL of the request."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the decompressed body, which can be read once.

        Raise `UNAVAILABLE` if the body is truncated, and `TIMEOUT` if the server does not send it in time.
        """

    async def close(self) -> None:
        """Release the connection; close it if the body was not read completely."""


class HTTPClient(Protocol):
    """Sends HTTP requests."""

    def send(self, request: HTTPRequest) -> AbstractAsyncContextManager[HTTPResponse]:
        """Return a context manager: entering it sends the request, and leaving it releases the connection."""

    async def close(self) -> None:
        """Close all connections. Pending requests fail, at the latest when their timeout ends."""


async def read_body(response: HTTPResponse, *, limit: int) -> bytes:
    """Return the whole decompressed body; raise `EXECUTION_ERROR` if it exceeds `limit` bytes."""
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
    """Return the timeout of the request, or the client's default if the request has none; None means no limit."""
    timeout = options.timeout if request.timeout is None else request.timeout
    return None if timeout == math.inf else timeout


class ExpiredError(Exception):
    """Raised by `within` after its timeout; distinct from a `TimeoutError` that the awaited code raises."""


async def within(timeout: float | None, waiting: Awaitable[T]) -> T:
    """Return the result of `waiting`; raise `ExpiredError` if it takes longer than `timeout` seconds."""
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
    """Return the message in the decoded body of an error response, at most 200 characters; empty if there is none.

    The message is the body itself if it is a string, else a property such as `message`, `detail` or `error`.
    """
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
    """Return the `VALIDATION_ERROR` of a request that is not sent, because it cannot be sent unchanged."""
    return failure(request, reason, executed="no", code=ErrorCode.VALIDATION_ERROR)


def request_target(request: HTTPRequest) -> str:
    """Return path and query exactly as in the URL; raise `VALIDATION_ERROR` if the URL cannot be sent unchanged."""
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
        raise refusal(request, "the URL has characters that must be percent-encoded")
    if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in match["path"].split("/")):
        raise refusal(request, "the path has a dot segment, which would change the path")
    return target


def check_method_and_headers(request: HTTPRequest) -> None:
    """Raise `VALIDATION_ERROR` for an invalid method or header; the message never shows a header's value."""
    if not _TOKEN.fullmatch(request.method):
        raise refusal(request, "invalid method")
    for name, value in request.headers:
        if not _TOKEN.fullmatch(name):
            raise refusal(request, f"invalid header name {name!a}")
        if _CONTROL.search(value):
            raise refusal(request, f"the value of header {name} has control characters")


def sent_headers(request: HTTPRequest) -> Sequence[tuple[str, str]]:
    """Return the headers of a request without `Transfer-Encoding`, and without a wrong `Content-Length`.

    With a wrong length, a server would read the body of one request as the next request. An empty body gets
    `Content-Length: 0`, because not every client adds this header.
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
    """Return the `Content-Length` of a streamed body; None without this header, or if the body is not streamed.

    Raise `VALIDATION_ERROR` for an invalid length.
    """
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
    """Return a request's streamed body; reading raises an error if the body is not as long as its `Content-Length`."""
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
