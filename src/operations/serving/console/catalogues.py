"""Catalogues: the operations that each caller may call, as JSON bytes, cached for each set of rights.

A catalogue is built in slices. Between the slices, the event loop runs other tasks.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from operations.errors import ErrorCode
from operations.exports.signatures import signature
from operations.serving.console.rights import Viewer
from operations.serving.console.sources import Sources, SourceState, source_json
from operations.serving.exposure import Exposure, Rights
from operations.serving.http.routes import Route, encoded_path
from operations.serving.refusals import RefusedError
from operations.spec import Operation
from operations.wire import encode_any

_log = logging.getLogger("operations.serving")
_SLICE_SECONDS = 0.002
_MOST_KEPT = 64
_LONGEST_DESCRIPTION = 160
_MOST_FIELDS = 100
_MOST_SCOPES = 20
_MOST_EXAMPLES = 10
_NO_VALUE: Any = object()


class EncodedCatalogue(msgspec.Struct, frozen=True):
    """A catalogue as it is sent."""

    version: str
    body: bytes
    compressed: bytes

    @property
    def etag(self) -> bytes:
        """The entity tag."""
        return f'"{self.version}"'.encode()


class _Key(msgspec.Struct, frozen=True):
    generation: int
    rights: Rights
    watches: bool
    """Whether the caller may watch, so that the catalogue lists failed sources."""
    states: tuple[SourceState, ...]


class Catalogues:
    """The catalogues of one exposure. Each contains only operations that its caller may call."""

    def __init__(self, exposure: Exposure, sources: Sources) -> None:
        self._exposure = exposure
        self._sources = sources
        self._kept: OrderedDict[_Key, EncodedCatalogue] = OrderedDict()
        self._entries: dict[str, tuple[Operation[Any], str, bytes]] = {}
        """The encoded entry of each operation, with the operation and the source from which it was made."""
        self._building = asyncio.Lock()

    async def get(self, viewer: Viewer) -> EncodedCatalogue:
        """Return the catalogue of a caller, from the cache if possible."""
        found = self._kept.get(self._key(viewer))
        if found is None:
            async with self._building:
                key = self._key(viewer)  # the registry may have changed, or another caller built the catalogue
                found = self._kept.get(key) or await self._build(key, viewer.operations)
                self._kept[key] = found
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return found

    async def warm(self) -> None:
        """Build the entries of all operations, so that the first caller does not wait for them."""
        async with self._building:
            for operation in list(self._exposure.operations.values()):
                self._entry(operation, self.source_of(operation.id))
                await asyncio.sleep(0)

    def states(self, viewer: Viewer) -> list[dict[str, Any]]:
        """Return the sources that a caller sees, each with the number of its operations that the caller may call."""
        counts = Counter(self.source_of(operation_id) for operation_id in viewer.operations)
        return _visible_states(self._sources.states(), counts, watches=viewer.may_watch)

    def source_of(self, operation_id: str) -> str:
        """Return the name of the source of an operation; if the source is unknown, the first part of the id."""
        return self._sources.source_of(operation_id) or operation_id.partition(".")[0]

    def _key(self, viewer: Viewer) -> _Key:
        states = tuple(self._sources.states())
        return _Key(self._exposure.generation, self._exposure.rights(viewer.identity), viewer.may_watch, states)

    async def _build(self, key: _Key, operations: Mapping[str, Operation[Any]]) -> EncodedCatalogue:
        until = time.perf_counter() + _SLICE_SECONDS
        entries: list[bytes] = []
        counts: Counter[str] = Counter()
        for operation in list(operations.values()):
            source = self.source_of(operation.id)
            counts[source] += 1
            entries.append(self._entry(operation, source))
            if time.perf_counter() >= until:
                await asyncio.sleep(0)
                until = time.perf_counter() + _SLICE_SECONDS
        self._forget_removed()
        listed = encode_any(_visible_states(key.states, counts, watches=key.watches))
        return await asyncio.to_thread(_join, listed, entries)

    def _entry(self, operation: Operation[Any], source: str) -> bytes:
        known = self._entries.get(operation.id)
        if known is None or known[0] is not operation or known[1] != source:
            try:
                entry = encode_any(_describe(operation, source))
            except Exception:  # noqa: BLE001  # one faulty operation must not break the whole catalogue
                _log.exception("%s is listed without its fields", operation.id)
                entry = encode_any({"id": operation.id, "type": operation.spec.type.value, "source": source})
            known = self._entries[operation.id] = operation, source, entry
        return known[2]

    def _forget_removed(self) -> None:
        exposed = self._exposure.operations
        for operation_id in self._entries.keys() - exposed.keys():
            del self._entries[operation_id]


def describe_operation(viewer: Viewer, operation_id: str, source: str) -> bytes:
    """Return one operation in the console's format; refuse with 404 if the caller may not call the operation."""
    operation = viewer.operations.get(operation_id)
    if operation is None:
        message = "the operation is unknown, or not allowed"
        raise RefusedError(404, ErrorCode.OPERATION_NOT_FOUND, message, "NOT_VISIBLE")
    spec, route = operation.spec, Route(operation)
    described = {
        "id": spec.id,
        **spec.to_dict(),
        "source": source,
        "signature": signature(spec),
        "http": {"path": encoded_path(operation), "methods": sorted(route.methods - {"OPTIONS"})},
        "executes": operation.handler is not None,
        "streams": operation.stream is not None,
        "examples": _examples(spec.input_schema.document),
    }
    return encode_any(described)


