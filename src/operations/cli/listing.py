"""What `ls`, `search` and `show` look at: the cache where it is true, without connecting; or what a bus offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from operations.catalogue import unknown_operation
from operations.cli.arguments import Given
from operations.cli.failures import CommandError
from operations.cli.fields import Fields
from operations.cli.running import run
from operations.cli.stderr import warn, warn_skipped
from operations.config.cache import Catalogue, CatalogueEntry, load_catalogue
from operations.config.trust import is_trusted
from operations.spec import OperationSpec


class Listing(NamedTuple):
    """Operations in order of id, and how to get the whole spec of one."""

    entries: Sequence[CatalogueEntry]
    kinds: Mapping[str, str]
    """The kind of each source, by its name."""
    spec: Callable[[str], dict[str, Any] | None]

    def find(self, operation_id: str) -> CatalogueEntry:
        """The entry of an operation; raises for one that is not there, and names the nearest."""
        for entry in self.entries:
            if entry.id == operation_id:
                return entry
        raise unknown_operation(operation_id, [entry.id for entry in self.entries])


def read_listing(given: Given) -> Listing:
    """What there is; sources that changed since they were last opened, or never were, are opened once."""
    if given.url is not None:
        return run(_remote(given))
    from operations.cli.configuration import require_config_path, require_configuration

    path = require_config_path(given)
    catalogue = None if given.refresh else load_catalogue(path)
    if catalogue is not None and not (given.trust or is_trusted(path, catalogue.trust)):
        require_configuration(given)
    if catalogue is not None and (given.cached or not catalogue.stale):
        return _cached(given, catalogue)
    if given.cached:
        raise CommandError("nothing is cached for this configuration", "ops ls without --cached opens its sources")
    listing = run(_refresh(given, None if catalogue is None else list(catalogue.stale)))
    catalogue = load_catalogue(path) if listing is None else None
    if catalogue is None:
        return listing or run(_open_all(given))
    return _cached(given, catalogue)


def _cached(given: Given, catalogue: Catalogue) -> Listing:
    if not given.quiet:
        for source in catalogue.sources.values():
            if source.state == "failed":
                again = "" if source.is_uninstalled else " (--refresh tries again)"
                warn(f"the source {source.name} could not be opened: {source.problem}{again}", source=source.name)
            warn_skipped(source.skipped)
    kinds = {name: source.kind for name, source in catalogue.sources.items()}
    return Listing(catalogue.entries, kinds, catalogue.spec)


async def _refresh(given: Given, only: list[str] | None) -> Listing | None:
    """Open sources and write the cache; where that cannot be written and all are open, what they offer."""
    from operations.cli.configuration import require_configuration
    from operations.cli.session import open_sources, report_failures
    from operations.cli.stderr import spinning
    from operations.config import store_catalogue

    config = require_configuration(given)
    async with spinning("opening", quiet=given.quiet) as line, open_sources(config, only, line) as workspace:
        if store_catalogue(workspace) is not None or only is not None:
            return None
        line.clear()
        report_failures(given, workspace.reports)
        specs = {spec.id: spec for spec in workspace.registry.list()}
        sources = {operation_id: workspace.source_of(operation_id) or "" for operation_id in specs}
    kinds = {report.name: report.kind for report in workspace.reports}
    return _of_specs(specs, sources, kinds)


async def _open_all(given: Given) -> Listing:
    listing = await _refresh(given, None)
    if listing is None:
        raise CommandError("the cache cannot be read", "XDG_CACHE_HOME names the folder for it")
    return listing


async def _remote(given: Given) -> Listing:
    from operations.cli.session import open_session

    async with open_session(given) as session:
        specs = {spec.id: spec for spec in session.registry.list()}
    return _of_specs(specs, dict.fromkeys(specs, given.url), {})


def _of_specs(specs: Mapping[str, OperationSpec], sources: Mapping[str, str], kinds: Mapping[str, str]) -> Listing:
    entries = [_entry(specs[operation_id], sources[operation_id]) for operation_id in sorted(specs)]
    return Listing(entries, kinds, lambda operation_id: specs[operation_id].to_dict())


def _entry(spec: OperationSpec, source: str) -> CatalogueEntry:
    return CatalogueEntry(
        id=spec.id,
        type=spec.type.value,
        title=spec.title or "",
        description=spec.description,
        source=source,
        tags=list(spec.tags),
        fields=Fields(spec.input_schema.document).names(),
    )


def as_data(entry: CatalogueEntry) -> dict[str, Any]:
    """An entry as `--json` prints it."""
    return {
        "id": entry.id,
        "type": entry.type,
        "title": entry.title,
        "description": entry.description,
        "source": entry.source,
        "tags": list(entry.tags),
        "fields": list(entry.fields),
    }
