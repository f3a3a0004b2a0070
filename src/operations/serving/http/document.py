"""DocumentEndpoint: the OpenAPI document and the documentation page."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qs

import msgspec

from operations.errors import ErrorCode
from operations.serving.admission import Caller
from operations.serving.asgi import Headers, Receive, Response, Scope, Send, path_of
from operations.serving.exposure import Exposure
from operations.serving.http.document_cache import VERSIONS, DocumentCache
from operations.serving.http.pages import PAGES
from operations.serving.http.path_items import Version
from operations.serving.http.shared_components import PROBLEM, TOKENS, Security

DOCUMENT_PATH = "/openapi.json"
_ALLOW = (b"allow", b"GET, HEAD, OPTIONS")
_DOCUMENT_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"private, no-cache"),
    (b"vary", b"Authorization, X-API-Key"),
    (b"x-content-type-options", b"nosniff"),
]


class DocumentEndpoint:
    """Serves `/openapi.json` (`?version=3.2`) and `/docs`. The document contains what the caller may call."""

    paths = frozenset({DOCUMENT_PATH, *PAGES})
    """The paths of this endpoint."""

    def __init__(
        self,
        exposure: Exposure,
        *,
        title: str,
        version: str,
        description: str = "",
        servers: Iterable[str] = (),
        security: Security = TOKENS,
        has_jobs: bool = False,
    ) -> None:
        self.documents = DocumentCache(
            exposure,
            title=title,
            version=version,
            description=description,
            servers=servers,
            security=security,
            has_jobs=has_jobs,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve a request to one of `paths`."""
        response = await self._respond(scope, caller)
        await response.send(send, head_only=scope["method"] == "HEAD")

    async def _respond(self, scope: Scope, caller: Caller) -> Response:
        if scope["method"] == "OPTIONS":
            return Response(204, [_ALLOW])
        if scope["method"] not in ("GET", "HEAD"):
            return _refuse(405, "method not allowed: expected GET, HEAD or OPTIONS", [_ALLOW])
        page = PAGES.get(path_of(scope))
        if page is not None:
            return page.response()
        version = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("version", ["3.1"])[-1]
        wanted = next((each for each in VERSIONS if version in (each, f"{each}.0")), None)
        if wanted is None:
            return _refuse(400, f"unknown OpenAPI version: expected {' or '.join(VERSIONS)}", [])
        return await self._document(scope, wanted, caller)

    async def _document(self, scope: Scope, version: Version, caller: Caller) -> Response:
        document = await self.documents.get(caller.identity, version, scope.get("root_path", ""))
        headers = [*_DOCUMENT_HEADERS, (b"etag", document.etag)]
        if _matches(scope, document.etag):
            return Response(304, headers)
        return Response(200, headers, document.body)


def _matches(scope: Scope, etag: bytes) -> bool:
    """Whether `If-None-Match` contains the ETag."""
    for name, value in scope["headers"]:
        if name == b"if-none-match":
            return any(each.strip().removeprefix(b"W/") in (etag, b"*") for each in value.split(b","))
    return False


def _refuse(status: int, detail: str, headers: Headers) -> Response:
    code = ErrorCode.VALIDATION_ERROR
    problem = {
        "type": f"urn:operations:{code}",
        "title": "Method Not Allowed" if status == 405 else "Bad Request",
        "status": status,
        "detail": detail,
        "code": code,
        "executed": "no",
    }
    return Response(status, [(b"content-type", PROBLEM.encode()), *headers], msgspec.json.encode(problem))
