"""The catalogue cache: what operations a configuration had when it was last opened, read without opening anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec


class CatalogueEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a listing shows of one operation; its schemas are read with `Catalogue.schemas`."""

    id: str
    type: str
    title: str
    description: str
    source: str
    tags: Sequence[str]
    fields: Sequence[str]
    """The names of its input's properties, the required ones first."""
    position: tuple[int, int] = (0, 0)


class CachedSource(msgspec.Struct, frozen=True):
    """One source as it was when it was last opened."""

    name: str
    kind: str
    state: str
    operations: int
    problem: str | None
    opened_at: float
    """Epoch seconds."""


class Catalogue(msgspec.Struct, frozen=True):
    """The operations of a configuration, in order of id, as they were when their sources were last opened."""

    entries: Sequence[CatalogueEntry]
    sources: Mapping[str, CachedSource]
    stale: Sequence[str]
    """The sources whose files changed since: to be trusted, the workspace opens them again."""
    path: Path

    def get(self, operation_id: str) -> CatalogueEntry | None:
        """The entry of an operation, or None."""
        raise NotImplementedError

    def source_of(self, operation_id: str) -> str | None:
        """The name of the source that an operation comes from, for `open_workspace(only=[…])`."""
        raise NotImplementedError

    def schemas(self, operation_id: str) -> tuple[Any, Any] | None:
        """The input and the output schema of an operation; None where they are not kept."""
        raise NotImplementedError


def load_catalogue(config_path: Path) -> Catalogue | None:
    """What is cached for a configuration file; None where nothing is, or the file has changed since."""
    raise NotImplementedError


def store_catalogue(workspace: Any) -> Path | None:
    """Write what a workspace holds; sources that are not open in it keep what was known of them."""
    raise NotImplementedError
