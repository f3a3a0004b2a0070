"""HealthServer: `/healthz`, `/readyz` and `/metrics` of a process over HTTP, for orchestrators and Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from operations.telemetry.prometheus import CONTENT_TYPE, metrics_text

_log = logging.getLogger("operations")
_LONGEST_HEAD = 8 * 1024
_HEAD_SECONDS = 5.0
_WRITE_SECONDS = 30.0
_MAX_CONNECTIONS = 32
PROBE_TYPE = "text/plain; charset=utf-8"
"""The media type of the responses to probes."""
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Readiness:
    """Whether a process accepts calls, and why not."""

    def __init__(self, reason: str | None = "starting") -> None:
        self.reason = reason
        """Why the process does not accept calls; None while it is ready."""

    def ready(self) -> None:
        """Mark the process as ready."""
        self.reason = None

    def not_ready(self, reason: str) -> None:
        """Set the reason why calls are not accepted; `/readyz` shows the reason."""
        self.reason = reason


def answer_probe(path: str, reason: str | None) -> tuple[int, bytes] | None:
    """Return the status and text of `/healthz` or `/readyz`, None for another path.

    `reason` is why calls are not accepted; None while calls are accepted.
    """
    if path == "/healthz":
        return 200, b"ok\n"
    if path == "/readyz":
        return (200, b"ready\n") if reason is None else (503, f"{reason}\n".encode())
    return None


class HealthServer:
    """Serves `GET` and `HEAD` of three paths and refuses other requests.

    `/healthz` is 200 while the event loop runs. `/readyz` is 200 while calls are accepted, else 503 with the reason.
    `/metrics` has the metrics of `sources`, in the text format of Prometheus. Clients are not authenticated: bind the
    server to an address to which only the orchestrator can connect. At most 32 connections are open at a time; others
    are closed.
    """

    def __init__(
        self,
        readiness: Readiness,
        sources: Callable[[], Iterable[object]] = tuple,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._readiness = readiness
        self._sources = sources
        self._host = host
        self._port = port
        self._open = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The address of the server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def __aenter__(self) -> HealthServer:
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_LONGEST_HEAD)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening; requests in progress are still answered."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MAX_CONNECTIONS:
                async with asyncio.timeout(_HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(_WRITE_SECONDS):
                    writer.write(await self._answer(head))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client disconnected or sent no valid request
        except Exception:  # noqa: BLE001  # one request must not end the server
            _log.exception("a health request failed")
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response(400, b"expected HTTP/1\n")
        status, body, content_type = await self._find(path.partition(b"?")[0])
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"only GET and HEAD are allowed\n", more=b"Allow: GET, HEAD\r\n")
        return _response(status, body, content_type, is_head=method == b"HEAD")

    async def _find(self, path: bytes) -> tuple[int, bytes, str]:
        probed = answer_probe(path.decode("latin-1"), self._readiness.reason)
        if probed is not None:
            return *probed, PROBE_TYPE
        if path == b"/metrics":
            return 200, (await metrics_text(*self._sources())).encode(), CONTENT_TYPE
        return 404, b"expected /healthz, /readyz or /metrics\n", PROBE_TYPE


def _response(
    status: int, body: bytes, content_type: str = PROBE_TYPE, *, more: bytes = b"", is_head: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    )
    return head.encode() + more + b"\r\n" + (b"" if is_head else body)
