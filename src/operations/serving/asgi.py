"""ASGI types that the endpoints share, and a complete response as one value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

PHRASES = {status.value: status.phrase for status in HTTPStatus}
"""The phrase of each HTTP status, such as `Not Found`."""
JSON_TYPE = (b"content-type", b"application/json")
NO_SNIFF = (b"x-content-type-options", b"nosniff")
"""The header that stops browsers from treating a response as another content type, such as a script."""
REQUEST_ID_HEADER = b"operations-request-id"
"""The response header with the id of the request. Pages of configured origins may read it (`admission.py`)."""


class Response(msgspec.Struct):
    """A complete response."""

    status: int
    headers: Headers
    body: bytes = b""

    async def send(self, send: Send, *, head_only: bool = False) -> None:
        """Send the response; `head_only` leaves the body out, for HEAD."""
        headers = self.headers
        if self.status not in (204, 304):
            headers = [*headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head_only else self.body})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected, or the response is complete; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def path_of(scope: Scope) -> str:
    """Return the percent-decoded path of a request, relative to the path of the mounted application."""
    path: str = scope["path"]
    root = scope.get("root_path")
    if not root or not path.startswith(root):
        return path
    return path[len(root) :] or "/"


def matches_etag(headers: Mapping[bytes, bytes], etag: bytes) -> bool:
    """Whether `If-None-Match` of a request contains the ETag of a response."""
    listed = headers.get(b"if-none-match", b"").split(b",")
    return any(each.strip().removeprefix(b"W/") in (etag, b"*") for each in listed)
