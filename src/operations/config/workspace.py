"""Workspace: a configuration opened: one registry of everything its sources offer, and a report on each source."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from operations.config.models import Config, SourceKind
from operations.registry import OperationRegistry
from operations.sources.scanner import Skipped


class SourceReport(msgspec.Struct, frozen=True, kw_only=True):
    """How opening one source went."""

    name: str
    kind: SourceKind
    state: Literal["ready", "failed"]
    operations: int = 0
    seconds: float = 0.0
    problem: str | None = None
    hint: str | None = None
    skipped: Sequence[Skipped] = ()
    """What of it is not in the registry, and why: files that do not import, names that are taken."""


class Workspace:
    """An open configuration; `open_workspace` makes it and closes it."""

    config: Config
    registry: OperationRegistry
    reports: list[SourceReport]
    """One for each source that was to be opened, in the order of the file."""


@asynccontextmanager
async def open_workspace(
    config: Config,
    *,
    only: Collection[str] | None = None,
    on_progress: Callable[[SourceReport], None] | None = None,
) -> AsyncIterator[Workspace]:
    """Open the sources of a configuration, all at once, or `only` those named; a dead one harms no other.

    `on_progress` is called with the report of each source when it is ready or has failed.
    """
    raise NotImplementedError
    yield
