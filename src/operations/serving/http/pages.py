"""The documentation page: static files without inline scripts and without requests to other hosts.

The page loads `/openapi.json` and shows descriptions as text, never as HTML.
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.resources import files

import msgspec

from operations.serving.asgi import Headers, Response

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class Page(msgspec.Struct, frozen=True):
    """A static file."""

    content_type: str
    body: bytes

    def response(self) -> Response:
        """Return the file as a response."""
        headers: Headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-security-policy", _POLICY),
            (b"cache-control", b"no-cache"),
            (b"etag", b'"%s"' % blake2b(self.body, digest_size=8).hexdigest().encode()),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
        ]
        return Response(200, headers, self.body)


def _read(name: str, content_type: str) -> Page:
    return Page(content_type, files("operations.serving.http").joinpath("docs", name).read_bytes())


PAGES = {
    "/docs": _read("docs.html", "text/html; charset=utf-8"),
    "/~/docs.js": _read("docs.js", "text/javascript; charset=utf-8"),
    "/~/docs.css": _read("docs.css", "text/css; charset=utf-8"),
}
"""The files by path."""
