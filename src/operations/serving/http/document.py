"""DocumentEndpoint: the OpenAPI document."""

from __future__ import annotations

from urllib.parse import parse_qs

from operations.context import new_request_id
from operations.errors import ErrorCode
from operations.serving.admission import Caller
from operations.serving.asgi import Headers, Receive, Response, Scope, Send
from operations.serving.http.document_cache import VERSIONS, DocumentCache
from operations.serving.http.path_items import Version
from operations.serving.http.problems import problem_response
from operations.serving.refusals import RefusedError

DOCUMENT_PATH = "/openapi.json"
_ALLOW = (b"allow", b"GET, HEAD, OPTIONS")
_DOCUMENT_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"private, no-cache"),
    (b"vary", b"Authorization, X-API-Key"),
    (b"x-content-type-options", b"nosniff"),
]


class DocumentEndpoint:
    """Serves `/openapi.json` (`?version=3.2`). The document contains what the caller may call."""

    def __init__(self, documents: DocumentCache) -> None:
        self._documents = documents

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve a request for the document."""
        try:
            response = await self._respond(scope, caller)
        except RefusedError as error:
            response = problem_response(error, new_request_id())
        await response.send(send, head_only=scope["method"] == "HEAD")

    async def _respond(self, scope: Scope, caller: Caller) -> Response:
        if scope["method"] == "OPTIONS":
            return Response(204, [_ALLOW])
        if scope["method"] not in ("GET", "HEAD"):
            message = "method not allowed: expected GET, HEAD or OPTIONS"
            raise RefusedError(405, ErrorCode.VALIDATION_ERROR, message, "METHOD", [_ALLOW])
        version = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("version", ["3.1"])[-1]
        wanted = next((each for each in VERSIONS if version in (each, f"{each}.0")), None)
        if wanted is None:
            message = f"unknown OpenAPI version: expected {' or '.join(VERSIONS)}"
            raise RefusedError(400, ErrorCode.VALIDATION_ERROR, message, "VERSION")
        return await self._document(scope, wanted, caller)

    async def _document(self, scope: Scope, version: Version, caller: Caller) -> Response:
        document = await self._documents.get(caller.identity, version, scope.get("root_path", ""))
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
