"""HTTPServer: a served application on a port, with uvicorn and limits on connections and request heads."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import Iterator
from typing import Any

from operations.errors import CallError, ErrorCode
from operations.pubsub import require_extra
from operations.registry import OperationRegistry
from operations.serving.admission import LOOPBACK_HOSTS
from operations.serving.app import ServedApp, app

try:
    import uvicorn

    from operations.serving.http_protocol import HTTPProtocol
except ImportError as missing:
    raise require_extra(str(missing.name), "serve") from None

DEFAULT_ADDRESS = "127.0.0.1:8000"
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2_048
_LINGER_SECONDS = 1.0
"""How long a stopping server still serves requests on open connections."""
_STARTED_WITHIN = 10.0


class HTTPServer:
    """Serves an application within an `async with` block. At the end of the block, running calls may finish.

    `address` is `host:port`, `host` (port 8000), `:port` for all interfaces, or a port on loopback. Serving on
    addresses other than loopback without authentication requires `insecure=True`.
    """

    def __init__(
        self,
        served: ServedApp,
        address: str | int = DEFAULT_ADDRESS,
        *,
        insecure: bool = False,
        certificate: str | None = None,
        key: str | None = None,
        forwarded_allow_ips: str | None = None,
    ) -> None:
        if not isinstance(served, ServedApp):
            message = f"invalid application {type(served).__name__}: expected the result of app(…)"
            raise CallError(ErrorCode.VALIDATION_ERROR, f"{message}; run other applications with uvicorn")
        host, port = split_address(address)
        check_exposure(
            host,
            has_authenticator=served.settings.authenticator is not None,
            has_hosts=tuple(served.settings.accepted_hosts) != LOOPBACK_HOSTS,
            insecure=insecure,
        )
        self.served = served
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._scheme = "http" if certificate is None else "https"
        config = uvicorn.Config(
            served,
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            lifespan="on",
            http=HTTPProtocol,
            ws="websockets-sansio" if served.settings.websocket else "none",
            ws_max_size=served.settings.limits.body_bytes + 1024,
            ws_per_message_deflate=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
            limit_concurrency=served.settings.limits.connections,
            ssl_certfile=certificate,
            ssl_keyfile=key,
            proxy_headers=forwarded_allow_ips is not None,
            forwarded_allow_ips=forwarded_allow_ips,
        )
        self._server = _Server(config, served)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the server, without a trailing slash."""
        port = self._socket.getsockname()[1] if self._socket is not None else self._port
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self._host, self._host)
        return f"{self._scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}"

    async def __aenter__(self) -> HTTPServer:
        self._socket = _listen(self._host, self._port)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        started = asyncio.create_task(self._server.wait_started())
        await asyncio.wait((self._task, started), timeout=_STARTED_WITHIN, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if not self._server.started:
            await self._stop()
            raise RuntimeError("the server did not start")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._socket is not None:
            self._socket.close()


async def serve_http(
    registry: OperationRegistry | ServedApp,
    address: str | int = DEFAULT_ADDRESS,
    *,
    insecure: bool = False,
    certificate: str | None = None,
    key: str | None = None,
    **settings: Any,
) -> None:
    """Serve a registry, or an application of `app`, until SIGTERM or SIGINT, then drain running calls.

    `settings` are the settings of `app`.
    """
    served = registry if isinstance(registry, ServedApp) else app(registry, **settings)
    server = HTTPServer(served, address, insecure=insecure, certificate=certificate, key=key)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    try:
        async with server:
            await stopped.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def split_address(address: str | int) -> tuple[str, int]:
    """Return the host and the port of an address; raise ValueError if the address is invalid."""
    text = str(address)
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = ("127.0.0.1", text) if text.isdigit() else (text, "8000")
    host = host.removeprefix("[").removesuffix("]") if colon else host
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"invalid address {address!r}: expected host:port, a host, :port or a port")
    return host or "0.0.0.0", int(port)


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_authenticator: bool, has_hosts: bool, insecure: bool) -> None:
    """Raise ValueError for a host other than loopback if authentication or accepted host names are missing.

    `insecure` permits serving without authentication. `has_hosts` is true if the application accepts host names beyond
    those of loopback.
    """
    if is_loopback(host):
        return
    if not has_authenticator and not insecure:
        raise ValueError(
            f"refusing to serve on {host} without authentication: configure an authenticator or pass insecure"
        )
    if not has_hosts:
        raise ValueError(
            f"no host names configured for {host}: set hosts to the names that callers use, or set public_url"
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only on sockets whose protocol is given as TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """A uvicorn server that handles no signals and drains calls before it closes connections."""

    def __init__(self, config: uvicorn.Config, served: ServedApp) -> None:
        super().__init__(config)
        self._served = served
        self._was_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def wait_started(self) -> None:
        """Return once connections are accepted."""
        await self._was_started.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._was_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self._served.is_closing = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, HTTPProtocol):
                connection.close_after_response()
        # Requests that arrive now are answered with `Connection: close`.
        end = asyncio.get_running_loop().time() + min(_LINGER_SECONDS, self._served.settings.limits.drain_seconds)
        while self.server_state.connections and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # uvicorn has no event for the end of a connection
        await self._served.drain()
        await super().shutdown(sockets)
