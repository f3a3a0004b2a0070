"""PyreqwestClient: requests through Rust's reqwest, which runs in its own thread and serves any event loop."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError, RequestTimeoutError
from pyreqwest.http import HeaderMap, Url
from pyreqwest.proxy import ProxyBuilder
from pyreqwest.request import StreamRequest

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
from operations.http.pyreqwest import exit_guard, socket_abort
from operations.http.pyreqwest.client_pool import ClientPool, PooledClient
from operations.http.pyreqwest.socket_abort import SocketAborter

_PIECE = 65536

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)


# Number of calls over TLS that share a pyreqwest client. The connection of a cancelled call is aborted only when the
# other calls have ended. Building a client that checks certificates takes milliseconds; without TLS, microseconds.
_SHARE_TLS = 16


class PyreqwestClient:
    """An HTTP client on pyreqwest; connections are pooled until it is closed.

    Names of response headers are in lower case, and values of one name are grouped. pyreqwest cannot read values that
    are not ASCII: they become U+FFFD. `Content-Encoding` and `Content-Length` of a decoded body are removed.

    pyreqwest cannot cancel a request that was sent. This client therefore aborts the connection if a call is cancelled
    before its response head arrives: without TLS immediately; with TLS, once the few other calls that share the
    pyreqwest client have ended. On platforms where sockets cannot be aborted (`socket_abort`), the connection closes at
    the request's timeout.
    """

    def __init__(self, options: ClientOptions | None = None) -> None:
        self._options = options = options or ClientOptions()
        self._closed = False
        self._aborter = SocketAborter()
        # Streams have a separate pool: only they have a read timeout, and pyreqwest sets it for a whole client.
        self._calls = self._pool(None, _SHARE_TLS)
        self._streams = self._pool(options.read_timeout, 1)

    def send(self, request: HTTPRequest) -> AbstractAsyncContextManager[HTTPResponse]:
        """Return a context manager: entering it sends the request, and leaving it releases the connection."""
        if self._closed or exit_guard.blocked.is_set():
            reason = "the client is closed" if self._closed else "the process is ending"
            raise failure(request, reason, executed="no")
        pool = self._streams if request.stream else self._calls
        return _Exchange(pool, request, self._options)

    async def close(self) -> None:
        """Close all connections; pending requests fail."""
        self._closed = True
        for pooled in self._calls.clear() + self._streams.clear():
            # pyreqwest's close() fails pending requests; idle connections close with the last reference.
            await pooled.client.close()
            if pooled.requests:
                self._aborter.abort(pooled.mark, abort_seconds=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _pool(self, read_timeout: float | None, share_tls: int) -> ClientPool[Client]:
        options = self._options

        def build(origin: str, mark: int) -> Client:
            return _build(options, origin, mark, read_timeout)

        def capacity(origin: str) -> int:
            if options.http2:
                return sys.maxsize  # HTTP/2 has one connection for all requests
            return 1 if origin.startswith("http:") else share_tls

        return ClientPool(
            build, capacity, self._aborter, max_requests=options.max_connections, max_idle=options.max_idle
        )


class _Exchange:
    """One request and its response: entering the block sends the request, leaving the block releases the connection.

    Iterating yields the decompressed body, which can be read once.
    """

    __slots__ = (
        *("_ended", "_head", "_headers", "_options", "_piece", "_pool", "_pooled", "_request", "_stream", "_upload"),
        *("status", "url"),
    )

    def __init__(self, pool: ClientPool[Client], request: HTTPRequest, options: ClientOptions) -> None:
        self._pool = pool
        self._pooled: PooledClient[Client] | None = None
        self._request = request
        self._options = options
        # The only reference: another one, in the frame of a cancelled task, would keep idle connections open.
        self._stream: StreamRequest | None = None
        self._upload: _Upload | None = None
        self._piece: bytes | None = None
        """First piece of the body, if it was read with the head and has not been returned yet; else None."""
        self._headers: Sequence[tuple[str, str]] | None = None
        self._ended = False
        self.url = request.url

    async def __aenter__(self) -> Self:
        request, body = self._request, self._request.body
        timeout = head_timeout(request, self._options)
        origin = _origin(request.url)
        pooled = self._pool.take(origin)
        if pooled is None:
            pooled, timeout = await self._wait(origin, timeout)
        self._pooled = pooled
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        piece = None
        try:
            if not (body is None or isinstance(body, bytes)):
                self._upload = _Upload(request)
            self._stream = stream = _prepare(pooled.client, request, timeout, self._upload)
            if request.stream:
                head = await within(timeout, stream.__aenter__())
            else:
                # pyreqwest enforces the timeout of this request, which costs less than a timer here. With the head, it
                # has already read a piece of the body.
                head = await stream.__aenter__()
                piece = await head.body_reader.read(_PIECE)
        except BaseException as error:  # noqa: BLE001  # `_ended_early` handles every way in which a request can end
            raise self._ended_early(error) from None
        if task and task.cancelling() > cancelled:  # pyreqwest loses a cancellation that coincides with the result
            await self.close()
            raise asyncio.CancelledError
        self._head = head
        self.status = head.status
        if not request.stream:
            self._piece = b"" if piece is None else bytes(piece)
            # A piece that is not full is the last one, so most bodies need only one read.
            if len(self._piece) < _PIECE:
                self._ended = True
                if self._upload is None:
                    self._pooled = self._stream = None
                    self._pool.release(pooled)
        return self

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers, with names in lower case."""
        if self._headers is None:
            self._headers = _read_headers(self._head.headers)
        return self._headers

    def _ended_early(self, error: BaseException) -> BaseException:
        """Release the client of a request that failed before its response, and return the error to raise."""
        if isinstance(error, (PyreqwestError, CallError)):
            self._release()
            return error if isinstance(error, CallError) else _failed(self._request, error)
        self._release(abort_seconds=(self._options.connect_timeout or 60.0) + 1)
        if isinstance(error, ExpiredError):
            return failure(self._request, "no response in time", executed="unknown", code=ErrorCode.TIMEOUT)
        return error

    async def _wait(self, origin: str, timeout: float | None) -> tuple[PooledClient[Client], float | None]:
        """Wait in the queue for a client; return the client and what is left of `timeout`."""
        began = time.monotonic()
        try:
            pooled = await within(timeout, self._pool.wait(origin))
        except ExpiredError:
            reason = "no connection was free in time"
            raise failure(self._request, reason, executed="no", code=ErrorCode.TIMEOUT) from None
        return pooled, None if timeout is None else timeout - (time.monotonic() - began)

    async def __aexit__(self, *_: object) -> None:
        if self._pooled is not None:
            await self.close()
        self._discard_piece()

    def chunks(self) -> AsyncIterator[bytes]:
        """Return an iterator of the decompressed body, which can be read once."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece, self._piece = self._piece, None
        if piece:
            return piece
        if self._ended:
            raise StopAsyncIteration
        if self._stream is None:
            raise failure(self._request, "the response is closed", executed="unknown")
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        try:
            reader = self._head.body_reader
            if self._request.stream:
                chunk = await reader.read_chunk()
                self._ended = chunk is None
            else:
                chunk = await reader.read(_PIECE)
                self._ended = chunk is None or len(chunk) < _PIECE
            if task and task.cancelling() > cancelled:
                raise asyncio.CancelledError
        except PyreqwestError as error:
            await self.close()
            raise _failed(self._request, error) from None
        except BaseException:
            await self.close()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return bytes(chunk)

    async def close(self) -> None:
        """Release the connection; close it if the body was not read completely."""
        stream, self._stream = self._stream, None
        self._discard_piece()
        try:
            if self._upload is not None:
                self._upload.stop()
            if stream is not None:
                await stream.__aexit__(None, None, None)
        finally:
            self._release()

    def _discard_piece(self) -> None:
        """Discard a piece of the body that was not read; a later read then fails, because the response is closed."""
        if self._piece is not None:
            self._piece = None
            self._ended = False

    def _release(self, *, abort_seconds: float | None = None) -> None:
        pooled, self._pooled, self._stream = self._pooled, None, None
        if self._upload is not None:
            self._upload.stop()
        if pooled is not None:
            self._pool.release(pooled, abort_seconds=abort_seconds)


class _Upload:
    """A streamed request body; `stop` ends the body and the request.

    Without `stop`, pyreqwest would send the whole body even if the request is cancelled.
    """

    __slots__ = ("_pieces", "_pulling", "_stopped")

    def __init__(self, request: HTTPRequest) -> None:
        self._pieces = aiter(checked_body(request))
        self._pulling: asyncio.Task[Any] | None = None
        self._stopped = False

    def stop(self) -> None:
        """End the upload: cancel the wait for the next piece of the body, and return no further pieces."""
        self._stopped = True
        if self._pulling is not None:
            self._pulling.cancel()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        # A stopped upload returns no coroutine: if the event loop is closing, the coroutine would never be awaited. It
        # raises no exception either: pyreqwest calls `anext` with a default value, and on Python 3.11 an exception from
        # `__anext__` would then end the process.
        return _StoppedUpload() if self._stopped else self._next()

    async def _next(self) -> bytes:
        if self._stopped:
            await _StoppedUpload()
        self._pulling = asyncio.current_task()  # pyreqwest reads each piece in a separate task
        try:
            return await anext(self._pieces)
        finally:
            self._pulling = None


class _StoppedUpload:
    """An awaitable in place of the next piece of a stopped upload; it raises an error, which ends the request."""

    def __await__(self) -> Generator[Any, None, bytes]:
        raise ConnectionAbortedError("the request was cancelled")


def _prepare(client: Client, request: HTTPRequest, timeout: float | None, upload: _Upload | None) -> StreamRequest:
    """Convert a request to a pyreqwest request; raise `VALIDATION_ERROR` if it cannot be sent unchanged."""
    url = _exact_url(request)
    try:
        builder = client.request(request.method, url).headers(sent_headers(request))
    except ValueError:
        check_method_and_headers(request)
        raise refusal(request, "the method or a header cannot be sent") from None
    if upload is not None:
        builder.body_stream(upload)
    elif isinstance(request.body, bytes):
        builder.body_bytes(request.body)
    if request.stream:
        builder.streamed_read_buffer_limit(0)
    elif timeout is not None:
        builder.timeout(_duration(max(timeout, 0)))
    return builder.build_streamed()


def _exact_url(request: HTTPRequest) -> Url:
    """Parse the request's URL; raise `VALIDATION_ERROR` if reqwest would change its path or query.

    reqwest resolves dot segments and converts `\\` to `/`.
    """
    try:
        url = Url(request.url)
    except ValueError as error:
        request_target(request)
        raise refusal(request, f"invalid URL: {error}") from None
    if "@" in request.url or str(url) != request.url or not request.url.startswith(("http://", "https://")):
        request_target(request)
    return url


def _read_headers(headers: HeaderMap) -> Sequence[tuple[str, str]]:
    try:
        return list(headers.items())
    except ValueError:  # one of the values is not ASCII
        return list(_readable_headers(headers))


def _readable_headers(headers: HeaderMap) -> Iterator[tuple[str, str]]:
    rest = headers.copy()
    for name in headers:
        try:
            yield name, rest.pop(name)
        except ValueError:
            yield name, "\ufffd"


def _failed(request: HTTPRequest, error: PyreqwestError) -> CallError:
    """Convert a pyreqwest error to a `CallError`.

    The message has only the last cause of the error, because the first one contains the whole URL. If the last one
    contains the URL too, or the error has no cause, the message is that of the error itself.
    """
    details = error.details if isinstance(error, DetailedPyreqwestError) else None
    causes = [cause["message"] for cause in (details and details["causes"]) or ()]
    connecting = "client error (Connect)" in causes
    reason = error.message if not causes or " for url (" in causes[-1] else causes[-1]
    return failure(
        request,
        f"cannot connect: {reason}" if connecting else reason,
        executed="no" if connecting else "unknown",
        code=ErrorCode.TIMEOUT if isinstance(error, RequestTimeoutError) else ErrorCode.UNAVAILABLE,
    )


def _origin(url: str) -> str:
    """Return scheme and authority of a URL, the key of the connection pool."""
    end = url.find("/", 8)
    return url[:end] if end > 0 else url.partition("?")[0]


def _build(options: ClientOptions, origin: str, mark: int, read_timeout: float | None) -> Client:
    exit_guard.guard_exit()
    builder = (
        ClientBuilder()
        .runtime_multithreaded(False)  # one thread, which the exit guard can block
        .user_agent(user_agent())
        .follow_redirects(False)
        .referer(False)
        .default_cookie_store(False)
        .http2(options.http2)
        .pool_idle_timeout(None if options.idle_timeout is None else _duration(options.idle_timeout))
    )
    if options.max_idle is not None:
        builder.pool_max_idle_per_host(options.max_idle)
    if options.connect_timeout is not None:
        builder.connect_timeout(_duration(options.connect_timeout))
    if read_timeout is not None:
        builder.read_timeout(_duration(read_timeout))
    if not options.trust_env:
        builder.no_proxy()
    if options.proxy is not None:
        builder.proxy(ProxyBuilder.all(options.proxy))
    if socket_abort.CAN_ABORT:
        builder.tcp_user_timeout(timedelta(milliseconds=mark))
    if origin.startswith("http:") and not (options.proxy or options.trust_env):
        builder.danger_accept_invalid_certs(True)  # no TLS here, and loading authorities is slow
    else:
        _set_up_tls(builder, options)
    return builder.build()


def _set_up_tls(builder: ClientBuilder, options: ClientOptions) -> None:
    if options.verify is False:
        builder.danger_accept_invalid_certs(True)
    elif options.verify is not True:
        for certificate in _PEM.findall(Path(options.verify).read_bytes()):
            builder.add_root_certificate_pem(certificate)
    if options.certificate is not None:
        builder.identity_pem(Path(options.certificate).read_bytes())


@lru_cache(maxsize=64)
def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
