"""The registry a command works with: the configuration's sources, or what a bus offers, and no more than it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from operations.catalogue import unknown_operation
from operations.cli.arguments import Given
from operations.cli.failures import TRANSPORT, USAGE, CommandError
from operations.cli.lazy import LazySources
from operations.cli.opening import open_sources
from operations.cli.reaching import until_refused
from operations.cli.status import StatusLine, spinning
from operations.cli.telling import hide_with, tell_skipped, warn
from operations.cli.transports import shown_url, transport_at
from operations.config import (
    Catalogue,
    Config,
    SourceReport,
    Workspace,
    find_config,
    load_catalogue,
    load_config,
    store_catalogue,
)
from operations.config.clients import namespace_for
from operations.config.redaction import redact
from operations.config.settings import TransportSettings
from operations.errors import CallError, ErrorCode
from operations.registry import OperationRegistry
from operations.spec import Operation

_REMOTE_WITHIN = 5.0
_OFFERS_WITHIN = 3.0
"""Workers answer at once when they are asked; one that was cut off says within two seconds that it is back."""
_ALL_WITHIN = 0.5


def no_config(where: str = "here") -> str:
    """That there is no configuration."""
    return f"there is no operations.toml {where} or in a folder above"


class Session:
    """A registry with what is known of where its operations come from."""

    def __init__(
        self, registry: OperationRegistry, config: Config | None, reports: list[SourceReport], *, is_remote: bool
    ) -> None:
        self.registry = registry
        self.config = config
        self.reports = reports
        self._is_remote = is_remote

    def find(self, operation_id: str) -> Operation[Any]:
        """The operation; an unknown one is an error that names the nearest, and any source that could not be opened."""
        operation = self.registry.get_operation(operation_id)
        if operation is not None:
            return operation
        report = self.failed_source_of(operation_id)
        if report is not None:
            raise source_failure(report, f"the source {report.name} could not be opened")
        for each in self.reports:
            tell_skipped([(skip.path, skip.reason) for skip in each.skipped])
        raise self._not_found(operation_id)

    def report_failures(self, given: Given, wanted: str | None) -> None:
        """Say which sources could not be opened, but the one whose operation is wanted: `find` says that."""
        needed = None if wanted is None else self.failed_source_of(wanted)
        report_failures(given, [report for report in self.reports if report is not needed])

    def failed_source_of(self, operation_id: str) -> SourceReport | None:
        """The source that an operation would come from, by its namespace, had it been opened."""
        if self.config is None:
            return None
        failed = (report for report in self.reports if report.state == "failed")
        sources = self.config.sources
        return next((each for each in failed if operation_id.startswith(f"{namespace_for(sources[each.name])}.")), None)

    def require_dry_run(self, operation: Operation[Any]) -> None:
        """Raise for an operation whose source cannot say what it would send."""
        from operations.sources.openapi.config import HTTPCallOptions  # noqa: F401  # the extra is named where missing

        namespaces = [
            source.settings.namespace or source.name
            for source in (self.config.sources.values() if self.config is not None else ())
            if source.kind == "openapi"
        ]
        if not any(operation.id.startswith(f"{namespace}.") for namespace in namespaces):
            raise CommandError(
                f"{operation.id} has no dry run", "only operations of an API document say what they would send"
            )

    def redact(self, text: str) -> str:
        """A text without the configuration's secrets."""
        return text if self.config is None else redact(text, self.config)

    def _not_found(self, operation_id: str) -> CallError:
        error = self.registry.not_found(operation_id)
        # What the configuration has is not what a bus offers.
        catalogue = None if self.config is None or self._is_remote else load_catalogue(self.config.path)
        if catalogue is None or error.details["nearest"]:
            return error
        return unknown_operation(operation_id, [entry.id for entry in catalogue.entries])


@asynccontextmanager
async def open_session(given: Given, wanted: str | None = None) -> AsyncIterator[Session]:
    """Open what a command needs: the source of the operation it wants where that is known, else all of them."""
    config = find_configuration(given) if given.url is not None else require_configuration(given)
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(spinning("opening", quiet=given.quiet))
        registry, reports = OperationRegistry(), list[SourceReport]()
        if config is not None and given.url is None:
            workspace = await _open(stack, config, wanted, line)
            registry, reports = workspace.registry, workspace.reports
        if given.url is not None:
            line.text = f"connecting to {shown_url(transport_at(given.url, config))}"
            await _import_remote(stack, given, config, registry, wanted)
        line.clear()
        line.is_on = False
        session = Session(registry, config, reports, is_remote=given.url is not None)
        session.report_failures(given, wanted)
        yield session


async def refresh_catalogue(config: Config, only: Collection[str] | None, line: StatusLine) -> Workspace:
    """Open sources once, to know what they offer; the cache is written, and they are closed again."""
    async with open_sources(config, only, line) as workspace:
        store_catalogue(workspace)
        return workspace


def find_configuration(given: Given) -> Config | None:
    """The configuration that is named, or the nearest one; None where there is none."""
    path = config_path(given)
    return None if path is None else read_configuration(path)


def require_configuration(given: Given) -> Config:
    """The configuration; there must be one."""
    return read_configuration(require_config_path(given))


def read_configuration(path: Path) -> Config:
    """The configuration in a file; what it holds of secrets is hidden in all that is told from here on."""
    try:
        config = load_config(path)
    except CallError as error:
        hint = "mend the file; ops config schema > operations.schema.json is for an editor"
        raise CallError(error.code, error.message, {**(error.details or {}), "hint": hint}) from None
    hide_with(lambda text: redact(text, config))
    return config


