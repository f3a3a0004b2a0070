"""Workspace: the sources of a configuration, opened into one registry, with a report of each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from operations.catalogue import OperationCatalogue
from operations.config.problems import nearest
from operations.config.redaction import redact
from operations.config.settings import (
    CONSENT_SECONDS,
    NO_CALLBACKS,
    Config,
    MCPSettings,
    ShowConsent,
    Source,
    SourceCallbacks,
)
from operations.config.sources import OpenedSource, SourceReport, failure_report, open_source
from operations.context import OperationContext, new_request_id
from operations.env import build_env
from operations.errors import CallError, ErrorCode
from operations.interceptors.base import Interceptor
from operations.registry import OperationRegistry
from operations.sources.scanner import Skipped
from operations.spec import Operation

if TYPE_CHECKING:
    from operations.config.source_filters import SourceFilter  # imported on use: few configurations have filters
    from operations.interceptors.approval import Ask  # imported on use: few configurations have interceptors

__all__ = ["SourceReport", "Workspace", "open_workspace"]

_log = logging.getLogger("operations.config")

Outcome = tuple[OpenedSource | None, SourceReport]


class FilteredCatalogue(OperationCatalogue):
    """A source's view of a registry: it filters and renames the source's operations, and adds them to the registry.

    An operation whose id another source has already registered is skipped and reported in `skipped`.
    """

    def __init__(
        self, registry: OperationCatalogue, rules: SourceFilter | None, owner_of: Callable[[str], str | None]
    ) -> None:
        super().__init__()
        self.skipped: dict[str, Skipped] = {}
        self.hidden: dict[str, str] = {}
        """Ids that were not registered because another operation has them. The keys are the ids in this view."""
        self._registry = registry
        self._rules = rules
        self._owner_of = owner_of
        self._registered: dict[str, str] = {}
        self._owned: dict[str, None] = {}

    @property
    def ids(self) -> list[str]:
        """This source's ids in the registry."""
        return list(self._owned)

    def owns(self, operation_id: str) -> bool:
        """Whether an id in the registry is this source's."""
        return operation_id in self._owned

    def register_all(self, operations: Iterable[Operation[Any]], *, replace: bool = False) -> None:
        """Register operations in the source's view and, if the filter allows them, in the registry."""
        given = list(operations)
        super().register_all(given, replace=replace)
        for operation in given:
            self._show(operation)

    def unregister(self, operation_id: str) -> Operation[Any]:
        """Remove an operation from the source's view and from the registry."""
        operation = super().unregister(operation_id)
        self._withdraw(operation_id)
        return operation

    def _show(self, operation: Operation[Any]) -> None:
        before = self._withdraw(operation.id)
        self.skipped.pop(operation.id, None)
        self.hidden.pop(operation.id, None)
        try:
            changed = operation if self._rules is None else self._rules.apply(operation)
        except CallError as error:
            self.skipped[operation.id] = Skipped(operation.id, error.message)
            return
        if changed is None:
            return
        if changed.id in self._registry:
            self.skipped[operation.id] = skip_duplicate(operation.id, changed.id, self._owner_of(changed.id))
            self.hidden[operation.id] = changed.id
            return
        if before is not None and before.handler is not None and changed.handler is None and changed.stream is None:
            # A spec is registered again: keep its handler.
            changed = msgspec.structs.replace(before, spec=changed.spec)
        self._registry.register(changed)
        self._registered[operation.id] = changed.id
        self._owned[changed.id] = None

    def _withdraw(self, operation_id: str) -> Operation[Any] | None:
        shown = self._registered.pop(operation_id, None)
        if shown is None:
            return None
        del self._owned[shown]
        return self._registry.unregister(shown) if shown in self._registry else None


def skip_duplicate(name: str, operation_id: str, owner: str | None) -> Skipped:
    """Return the report of an operation that is skipped because another operation has the same id."""
    holder = f"source {owner}" if owner else "another operation of this source"
    return Skipped(name, f"duplicate id {operation_id}: already registered by {holder}; set rename or namespace")


