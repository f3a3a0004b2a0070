"""What holds for every client: which requests can be sent as they are written, and how a failure is told."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from operations.errors import CallError, ErrorCode
from operations.http.client import ClientOptions, HTTPRequest

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


@cache
def user_agent() -> str:
    """The name a client gives itself when the request names none."""
    try:
        return f"operations/{version('operations')}"
    except PackageNotFoundError:
        return "operations"


def head_timeout(request: HTTPRequest, options: ClientOptions) -> float | None:
    """The request's own timeout, else the client's; `None` is no limit."""
    timeout = options.timeout if request.timeout is None else request.timeout
    return None if timeout == math.inf else timeout


def describe(request: HTTPRequest) -> str:
    """The request as a message may show it: no query, no fragment, no credentials."""
    match = _URL.fullmatch(request.url)
    if match is None:
        return f"{request.method!a} request"
    scheme, _, authority = match["origin"].partition("://")
    return f"{request.method} {scheme}://{authority.rpartition('@')[2]}{match['path']}"


def failure(
    request: HTTPRequest, reason: str, *, executed: Executed, code: ErrorCode = ErrorCode.UNAVAILABLE
) -> CallError:
    """The error of a request that got no whole answer, and whether the server may have acted on it."""
    return CallError(code, f"{describe(request)}: {reason}", {"executed": executed})


def refusal(request: HTTPRequest, reason: str) -> CallError:
    """The error of a request that is not sent because it cannot be sent as it is written."""
    return failure(request, reason, executed="no", code=ErrorCode.VALIDATION_ERROR)


def request_target(request: HTTPRequest) -> str:
    """The path and query exactly as the URL writes them; refuses a URL that some client would rewrite."""
    match = _URL.fullmatch(request.url)
    if match is None:
        raise refusal(request, "not an absolute http or https URL")
    if not match["authority"]:
        raise refusal(request, "the URL names no host")
    if "@" in match["authority"]:
        raise refusal(request, "the URL holds credentials; send them in a header")
    port = match["authority"].rpartition(":")[2]
    if port.isdecimal() and int(port) > 65535:
        raise refusal(request, "the port of the URL is out of range")
    target = (match["path"] or "/") + (match["query"] or "")
    if _UNSENDABLE.search(target):
        raise refusal(request, "the URL has characters that are not percent-encoded")
    if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in match["path"].split("/")):
        raise refusal(request, "a path segment of dots is not sent: it would climb out of its place")
    return target


def check_method_and_headers(request: HTTPRequest) -> None:
    """Refuse a method or header that would break out of its line; the message never shows a header's value."""
    if not _TOKEN.fullmatch(request.method):
        raise refusal(request, "the method is not a token")
    for name, value in request.headers:
        if not _TOKEN.fullmatch(name):
            raise refusal(request, f"the header name {name!a} is not a token")
        if _CONTROL.search(value):
            raise refusal(request, f"the value of the header {name} has control characters")


def sent_headers(request: HTTPRequest) -> Sequence[tuple[str, str]]:
    """The headers, where those that frame the message say what is true.

    A `Content-Length` or `Transfer-Encoding` that is not true would let the body of one request pass for the next. A
    client knows the length of a body of bytes, but not every client says so when there are none.
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
    """The length that the headers give a body that comes in pieces."""
    if request.body is None or isinstance(request.body, bytes):
        return None
    lengths = {value.strip() for name, value in request.headers if name.lower() == "content-length"}
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or not _DIGITS.fullmatch(length):
        raise refusal(request, "the Content-Length is not one number")
    return int(length)


def measured(request: HTTPRequest) -> AsyncIterable[bytes]:
    """The pieces of the request's body, stopped where they do not add up to the length that the headers announce."""
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
