"""Redirects: where an answer leads a request, and what of it may go there."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, quote, urljoin, urlsplit

import msgspec

from operations.http import HTTPRequest
from operations.sources.openapi.bodies import Body
from operations.sources.openapi.parameters import query_string
from operations.sources.openapi.requests import Origin, origin

_HARMLESS = frozenset({"accept", "accept-encoding", "user-agent", "content-type", "last-event-id", "range"})
_UNREADABLE = "\ufffd"  # what a client gives for the bytes of a header that it cannot read
_WRITTEN = "".join(map(chr, range(0x21, 0x7F))).replace("\\", "")
"""What stays as it is in an address that a server wrote."""


class Trail:
    """The way that redirects lead a request: at home it is itself, elsewhere nothing on it may be a secret."""

    __slots__ = ("_at_home", "_body", "_home", "_key")

    def __init__(self, home: Origin, body: Body | None = None, key: Sequence[tuple[str, str]] = ()) -> None:
        self._home = home
        self._body = body
        self._key = key
        """Credentials that go in the query."""
        self._at_home = True

    def follow(self, request: HTTPRequest, status: int, location: str) -> HTTPRequest | None:
        """The request that a redirect asks for; None where it is not followed.

        Another origin gets no header but the harmless ones: whatever was configured for this API may be a secret.
        """
        url = _address(request.url, location)
        if url is None or (self._home[0] == "https" and origin(url)[0] != "https"):
            return None
        self._at_home = self._at_home and origin(url) == self._home
        if self._at_home:
            url, headers = self._with_key(url), list(request.headers)
        else:
            headers = [pair for pair in request.headers if pair[0].lower() in _HARMLESS]
        if request.method in ("GET", "HEAD"):
            return msgspec.structs.replace(request, url=url, headers=headers)
        if status == 303 or (status in (301, 302) and request.method == "POST"):
            kept = [pair for pair in headers if pair[0].lower() not in ("content-type", "content-length")]
            return msgspec.structs.replace(request, method="GET", url=url, headers=kept, body=None)
        body = self._body
        if not self._at_home or (body is not None and body.spent):
            return None
        again = body.chunks() if body is not None and body.data is None else request.body
        return msgspec.structs.replace(request, url=url, headers=headers, body=again)

    def _with_key(self, url: str) -> str:
        """The address with the credentials that go in a query, where the redirect left them out."""
        given = {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
        missing = [pair for pair in self._key if pair[0] not in given]
        if not missing:
            return url
        whole, _, fragment = url.partition("#")
        return (
            f"{whole}{'&' if '?' in whole else '?'}{query_string((), {}, missing)}{'#' if fragment else ''}{fragment}"
        )


def _address(base: str, location: str) -> str | None:
    """Where a redirect leads, percent-encoded where the server forgot to, as browsers do it; None for nowhere."""
    if not location or _UNREADABLE in location:
        return None
    try:
        url = quote(urljoin(base, location), safe=_WRITTEN)
        return url if origin(url)[0] in ("http", "https") else None
    except ValueError:
        return None  # no host, or no port, that could be one