class Workspace:
    """An open configuration; `open_workspace` creates and closes it."""

    def __init__(self, config: Config, ask: Ask | None = None) -> None:
        self.config = config
        self.registry = OperationRegistry(
            output_policy=config.policy or "cast", interceptors=_make_interceptors(config, ask)
        )
        self.reports: list[SourceReport] = []
        """Reports of the sources, in the order of the file."""
        self.opened: dict[str, OpenedSource] = {}
        """The open sources, by name."""
        self.created_at = time.time_ns()
        """Time of creation, in epoch nanoseconds; all files of sources are read after this time."""
        self._views: dict[str, FilteredCatalogue] = {}

    @property
    def env(self) -> Any:
        """The operations as `env.namespace.name(…)`; these calls skip access control."""
        return build_env(self.registry, OperationContext(request_id=new_request_id()))

    def source_of(self, operation_id: str) -> str | None:
        """Return the name of the source of an operation in the registry; None if the id is unknown."""
        return next((name for name, view in self._views.items() if view.owns(operation_id)), None)

    def ids_of(self, source: str) -> list[str]:
        """Return the ids of a source's operations in the registry."""
        view = self._views.get(source)
        return [] if view is None else view.ids

    def unmatched_rules(self) -> list[str]:
        """Return the patterns in `access` that match no operation; empty while a source is closed or failed."""
        if not self.config.access or len(self.opened) < len(self.config.sources):
            return []
        from operations.config.source_filters import unmatched  # imported lazily: few configurations have rules

        return unmatched(self.config.access, list(self.registry))

    def hidden_of(self, source: str) -> list[str]:
        """Return the ids that this source could not register because another operation has them."""
        view = self._views.get(source)
        return [] if view is None else list(view.hidden.values())

    def admit(self, source: Source, opened: OpenedSource) -> tuple[FilteredCatalogue, SourceFilter | None]:
        """Register the operations of an open source as configured; return the source's view and filter."""
        rules = _filter_of(source, self.config, opened)
        view = FilteredCatalogue(self.registry, rules, self.source_of)
        self.opened[source.name] = opened
        self._views[source.name] = view
        if opened.follow is not None:
            opened.follow(view)
        else:
            for operation in opened.operations:
                _register(view, operation)
        return view, rules


@asynccontextmanager
async def open_workspace(
    config: Config,
    *,
    only: Collection[str] | None = None,
    on_progress: Callable[[SourceReport], None] | None = None,
    show_consent: ShowConsent | None = None,
    ask: Ask | None = None,
    callbacks: SourceCallbacks = NO_CALLBACKS,
) -> AsyncIterator[Workspace]:
    """Open the sources of a configuration concurrently; with `only`, just the sources with these names.

    A source that fails does not affect the others: `Workspace.reports` has the reason. `on_progress` receives the
    report of each source when the source is ready or has failed; without `on_progress`, failures are logged as
    warnings. `show_consent` receives the name of a source and the URL for the user's consent, for MCP servers with
    OAuth. Without `show_consent`, these servers fail. `ask` decides on calls that need approval; without `ask`, the
    user of the calling program is asked. `callbacks` has functions that answer servers' questions and observe
    HTTP requests.
    """
    if not isinstance(config, Config):
        message = f"open_workspace takes a Config, not {type(config).__name__}: use load_config(path)"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    sources = _choose(config, only)
    if show_consent is not None:
        callbacks = msgspec.structs.replace(callbacks, show_consent=show_consent)
    workspace = Workspace(config, ask)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(workspace.registry.close)
        tasks = [SourceTask(config, source, callbacks) for source in sources]
        stack.push_async_callback(_close_all, tasks)
        outcomes = await _open_all(tasks, on_progress or _log_failure)
        # Register in the order of the file, so that duplicate ids are resolved deterministically.
        for source, (opened, report) in zip(sources, outcomes, strict=True):
            workspace.reports.append(report if opened is None else _admit(workspace, source, opened, report))
        yield workspace


