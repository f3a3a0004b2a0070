"""MetricsEndpoint: `/metrics` of a served registry, in the text format of Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from operations.errors import ErrorCode
from operations.serving.admission import Caller, challenge
from operations.serving.asgi import Receive, Response, Scope, Send
from operations.serving.console.rights import WATCH
from operations.serving.http.problems import problem_response
from operations.serving.refusals import RefusedError
from operations.telemetry.prometheus import CONTENT_TYPE, metrics_text

METRICS_PATH = "/metrics"
_ALLOW = (b"allow", b"GET, HEAD")


class MetricsEndpoint:
    """Serves `/metrics` to callers with the scope `operations:watch`; without an authenticator, to every caller.

    Concurrent requests get the same text.
    """

    def __init__(self, sources: Callable[[], Iterable[object]], *, is_open: bool) -> None:
        self._sources = sources
        self._is_open = is_open
        self._writing: asyncio.Task[str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request."""
        response = await self._respond(scope["method"], caller)
        await response.send(send, head_only=scope["method"] == "HEAD")

    async def _respond(self, method: str, caller: Caller) -> Response:
        if method not in ("GET", "HEAD"):
            message = f"/metrics does not support {method}: use GET"
            return problem_response(RefusedError(405, ErrorCode.VALIDATION_ERROR, message, "METHOD", [_ALLOW]), "")
        if not self._is_open and (caller.principal is None or WATCH not in caller.principal.identity.scopes):
            message = f"the metrics need the scope {WATCH}"
            header = challenge("Bearer", error="insufficient_scope", scope=WATCH)
            return problem_response(RefusedError(403, ErrorCode.ACCESS_DENIED, message, "MISSING_RIGHTS", [header]), "")
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(metrics_text(*self._sources()))
        text = await asyncio.shield(self._writing)
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"cache-control", b"no-store")]
        return Response(200, headers, text.encode())
