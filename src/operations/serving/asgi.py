"""The ASGI types that the doors share, and a whole response in one value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class Response(msgspec.Struct):
    """A response whose body is complete."""

    status: int
    headers: Headers
    body: bytes = b""

    async def send(self, send: Send, *, head_only: bool = False) -> None:
        """Send it; `head_only` leaves the body out, as the answer to HEAD does."""
        headers = self.headers
        if self.status not in (204, 304):
            headers = [*headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head_only else self.body})


def path_of(scope: Scope) -> str:
    """Return the path below the place where the application is mounted, percent-decoded."""
    path: str = scope["path"]
    root = scope.get("root_path")
    if not root or not path.startswith(root):
        return path
    return path[len(root) :] or "/"
