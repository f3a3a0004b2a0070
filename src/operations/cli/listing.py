"""The catalogue that `ls`, `search` and `show` look at: from the cache where it is true, without connecting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from operations.cli.arguments import Given, Option
from operations.cli.failures import CommandError, warn
from operations.cli.fields import Fields
from operations.cli.transports import TRANSPORT_OPTIONS
from operations.config.cache import Catalogue, CatalogueEntry, load_catalogue
from operations.config.finding import find_config

LISTING_OPTIONS = (
    Option("--refresh", "open every source again; else only those whose files changed", "-R"),
    Option("--cached", "never open a source, even where the cache may be old"),
    *TRANSPORT_OPTIONS,
)


def read_catalogue(given: Given) -> Catalogue:
    """What there is, as the cache knows it; sources that changed since, or were never opened, are opened once."""
    from operations.cli.session import NO_CONFIG, config_path

    if given.url is not None:
        return asyncio.run(_remote(given))
    path = find_config() if given.config is None else config_path(given)
    if path is None:
        raise CommandError(NO_CONFIG, "ops init makes one; --config names another")
    catalogue = None if given.refresh else load_catalogue(path)
    if catalogue is None or (catalogue.stale and not given.cached):
        if given.cached:
            raise CommandError("nothing is cached for this configuration", "ops ls without --cached opens its sources")
        asyncio.run(_refresh(given, list(catalogue.stale) if catalogue is not None else None))
        catalogue = load_catalogue(path)
    if catalogue is None:
        raise CommandError("the cache cannot be written", "see XDG_CACHE_HOME; ops doctor tells where it is")
    for source in catalogue.sources.values():
        if source.state == "failed" and not given.quiet:
            warn(f"the source {source.name} could not be opened: {source.problem}")
    return catalogue


async def _remote(given: Given) -> Catalogue:
    """What a bus offers now."""
    from operations.cli.session import open_session

    async with open_session(given) as session:
        specs = session.registry.list()
    entries = [
        CatalogueEntry(
            spec.id,
            spec.type.value,
            spec.title or "",
            spec.description,
            given.url,
            list(spec.tags),
            Fields(spec.input_schema.document).names(),
        )
        for spec in specs
    ]
    return Catalogue(entries=sorted(entries, key=lambda entry: entry.id), sources={}, stale=(), path=Path())


async def _refresh(given: Given, only: list[str] | None) -> None:
    from operations.cli.session import refresh_catalogue, require_configuration
    from operations.cli.status import spinning

    async with spinning("opening", quiet=given.quiet) as line:
        await refresh_catalogue(require_configuration(given), only, line)


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
