"""Resolution of `$ref`: base URLs, anchors and pointers, within a document and in loaded ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from operations.schema.dialects.keywords import LITERALS

Loader = Callable[[str], Any]

_MAX_SCANNED = 200_000


class SchemaLocation(NamedTuple):
    """A schema of a document, its base URL and its draft."""

    schema: Any
    base: str
    draft: int


class UnresolvedReferenceError(LookupError):
    """A reference without a target, or to another document without a loader."""


def pointer_parts(pointer: str) -> list[str]:
    """Return the segments of a JSON pointer, with its escapes and percent-encoding decoded."""
    return [part.replace("~1", "/").replace("~0", "~") for part in unquote(pointer).split("/")[1:]]


def join(base: str, reference: str) -> str:
    """Return `reference` resolved against `base`; unlike the standard library, also for URNs."""
    if reference.startswith("#"):
        return base.partition("#")[0] + reference
    if not base or urlsplit(reference).scheme:
        return reference
    return urljoin(base, reference)


def identifier(schema: Mapping[str, Any], draft: int) -> str | None:
    """Return the `$id` (in draft 4 `id`) of a schema; None without one, and before 2019-09 also beside a `$ref`."""
    value = schema.get("id" if draft == 4 else "$id")
    if not isinstance(value, str) or (draft < 2019 and "$ref" in schema):
        return None
    return value


class References:
    """The documents that one schema can refer to, indexed by URL at the first reference."""

    def __init__(
        self,
        document: Mapping[str, Any],
        draft: int,
        draft_of: Callable[[Mapping[str, Any], int], int],
        loader: Loader | None = None,
    ) -> None:
        base = identifier(document, draft) or ""
        self.root = SchemaLocation(document, urldefrag(base)[0], draft)
        self._draft_of = draft_of
        self._loader = loader
        self._locations: dict[str, SchemaLocation] | None = None
        self._dynamic: set[str] = set()

    def enter(self, schema: Mapping[str, Any], base: str, draft: int) -> tuple[str, int]:
        """Return the base URL and draft inside `schema`, given the base URL and draft around it."""
        if not ("$id" in schema or "id" in schema or "$schema" in schema):  # fast path: most schemas
            return base, draft
        draft = self._draft_of(schema, draft)
        own = identifier(schema, draft)
        if own is not None and not own.startswith("#"):
            base = urldefrag(join(base, own))[0]
        return base, draft

    def resolve(self, reference: str, base: str) -> SchemaLocation:
        """Return the target of `reference` from `base`; raise UnresolvedReferenceError if there is none."""
        if base == self.root.base and (reference == "#" or reference.startswith("#/")):
            return self._descend(self.root, reference[1:])
        address, fragment = urldefrag(join(base, reference))
        if fragment and not fragment.startswith("/"):
            return self._lookup(f"{address}#{fragment}")
        return self._descend(self._lookup(address), fragment)

    def resolve_dynamic(self, reference: str, base: str) -> SchemaLocation:
        """Return the target of a `$dynamicRef`: the dynamic anchor of this name in the root, else the target of
        `resolve`.
        """
        target = self.resolve(reference, base)
        name = urldefrag(reference)[1]
        if name and not name.startswith("/") and isinstance(target.schema, Mapping):
            outer = self._index().get(f"{self.root.base}#{name}")
            if outer is not None and f"{self.root.base}#{name}" in self._dynamic:
                return outer
        return target

    def _descend(self, location: SchemaLocation, pointer: str) -> SchemaLocation:
        schema, base, draft = location
        for part in pointer_parts(pointer):
            if isinstance(schema, (dict, Mapping)) and part in schema:
                schema = schema[part]
            elif isinstance(schema, list | tuple) and part.isdecimal() and int(part) < len(schema):
                schema = schema[int(part)]
            else:
                raise UnresolvedReferenceError(f"unresolved pointer {pointer!r}")
            if isinstance(schema, (dict, Mapping)):
                base, draft = self.enter(schema, base, draft)
        return SchemaLocation(schema, base, draft)

    def _lookup(self, address: str) -> SchemaLocation:
        locations = self._index()
        if address in locations:
            return locations[address]
        document_address, fragment = urldefrag(address)
        if document_address in locations or self._loader is None:
            raise UnresolvedReferenceError(f"{address!r} is not in the document")
        self._add(self._load(document_address), document_address)
        if address not in locations:
            raise UnresolvedReferenceError(f"{fragment!r} is not in {document_address!r}")
        return locations[address]

    def _load(self, address: str) -> Any:
        assert self._loader is not None
        try:
            return self._loader(address)
        except Exception as error:  # the loader is the caller's: any failure means "not found"
            raise UnresolvedReferenceError(f"the loader failed on {address!r}: {error}") from error

    def _index(self) -> dict[str, SchemaLocation]:
        if self._locations is None:
            self._locations = {}
            self._add(self.root.schema, self.root.base)
        return self._locations

    def _add(self, document: Any, address: str) -> None:
        locations = self._locations if self._locations is not None else self._index()
        draft = self._draft_of(document, self.root.draft) if isinstance(document, Mapping) else self.root.draft
        locations.setdefault(address, SchemaLocation(document, address, draft))
        for schema, base, inner in self._walk(document, address, draft):
            if base not in locations:
                locations[base] = SchemaLocation(schema, base, inner)
            for name in self._anchors(schema, inner):
                locations.setdefault(f"{base}#{name}", SchemaLocation(schema, base, inner))
            if isinstance(schema.get("$dynamicAnchor"), str):
                self._dynamic.add(f"{base}#{schema['$dynamicAnchor']}")

    def _walk(self, document: Any, base: str, draft: int) -> Iterator[tuple[Mapping[str, Any], str, int]]:
        pending = [(document, base, draft)]
        scanned = 0
        while pending and scanned < _MAX_SCANNED:
            node, base, draft = pending.pop()
            scanned += 1
            if isinstance(node, Mapping):
                base, draft = self.enter(node, base, draft)
                yield node, base, draft
                pending += [(v, base, draft) for k, v in node.items() if k not in LITERALS]
            elif isinstance(node, list | tuple):
                pending += [(item, base, draft) for item in node]

    @staticmethod
    def _anchors(schema: Mapping[str, Any], draft: int) -> Iterator[str]:
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                yield schema[keyword]
        own = identifier(schema, draft)
        if own is not None and draft < 2019 and "#" in own:
            yield urldefrag(own)[1]
