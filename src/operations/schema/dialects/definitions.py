"""Definitions: the components of one document, each converted once and shared by all schemas that refer to it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from threading import Lock
from typing import Any
from urllib.parse import urldefrag
from zlib import crc32

from operations.schema.dialects.conversion import Converter, convert, has_cycle
from operations.schema.dialects.plain import Conversion
from operations.schema.dialects.references import Loader, join
from operations.schema.dialects.traversal import Definition

Revise = Callable[[dict[str, Any], Collection[str]], None]
"""Changes a converted document in place: its own keywords, and its definitions with the given names.

Earlier calls have changed the other definitions.
"""
_NAMED = ("/components/schemas/", "/definitions/")


class Definitions:
    """The shared definitions of the schemas in one document.

    Definitions are shared if they are in one of the document's `sections` (such as `components`), or in another
    document whose address is in `files`. A schema that refers to anything else is converted alone. `reviser` returns
    a function that revises each definition once. `complete` adds to a schema the parts of the document that the schema
    may refer to.
    """

    def __init__(
        self,
        dialect: str | None = None,
        loader: Loader | None = None,
        *,
        sections: Iterable[str] = (),
        files: Container[str] = (),
        reviser: Callable[[], Revise] | None = None,
        complete: Callable[[Any], Any] = lambda schema: schema,
    ) -> None:
        self.dialect = dialect
        self.loader = loader
        self.sections = tuple(f"/{section}/" for section in sections)
        self.files = files
        self.complete = complete
        self.pointers: dict[str, str] = {}
        """Pointers of the definitions, by the address of the original schema."""
        self.taken: dict[str, int] = {}
        self.twins: dict[str, Any] = {}
        """The first Schema of each converted document, by the document's text without `$defs`.

        Later Schemas of the same document use the validators of the first.
        """
        self._known: dict[str, Definition] = {}
        self._reviser = reviser or _unrevised
        self._revise = self._reviser()
        self._lock = Lock()

    def convert(self, document: Any) -> Conversion:
        """Convert a schema of the document, and the definitions it uses that are not converted yet."""
        if isinstance(document, Mapping):
            try:
                with self._lock:
                    return self._share(document)
            except _UnsharedError:
                pass
        conversion = convert(document, self.dialect, self.loader)
        if isinstance(conversion.document, dict):
            self._reviser()(conversion.document, conversion.document.get("$defs", ()))
        return conversion

    def _share(self, document: Mapping[str, Any]) -> Conversion:
        converter = _SharingConverter(document, self)
        converted = converter.convert_all()
        fresh = {
            f"#/$defs/{name}": Definition(
                schema, frozenset(converter.edges.get(f"#/$defs/{name}", ())), converter.exact
            )
            for name, schema in converter.definitions.items()
        }
        known = self._known | fresh if fresh else self._known
        reached = _reached(converter.edges.get("#", ()), known)
        if reached:
            converted["$defs"] = {pointer[8:]: definition.schema for pointer, definition in reached.items()}
        self._revise(converted, converter.definitions)
        self._known = known
        self.taken |= converter.named
        self.pointers |= converter.pointers
        exact = converter.exact and all(definition.exact for definition in reached.values())
        recursive = has_cycle({pointer: definition.targets for pointer, definition in reached.items()})
        return Conversion(converted, tuple(converter.complaints), exact, recursive, shared=reached)


class _UnsharedError(Exception):
    """A reference to a schema that cannot be shared: it is outside the `sections` and `files` of `Definitions`."""


class _SharingConverter(Converter):
    """A conversion that uses the definitions of earlier conversions."""

    def __init__(self, document: Mapping[str, Any], shared: Definitions) -> None:
        super().__init__(document, shared.dialect, shared.loader)
        self.named: dict[str, int] = {}  # the names of a conversion that fails stay free
        self.taken = ChainMap(self.named, shared.taken)
        self.pointers: dict[str, str] = {}
        self._shared = shared

    def pointer_of(self, keyword: str, reference: str, base: str) -> str:
        address = join(base, reference)
        pointer = self._shared.pointers.get(address) or self.pointers.get(address)
        if pointer is None:
            target = self.resolved(keyword, reference, base)
            pointer = self.pointers[address] = self.define(self._name(address), target)
        return pointer

    def _name(self, address: str) -> str:
        """Return a name that does not depend on the order in which schemas are used."""
        file, pointer = urldefrag(address)
        at_home = file == self.references.root.base
        if not (pointer.startswith(self._shared.sections) if at_home else file in self._shared.files):
            raise _UnsharedError
        section, _, name = pointer.rpartition("/")
        return name if at_home and f"{section}/" in _NAMED else f"{name}_{crc32(address.encode()):08x}"


def _unrevised() -> Revise:
    return lambda document, names: None


def _reached(targets: Iterable[str], known: Mapping[str, Definition]) -> dict[str, Definition]:
    """Return the definitions that are reachable from `targets`, by pointer."""
    reached: dict[str, Definition] = {}
    pending = sorted(targets, reverse=True)
    while pending:
        pointer = pending.pop()
        if pointer not in reached:
            reached[pointer] = known[pointer]
            pending += sorted(known[pointer].targets, reverse=True)
    return reached
