"""Session of a command: the registry and the sources that the command needs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from operations.catalogue import unknown_operation
from operations.cli.arguments import ParsedArguments, UsageError
from operations.cli.configuration import can_ask, optional_configuration, read_configuration, require_configuration
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
)
from operations.config.redaction import redact, secret_values
from operations.config.settings import Source, SourceCallbacks
from operations.context import OperationContext
from operations.envelope import ResponseEnvelope
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.spec import Operation, OperationSpec, OperationType

if TYPE_CHECKING:
    from operations.cli.terminal_client import TerminalClient
    from operations.config.sources import OpenedSource


class CommandSession:
    """A registry, its configuration and the reports of its sources."""

    def __init__(
        self,
        registry: OperationRegistry,
        config: Config | None,
        reports: list[SourceReport],
        *,
        is_remote: bool,
        client: TerminalClient | None = None,
        opened: Mapping[str, OpenedSource] | None = None,
    ) -> None:
        self.registry = registry
        self.config = config
        self.reports = reports
        self.client = client
        """Client that asks the person at the terminal; None without a terminal."""
        self._is_remote = is_remote
        self._opened = opened or {}

    def find(self, operation_id: str) -> Operation[Any]:
        """Return an operation; if the id is unknown, raise an error that names the nearest id or the failed source."""
        operation = self.registry.get_operation(operation_id)
        if operation is not None:
            return operation
        report = self.failed_source_of(operation_id)
        if report is not None:
            raise source_failure(report, f"cannot open source {report.name}")
        self.report_skipped()
        raise self._not_found(operation_id)

    def report_skipped(self) -> None:
        """Warn of the files and operations that the sources skipped."""
        for each in self.reports:
            warn_skipped([(skip.path, skip.reason) for skip in each.skipped])

    def report_failures(self, args: ParsedArguments, requested: str | None) -> None:
        """Warn of failed sources, except the source of the requested operation: `find` raises for that one."""
        needed = None if requested is None else self.failed_source_of(requested)
        report_failures(args, [report for report in self.reports if report is not needed])

    def failed_source_of(self, operation_id: str) -> SourceReport | None:
        """Return the failed source of an operation, according to the cache or to the operation's namespace, or None."""
        failed = [report for report in self.reports if report.state == "failed"]
        if self.config is None or not failed:
            return None
        catalogue = load_catalogue(self.config.path)
        had = None if catalogue is None else catalogue.source_of(operation_id)
        sources = self.config.sources
        return next(
            (
                each
                for each in failed
                if each.name == had or operation_id.startswith(f"{sources[each.name].namespace}.")
            ),
            None,
        )

    def explain(self, error: CallError, operation: Operation[Any]) -> CallError:
        """Return `error`; if an API refused the call because credentials are missing, add a hint about them."""
        source = self._api_of(operation)
        details = error.details
        if source is None or not isinstance(details, dict) or details.get("statusCode") not in (401, 403):
            return error
        needed = operation.spec.annotations.get("security") or ()
        from operations.cli.api_credentials import missing_credentials  # used only if an API refuses a call

        missing = missing_credentials(source, needed, self._opened.get(source.name))
        if missing:
            details.setdefault("hint", missing)
        return error

    def _api_of(self, operation: Operation[Any]) -> Source | None:
        sources = self.config.sources.values() if self.config is not None else ()
        apis = (source for source in sources if source.kind == "openapi")
        return next((source for source in apis if operation.id.startswith(f"{source.namespace}.")), None)

    def require_request(self, operation: Operation[Any], option: str) -> None:
        """Raise if an operation is not of an OpenAPI source, and so has no HTTP request for `option` to print."""
        from operations.sources.openapi import HTTPCallOptions  # noqa: F401  # raises if the extra is missing

        if self._api_of(operation) is None:
            raise CommandError(
                f"{operation.id} has no HTTP request", f"{option} needs an operation of an OpenAPI source"
            )

    def redact(self, text: str) -> str:
        """Return text without the configuration's secrets."""
        return text if self.config is None else redact(text, self.config)

    def secrets(self) -> list[str]:
        """Return the configuration's secrets."""
        return [] if self.config is None else secret_values(self.config)

    def _not_found(self, operation_id: str) -> CallError:
        error = self.registry.not_found(operation_id)
        if self.config is not None and not self.config.sources and self.config.transports and not self._is_remote:
            names = " or ".join(f"--url {name}" for name in self.config.transports)
            error.details["hint"] = f"the configuration has no sources; pass {names} for the operations of a transport"
            return error
        # The configuration's catalogue does not apply to a transport.
        catalogue = None if self.config is None or self._is_remote else load_catalogue(self.config.path)
        if catalogue is None or error.details["nearest"]:
            return error
        return unknown_operation(operation_id, [entry.id for entry in catalogue.entries])


