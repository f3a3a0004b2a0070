"""The default client, on pyreqwest: Rust's reqwest on threads of its own, usable from any event loop."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, cast

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError, RequestTimeoutError
from pyreqwest.http import HeaderMap, Url
from pyreqwest.proxy import ProxyBuilder
from pyreqwest.request import StreamRequest

from operations.errors import CallError, ErrorCode
from operations.http import severing
from operations.http.client import ClientOptions, HTTPRequest, HTTPResponse, Whole
from operations.http.lanes import Lane, Lanes
from operations.http.parking import park_at_exit, parked
from operations.http.rules import (
    check_method_and_headers,
    failure,
    head_timeout,
    measured,
    refusal,
    request_target,
    sent_headers,
    user_agent,
)
from operations.http.waiting import ExpiredError, within

_PIECE = 65536

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)


# How many calls share a client, and wait for each other when one of them is cancelled. A client that can check
# certificates takes milliseconds to make; one for plain connections, microseconds.
_SHARE_TLS = 16


class PyreqwestClient:
    """An HTTP client on pyreqwest; connections are kept for reuse until it is closed.

    Header names come in lower case and values of one name come together. A value that is not ASCII is out of
    pyreqwest's reach and reads as U+FFFD. The `Content-Encoding` and `Content-Length` of a decoded body are gone.

    pyreqwest cannot take back a request that has gone out, so the connection of one that is cancelled before the
    response head is there is closed behind its back: at once, or for calls over TLS when the few others that share
    its client have ended. Where that cannot be done (`severing`), it closes when the request's time is up.
    """

    def __init__(self, options: ClientOptions | None = None) -> None:
        self._options = options = options or ClientOptions()
        self._closed = False
        # Streams have their own: reqwest counts silence per client, and a call may be silent for all of its timeout.
        self._calls = _lanes(options, None, _SHARE_TLS)
        self._streams = _lanes(options, options.read_timeout, 1)

    def send(self, request: HTTPRequest) -> AbstractAsyncContextManager[HTTPResponse]:
        """Send the request on entering the block, and let its connection go on leaving it."""
        if self._closed or parked.is_set():
            reason = "the client is closed" if self._closed else "the process is ending"
            raise failure(request, reason, executed="no")
        lanes = self._streams if request.stream else self._calls
        return _Exchange(lanes, request, self._options)

    async def close(self) -> None:
        """Close every connection; what is under way fails."""
        self._closed = True
        for lane in self._calls.clear() + self._streams.clear():
            # pyreqwest's own close() fails what is under way; idle connections close when the last reference goes.
            await lane.client.close()
            if lane.users:
                severing.sever(lane.mark, patience=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _lanes(options: ClientOptions, read_timeout: float | None, share_tls: int) -> Lanes[Client]:
    def build(place: str, mark: int) -> Client:
        return _build(options, place, mark, read_timeout)

    def share(place: str) -> int:
        if options.http2:
            return sys.maxsize  # which has one connection for all
        return 1 if place.startswith("http:") else share_tls

    return Lanes(build, share, most=options.max_connections, most_idle=options.max_idle)


class _Exchange:
    """One request and its response: entering sends it, leaving lets it go; the body is read once, by itself."""

    __slots__ = (
        *("_ended", "_head", "_headers", "_lane", "_lanes", "_options", "_piece", "_request", "_stream", "_upload"),
        *("status", "url"),
    )

    def __init__(self, lanes: Lanes[Client], request: HTTPRequest, options: ClientOptions) -> None:
        self._lanes = lanes
        self._lane: Lane[Client] | None = None
        self._request = request
        self._options = options
        # Held here alone: a cancelled task that somebody keeps would keep it too, and with it idle connections.
        self._stream: StreamRequest | None = None
        self._upload: _Upload | None = None
        self._piece: bytes | None = None
        """The beginning of the body, where it came along with the head and was not given out yet."""
        self._headers: Sequence[tuple[str, str]] | None = None
        self._ended = False
        self.url = request.url

    async def __aenter__(self) -> Self:
        request, body = self._request, self._request.body
        timeout = head_timeout(request, self._options)
        place = _place(request.url)
        lane = self._lanes.take(place)
        if lane is None:
            lane, timeout = await self._wait(place, timeout)
        self._lane = lane
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0
        piece = None
        try:
            if not (body is None or isinstance(body, bytes)):
                self._upload = _Upload(request)
            self._stream = stream = _prepare(lane.client, request, timeout, self._upload)
            if request.stream:
                head = await within(timeout, stream.__aenter__())
            else:
                # The request carries its timeout into Rust, which costs less than a timer of ours. As much of the body
                # as one piece holds has been read when the head is given: this does not wait.
                head = await stream.__aenter__()
                piece = await head.body_reader.read(_PIECE)
        except BaseException as error:  # noqa: BLE001  # every way a request can end is translated in one place
            raise self._given_up(error) from None
        if task and task.cancelling() > cancelled:  # which pyreqwest swallows when the result is just there
            await self.close()
            raise asyncio.CancelledError
        self._head = head
        self.status = head.status
        if not request.stream:
            self._piece = b"" if piece is None else bytes(piece)
            # A piece that is not full is the last one: most bodies come in one step.
            if len(self._piece) < _PIECE:
                self._ended = True
                if self._upload is None:
                    self._lane = self._stream = None
                    self._lanes.release(lane)
        return self

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers as they came."""
        if self._headers is None:
            self._headers = _read_headers(self._head.headers)
        return self._headers

    def whole(self) -> Whole | None:
        """Headers and body, where all of the body is here and no header needs care."""
        if self._piece is None or not self._ended or self._lane is not None:
            return None
        headers = _by_name(self._head.headers)
        return None if headers is None else (headers, self._piece)

    def _given_up(self, error: BaseException) -> BaseException:
        """Let go of a request that got no answer; the error to raise."""
        if isinstance(error, (PyreqwestError, CallError)):
            self._let_go()
            return error if isinstance(error, CallError) else _failed(self._request, error)
        self._let_go(patience=(self._options.connect_timeout or 60.0) + 1)
        if isinstance(error, ExpiredError):
            return failure(self._request, "no answer in time", executed="unknown", code=ErrorCode.TIMEOUT)
        return error

    async def _wait(self, place: str, timeout: float | None) -> tuple[Lane[Client], float | None]:
        """A lane when it is this request's turn, and the time that is left then."""
        began = time.monotonic()
        try:
            lane = await within(timeout, self._lanes.wait(place))
        except ExpiredError:
            reason = "no connection was free in time"
            raise failure(self._request, reason, executed="no", code=ErrorCode.TIMEOUT) from None
        return lane, None if timeout is None else timeout - (time.monotonic() - began)

    async def __aexit__(self, *_: object) -> None:
        if self._lane is not None:
            await self.close()
        self._forget()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, decoded, once."""
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
        """Let the connection go; one whose body was not read to its end is dropped."""
        stream, self._stream = self._stream, None
        self._forget()
        try:
            if self._upload is not None:
                self._upload.stop()
            if stream is not None:
                await stream.__aexit__(None, None, None)
        finally:
            self._let_go()

    def _forget(self) -> None:
        """A body that was not read before the end is not read after it."""
        if self._piece is not None:
            self._piece = None
            self._ended = False

    def _let_go(self, *, patience: float | None = None) -> None:
        lane, self._lane, self._stream = self._lane, None, None
        if self._upload is not None:
            self._upload.stop()
        if lane is not None:
            self._lanes.release(lane, patience=patience)


class _Upload:
    """A body in pieces that can be stopped, which ends the request: pyreqwest would send it to its end."""

    __slots__ = ("_pieces", "_pulling", "_stopped")

    def __init__(self, request: HTTPRequest) -> None:
        self._pieces = aiter(measured(request))
        self._pulling: asyncio.Task[Any] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Give no more pieces, and give up waiting for one."""
        self._stopped = True
        if self._pulling is not None:
            self._pulling.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._stopped:
            raise ConnectionAbortedError("the request was given up")
        self._pulling = asyncio.current_task()  # pyreqwest pulls each piece in a task of its own
        try:
            return await anext(self._pieces)
        finally:
            self._pulling = None


