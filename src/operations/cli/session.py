"""Session of a command: the registry and the sources that the command needs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any

from operations.catalogue import unknown_operation
from operations.cli.arguments import ParsedArguments
from operations.cli.configuration import optional_configuration, require_configuration
from operations.cli.failures import TRANSPORT, USAGE, CommandError
from operations.cli.stderr import StatusLine, is_json, spinner, warn, warn_skipped, write_line, write_record
from operations.cli.terminal import is_terminal, printable
from operations.config import (
    Catalogue,
    Config,
    SourceReport,
    Workspace,
    load_catalogue,
    open_workspace,
    store_catalogue,
)
from operations.config.redaction import redact
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationSpec, OperationType


class CommandSession:
    """A registry, its configuration and the reports of its sources."""

    def __init__(
        self, registry: OperationRegistry, config: Config | None, reports: list[SourceReport], *, is_remote: bool
    ) -> None:
        self.registry = registry
        self.config = config
        self.reports = reports
        self._is_remote = is_remote

    def find(self, operation_id: str) -> Operation[Any]:
        """Return an operation; raise an error that names the nearest id or the failed source if it is unknown."""
        operation = self.registry.get_operation(operation_id)
        if operation is not None:
            return operation
        report = self.failed_source_of(operation_id)
        if report is not None:
            raise source_failure(report, f"cannot open source {report.name}")
        for each in self.reports:
            warn_skipped([(skip.path, skip.reason) for skip in each.skipped])
        raise self._not_found(operation_id)

    def report_failures(self, args: ParsedArguments, requested: str | None) -> None:
        """Warn of failed sources, except that of the requested operation, for which `find` raises."""
        needed = None if requested is None else self.failed_source_of(requested)
        report_failures(args, [report for report in self.reports if report is not needed])

    def failed_source_of(self, operation_id: str) -> SourceReport | None:
        """Return the failed source whose namespace contains an operation."""
        if self.config is None:
            return None
        failed = (report for report in self.reports if report.state == "failed")
        sources = self.config.sources
        return next((each for each in failed if operation_id.startswith(f"{sources[each.name].namespace}.")), None)

    def require_dry_run(self, operation: Operation[Any]) -> None:
        """Raise if an operation is not from an OpenAPI source."""
        from operations.sources.openapi import HTTPCallOptions  # noqa: F401  # raises if the extra is missing

        namespaces = [
            source.namespace
            for source in (self.config.sources.values() if self.config is not None else ())
            if source.kind == "openapi"
        ]
        if not any(operation.id.startswith(f"{namespace}.") for namespace in namespaces):
            raise CommandError(f"{operation.id} has no dry run", "--dry-run requires an operation of an OpenAPI source")

    def redact(self, text: str) -> str:
        """Return text without the configuration's secrets."""
        return text if self.config is None else redact(text, self.config)

    def _not_found(self, operation_id: str) -> CallError:
        error = self.registry.not_found(operation_id)
        # The configuration's catalogue does not apply to a transport.
        catalogue = None if self.config is None or self._is_remote else load_catalogue(self.config.path)
        if catalogue is None or error.details["nearest"]:
            return error
        return unknown_operation(operation_id, [entry.id for entry in catalogue.entries])


@asynccontextmanager
async def open_session(args: ParsedArguments, requested: str | None = None) -> AsyncIterator[CommandSession]:
    """Open what a command needs: the source of the requested operation if known, else all sources."""
    is_remote = args.url is not None
    is_address = is_remote and ":" in args.url
    config = optional_configuration(args) if is_address else require_configuration(args)
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(spinner("opening", quiet=args.quiet))
        if is_remote or config is None:
            from operations.cli.remote import import_remote

            registry, reports = OperationRegistry(), list[SourceReport]()
            await import_remote(stack, args, config, registry, requested, line)
        else:
            workspace = await _open(stack, config, requested, line)
            registry, reports = workspace.registry, workspace.reports
        line.clear()
        line.is_on = False
        session = CommandSession(registry, config, reports, is_remote=is_remote)
        session.report_failures(args, requested)
        yield session


async def refresh_catalogue(config: Config, only: Collection[str] | None, line: StatusLine) -> Workspace:
    """Open sources, write the cache, and close them."""
    async with open_sources(config, only, line) as workspace:
        store_catalogue(workspace)
        return workspace


def source_failure(report: SourceReport, prefix: str) -> Exception:
    """Return the error for a required source that failed; its exit code depends on the fault."""
    message = f"{prefix}: {report.problem}"
    if report.fault == "installation":
        return ImportError(message)
    hint = report.hint or "ops doctor checks every source"
    return CommandError(message, hint, exit_code=USAGE if report.fault == "configuration" else TRANSPORT)


def report_failures(args: ParsedArguments, reports: Collection[SourceReport]) -> None:
    """Warn of sources that failed to open."""
    for report in reports:
        if report.state == "failed" and not args.quiet:
            hint = f" ({report.hint})" if report.hint else ""
            warn(f"cannot open source {report.name}: {report.problem}{hint}", source=report.name)


