"""The page of the console: built files in the package. They contain no data, and load nothing from other servers."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from hashlib import blake2b
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from operations.serving.asgi import Headers, Response, matches_etag

ROOT = "/console"
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    b"media-src blob:; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
BUILD_COMMAND = "make console"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "map": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "webmanifest": "application/manifest+json",
    "woff2": "font/woff2",
}
_COMPRESSED = frozenset({"css", "html", "js", "json", "map", "svg", "txt"})
_INDEX = "index.html"
_FILES = "assets/"
"""The directory of built files. A missing file in it has status 404; every other path shows a screen of the page."""
_HASHED = re.compile(r"assets/.+-[\w-]{8}\.\w+")
"""File names with a digest of the content: browsers can cache these files for a year."""
_YEAR = b"public, max-age=31536000, immutable"
_ABSENT = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>operations</title>
<h1>The console is not built</h1>
<p>This installation of operations has no files of the console. In a checkout, with Node 20 or later, run</p>
<pre>{escape(BUILD_COMMAND)}</pre>
<p>and start the server again. A wheel that was built on a machine with Node contains the files.</p>
"""


class Asset(msgspec.Struct, frozen=True):
    """One file of the page."""

    body: bytes
    compressed: bytes | None
    content_type: bytes
    cache_control: bytes
    etag: bytes


class Pages:
    """The files of the console by path. All are read at the first request; no other file can be requested."""

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("operations.serving.console").joinpath("assets")
        self._assets: dict[str, Asset] | None = None
        self._index: dict[str, Asset] = {}

    @property
    def is_built(self) -> bool:
        """Whether the console is built, so that its files exist."""
        return _INDEX in self.assets

    @property
    def assets(self) -> dict[str, Asset]:
        """The files by path below `/console/`."""
        if self._assets is None:
            self._assets = dict(_read(self._folder, "")) if self._folder.is_dir() else {}
        return self._assets

    def respond(self, path: str, root_path: str, headers: dict[bytes, bytes]) -> Response:
        """Return the file at a path below `/console`, or else the page, which shows the screen for that path.

        A missing file below `assets/` has status 404. `/console` itself is redirected to `/console/`.
        """
        if path == ROOT:
            return Response(308, [(b"location", f"{root_path}{ROOT}/".encode("latin-1", "replace"))])
        name = path.removeprefix(f"{ROOT}/")
        asset = self.assets.get(name) if name != _INDEX else None
        if asset is None:
            if name.startswith(_FILES):
                return Response(404, [*_common(b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")])
            asset = self._page(root_path)
        common = [*_common(asset.content_type), (b"cache-control", asset.cache_control), (b"etag", asset.etag)]
        if asset.compressed is not None:
            common.append((b"vary", b"Accept-Encoding"))
        if matches_etag(headers, asset.etag):
            return Response(304, common)
        if asset.compressed is not None and accepts_gzip(headers):
            return Response(200, [*common, (b"content-encoding", b"gzip")], asset.compressed)
        return Response(200, common, asset.body)

    def _page(self, root_path: str) -> Asset:
        """Return the page for an application that is mounted at `root_path`."""
        known = self._index.get(root_path)
        if known is None:
            body = self.assets[_INDEX].body if self.is_built else _ABSENT.encode()
            if root_path:
                prefix = escape(root_path, quote=True)
                body = body.replace(f'"{ROOT}/'.encode(), f'"{prefix}{ROOT}/'.encode(errors="replace"))
            known = _asset(_INDEX, body)
            if len(self._index) < 100:
                self._index[root_path] = known
        return known


def accepts_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request accepts a compressed response."""
    return any(
        part.partition(b";")[0].strip() == b"gzip" and b"q=0" not in part.replace(b"q=0.", b"")
        for part in headers.get(b"accept-encoding", b"").lower().split(b",")
    )


def _read(folder: Traversable, prefix: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _read(entry, f"{name}/")
        elif entry.name.rpartition(".")[2] in _TYPES:
            found.append((name, _asset(name, entry.read_bytes())))
    return found


def _asset(name: str, body: bytes) -> Asset:
    kind = name.rpartition(".")[2]
    return Asset(
        body,
        gzip.compress(body, mtime=0) if kind in _COMPRESSED and len(body) > 1024 else None,
        _TYPES[kind].encode(),
        _YEAR if _HASHED.fullmatch(name) else b"no-cache",
        b'"%s"' % blake2b(body, digest_size=8).hexdigest().encode(),
    )


def _common(content_type: bytes) -> Headers:
    return [
        (b"content-type", content_type),
        (b"content-security-policy", POLICY),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]
