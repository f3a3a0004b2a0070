"""DocumentEndpoint: the OpenAPI document. DocumentCache: the documents, joined from one encoded fragment per operation.
PAGES: the documentation page, static files without inline scripts and without requests to other hosts.

A document contains the operations that a caller may call and the definitions that these operations use. Definitions
get their names in each document separately, so that no name reveals an operation that the caller may not call. The page
shows descriptions as text, never as HTML.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.resources import files
from typing import Any, get_args
from urllib.parse import parse_qs

import msgspec

from operations.context import Identity, new_request_id
from operations.errors import ErrorCode
from operations.exports.definitions import SharedDefinition, assign_names, closure
from operations.serving.admission import Caller
from operations.serving.asgi import JSON_TYPE, Headers, Receive, Response, Scope, Send, matches_etag
from operations.serving.exposure import Exposure, Rights
from operations.serving.http.path_items import SCHEMAS, Version, describe, plain_schema
from operations.serving.http.problems import problem_response
from operations.serving.http.shared_components import (
    CONVENTIONS,
    JOB_CONVENTIONS,
    JOB_SCHEMA,
    PROBLEM_SCHEMA,
    STREAM_SCHEMAS,
    TOKENS,
    Security,
    describe_jobs,
    shared_components,
)
from operations.serving.refusals import RefusedError
from operations.spec import Operation
from operations.wire import encode_any

DOCUMENT_PATH = "/openapi.json"
VERSIONS: tuple[Version, ...] = get_args(Version)

_log = logging.getLogger("operations.serving")
_MAX_BYTES = 64 * 1024 * 1024
_REFERENCE = re.compile(rb'(?<="\$ref":"#/components/schemas/)([0-9a-f]{32})(?=")')
_ALLOW = (b"allow", b"GET, HEAD, OPTIONS")
_DOCUMENT_HEADERS: Headers = [
    JSON_TYPE,
    (b"cache-control", b"private, no-cache"),
    (b"vary", b"Authorization, X-API-Key"),
    (b"x-content-type-options", b"nosniff"),
]
_RESERVED = ("Problem", "Job", *STREAM_SCHEMAS)
_encode = msgspec.json.Encoder().encode

Pieces = tuple[bytes | str, ...]
"""JSON text in pieces. A `str` piece is the key of a definition, replaced by its name in each document."""
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)


class DocumentEndpoint:
    """Serves `/openapi.json` (`?version=3.2`). The document contains the operations that the caller may call."""

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
        if matches_etag(caller.headers, document.etag):
            return Response(304, headers)
        return Response(200, headers, document.body)


class EncodedDocument(msgspec.Struct, frozen=True):
    """An encoded document."""

    body: bytes
    etag: bytes


class _Fragment(msgspec.Struct, frozen=True):
    """The encoded path item of one operation."""

    operation: Operation[Any]
    pieces: Pieces
    uses: tuple[str, ...]
    streams: bool


class _Key(msgspec.Struct, frozen=True):
    generation: int
    version: Version
    rights: Rights
    root_path: str


class DocumentCache:
    """The documents of one exposure, cached as bytes per set of rights."""

    def __init__(
        self,
        exposure: Exposure,
        *,
        title: str,
        version: str,
        servers: Iterable[str] = (),
        security: Security = TOKENS,
        has_jobs: bool = False,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self._exposure = exposure
        self._info = {
            "title": title,
            "version": version,
            "description": CONVENTIONS + JOB_CONVENTIONS if has_jobs else CONVENTIONS,
        }
        self._servers = [{"url": url} for url in servers]
        self._security = security
        self._has_jobs = has_jobs
        self._max_bytes = max_bytes
        self._documents: OrderedDict[_Key, EncodedDocument] = OrderedDict()
        self._size = 0
        self._fragments: dict[Version, dict[str, _Fragment]] = {version: {} for version in VERSIONS}
        self._definitions: dict[str, SharedDefinition] = {}
        self._encoded: dict[str, Pieces] = {}
        self._generation = -1
        self._building = asyncio.Lock()
        self._builds: dict[_Key, asyncio.Task[EncodedDocument]] = {}

    async def get(self, identity: Identity | None, version: Version = "3.1", root_path: str = "") -> EncodedDocument:
        """Return the document of the operations that an identity may call; build it if it is not cached."""
        exposure = self._exposure
        key = _Key(exposure.generation, version, exposure.rights(identity), root_path)
        document = self._documents.get(key)
        if document is None:
            building = self._builds.get(key)
            if building is None:
                building = self._builds[key] = asyncio.create_task(self._build(key, exposure.visible(identity)))
                building.add_done_callback(lambda _: self._builds.pop(key))
            document = await asyncio.shield(building)  # a client that disconnects does not stop the build
        if key in self._documents:
            self._documents.move_to_end(key)
        return document

    async def _build(self, key: _Key, visible: Mapping[str, Operation[Any]]) -> EncodedDocument:
        """Build a document in a thread: the conversion of one large schema would hold the event loop for too long."""
        exposed = self._exposure.operations
        async with self._building:
            document = await asyncio.to_thread(self._write, key, visible, exposed)
        self._keep(key, document)
        return document

    def _write(
        self, key: _Key, visible: Mapping[str, Operation[Any]], exposed: Mapping[str, Operation[Any]]
    ) -> EncodedDocument:
        """Return a document. Only one thread at a time runs this method, and the mappings do not change meanwhile."""
        if key.generation != self._generation:
            self._forget_changed(exposed)
            self._generation = key.generation
        fragments = []
        for operation in visible.values():
            try:
                # Only streams are described differently in each version.
                fragments.append(self._fragment(operation, key.version if operation.stream is not None else "3.1"))
            except Exception:  # noqa: BLE001  # one faulty operation must not break the whole document
                _log.exception("%s is left out of the OpenAPI document", operation.id)
        body = self._join(key, fragments, visible.values())
        return EncodedDocument(body, b'"%s"' % blake2b(body, digest_size=16).hexdigest().encode())

    def _fragment(self, operation: Operation[Any], version: Version) -> _Fragment:
        known = self._fragments[version].get(operation.id)
        if known is not None and known.operation is operation:
            return known
        item = describe(operation, version, self._security)
        for key, definition in item.definitions.items():
            if key not in self._definitions:
                self._definitions[key] = msgspec.structs.replace(definition, content=None, keys={})
                self._encoded[key] = _cut(encode_any(definition.schema(SCHEMAS.__add__, plain_schema)), definition.uses)
        pieces = _cut(b"%s:%s" % (_encode(item.path), encode_any(item.methods)), item.definitions)
        fragment = _Fragment(operation, pieces, item.uses, item.streams)
        self._fragments[version][operation.id] = fragment
        return fragment

    def _join(self, key: _Key, fragments: Sequence[_Fragment], operations: Iterable[Operation[Any]]) -> bytes:
        keys = closure(dict.fromkeys(use for fragment in fragments for use in fragment.uses), self._definitions)
        names = assign_names((self._definitions[key] for key in keys), taken=_RESERVED)
        encoded = {key: name.encode() for key, name in names.items()}
        parts: list[bytes] = [self._head(key, operations), b',"paths":{']
        for index, fragment in enumerate(fragments):
            if index:
                parts.append(b",")
            parts += [encoded[piece] if isinstance(piece, str) else piece for piece in fragment.pieces]
        if self._has_jobs:
            described = _encode(describe_jobs(self._security))[1:-1]
            parts += [b"," if fragments else b"", described]
        parts.append(b'},"components":{"schemas":{"Problem":%s' % _encode(PROBLEM_SCHEMA))
        if self._has_jobs:
            parts.append(b',"Job":%s' % _encode(JOB_SCHEMA))
        if any(fragment.streams for fragment in fragments):
            parts += [b',"%s":%s' % (name.encode(), _encode(schema)) for name, schema in STREAM_SCHEMAS.items()]
        for definition in keys:
            parts.append(b',"%s":' % encoded[definition])
            parts += [encoded[piece] if isinstance(piece, str) else piece for piece in self._encoded[definition]]
        parts.append(b"},%s}" % _encode(shared_components(self._security))[1:])
        return b"".join(parts)

    def _head(self, key: _Key, operations: Iterable[Operation[Any]]) -> bytes:
        head: dict[str, Any] = {"openapi": f"{key.version}.0"}
        if key.version == "3.2":
            head["$self"] = f"{key.root_path}/openapi.json?version=3.2"
        head["info"] = self._info
        head["servers"] = self._servers or [{"url": key.root_path or "/"}]
        namespaces = {operation.spec.namespace for operation in operations}
        head["tags"] = _tags(namespaces | {"jobs"} if self._has_jobs else namespaces, key.version)
        head["security"] = []
        head["x-operations"] = {"version": 1}
        return _encode(head)[:-1]

    def _keep(self, key: _Key, document: EncodedDocument) -> None:
        """Cache a document if it fits; evict documents of earlier generations and the least recently used ones."""
        for other in [other for other in self._documents if other.generation != key.generation]:
            self._size -= len(self._documents.pop(other).body)
        if len(document.body) > self._max_bytes:
            return
        self._documents[key] = document
        self._size += len(document.body)
        while self._size > self._max_bytes:
            self._size -= len(self._documents.popitem(last=False)[1].body)

    def _forget_changed(self, exposed: Mapping[str, Operation[Any]]) -> None:
        """Remove fragments of replaced and removed operations, and the definitions that only these use."""
        uses: dict[str, None] = {}
        for version, fragments in self._fragments.items():
            self._fragments[version] = {
                each: fragment for each, fragment in fragments.items() if exposed.get(each) is fragment.operation
            }
            for fragment in self._fragments[version].values():
                uses.update(dict.fromkeys(fragment.uses))
        kept = closure(uses, self._definitions)
        self._definitions = {key: self._definitions[key] for key in kept}
        self._encoded = {key: self._encoded[key] for key in kept}


def _cut(text: bytes, keys: Iterable[str]) -> Pieces:
    """Split JSON text at the keys of definitions."""
    known = set(keys)
    pieces: list[bytes | str] = []
    for index, piece in enumerate(_REFERENCE.split(text)):
        key = piece.decode() if index % 2 else ""
        pieces.append(key if key in known else piece)
    return tuple(pieces)


def _tags(namespaces: Iterable[str], version: Version) -> list[dict[str, str]]:
    """Return a tag for each namespace; in OpenAPI 3.2 also for enclosing namespaces, as the `parent` of inner ones."""
    if version == "3.1":
        return [{"name": namespace} for namespace in sorted(namespaces)]
    every = set(namespaces)
    for namespace in namespaces:
        while "." in namespace:
            namespace = namespace.rpartition(".")[0]
            every.add(namespace)
    return [
        {"name": namespace, **({"parent": namespace.rpartition(".")[0]} if "." in namespace else {})}
        for namespace in sorted(every)
    ]


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
"""The files of the documentation page, by path."""