def open_sources(
    config: Config, only: Collection[str] | None = None, line: StatusLine | None = None
) -> AbstractAsyncContextManager[Workspace]:
    """Return the workspace of a configuration, to be entered; `line` shows which sources are being opened."""
    waiting = [name for name in config.sources if only is None or name in only]

    def show_waiting() -> None:
        if line is not None:
            line.text = f"opening {', '.join(waiting)}"

    def progress(report: SourceReport) -> None:
        if report.name in waiting:
            waiting.remove(report.name)
        show_waiting()

    def show_consent(source: str, url: str) -> None:
        if line is not None:
            line.clear()
        prompt = f"source {source} requires your consent; open this URL in a browser:"
        if is_json():
            write_record("info", prompt, {"source": source, "url": url})
        else:
            write_line(f"{printable(prompt)}\n  {printable(url)}")

    show_waiting()
    has_user = is_terminal(sys.stdin) and is_terminal(sys.stderr)
    return open_workspace(config, only=only, on_progress=progress, show_consent=show_consent if has_user else None)


async def _open(stack: AsyncExitStack, config: Config, requested: str | None, line: StatusLine) -> Workspace:
    catalogue = load_catalogue(config.path) if requested is not None else None
    only = None if requested is None else _sources_of(requested, catalogue, config)
    inner = await stack.enter_async_context(AsyncExitStack())
    workspace = await inner.enter_async_context(open_sources(config, only, line))
    if only is not None and requested not in workspace.registry and not _failed(workspace, only):
        # The source no longer has the operation: open all sources.
        await inner.aclose()
        only = None
        workspace = await inner.enter_async_context(open_sources(config, None, line))
    if only is None or (catalogue is not None and not set(only).isdisjoint(catalogue.stale)):
        # Skipped for an unchanged source: writing the cache reads every spec.
        store_catalogue(workspace)
    if only is not None and catalogue is not None:
        # A function may call operations of other sources, which are opened on demand.
        lazy = await inner.enter_async_context(LazySources(config, workspace.registry))
        lazy.register(catalogue, except_sources=only)
    return workspace


def _failed(workspace: Workspace, only: Collection[str]) -> bool:
    return any(report.state == "failed" and report.name in only for report in workspace.reports)


def _sources_of(requested: str, catalogue: Catalogue | None, config: Config) -> list[str] | None:
    """Return the source of an operation, by the cache or its namespace; None if it may be any source."""
    known = None if catalogue is None else catalogue.source_of(requested)
    if known is not None:
        return [known]
    # Python functions choose their namespaces; operations of servers and APIs have the source's.
    found = [name for name, source in config.sources.items() if source.kind in ("mcp", "openapi")]
    found = [name for name in found if requested.startswith(f"{config.sources[name].namespace}.")]
    return found if len(found) == 1 else None


class LazySources:
    """Placeholders for cached operations of closed sources; the first call opens the source."""

    def __init__(self, config: Config, registry: OperationRegistry) -> None:
        self._config = config
        self._registry = registry
        self._placeholders: dict[str, Operation[Any]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ready: dict[str, asyncio.Future[None]] = {}
        self._closing = asyncio.Event()

    def register(self, catalogue: Catalogue, *, except_sources: Collection[str] = ()) -> None:
        """Register a placeholder for every unregistered operation, except those of the sources `except_sources`."""
        for entry in catalogue.entries:
            if entry.id not in self._registry and entry.source not in except_sources:
                namespace, _, name = entry.id.rpartition(".")
                spec = OperationSpec(name=name, namespace=namespace, type=OperationType(entry.type))
                self._registry.register(self._placeholder(spec, entry.source))

    async def __aenter__(self) -> LazySources:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _placeholder(self, spec: OperationSpec, source: str) -> Operation[Any]:
        async def call(input: Any, context: OperationContext) -> ResponseEnvelope[Any]:
            await self._open(source, spec.id)
            return await self._registry.execute(spec.id, input, context)

        async def follow(input: Any, context: OperationContext) -> AsyncIterator[Any]:
            await self._open(source, spec.id)
            async with contextlib.aclosing(self._registry.subscribe(spec.id, input, context)) as stream:
                async for envelope in stream:
                    yield envelope

        operation: Operation[Any] = Operation(spec=spec, handler=call, stream=follow, dump=None)
        self._placeholders[spec.id] = operation
        return operation

    async def _open(self, source: str, operation_id: str) -> None:
        """Open a source once; raise if it no longer has the operation."""
        if source not in self._tasks:
            self._ready[source] = asyncio.get_running_loop().create_future()
            self._tasks[source] = asyncio.create_task(self._keep_open(source))
        await asyncio.shield(self._ready[source])
        if self._registry.get_operation(operation_id) is self._placeholders[operation_id]:
            self._registry.unregister(operation_id)
            raise self._registry.not_found(operation_id)

    async def _keep_open(self, source: str) -> None:
        """Keep a source open until the session ends; it must be closed in the task that opened it."""
        ready = self._ready[source]
        try:
            async with open_sources(self._config, [source]) as workspace:
                failed = next((report for report in workspace.reports if report.state == "failed"), None)
                if failed is not None:
                    message = f"cannot open source {source}: {failed.problem}"
                    ready.set_exception(CallError(ErrorCode.UNAVAILABLE, message, {"hint": failed.hint}))
                    return
                found = (workspace.registry.get_operation(spec.id) for spec in workspace.registry.list())
                self._registry.register_all([each for each in found if each is not None], replace=True)
                ready.set_result(None)
                await self._closing.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
