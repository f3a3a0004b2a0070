"""The HTTP seam: one verb that sends a request and gives the response head and its body in pieces.

A client knows nothing of operations, OpenAPI, retries, redirects, cookies or credentials: it sends what it is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from operations.errors import CallError, ErrorCode


class HTTPRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, written out in full: what is not in it is not sent, but for the framing and the client's own name.

    `url` is absolute and sent as it is written, so it is percent-encoded already and holds no credentials. `headers`
    may repeat a name. A `Content-Length` announces the length of a body that comes in pieces; in any other request the
    client writes it itself. `stream` gives the head as soon as it arrives; without it a client may read ahead.
    `timeout` is in seconds: for the whole exchange, or with `stream` until the response head is there; `None` is the
    client's own, `math.inf` is none.
    """

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | AsyncIterable[bytes] | None = None
    timeout: float | None = None
    stream: bool = False


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client connects and how long it waits, in seconds; `None` is no limit.

    `timeout` holds for requests that name none. `read_timeout` is how long a server may be silent in an exchange that
    is streamed, before the head and between the pieces of the body. `max_connections` counts all hosts; a request
    beyond it waits its turn. `max_idle` connections per host stay open for `idle_timeout` after use; 0 is no
    keep-alive. `proxy` is for every request; the environment's proxies are used with `trust_env` only. `verify` is
    `False`, or the path of a PEM file of authorities to trust besides the system's. `certificate` is the path of a PEM
    file with the client's certificate and private key.
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


Whole = tuple[dict[str, str], bytes]
"""Headers by name, in lower case and each once, and a whole body."""


class HTTPResponse(Protocol):
    """The head of a response, and its body in decoded pieces as they arrive."""

    @property
    def status(self) -> int:
        """The status code, whatever it is: an error status and a redirect are answers like any other."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers as they came: names in any case, repeated ones kept, in order."""

    @property
    def url(self) -> str:
        """The URL of the request that this answers."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, decoded, once; a body that is cut short raises `UNAVAILABLE`, a silent server `TIMEOUT`."""

    async def close(self) -> None:
        """Let the connection go; one whose body was not read to its end is dropped."""


class ReadyResponse(HTTPResponse, Protocol):
    """A response that may be there as a whole as soon as its head is; a client need not give such ones."""

    def whole(self) -> Whole | None:
        """Headers and body, where nothing is left to wait for and no header came twice or is a cookie."""


class HTTPClient(Protocol):
    """What sends requests: one verb, and an end."""

    def send(self, request: HTTPRequest) -> AbstractAsyncContextManager[HTTPResponse]:
        """Send the request on entering the block, and let its connection go on leaving it."""

    async def close(self) -> None:
        """Close every connection; what is under way fails, at the latest when its time is up."""


async def read_body(response: HTTPResponse, *, limit: int) -> bytes:
    """The whole body, when it has at most `limit` bytes after decoding; a larger one is dropped where it passes it."""
    whole = b""
    parts: list[bytes] | None = None
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > limit:
            await response.close()
            raise CallError(
                ErrorCode.EXECUTION_ERROR,
                f"the response body is larger than the limit of {limit} bytes",
                {"status": response.status, "limit": limit},
            )
        if parts is not None:
            parts.append(chunk)
        elif whole:
            parts = [whole, chunk]
        else:
            whole = chunk
    return whole if parts is None else b"".join(parts)