def _prepare(client: Client, request: HTTPRequest, timeout: float | None, upload: _Upload | None) -> StreamRequest:
    """The request in pyreqwest's terms, or a refusal where it cannot be sent as it is written."""
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
    """The parsed URL, when it still says what was written: reqwest resolves dot segments and turns `\\` into `/`."""
    try:
        url = Url(request.url)
    except ValueError as error:
        request_target(request)
        raise refusal(request, f"not a URL that can be sent: {error}") from None
    if "@" in request.url or str(url) != request.url or not request.url.startswith(("http://", "https://")):
        request_target(request)
    return url


def _read_headers(headers: HeaderMap) -> Sequence[tuple[str, str]]:
    try:
        folded = headers.dict_multi_value()
    except ValueError:  # one of the values is not ASCII
        return list(_readable_headers(headers))
    # The usual case takes half as long as the items of the headers do.
    once = [(name, value) for name, value in folded.items() if isinstance(value, str)]
    return once if len(once) == len(folded) else list(headers.items())


def _by_name(headers: HeaderMap) -> dict[str, str] | None:
    """The headers by name, where each came once and none is a cookie."""
    try:
        folded = headers.dict_multi_value()
    except ValueError:
        return None
    for value in folded.values():
        if type(value) is not str:
            return None
    return None if "set-cookie" in folded else cast("dict[str, str]", folded)


def _readable_headers(headers: HeaderMap) -> Iterator[tuple[str, str]]:
    rest = headers.copy()
    for name in headers:
        try:
            yield name, rest.pop(name)
        except ValueError:
            yield name, "\ufffd"


def _failed(request: HTTPRequest, error: PyreqwestError) -> CallError:
    """The error as the seam tells it; of pyreqwest's causes only the last, for the first shows the whole URL."""
    details = error.details if isinstance(error, DetailedPyreqwestError) else None
    causes = [cause["message"] for cause in (details and details["causes"]) or ()]
    connecting = "client error (Connect)" in causes
    reason = error.message if not causes or " for url (" in causes[-1] else causes[-1]
    return failure(
        request,
        f"could not connect: {reason}" if connecting else reason,
        executed="no" if connecting else "unknown",
        code=ErrorCode.TIMEOUT if isinstance(error, RequestTimeoutError) else ErrorCode.UNAVAILABLE,
    )


def _place(url: str) -> str:
    """Scheme and authority of a URL: connections to another place are of no use to it."""
    end = url.find("/", 8)
    return url[:end] if end > 0 else url.partition("?")[0]


def _build(options: ClientOptions, place: str, mark: int, read_timeout: float | None) -> Client:
    park_at_exit()
    builder = (
        ClientBuilder()
        .runtime_multithreaded(False)  # one thread, which can be parked
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
    if severing.CAN_SEVER:
        builder.tcp_user_timeout(timedelta(milliseconds=mark))
    if place.startswith("http:") and not (options.proxy or options.trust_env):
        builder.danger_accept_invalid_certs(True)  # there is none on the way, and reading all authorities takes long
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
