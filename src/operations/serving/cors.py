"""CORS: the headers by which pages of configured origins may read responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operations.serving.asgi import Headers, Response, Scope, Send

_PREFLIGHT_SECONDS = b"600"
_EXPOSED_HEADERS = (
    b"Operations-Request-Id, Operations-Source, Operations-Timestamp, Operations-Upstream-Status, "
    b"Operations-Mcp-Error, Idempotency-Replayed, WWW-Authenticate, ETag, Link, Retry-After, Location, "
    b"Preference-Applied"
)
"""Response headers that a page of another configured origin may read."""


def is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is a CORS preflight request of a browser."""
    return bool(scope["method"] == "OPTIONS" and b"access-control-request-method" in headers)


def preflight_response(headers: Mapping[bytes, bytes]) -> Response:
    """Return the response to a preflight request of a configured origin."""
    allowed: Headers = [
        (b"access-control-allow-origin", headers[b"origin"]),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-max-age", _PREFLIGHT_SECONDS),
        (b"vary", b"Origin"),
    ]
    wanted = headers.get(b"access-control-request-headers")
    if wanted is not None:
        allowed.append((b"access-control-allow-headers", wanted))
    return Response(204, allowed)


def readable_by(origin: bytes, send: Send) -> Send:
    """Return a `send` whose responses pages of a configured origin may read."""

    async def send_readable(event: Any) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [
                *event["headers"],
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", _EXPOSED_HEADERS),
                (b"vary", b"Origin"),
            ]
        await send(event)

    return send_readable
