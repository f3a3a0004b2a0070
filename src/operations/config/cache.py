"""The catalogue cache: the operations of a configuration as last opened, read without opening a source.

Each configuration has a file of three parts: a head with what it depends on, the rows of a listing, and the specs, of
which only the requested ones are read. `cache_writer` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

MAGIC = b"operations catalogue 3\n"
_LENGTH = 8
Stamp = tuple[str, int, int]
"""A path, when it was changed, and its size; for a folder, a number for its names; -1 for one that is not there."""


class CatalogueEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a listing shows of one operation; the rest of it is in `Catalogue.spec`."""

    id: str
    type: str
    title: str
    description: str
    source: str
    tags: Sequence[str]
    fields: Sequence[str]
    """The names of its input's properties, the required ones first."""
    position: tuple[int, int] = (0, 0)
    """Where its spec is among the specs, and how long; (0, 0) where it is too large to be kept."""


class CachedSource(msgspec.Struct, frozen=True, array_like=True):
    """One source as it was when it was last opened."""

    name: str
    kind: str
    state: str
    operations: int
    problem: str | None
    opened_at: float
    """Epoch seconds."""
    files: Sequence[Stamp] = ()
    """What its operations were read from."""
    skipped: Sequence[tuple[str, str]] = ()
    """What of it could not be taken, a file or an operation, and why."""
    is_uninstalled: bool = False
    """Whether it failed for lack of an extra, which may be installed at any time."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What the rest of a cache file depends on."""

    configuration: Mapping[str, str]
    """A digest of each file of the configuration."""
    files: Sequence[Stamp]
    """Files of variables."""
    salt: bytes
    variables: Mapping[str, str]
    """A digest of each variable of the environment that is no secret; empty for one that was not set."""
    sources: Sequence[CachedSource]
    rows: int
    """The length of the rows in bytes."""
    trust: str = ""
    """The digest of what the configuration would run (`actions.digest_actions`)."""


class Catalogue:
    """The operations of a configuration, in order of id, as they were when their sources were last opened."""

    def __init__(self, path: Path, head: Head, entries: Sequence[CatalogueEntry], specs_at: int) -> None:
        self.path = path
        self.entries = entries
        self.trust = head.trust
        """The digest of what the configuration would run, for `trust.is_trusted`."""
        self.sources: Mapping[str, CachedSource] = {source.name: source for source in head.sources}
        self._specs_at = specs_at

    @cached_property
    def stale(self) -> list[str]:
        """The sources to open again: their files changed, or they failed for lack of an extra."""
        return [
            name
            for name, source in self.sources.items()
            if source.is_uninstalled or any(map(has_changed, source.files))
        ]

    @cached_property
    def _by_id(self) -> dict[str, CatalogueEntry]:
        return {entry.id: entry for entry in self.entries}

    def get(self, operation_id: str) -> CatalogueEntry | None:
        """The entry of an operation, or None."""
        return self._by_id.get(operation_id)

    def source_of(self, operation_id: str) -> str | None:
        """The name of the source that an operation comes from, for `open_workspace(only=[…])`."""
        entry = self.get(operation_id)
        return None if entry is None else entry.source

    def spec(self, operation_id: str) -> dict[str, Any] | None:
        """The whole spec as plain data with its JSON names; None where it is not kept."""
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
        # Another process may have written the file anew since its rows were read.
        return spec if f"{spec.get('namespace')}.{spec.get('name')}" == operation_id else None

    def schemas(self, operation_id: str) -> tuple[Any, Any] | None:
        """The input and the output schema of an operation; None where they are not kept."""
        spec = self.spec(operation_id)
        return None if spec is None else (spec["inputSchema"], spec["outputSchema"])


def load_catalogue(config_path: Path, *, environ: Mapping[str, str] | None = None) -> Catalogue | None:
    """What is cached for a configuration file; None where nothing is, or the configuration has changed since."""
    path = cache_path(Path(config_path), environ)
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            head = msgspec.msgpack.decode(file.read(int.from_bytes(file.read(_LENGTH), "big")), type=Head)
            if not _is_current(head, os.environ if environ is None else environ):
                return None
            rows = msgspec.msgpack.decode(file.read(head.rows), type=list[CatalogueEntry])
            return Catalogue(path, head, rows, file.tell())
    except (OSError, OverflowError, MemoryError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def cache_path(config_path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The cache file of a configuration: in `$XDG_CACHE_HOME/operations`, or `~/.cache/operations`."""
    given = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.cache").expanduser()
    name = blake2b(os.path.abspath(config_path).encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return base / "operations" / f"{name}.catalogue"


def stamp(path: str) -> Stamp:
    """What tells a file from itself after a change."""
    try:
        state = os.stat(path)
        if (state.st_mode & 0o170000) == 0o040000:
            return path, _names_in(path), 0
    except OSError:
        return path, -1, -1
    return path, state.st_mtime_ns, state.st_size


def _names_in(folder: str) -> int:
    """A number that changes when a module or a folder comes or goes, and not for other files, such as this cache."""
    with os.scandir(folder) as found:
        names = sorted(
            entry.name
            for entry in found
            if not entry.name.startswith((".", "__pycache__")) and (entry.name.endswith(".py") or entry.is_dir())
        )
    digest = blake2b("/".join(names).encode(errors="surrogateescape"), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def has_changed(known: Stamp) -> bool:
    """Whether a file is not what it was."""
    return stamp(known[0]) != tuple(known)


def digest_file(path: str) -> str:
    """A digest of a file's content; empty for one that cannot be read."""
    try:
        return blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def digest_variable(value: str | None, salt: bytes) -> str:
    """A digest of a variable's value; empty for one that is not set."""
    if value is None:
        return ""
    return blake2b(value.encode(errors="surrogateescape"), digest_size=16, key=salt).hexdigest()


def _is_current(head: Head, environ: Mapping[str, str]) -> bool:
    return (
        all(digest_file(path) == digest for path, digest in head.configuration.items())
        and not any(map(has_changed, head.files))
        and all(digest_variable(environ.get(name), head.salt) == digest for name, digest in head.variables.items())
    )
