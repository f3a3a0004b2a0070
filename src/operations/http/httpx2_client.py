"""HTTP client on httpx2: for programs with their own `httpx2.AsyncClient`, or without pyreqwest."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Self

try:
    import httpx2
except ModuleNotFoundError as error:
    if error.name != "httpx2":
        raise
    raise ImportError('Httpx2Client requires httpx2: pip install "operations[httpx2]"', name="httpx2") from None

from operations.errors import CallError, ErrorCode
from operations.http.client import (
    ClientOptions,
    ExpiredError,
    HTTPRequest,
    HTTPResponse,
    check_method_and_headers,
    checked_body,
    failure,
    head_timeout,
    refusal,
    request_target,
    sent_headers,
    user_agent,
    within,
)

# Raised before any byte of the request was sent.
_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


class Httpx2Client:
    """An HTTP client on httpx2, bound to the event loop of its first request.

    If `client` is passed, its connections, proxies and event hooks are used, and its creator must close it. Of its
    headers, only `Accept-Encoding` is used. Its cookies, authentication, base URL, timeouts and redirects are ignored.
    """

    def __init__(self, client: httpx2.AsyncClient | None = None, *, options: ClientOptions | None = None) -> None:
        self._options = options or ClientOptions()
        self._owned = client is None
        self._client = _build(self._options) if client is None else client
        self._accepted = self._client.headers.get("accept-encoding", "identity")
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, request: HTTPRequest) -> AbstractAsyncContextManager[HTTPResponse]:
        """Return a context manager: entering it sends the request, and leaving it releases the connection."""
        if self._client.is_closed:
            raise failure(request, "the client is closed", executed="no")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise failure(request, "the client belongs to another event loop; create one per loop", executed="no")
        return _Exchange(self._client, self._options, request, self._accepted)

    async def close(self) -> None:
        """Close all connections, unless the `httpx2.AsyncClient` was passed in.

        Pending requests fail, at the latest when their timeout ends.
        """
        if self._owned:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Exchange:
    """One request and its response: entering the block sends the request, leaving the block releases the connection.

    Iterating yields the decompressed body, which can be read once.
    """

    def __init__(self, client: httpx2.AsyncClient, options: ClientOptions, request: HTTPRequest, accepted: str) -> None:
        self._client = client
        self._options = options
        self._request = request
        self._accepted = accepted
        self._closed = False

    async def __aenter__(self) -> Self:
        request = self._request
        prepared = _prepare(request, self._options, self._accepted)
        timeout = head_timeout(request, self._options)
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        sending = self._client.send(prepared, stream=True, auth=None, follow_redirects=False)
        try:
            self._response = response = await within(timeout, sending)
        except (httpx2.HTTPError, ExpiredError) as error:
            raise _failed(request, error) from None
        except RuntimeError:
            if not self._client.is_closed:
                raise
            raise failure(request, "the client was closed", executed="unknown") from None
        self._pieces = response.aiter_bytes()
        self.status = response.status_code
        self.headers: Sequence[tuple[str, str]] = [(_text(name), _text(value)) for name, value in response.headers.raw]
        self.url = request.url
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def chunks(self) -> AsyncIterator[bytes]:
        """Return an iterator of the decompressed body, which can be read once."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._closed:
            raise failure(self._request, "the response is closed", executed="unknown")
        try:
            return await within(self._time_left(), anext(self._pieces))
        except (httpx2.HTTPError, ExpiredError) as error:
            raise _failed(self._request, error) from None

    def _time_left(self) -> float | None:
        """Return the seconds until the deadline of the exchange; None for no limit."""
        if self._request.stream or self._deadline is None:
            return None
        return self._deadline - asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Release the connection; close it if the body was not read completely."""
        self._closed = True
        await self._pieces.aclose()
        await self._response.aclose()


def _prepare(request: HTTPRequest, options: ClientOptions, accepted: str) -> httpx2.Request:
    """Convert a request to an `httpx2.Request`; raise `VALIDATION_ERROR` if it cannot be sent unchanged."""
    target = request_target(request)
    check_method_and_headers(request)
    body = request.body if request.body is None or isinstance(request.body, bytes) else checked_body(request)
    try:
        prepared = httpx2.Request(
            request.method,
            request.url,
            headers=_all_headers(request, accepted),
            content=body,
            # httpx2 would rewrite the path; `target` is sent unchanged.
            extensions={"target": target.encode("ascii"), "timeout": _timeouts(request, options)},
        )
    except httpx2.InvalidURL as error:
        raise refusal(request, f"invalid URL: {error}") from None
    prepared.method = request.method  # httpx2 converts methods to capitals
    return prepared


def _timeouts(request: HTTPRequest, options: ClientOptions) -> dict[str, float | None]:
    """Return the timeouts that httpx2 enforces; `_Exchange` itself enforces the timeout of the request."""
    return {"connect": options.connect_timeout, "read": options.read_timeout if request.stream else None}


def _all_headers(request: HTTPRequest, accepted: str) -> list[tuple[bytes, bytes]]:
    """Return the request's headers, and defaults for `Accept`, `User-Agent` and `Accept-Encoding`."""
    headers = [(name.encode("ascii"), value.encode("utf-8")) for name, value in sent_headers(request)]
    given = {name.lower() for name, _ in headers}
    defaults = [(b"Accept", b"*/*"), (b"User-Agent", user_agent().encode("ascii"))]
    if b"range" not in given:
        defaults.append((b"Accept-Encoding", accepted.encode("ascii")))
    return headers + [default for default in defaults if default[0].lower() not in given]


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _failed(request: HTTPRequest, error: httpx2.HTTPError | ExpiredError) -> CallError:
    """Convert an httpx2 error or an expired timeout to a `CallError`."""
    if isinstance(error, ExpiredError):
        return failure(request, "no response in time", executed="unknown", code=ErrorCode.TIMEOUT)
    if isinstance(error, httpx2.LocalProtocolError):  # its message may contain a header's value
        return failure(request, "the request violates HTTP", executed="unknown", code=ErrorCode.VALIDATION_ERROR)
    connecting = isinstance(error, _NOT_SENT)
    reason = str(error) or type(error).__name__
    return failure(
        request,
        f"cannot connect: {reason}" if connecting else reason,
        executed="no" if connecting else "unknown",
        code=ErrorCode.TIMEOUT if isinstance(error, httpx2.TimeoutException) else ErrorCode.UNAVAILABLE,
    )


def _build(options: ClientOptions) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        verify=_verification(options),
        http2=options.http2,
        proxy=options.proxy,
        trust_env=options.trust_env,
        # A cookie jar that accepts no cookies.
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=())),
        limits=httpx2.Limits(
            max_connections=options.max_connections,
            max_keepalive_connections=options.max_idle,
            keepalive_expiry=options.idle_timeout,
        ),
    )


def _verification(options: ClientOptions) -> ssl.SSLContext | bool:
    if isinstance(options.verify, bool) and options.certificate is None:
        return options.verify
    context = ssl.create_default_context()
    if options.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.verify is not True:
        context.load_verify_locations(options.verify)
    if options.certificate is not None:
        context.load_cert_chain(options.certificate)
    return context
