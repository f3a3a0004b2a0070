"""OperationManifest: what a scan found, and what it left out and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from operations.spec import Operation, OperationSpec


class Skipped(msgspec.Struct, frozen=True):
    """Something that is not among the operations."""

    path: str
    """The file or, where it is one operation of a file, its id."""
    reason: str


class OperationManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of a folder or package."""

    operations: Sequence[Operation[Any]] = ()
    specs: Sequence[OperationSpec] = ()
    """Specs without a handler, which is registered separately."""
    skipped: Sequence[Skipped] = ()
    origins: Mapping[str, str] = {}
    """The file of each operation and spec, by id."""
    files: Sequence[str] = ()
    """Every folder and module file that was looked at: a change to one of them may change the operations."""


class ManifestChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became different between two scans."""

    manifest: OperationManifest
    added: Sequence[str] = ()
    replaced: Sequence[str] = ()
    removed: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()
    """What of the changed files could not be taken over: their operations stay as they were."""