@asynccontextmanager
async def open_session(args: ParsedArguments, requested: str | None = None) -> AsyncIterator[CommandSession]:
    """Open what a command needs: a transport, the source of the requested operation if it is known, or all sources."""
    is_remote = args.url is not None and not args.is_direct
    is_address = is_remote and ":" in args.url
    if args.is_direct:
        config: Config | None = _direct_configuration(args)
    else:
        config = optional_configuration(args) if is_address else require_configuration(args)
    client = _terminal_client(args)
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(spinner("opening", quiet=args.quiet))
        if is_remote or config is None:
            from operations.cli.remote import import_remote

            registry, reports, opened = OperationRegistry(), list[SourceReport](), None
            await import_remote(stack, args, config, registry, requested, line)
        else:
            opening = SourceOpening(config, line, client, is_verbose=getattr(args, "verbose", False))
            if args.is_direct:
                workspace = await stack.enter_async_context(opening.open())
                _require_open(workspace.reports)
            else:
                workspace = await _open(stack, opening, requested)
            registry, reports, opened = workspace.registry, workspace.reports, workspace.opened
        line.clear()
        line.is_on = False
        session = CommandSession(registry, config, reports, is_remote=is_remote, client=client, opened=opened)
        session.report_failures(args, requested)
        try:
            yield session
        except CallError as error:
            if is_remote:
                from operations.cli.remote import add_remote_hint

                add_remote_hint(error, args, config)
            raise


def _direct_configuration(args: ParsedArguments) -> Config:
    """Return the configuration that is equivalent to `--mcp`, `--openapi` and `--header`."""
    from operations.cli.direct_sources import direct_file

    path, text = direct_file(args)
    try:
        return read_configuration(path, text)
    except CallError as error:
        raise UsageError(error.message) from None


def _require_open(reports: Collection[SourceReport]) -> None:
    """Raise if a source that the command line names cannot be opened."""
    for report in reports:
        if report.state == "failed":
            option = "openapi" if report.kind == "openapi" else "mcp"
            raise source_failure(report, f"cannot open --{option}", hint="")


def _terminal_client(args: ParsedArguments) -> TerminalClient | None:
    """Return a client that asks the person at the terminal; None without a terminal."""
    if not can_ask(args):
        return None
    from operations.cli.terminal_client import TerminalClient

    return TerminalClient()


def source_failure(
    report: SourceReport, prefix: str, *, hint: str = "run 'ops doctor' to check every source"
) -> Exception:
    """Return the error for a required source that failed; the fault in its report determines the exit code.

    `hint` is used if the report has none.
    """
    message = f"{prefix}: {report.problem}"
    if report.fault == "installation":
        return ImportError(message)
    return CommandError(message, report.hint or hint, exit_code=USAGE if report.fault == "configuration" else TRANSPORT)


def report_failures(args: ParsedArguments, reports: Collection[SourceReport]) -> None:
    """Warn of sources that failed to open."""
    for report in reports:
        if report.state == "failed" and not args.quiet:
            hint = f" ({report.hint})" if report.hint else ""
            warn(f"cannot open source {report.name}: {report.problem}{hint}", source=report.name)