class SourceTask:
    """A task that opens and later closes one source: the task that opens a connection must close it too.

    Failures are in the report and affect no other source.
    """

    def __init__(self, config: Config, source: Source, callbacks: SourceCallbacks = NO_CALLBACKS) -> None:
        self._config = config
        self._source = source
        self._callbacks = callbacks
        self._closing = asyncio.Event()
        self._is_open = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Outcome:
        """Open the source; return the open source (None after a failure) and its report."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(outcome), name=f"source {self._source.name}")
        return await outcome

    async def close(self) -> None:
        """Close the source, or cancel its opening."""
        self._closing.set()
        if self._task is not None:
            if not self._is_open:
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, outcome: asyncio.Future[Outcome]) -> None:
        try:
            async with AsyncExitStack() as stack:
                found = await self._attempt(stack)
                if outcome.done():
                    return  # the caller was cancelled
                self._is_open = found[0] is not None
                outcome.set_result(found)
                if self._is_open:
                    await self._closing.wait()
        except (Exception, SystemExit):  # noqa: BLE001  # other sources still have to be closed
            _log.warning("%s: closing the source failed", self._source.name, exc_info=True)
        finally:
            outcome.cancel()

    async def _attempt(self, stack: AsyncExitStack) -> Outcome:
        source, started = self._source, time.perf_counter()
        limit = source.settings.open_timeout
        has_user = self._callbacks.show_consent is not None
        if has_user and isinstance(source.settings, MCPSettings) and source.settings.asks_user:
            limit = max(limit, CONSENT_SECONDS)
        failure: BaseException
        try:
            async with asyncio.timeout(limit) as scope:
                opened = await open_source(source, stack, self._callbacks)
            seconds = time.perf_counter() - started
            count, kind = len(opened.operations), source.settings.kind
            report = SourceReport(name=source.name, kind=kind, state="ready", operations=count, seconds=seconds)
            return opened, report
        except (Exception, SystemExit) as error:  # noqa: BLE001  # reported
            failure = error
        if scope.expired():
            failure = CallError(ErrorCode.TIMEOUT, f"did not open within {limit:g} seconds")
        return None, failure_report(self._config, source, failure, time.perf_counter() - started)


def _log_failure(report: SourceReport) -> None:
    if report.state == "failed":
        hint = f" ({report.hint})" if report.hint else ""
        _log.warning("cannot open source %s: %s%s", report.name, report.problem, hint)


async def _open_all(tasks: Sequence[SourceTask], on_progress: Callable[[SourceReport], None]) -> list[Outcome]:
    async def attempt(task: SourceTask) -> Outcome:
        outcome = await task.open()
        on_progress(outcome[1])
        return outcome

    async with asyncio.TaskGroup() as group:
        attempts = [group.create_task(attempt(task)) for task in tasks]
    return [each.result() for each in attempts]


async def _close_all(tasks: Sequence[SourceTask]) -> None:
    await asyncio.gather(*(task.close() for task in tasks))


def _admit(workspace: Workspace, source: Source, opened: OpenedSource, report: SourceReport) -> SourceReport:
    view, rules = workspace.admit(source, opened)
    skipped = [*opened.skipped, *view.skipped.values()]
    unused = () if rules is None else sorted(rules.unused)
    return msgspec.structs.replace(
        report,
        operations=len(view.ids),
        skipped=[Skipped(skip.path, redact(skip.reason, workspace.config)) for skip in skipped],
        notes=[f"pattern {pattern!r} matches no operations" for pattern in unused],
    )


def _filter_of(source: Source, config: Config, opened: OpenedSource) -> SourceFilter | None:
    settings = source.settings
    named = settings.allow or settings.deny or settings.rename or opened.prefix is not None
    if not (named or settings.policy is not None or config.access):
        return None
    from operations.config.source_filters import SourceFilter  # imported lazily: few configurations have filters

    return SourceFilter(source, config.access, prefix=opened.prefix, namespace=opened.namespace)


def _make_interceptors(config: Config, ask: Ask | None) -> list[Interceptor]:
    if not config.interceptors:
        return []
    from operations.config.interceptors import make_interceptors  # imported lazily: few configurations have any

    return make_interceptors(config.interceptors, ask)


def _choose(config: Config, only: Collection[str] | None) -> list[Source]:
    for name in only or ():
        if name not in config.sources:
            message = f"unknown source {name!r} in {config.path}{nearest(name, config.sources)}"
            raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return [source for name, source in config.sources.items() if only is None or name in only]


def _register(view: FilteredCatalogue, operation: Operation[object]) -> None:
    """Register one operation; a duplicate id is skipped and reported."""
    if operation.id in view:
        view.skipped[operation.id] = Skipped(operation.id, "duplicate id in this source")
    else:
        view.register(operation)
