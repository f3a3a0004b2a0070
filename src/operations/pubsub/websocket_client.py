"""WebSocket client: opens links to a hub, and explains why a link cannot be opened.

The socket is opened here and not by picows. If opening a socket is cancelled, picows keeps it until the peer responds
or a timeout passes. A cancelled connection is therefore shut down here, which picows notices immediately.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from operations.errors import CallError, ErrorCode
from operations.pubsub.connection_errors import (
    has_no_tls,
    is_reachable,
    plain_reply,
    reason_of,
    require_extra,
    untrusted,
    uses_tls,
    wrong_protocol,
)
from operations.pubsub.link import MAX_PAYLOAD, Callbacks
from operations.pubsub.protocols import HEARTBEAT_SECONDS
from operations.pubsub.urls import hosts_and_ports
from operations.pubsub.websocket import WebSocketLink, settings

try:
    import picows
except ImportError:  # pragma: no cover  # the message is tested in a separate process
    raise require_extra("picows", "ws") from None

T = TypeVar("T")
_BAD_REQUEST = 400


async def connect(
    url: str,
    callbacks: Callbacks,
    *,
    token: str | None = None,
    heartbeat: float = HEARTBEAT_SECONDS,
    max_payload: int = MAX_PAYLOAD,
    tls: ssl.SSLContext | None = None,
) -> WebSocketLink:
    """Open a WebSocket; raise `ACCESS_DENIED` if the token is refused, `UNAVAILABLE` for any other failure."""
    if token is not None and not (token.isascii() and token.isprintable()):
        problem = "a character that is not printable ASCII (perhaps a final line break): remove it"
        raise CallError(ErrorCode.ACCESS_DENIED, f"the token cannot be sent to the hub: it has {problem}")
    headers = {"Authorization": f"Bearer {token}"} if token is not None else None
    link = WebSocketLink(callbacks, max_payload)
    try:
        await open_cancellable(
            lambda open_socket: picows.ws_connect(
                lambda: link,
                url,
                ssl_context=tls,
                extra_headers=headers,
                max_redirects=0,
                socket_factory=open_socket,
                **settings(heartbeat, max_payload),
            )
        )
    except picows.WSHandshakeError as error:
        status = int(error.response.status) if error.response is not None else 0
        body = (error.raw_body or b"").decode(errors="replace") if status else str(error)
        code = ErrorCode.ACCESS_DENIED if status in (401, 403) else ErrorCode.UNAVAILABLE
        details = {"status": status, "hub": _shown(url)}
        raise CallError(code, f"the hub refused the connection: {body or f'HTTP status {status}'}", details) from None
    except ssl.SSLCertVerificationError as error:
        raise untrusted(_shown(url), error) from error
    except (TimeoutError, OSError, picows.WSError) as error:
        reason = f"no connection to {_shown(url)}: {reason_of(error)}"
        raise CallError(ErrorCode.UNAVAILABLE, reason, {"executed": "no"}) from error
    if not link.is_open:
        # picows does not report a connection that closes during its handshake.
        reason = f"no connection to {_shown(url)}: the connection closed during the handshake"
        raise CallError(ErrorCode.UNAVAILABLE, reason, {"executed": "no"})
    return link


async def diagnose(url: str, error: Exception) -> CallError | None:
    """Return the error for an address whose scheme does not match the server; None if no mismatch is found.

    The scheme does not match if it is `ws` and the server uses TLS, or if it is `wss` and the server does not use TLS.
    """
    details = error.details if isinstance(error, CallError) and isinstance(error.details, dict) else {}
    if not is_reachable(error) or details.get("status", _BAD_REQUEST) not in (0, _BAD_REQUEST):
        return None
    ((host, port),) = hosts_and_ports(url)
    shown = _shown(url)
    if shown.lower().startswith("ws:"):
        if await uses_tls(host, port):
            return wrong_protocol(shown, f"the server uses TLS: change its address to wss{shown[2:]}")
    elif has_no_tls(error):
        first, _, _ = (await plain_reply(host, port, _upgrade(host))).partition(b"\r\n")
        # A server with TLS may also respond to plain HTTP, with 400 Bad Request.
        if first.startswith(b"HTTP/1.") and b" %d" % _BAD_REQUEST not in first:
            return wrong_protocol(shown, f"the server does not use TLS: change its address to ws{shown[3:]}")
    return None


def _upgrade(host: str) -> bytes:
    """Return a WebSocket handshake without a token."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        "GET / HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
    )
    return "\r\n".join((*lines, "", "")).encode()


def _shown(url: str) -> str:
    """Return an address without its secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


OpenSocket = Callable[[picows.WSParsedURL], Awaitable[socket.socket]]


async def open_cancellable(make: Callable[[OpenSocket], Coroutine[Any, Any, T]]) -> T:
    """Return the connection that `make(open_socket)` opens; if this is cancelled, shut down the opened sockets."""
    opened: list[socket.socket] = []

    async def open_socket(url: picows.WSParsedURL) -> socket.socket:
        found = await _connect_socket(url.host, url.port)
        opened.append(found)
        return found

    making = asyncio.ensure_future(make(open_socket))
    making.add_done_callback(retrieve_exception)
    try:
        await asyncio.wait((making,))
    except asyncio.CancelledError:
        if not opened:
            making.cancel()
        for each in opened:
            with contextlib.suppress(OSError):  # the socket may be closed already
                each.shutdown(socket.SHUT_RDWR)
        await asyncio.wait((making,))
        raise
    try:
        return making.result()
    except ConnectionError:
        for each in opened:  # picows reconnects a socket that was reset early, and leaves it open on failure
            each.close()
        raise
    finally:
        del making  # the task's error references this frame through its traceback


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Mark the exception of a future as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


async def _connect_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first reachable address of a host."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"the name {host} resolves to no address")
    for family, kind, protocol, _, address in await _resolve(host, port):
        found = socket.socket(family, kind, protocol)
        try:
            found.setblocking(False)
            await loop.sock_connect(found, address)
        except OSError as error:
            found.close()
            problem = error
        except BaseException:
            found.close()
            raise
        else:
            return found
    try:
        raise problem
    finally:
        del problem  # it references this frame through its traceback


async def _resolve(host: str, port: int) -> list[Any]:
    try:  # a numeric address needs no thread
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