def report_served(args: ParsedArguments, workspace: Workspace) -> None:
    """Warn of sources that failed to open, and of access rules that match no operation and so protect nothing."""
    report_failures(args, workspace.reports)
    if not args.quiet:
        for pattern in workspace.unmatched_rules():
            warn(f"the access rule {pattern!r} matches no operation: compare it with the ids of 'ops ls'")


def open_sources(
    config: Config, only: Collection[str] | None = None, line: StatusLine | None = None
) -> AbstractAsyncContextManager[Workspace]:
    """Return a context manager that opens the workspace; `line` shows which sources are being opened."""
    return SourceOpening(config, line).open(only)


class SourceOpening:
    """Opens sources of a configuration for a command: shows progress, and passes questions to the user."""

    def __init__(
        self,
        config: Config,
        line: StatusLine | None = None,
        client: TerminalClient | None = None,
        *,
        is_verbose: bool = False,
    ) -> None:
        self.config = config
        self._line = line
        self._client = client
        self._is_verbose = is_verbose

    def open(self, only: Collection[str] | None = None) -> AbstractAsyncContextManager[Workspace]:
        """Return a context manager that opens the workspace with all sources, or with the sources in `only`."""
        waiting = [name for name in self.config.sources if only is None or name in only]

        def show_waiting() -> None:
            if self._line is not None:
                self._line.text = f"opening {', '.join(waiting)}"

        def progress(report: SourceReport) -> None:
            if report.name in waiting:
                waiting.remove(report.name)
            show_waiting()

        show_waiting()
        return open_workspace(self.config, only=only, on_progress=progress, callbacks=self._callbacks())

    def _callbacks(self) -> SourceCallbacks:
        has_user = is_terminal(sys.stdin) and is_terminal(sys.stderr)
        callbacks = SourceCallbacks(
            show_consent=self._show_consent if has_user else None,
            elicit=None if self._client is None else self._client.elicit,
        )
        if not self._is_verbose:
            return callbacks
        from operations.cli.stderr import show_request, show_response

        return msgspec.structs.replace(callbacks, on_request=show_request, on_response=show_response)

    def _show_consent(self, source: str, url: str) -> None:
        if self._line is not None:
            self._line.clear()
        prompt = f"source {source} requires your consent; open this URL in a browser:"
        if is_json():
            write_record("info", prompt, {"source": source, "url": url})
        else:
            write_line(f"{printable(prompt)}\n  {printable(url)}")


async def _open(stack: AsyncExitStack, opening: SourceOpening, requested: str | None) -> Workspace:
    config = opening.config
    catalogue = load_catalogue(config.path) if requested is not None else None
    if requested is not None and catalogue is not None:
        _check_spelling(requested, catalogue, config)
    only = None if requested is None else _sources_of(requested, catalogue, config)
    inner = await stack.enter_async_context(AsyncExitStack())
    workspace = await inner.enter_async_context(opening.open(only))
    if only is not None and requested not in workspace.registry and not _failed(workspace, only):
        # The source no longer has the operation: open all sources.
        await inner.aclose()
        only = None
        workspace = await inner.enter_async_context(opening.open())
    if only is None or (catalogue is not None and not set(only).isdisjoint(catalogue.stale)):
        # Only after a change: writing the cache reads every spec.
        from operations.config import store_catalogue

        store_catalogue(workspace)
    if only is not None and catalogue is not None:
        # A function may call operations of other sources, which are opened on demand.
        _withdraw_hidden(workspace, catalogue)
        lazy = await inner.enter_async_context(LazySources(opening, workspace.registry))
        lazy.register(catalogue, except_sources=only)
    return workspace


