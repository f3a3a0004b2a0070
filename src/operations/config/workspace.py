"""Workspace: a configuration opened: one registry of everything its sources offer, and a report on each source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from operations.config.consent import ShowConsent
from operations.config.holding import SourceHolder
from operations.config.models import Config, Source
from operations.config.openers import Opened
from operations.config.problems import nearest
from operations.config.redaction import redact
from operations.config.reports import SourceReport
from operations.config.shaping import Shape, ShapedCatalogue
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.sources.scanner import Skipped
from operations.spec import Operation

__all__ = ["SourceReport", "Workspace", "open_workspace"]


class Workspace:
    """An open configuration; `open_workspace` makes it and closes it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.registry = OperationRegistry(output_policy=config.policy or "cast")
        self.reports: list[SourceReport] = []
        """One for each source that was to be opened, in the order of the file."""
        self.opened: dict[str, Opened] = {}
        """The sources that are open, by name."""
        self._views: dict[str, ShapedCatalogue] = {}

    def source_of(self, operation_id: str) -> str | None:
        """The name of the source that an operation in the registry comes from."""
        return next((name for name, view in self._views.items() if view.owns(operation_id)), None)

    def ids_of(self, source: str) -> list[str]:
        """The ids of a source's operations in the registry."""
        view = self._views.get(source)
        return [] if view is None else view.ids

    def admit(self, source: Source, opened: Opened) -> tuple[ShapedCatalogue, Shape]:
        """Register what an open source offers, in the shape that the configuration gives it."""
        shape = Shape(source, self.config.access, prefix=opened.prefix, namespace=opened.namespace)
        view = ShapedCatalogue(self.registry, shape, self.source_of)
        self.opened[source.name] = opened
        self._views[source.name] = view
        if opened.follow is not None:
            opened.follow(view)
        else:
            for operation in opened.operations:
                _register(view, operation)
        return view, shape


@asynccontextmanager
async def open_workspace(
    config: Config,
    *,
    only: Collection[str] | None = None,
    on_progress: Callable[[SourceReport], None] | None = None,
    show_consent: ShowConsent | None = None,
) -> AsyncIterator[Workspace]:
    """Open the sources of a configuration, all at once, or `only` those named; a dead one harms no other.

    `on_progress` is called with the report of each source when it is ready or has failed. `show_consent` is called with
    the name of a source and the address at which a user allows it, for MCP servers that ask for that; without it these
    fail.
    """
    sources = _choose(config, only)
    workspace = Workspace(config)
    async with AsyncExitStack() as stack:
        stack.callback(workspace.registry.close)
        holders = [SourceHolder(config, source, show_consent) for source in sources]
        stack.push_async_callback(_close_all, holders)
        outcomes = await _open_all(holders, on_progress)
        # In the order of the file, so that who gets a name that two want does not depend on who was faster.
        for source, (opened, report) in zip(sources, outcomes, strict=True):
            workspace.reports.append(report if opened is None else _admit(workspace, source, opened, report))
        yield workspace


async def _open_all(
    holders: Sequence[SourceHolder], on_progress: Callable[[SourceReport], None] | None
) -> list[tuple[Opened | None, SourceReport]]:
    async def attempt(holder: SourceHolder) -> tuple[Opened | None, SourceReport]:
        outcome = await holder.open()
        if on_progress is not None:
            on_progress(outcome[1])
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(holder)) for holder in holders]
    return [task.result() for task in tasks]


async def _close_all(holders: Sequence[SourceHolder]) -> None:
    await asyncio.gather(*(holder.close() for holder in holders))


def _admit(workspace: Workspace, source: Source, opened: Opened, report: SourceReport) -> SourceReport:
    view, shape = workspace.admit(source, opened)
    skipped = [*opened.skipped, *view.skipped.values()]
    return msgspec.structs.replace(
        report,
        operations=len(view.ids),
        skipped=[Skipped(skip.path, redact(skip.reason, workspace.config)) for skip in skipped],
        notes=[f"the pattern {pattern!r} matches none of its operations" for pattern in sorted(shape.unused)],
    )


def _choose(config: Config, only: Collection[str] | None) -> list[Source]:
    for name in only or ():
        if name not in config.sources:
            message = f"there is no source {name!r} in {config.path}{nearest(name, config.sources)}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return [source for name, source in config.sources.items() if only is None or name in only]


def _register(view: ShapedCatalogue, operation: Operation[object]) -> None:
    """Register one operation; an id that the source gives twice is reported like one that another source has."""
    if operation.id in view:
        view.skipped[operation.id] = Skipped(operation.id, "the source offers two operations of this id")
    else:
        view.register(operation)