def require_config_path(given: Given) -> Path:
    """The configuration file that is named, or the nearest one; there must be one."""
    path = config_path(given)
    if path is None:
        where = "here" if given.config is None else f"in {given.config}"
        raise CommandError(no_config(where), "ops init makes one; --config names another")
    return path


def config_path(given: Given) -> Path | None:
    """The configuration file that is named, or the nearest one."""
    if given.config is None:
        return find_config()
    path = Path(given.config).expanduser()
    if path.is_dir():
        return find_config(path)
    if not path.is_file():
        raise CommandError(f"{path} is not there", "ops init makes an operations.toml")
    return path.absolute()


def source_failure(report: SourceReport, said: str) -> Exception:
    """The error for a source that is needed and could not be opened; who has to mend it decides on its exit code."""
    message = f"{said}: {report.problem}"
    if report.fault == "installation":
        return ImportError(message)
    hint = report.hint or "ops doctor checks every source"
    return CommandError(message, hint, exit_code=USAGE if report.fault == "configuration" else TRANSPORT)


def report_failures(given: Given, reports: Collection[SourceReport]) -> None:
    """Say which sources could not be opened; what they offer is not there, the rest is."""
    for report in reports:
        if report.state == "failed" and not given.quiet:
            hint = f" ({report.hint})" if report.hint else ""
            warn(f"the source {report.name} could not be opened: {report.problem}{hint}", source=report.name)


async def _open(stack: AsyncExitStack, config: Config, wanted: str | None, line: StatusLine) -> Workspace:
    catalogue = load_catalogue(config.path) if wanted is not None else None
    only = None if wanted is None else _sources_of(wanted, catalogue, config)
    inner = await stack.enter_async_context(AsyncExitStack())
    workspace = await inner.enter_async_context(open_sources(config, only, line))
    if only is not None and wanted not in workspace.registry and not _failed(workspace, only):
        # It is not where it was: look everywhere.
        await inner.aclose()
        only = None
        workspace = await inner.enter_async_context(open_sources(config, None, line))
    if only is None or (catalogue is not None and not set(only).isdisjoint(catalogue.stale)):
        # Writing it reads every description of the source: not for a call that found all as it was.
        store_catalogue(workspace)
    if only is not None and catalogue is not None:
        # A function may call operations of other sources: those are opened when it does.
        lazy = await inner.enter_async_context(LazySources(config, workspace.registry))
        lazy.register(catalogue, besides=only)
    return workspace


def _failed(workspace: Workspace, only: Collection[str]) -> bool:
    return any(report.state == "failed" and report.name in only for report in workspace.reports)


def _sources_of(wanted: str, catalogue: Catalogue | None, config: Config) -> list[str] | None:
    """The source of an operation: the one it had, or whose namespace it is in; None where it may be any."""
    known = None if catalogue is None else catalogue.source_of(wanted)
    if known is not None:
        return [known]
    # Functions bring namespaces of their own: only servers and APIs are told by theirs.
    found = [name for name, source in config.sources.items() if source.kind in ("mcp", "openapi")]
    found = [name for name in found if wanted.startswith(f"{namespace_for(config.sources[name])}.")]
    return found if len(found) == 1 else None


async def _import_remote(
    stack: AsyncExitStack, given: Given, config: Config | None, registry: OperationRegistry, wanted: str | None
) -> None:
    from operations.calls import from_call
    from operations.cli.signing import open_bus

    settings = transport_at(given.url, config)
    transport = await _connect(stack, open_bus(settings, given, config), settings)
    remote = await stack.enter_async_context(from_call(transport, registry))
    asks_hub = wanted is not None and "." in wanted and transport.capabilities.identity == "hub"
    try:
        async with asyncio.timeout(max(_OFFERS_WITHIN, getattr(given, "timeout", None) or 0)):
            await remote.ready()
    except TimeoutError:
        message = f"nobody offers operations at {shown_url(settings)}"
        hint = "ops worker or ops spoke offers some; --timeout waits longer for them"
        missing = CallError(ErrorCode.UNAVAILABLE, message, {"hint": hint})
        if not asks_hub:
            raise missing from None
    else:
        # Workers answer one by one. What is wanted is waited for a little longer, and so is a whole listing.
        with suppress(TimeoutError):
            async with asyncio.timeout(_ALL_WITHIN):
                await remote.until(lambda: wanted in registry)
        missing = registry.not_found(wanted or "")
    if asks_hub and wanted is not None and wanted not in registry:
        from operations.cli.unlisted import unlisted_operation

        registry.register(unlisted_operation(transport, wanted, missing))


async def _connect(
    stack: AsyncExitStack, opening: AbstractAsyncContextManager[Any], settings: TransportSettings
) -> Any:
    """The transport, connected; where nobody listens that is told soon, and not only when the time is up."""
    refused = asyncio.create_task(until_refused(settings))
    try:
        async with asyncio.timeout(_REMOTE_WITHIN) as limit:
            refused.add_done_callback(lambda task: None if task.cancelled() else limit.reschedule(0))
            return await stack.enter_async_context(opening)
    except TimeoutError:
        reason = f"did not answer within {_REMOTE_WITHIN:g} seconds"
        if refused.done():
            reason = f"cannot be reached: {refused.result()}"
        message = f"{shown_url(settings)} {reason}"
        raise CommandError(message, "is the hub or the server running there?", exit_code=TRANSPORT) from None
    finally:
        refused.cancel()
