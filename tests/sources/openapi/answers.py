"""An HTTP client that returns prepared responses and records the requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from operations.http import HTTPRequest, HTTPResponse


class PreparedResponse:
    """A response whose body is at hand."""

    def __init__(self, url: str, body: bytes, content_type: str, status: int) -> None:
        self.url, self.status = url, status
        self.headers: Sequence[tuple[str, str]] = [("content-type", content_type)] if content_type else []
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 1000):
            yield self._body[start : start + 1000]

    async def close(self) -> None: ...


class PreparedClient:
    """Answers every request in the same way."""

    def __init__(self, body: bytes = b"{}", content_type: str = "application/json", status: int = 200) -> None:
        self._answer = body, content_type, status
        self.requests: list[HTTPRequest] = []

    @asynccontextmanager
    async def send(self, request: HTTPRequest) -> AsyncIterator[HTTPResponse]:
        self.requests.append(request)
        yield PreparedResponse(request.url, *self._answer)

    async def close(self) -> None: ...
