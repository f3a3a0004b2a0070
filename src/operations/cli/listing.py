"""Operations for `ls`, `search` and `show`: from the cache if it is current, else from sources or a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from operations.catalogue import unknown_operation
from operations.cli.arguments import ParsedArguments
from operations.cli.failures import CommandError
from operations.cli.runner import run
from operations.cli.stderr import warn, warn_skipped
from operations.config.cache import Catalogue, CatalogueEntry, load_catalogue
from operations.config.trust import is_trusted
from operations.schema.parts import Fields
from operations.spec import OperationSpec


class Listing(NamedTuple):
    """Operations sorted by id, with access to their specs."""

    entries: Sequence[CatalogueEntry]
    kinds: Mapping[str, str]
    """Kind of each source, by name."""
    spec: Callable[[str], dict[str, Any] | None]
    faults: Mapping[str, str] = MappingProxyType({})
    """The `fault` of each failed source's `SourceReport`, by the source's name.

    Sources that cannot be opened because of their settings (`Source.problem`) are not included.
    """

    def find(self, operation_id: str) -> CatalogueEntry:
        """Return the entry of an operation; if the id is unknown, raise an error that names the nearest id."""
        for entry in self.entries:
            if entry.id == operation_id:
                return entry
        raise unknown_operation(operation_id, [entry.id for entry in self.entries])


def read_listing(args: ParsedArguments) -> Listing:
    """Return the operations; open sources that are new or changed."""
    if args.url is not None or args.is_direct:
        return run(_remote(args))
    from operations.cli.configuration import require_config_path, require_configuration

    path = require_config_path(args)
    catalogue = None if args.refresh else load_catalogue(path)
    if catalogue is not None and not (args.trust or is_trusted(path, catalogue.trust)):
        require_configuration(args)
    if catalogue is not None and (args.cached or not catalogue.stale):
        return _cached(args, catalogue)
    if args.cached:
        raise CommandError("no cache for this configuration", "run 'ops ls' without --cached to open its sources")
    listing = run(_refresh(args, None if catalogue is None else list(catalogue.stale)))
    known = catalogue
    catalogue = load_catalogue(path) if listing is None else None
    if catalogue is not None and known is not None and not set(catalogue.stale) <= set(known.stale):
        # A source no longer has an id: another source with a hidden operation of this id may now own it.
        listing = run(_refresh(args, list(catalogue.stale)))
        catalogue = load_catalogue(path) if listing is None else None
    if catalogue is None:
        return listing or run(_open_all(args))
    return _cached(args, catalogue)


def _cached(args: ParsedArguments, catalogue: Catalogue) -> Listing:
    if not args.quiet:
        for source in catalogue.sources.values():
            if source.state == "failed":
                retry = "" if source.lacks_extra or args.refresh else " (use --refresh to retry)"
                warn(f"cannot open source {source.name}: {source.problem}{retry}", source=source.name)
            warn_skipped(source.skipped)
    kinds = {name: source.kind for name, source in catalogue.sources.items()}
    faults = {source.name: source.fault for source in catalogue.sources.values() if source.fault}
    return Listing(catalogue.entries, kinds, catalogue.spec, faults)


async def _refresh(args: ParsedArguments, only: list[str] | None) -> Listing | None:
    """Open the sources in `only`, or all, and write the cache; return None.

    If the cache cannot be written, open all sources and return their operations.
    """
    from operations.cli.configuration import require_configuration
    from operations.cli.session import open_sources, report_failures
    from operations.cli.stderr import spinner
    from operations.config import store_catalogue

    config = require_configuration(args)
    async with spinner("opening", quiet=args.quiet) as line, open_sources(config, only, line) as workspace:
        if store_catalogue(workspace) is not None:
            return None
        if only is None:
            line.clear()
            report_failures(args, workspace.reports)
        specs = {spec.id: spec for spec in workspace.registry.list()}
        sources = {operation_id: workspace.source_of(operation_id) or "" for operation_id in specs}
    if only is not None:
        return await _refresh(args, None)
    kinds = {report.name: report.kind for report in workspace.reports}
    enabled = (report for report in workspace.reports if config.sources[report.name].problem is None)
    faults = {report.name: report.fault for report in enabled if report.fault is not None}
    return _of_specs(specs, sources, kinds, faults)


async def _open_all(args: ParsedArguments) -> Listing:
    listing = await _refresh(args, None)
    if listing is None:
        raise CommandError("the cache cannot be read", "set XDG_CACHE_HOME to a writable directory")
    return listing


async def _remote(args: ParsedArguments) -> Listing:
    from operations.cli.session import open_session

    async with open_session(args) as session:
        specs = {spec.id: spec for spec in session.registry.list()}
    kinds = {report.name: report.kind for report in session.reports}
    sources = {spec: spec.partition(".")[0] if args.is_direct else args.url for spec in specs}
    return _of_specs(specs, sources, kinds)


def _of_specs(
    specs: Mapping[str, OperationSpec],
    sources: Mapping[str, str],
    kinds: Mapping[str, str],
    faults: Mapping[str, str] = MappingProxyType({}),
) -> Listing:
    entries = [_entry(specs[operation_id], sources[operation_id]) for operation_id in sorted(specs)]
    return Listing(entries, kinds, lambda operation_id: specs[operation_id].to_dict(), faults)


def _entry(spec: OperationSpec, source: str) -> CatalogueEntry:
    return CatalogueEntry(
        id=spec.id,
        type=spec.type.value,
        title=spec.title or "",
        description=spec.description,
        source=source,
        tags=list(spec.tags),
        fields=Fields(spec.input_schema.document).names(),
        method=str(spec.annotations.get("method", "")),
        path=str(spec.annotations.get("path", "")),
    )


def summary(entry: CatalogueEntry) -> str:
    """Return the text of an operation in a list: its title, or without a title its description."""
    return entry.title or entry.description


def as_data(entry: CatalogueEntry) -> dict[str, Any]:
    """Return an entry as `--json` prints it."""
    return {
        "id": entry.id,
        "type": entry.type,
        "title": entry.title,
        "description": entry.description,
        "source": entry.source,
        "tags": list(entry.tags),
        "fields": list(entry.fields),
    }
