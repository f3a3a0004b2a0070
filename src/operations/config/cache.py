"""The catalogue cache: a configuration's operations as of the last opening, read without opening a source.

Each configuration has one cache file. It contains a header with the files and variables on which the cache depends, a
row for each operation, and the specs. A spec is read only on request. `cache_writer` writes the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from operations.local_files import read_regular

MAGIC = b"operations catalogue 5\n"
_LENGTH = 8
Stamp = tuple[str, int, int]
"""A path, its modification time in nanoseconds and its size in bytes.

For a directory, the numbers are a hash of the names of its modules and subdirectories, and 0. For a missing file, both
are -1.
"""


class CatalogueEntry(msgspec.Struct, frozen=True, array_like=True):
    """The properties of an operation that a listing shows; `Catalogue.spec` returns the whole spec."""

    id: str
    type: str
    title: str
    description: str
    source: str
    tags: Sequence[str]
    fields: Sequence[str]
    """Names of the operation's input fields, required ones first."""
    position: tuple[int, int] = (0, 0)
    """Offset and length of the operation's spec among all specs; (0, 0) if the spec is not stored."""
    method: str = ""
    """HTTP method of an API's operation; the path of its URL is in `path`."""
    path: str = ""


class CachedSource(msgspec.Struct, frozen=True, array_like=True):
    """A source as of its last opening."""

    name: str
    kind: str
    state: str
    operations: int
    problem: str | None
    opened_at: float
    """Time of opening, in epoch seconds."""
    files: Sequence[Stamp] = ()
    """Files that the operations of the source were read from."""
    skipped: Sequence[tuple[str, str]] = ()
    """Skipped files and operations, with the reasons."""
    fault: str = ""
    """The `fault` of a failed source's `SourceReport`; empty if the source did not fail.

    Also empty if its settings alone prevent opening the source (`Source.problem`), for example an unset variable.
    """
    hidden: Sequence[str] = ()
    """Ids of this source's operations that an earlier source in the file also has, and therefore owns."""

    @property
    def lacks_extra(self) -> bool:
        """Whether the source failed because of a missing extra. Such a source is always in `Catalogue.stale`."""
        return self.fault == "installation"


class CacheHeader(msgspec.Struct, frozen=True, array_like=True):
    """Header of a cache file: the data that determines whether the cache is valid, and the state of each source."""

    configuration: Mapping[str, str]
    """Digest of each configuration file."""
    files: Sequence[Stamp]
    """Stamp of each variable file."""
    salt: bytes
    variables: Mapping[str, str]
    """Digest of each non-secret variable that the configuration uses; empty if the variable was not set."""
    sources: Sequence[CachedSource]
    rows: int
    """Length of the rows in bytes."""
    trust: str = ""
    """Digest of the configuration's actions (`actions.digest_actions`)."""


class Catalogue:
    """A configuration's operations, sorted by id, as of the last opening of their sources."""

    def __init__(self, path: Path, header: CacheHeader, entries: Sequence[CatalogueEntry], specs_at: int) -> None:
        self.path = path
        self.entries = entries
        self.trust = header.trust
        """Digest of the configuration's actions, for `trust.is_trusted`."""
        self.sources: Mapping[str, CachedSource] = {source.name: source for source in header.sources}
        self._specs_at = specs_at

    @cached_property
    def stale(self) -> list[str]:
        """The names of the sources to open again.

        A source is opened again if one of its files changed, if an extra was missing, or if one of its hidden ids is no
        longer in the catalogue.
        """
        return [
            name
            for name, source in self.sources.items()
            if source.lacks_extra
            or any(map(has_changed, source.files))
            or not all(operation_id in self for operation_id in source.hidden)
        ]

    @cached_property
    def _by_id(self) -> dict[str, CatalogueEntry]:
        return {entry.id: entry for entry in self.entries}

    def __contains__(self, operation_id: object) -> bool:
        return operation_id in self._by_id

    def get(self, operation_id: str) -> CatalogueEntry | None:
        """Return the entry of an operation; None if the id is unknown."""
        return self._by_id.get(operation_id)

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of an operation's source, for `open_workspace(only=[…])`; None if the id is unknown."""
        entry = self.get(operation_id)
        return None if entry is None else entry.source

    def spec(self, operation_id: str) -> dict[str, Any] | None:
        """Return the whole spec of an operation as JSON data; None if the spec is not stored."""
        entry = self.get(operation_id)
        if entry is None or entry.position == (0, 0):
            return None
        start, length = entry.position
        try:
            with self.path.open("rb") as file:
                file.seek(self._specs_at + start)
                spec = msgspec.json.decode(file.read(length), type=dict[str, Any])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        # Another process may have rewritten the file since its rows were read.
        return spec if f"{spec.get('namespace')}.{spec.get('name')}" == operation_id else None

    def schemas(self, operation_id: str) -> tuple[Any, Any] | None:
        """Return the input and output schemas of an operation; None if they are not stored."""
        spec = self.spec(operation_id)
        return None if spec is None else (spec["inputSchema"], spec["outputSchema"])


def load_catalogue(config_path: Path, *, environ: Mapping[str, str] | None = None) -> Catalogue | None:
    """Return the cached catalogue of a configuration; None if there is none, or if the configuration has changed."""
    path = cache_path(Path(config_path), environ)
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            header = msgspec.msgpack.decode(file.read(int.from_bytes(file.read(_LENGTH), "big")), type=CacheHeader)
            if not _is_current(header, os.environ if environ is None else environ):
                return None
            rows = msgspec.msgpack.decode(file.read(header.rows), type=list[CatalogueEntry])
            return Catalogue(path, header, rows, file.tell())
    except (OSError, OverflowError, MemoryError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def cache_path(config_path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache file of a configuration, in `$XDG_CACHE_HOME/operations` or `~/.cache/operations`."""
    given = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.cache").expanduser()
    name = blake2b(os.path.abspath(config_path).encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return base / "operations" / f"{name}.catalogue"


def stamp(path: str) -> Stamp:
    """Return the stamp of a file, which changes when the file does."""
    try:
        state = os.stat(path)
        if (state.st_mode & 0o170000) == 0o040000:
            return path, _names_in(path), 0
    except OSError:
        return path, -1, -1
    return path, state.st_mtime_ns, state.st_size


def _names_in(directory: str) -> int:
    """Return a hash of the names of the modules and subdirectories in a directory; other files are ignored."""
    with os.scandir(directory) as found:
        names = sorted(
            entry.name
            for entry in found
            if not entry.name.startswith((".", "__pycache__")) and (entry.name.endswith(".py") or entry.is_dir())
        )
    digest = blake2b("/".join(names).encode(errors="surrogateescape"), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def has_changed(known: Stamp) -> bool:
    """Whether a file has changed since its stamp `known` was taken."""
    return stamp(known[0]) != tuple(known)


def digest_file(path: str) -> str:
    """Return a digest of a file's content; empty if it cannot be read."""
    try:
        return blake2b(read_regular(path), digest_size=16).hexdigest()
    except OSError:
        return ""


def digest_variable(value: str | None, salt: bytes) -> str:
    """Return a digest of a variable's value; empty if it is not set."""
    if value is None:
        return ""
    return blake2b(value.encode(errors="surrogateescape"), digest_size=16, key=salt).hexdigest()


def _is_current(header: CacheHeader, environ: Mapping[str, str]) -> bool:
    return (
        all(digest_file(path) == digest for path, digest in header.configuration.items())
        and not any(map(has_changed, header.files))
        and all(digest_variable(environ.get(name), header.salt) == digest for name, digest in header.variables.items())
    )