def _withdraw_hidden(workspace: Workspace, catalogue: Catalogue) -> None:
    """Unregister each operation whose id also belongs to a closed source that is earlier in the file."""
    order = list(workspace.config.sources)
    for entry in catalogue.entries:
        if entry.source not in workspace.opened and entry.id in workspace.registry:
            owner = workspace.source_of(entry.id)
            if owner is not None and order.index(entry.source) < order.index(owner):
                workspace.registry.unregister(entry.id)


def _check_spelling(requested: str, catalogue: Catalogue, config: Config) -> None:
    """Raise for an unknown id that is similar to a cached id: opening every source because of a typo would be slow."""
    if requested in catalogue or catalogue.stale:
        return
    near = [source for source in config.sources.values() if source.kind != "python" and _may_have(source, requested)]
    may_have = [source.name for source in config.sources.values() if _may_have(source, requested)]
    known = [source for source in catalogue.sources.values() if source.name in may_have]
    if any(source.state == "failed" or source.skipped for source in known):
        return  # the operation may be in a source or file that could not be opened
    error = unknown_operation(requested, [entry.id for entry in catalogue.entries])
    if error.details["nearest"]:
        hint = "if the operation is new, run 'ops ls --refresh'" if near else None
        raise CallError(error.code, error.message, {**error.details, **({"hint": hint} if hint else {})})


def _failed(workspace: Workspace, only: Collection[str]) -> bool:
    return any(report.state == "failed" and report.name in only for report in workspace.reports)


def _sources_of(requested: str, catalogue: Catalogue | None, config: Config) -> list[str] | None:
    """Return the names of the sources to open for an operation; None if it may be in any source.

    The last name is the operation's source, according to the cache or the namespace. An id belongs to the first source
    in the file that has it. Earlier sources that the cache does not cover might have the id, so they are opened too.
    """
    known = None if catalogue is None else catalogue.source_of(requested)
    if known is None:
        remote = [
            name for name, source in config.sources.items() if _is_remote(source) and _may_have(source, requested)
        ]
        if len(remote) != 1:
            return None
        known = remote[0]
    earlier = itertools.takewhile(lambda source: source.name != known, config.sources.values())
    others = [source.name for source in earlier if _may_have(source, requested)]
    return [*(name for name in others if catalogue is None or name in catalogue.stale), known]


def _is_remote(source: Source) -> bool:
    return source.kind in ("mcp", "openapi")


def _may_have(source: Source, requested: str) -> bool:
    # Python functions choose their namespaces; operations of servers and APIs have the namespace of their source.
    return not _is_remote(source) or requested.startswith(f"{source.namespace}.")


class LazySources:
    """Placeholders for cached operations of closed sources; the first call opens the source."""

    def __init__(self, opening: SourceOpening, registry: OperationRegistry) -> None:
        self._opening = opening
        self._registry = registry
        self._placeholders: dict[str, Operation[Any]] = {}
        self._source_of: dict[str, str] = {}
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

    async def __aexit__(self, *_: object) -> None:
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
        self._source_of[spec.id] = source
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

    def _is_free(self, operation: Operation[Any], source: str) -> bool:
        """Whether `source` may register an operation: it may unless another source has registered the id."""
        return operation.id not in self._registry or self._source_of.get(operation.id) == source

    async def _keep_open(self, source: str) -> None:
        """Open a source and keep it open until the session ends.

        One task does both, because a source must be closed in the task that opened it.
        """
        ready = self._ready[source]
        try:
            async with self._opening.open([source]) as workspace:
                failed = next((report for report in workspace.reports if report.state == "failed"), None)
                if failed is not None:
                    message = f"cannot open source {source}: {failed.problem}"
                    ready.set_exception(CallError(ErrorCode.UNAVAILABLE, message, {"hint": failed.hint}))
                    return
                found = (workspace.registry.get_operation(spec.id) for spec in workspace.registry.list())
                self._registry.register_all(
                    [each for each in found if each and self._is_free(each, source)], replace=True
                )
                ready.set_result(None)
                await self._closing.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
