"""The OpenAPI document of an exposure: built in slices from one fragment per operation, for what a caller may call.

A document holds the definitions that its operations reach and no others, and names them by what it holds itself:
neither components nor names tell of operations that the caller does not see.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from types import NoneType
from typing import Any, get_args

import msgspec

from operations.context import Identity
from operations.exports.definitions import Definition, assign_names, closure
from operations.serving.exposure import Exposure, Rights
from operations.serving.http.path_items import SCHEMAS, Version, describe, plain_schema
from operations.serving.http.shared_parts import (
    CONVENTIONS,
    PROBLEM_SCHEMA,
    STREAM_SCHEMAS,
    TOKENS,
    Security,
    shared_components,
)
from operations.spec import Operation

VERSIONS: tuple[Version, ...] = get_args(Version)

_log = logging.getLogger("operations.serving")
_SLICE = 0.002
"""Seconds of work after which the event loop gets a turn."""
_MOST_BYTES = 64 * 1024 * 1024
_REFERENCE = re.compile(rb'(?<="\$ref":"#/components/schemas/)([0-9a-f]{32})(?=")')
_RESERVED = ("Problem", *STREAM_SCHEMAS)
_encode = msgspec.json.Encoder().encode

Pieces = tuple[bytes | str, ...]
"""JSON text with gaps: keys stand for the names of definitions, which each document gives."""


class Document(msgspec.Struct, frozen=True):
    """A document as it is sent."""

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


class Documents:
    """The documents of one exposure, cached as bytes for each set of rights."""

    def __init__(
        self,
        exposure: Exposure,
        *,
        title: str,
        version: str,
        description: str = "",
        servers: Iterable[str] = (),
        security: Security = TOKENS,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._exposure = exposure
        self._info = {"title": title, "version": version, "description": description or CONVENTIONS}
        self._servers = [{"url": url} for url in servers]
        self._security = security
        self._most_bytes = most_bytes
        self._documents: OrderedDict[_Key, Document] = OrderedDict()
        self._size = 0
        self._fragments: dict[Version, dict[str, _Fragment]] = {version: {} for version in VERSIONS}
        self._definitions: dict[str, Definition] = {}
        self._encoded: dict[str, Pieces] = {}
        self._generation = -1
        self._building = asyncio.Lock()

    async def get(self, identity: Identity | None, version: Version = "3.1", root_path: str = "") -> Document:
        """Return the document of what an identity may call, from the cache where it is there."""
        exposure = self._exposure
        key = _Key(exposure.generation, version, exposure.rights(identity), root_path)
        document = self._documents.get(key)
        if document is None:
            async with self._building:
                # Others may have built it meanwhile, and the registry may have changed.
                key = _Key(exposure.generation, version, exposure.rights(identity), root_path)
                document = self._documents.get(key) or await self._build(key, exposure.visible(identity))
        if key in self._documents:
            self._documents.move_to_end(key)
        return document

    async def _build(self, key: _Key, visible: Mapping[str, Operation[Any]]) -> Document:
        pause = _Pauses()
        if key.generation != self._generation:
            self._forget_changed()
            self._generation = key.generation
        fragments = []
        for operation in visible.values():
            try:
                fragments.append(await self._prepare(operation, key.version, pause))
            except Exception:  # noqa: BLE001  # one operation must not take the document from all others
                _log.exception("%s is left out of the document", operation.id)
        body = await self._join(key, fragments, visible.values(), pause)
        digest = await asyncio.to_thread(blake2b, body, digest_size=16)
        document = Document(body, b'"%s"' % digest.hexdigest().encode())
        self._keep(key, document)
        return document

    async def _prepare(self, operation: Operation[Any], version: Version, pause: _Pauses) -> _Fragment:
        """Return the fragment of an operation, made in slices."""
        # Streams are described differently in each version, and nothing else is.
        version = version if operation.stream is not None else "3.1"
        if not self._is_known(operation, version):
            for schema in (operation.spec.input_schema, operation.spec.output_schema):
                schema.document  # noqa: B018  # converts it, which may take a slice
                await pause.after_slice()
        fragment = self._fragment(operation, version)
        await pause.after_slice()
        return fragment

    def _is_known(self, operation: Operation[Any], version: Version) -> bool:
        known = self._fragments[version].get(operation.id)
        return known is not None and known.operation is operation

    def _fragment(self, operation: Operation[Any], version: Version) -> _Fragment:
        if self._is_known(operation, version):
            return self._fragments[version][operation.id]
        item = describe(operation, version, self._security)
        for key, definition in item.definitions.items():
            if key not in self._definitions:
                self._definitions[key] = msgspec.structs.replace(definition, content=None, keys={})
                self._encoded[key] = _cut(_write(definition.schema(SCHEMAS.__add__, plain_schema)), definition.uses)
        pieces = _cut(b"%s:%s" % (_encode(item.path), _write(item.methods)), item.definitions)
        fragment = _Fragment(operation, pieces, item.uses, item.streams)
        self._fragments[version][operation.id] = fragment
        return fragment

    async def _join(
        self, key: _Key, fragments: Sequence[_Fragment], operations: Iterable[Operation[Any]], pause: _Pauses
    ) -> bytes:
        keys = closure(dict.fromkeys(use for fragment in fragments for use in fragment.uses), self._definitions)
        await pause.after_slice()
        names = assign_names((self._definitions[key] for key in keys), taken=_RESERVED)
        encoded = {key: name.encode() for key, name in names.items()}
        await pause.after_slice()
        parts: list[bytes] = [self._head(key, operations), b',"paths":{']
        for index, fragment in enumerate(fragments):
            if index:
                parts.append(b",")
            parts += [encoded[piece] if isinstance(piece, str) else piece for piece in fragment.pieces]
            await pause.after_slice()
        parts.append(b'},"components":{"schemas":{"Problem":%s' % _encode(PROBLEM_SCHEMA))
        if any(fragment.streams for fragment in fragments):
            parts += [b',"%s":%s' % (name.encode(), _encode(schema)) for name, schema in STREAM_SCHEMAS.items()]
        for definition in keys:
            parts.append(b',"%s":' % encoded[definition])
            parts += [encoded[piece] if isinstance(piece, str) else piece for piece in self._encoded[definition]]
            await pause.after_slice()
        parts.append(b"},%s}" % _encode(shared_components(self._security))[1:])
        return b"".join(parts)

    def _head(self, key: _Key, operations: Iterable[Operation[Any]]) -> bytes:
        head: dict[str, Any] = {"openapi": f"{key.version}.0"}
        if key.version == "3.2":
            head["$self"] = f"{key.root_path}/openapi.json?version=3.2"
        head["info"] = self._info
        head["servers"] = self._servers or [{"url": key.root_path or "/"}]
        head["tags"] = _tags({operation.spec.namespace for operation in operations}, key.version)
        head["security"] = []
        head["x-operations"] = {"version": 1}
        return _encode(head)[:-1]

    def _keep(self, key: _Key, document: Document) -> None:
        """Cache a document; those of earlier generations and the least recently used ones make room."""
        for other in [other for other in self._documents if other.generation != key.generation]:
            self._size -= len(self._documents.pop(other).body)
        if len(document.body) > self._most_bytes:
            return
        self._documents[key] = document
        self._size += len(document.body)
        while self._size > self._most_bytes:
            self._size -= len(self._documents.popitem(last=False)[1].body)

    def _forget_changed(self) -> None:
        """Remove the fragments of operations that were replaced or removed, and the definitions that only they use."""
        exposed = self._exposure.operations
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


class _Pauses:
    """Gives the event loop a turn between slices of work."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + _SLICE

    async def after_slice(self) -> None:
        """Return at once within a slice; let others run after it."""
        if time.perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = time.perf_counter() + _SLICE


def _write(value: Any) -> bytes:
    """Return a value as JSON; what JSON cannot express is written as text."""
    try:
        return _encode(value)
    except (ValueError, TypeError):
        return _encode(_expressible(value))


def _expressible(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_expressible(str(key)): _expressible(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expressible(member) for member in value]
    return value if isinstance(value, (int, float, NoneType)) else _expressible(repr(value))


def _cut(text: bytes, keys: Iterable[str]) -> Pieces:
    """Return JSON text cut where the names of definitions go."""
    known = set(keys)
    pieces: list[bytes | str] = []
    for index, piece in enumerate(_REFERENCE.split(text)):
        key = piece.decode() if index % 2 else ""
        pieces.append(key if key in known else piece)
    return tuple(pieces)


def _tags(namespaces: Iterable[str], version: Version) -> list[dict[str, str]]:
    """Return a tag for each namespace; in 3.2 below that of the namespace around it."""
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