def _join(sources: bytes, entries: list[bytes]) -> EncodedCatalogue:
    """Join the encoded sources and operations to a catalogue, and compress it; called in a thread."""
    rest = b'"sources":%s,"operations":[%s]}' % (sources, b",".join(entries))
    version = blake2b(rest, digest_size=8).hexdigest()
    body = b'{"version":"%s",%s' % (version.encode(), rest)
    return EncodedCatalogue(version, body, gzip.compress(body, 6, mtime=0))


def _visible_states(states: Iterable[SourceState], counts: Mapping[str, int], *, watches: bool) -> list[dict[str, Any]]:
    """Return the sources with operations that the caller may call; if `watches`, also the failed sources."""
    return [
        source_json(each, counts.get(each.name, 0))
        for each in states
        if counts.get(each.name) or (watches and each.state == "failed")
    ]


def _describe(operation: Operation[Any], source: str) -> dict[str, Any]:
    spec = operation.spec
    annotations = spec.annotations
    optional = {
        "title": spec.title,
        "tags": list(spec.tags),
        "fields": _fields(spec.input_schema.document),
        "scopes": [*spec.access_control.required_scopes, *spec.access_control.required_scopes_any][:_MOST_SCOPES],
        "method": annotations.get("method"),
        "path": annotations.get("path"),
        "deprecated": annotations.get("deprecated") is True,
        "streams": operation.stream is not None,
    }
    return {
        "id": spec.id,
        "type": spec.type.value,
        "description": _shorten(spec.description),
        "source": source,
        **{name: value for name, value in optional.items() if value},
    }


def _fields(document: Any) -> list[str]:
    properties = document.get("properties") if isinstance(document, Mapping) else None
    return list(properties)[:_MOST_FIELDS] if isinstance(properties, Mapping) else []


def _shorten(text: str) -> str:
    flat = " ".join(text[: 2 * _LONGEST_DESCRIPTION].split())
    return flat if len(flat) <= _LONGEST_DESCRIPTION else f"{flat[: _LONGEST_DESCRIPTION - 1]}…"


def _examples(document: Any) -> list[dict[str, Any]]:
    """Return examples of an input: those that its schema contains, and one from the schemas of its properties."""
    if not isinstance(document, Mapping):
        return []
    whole = document.get("examples")
    found = [{"title": f"Example {number}", "input": each} for number, each in enumerate(_as_list(whole), 1)]
    if "example" in document:
        found.append({"title": "Example", "input": document["example"]})
    properties = document.get("properties")
    values = {
        name: value
        for name, schema in (properties.items() if isinstance(properties, Mapping) else ())
        if (value := _example_of(schema)) is not _NO_VALUE
    }
    if values:
        found.append({"title": "From the schema", "input": values})
    return found[:_MOST_EXAMPLES]


def _example_of(schema: Any) -> Any:
    """Return an example, the default or the constant of a schema; `_NO_VALUE` if it has none of them."""
    if not isinstance(schema, Mapping):
        return _NO_VALUE
    for name in ("example", "default", "const"):
        if name in schema:
            return schema[name]
    examples = _as_list(schema.get("examples"))
    return examples[0] if examples else _NO_VALUE


def _as_list(value: Any) -> list[Any]:
    return list(value)[:_MOST_EXAMPLES] if isinstance(value, (list, tuple)) else []
