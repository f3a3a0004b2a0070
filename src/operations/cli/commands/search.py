"""`ops search`: rank operations by how well they match words."""

from __future__ import annotations

from collections.abc import Sequence

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Option, ParsedArguments, whole_number
from operations.cli.commands import SUMMARIES
from operations.cli.commands.ls import tabbed, table
from operations.cli.direct_sources import DIRECT_OPTIONS
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.listing import as_data, read_listing
from operations.cli.output import write_json
from operations.cli.terminal import is_terminal, results, write_text
from operations.config.cache import CatalogueEntry
from operations.search import SearchDocument, SearchIndex


def run(args: ParsedArguments) -> int:
    """Print the operations that match words, best first."""
    ranked = rank(" ".join(args.words), read_listing(args).entries)[: args.limit]
    if args.json:
        write_json([as_data(entry) for entry in ranked])
    if not ranked:
        words = " ".join(args.words)
        raise CommandError(f"no operations match {words!r}", "list all operations with 'ops ls'", exit_code=NOT_FOUND)
    if args.json:
        return OK
    lines = table(ranked) if is_terminal(results()) else tabbed(ranked)
    write_text("".join(f"{line}\n" for line in lines))
    return OK


def rank(query: str, entries: Sequence[CatalogueEntry]) -> list[CatalogueEntry]:
    """Return the entries that match at least one word of the query, best first."""
    by_id = {entry.id: entry for entry in entries}
    return [by_id[operation_id] for operation_id in SearchIndex(map(_document, entries)).search(query)]


def _document(entry: CatalogueEntry) -> SearchDocument:
    return SearchDocument(
        id=entry.id,
        title=entry.title,
        description=entry.description,
        type=entry.type,
        method=entry.method,
        path=entry.path,
        tags=entry.tags,
        fields=entry.fields,
    )


COMMAND = Command(
    name="search",
    summary=SUMMARIES["search"],
    run=run,
    arguments=(Argument("WORDS", "words to search for", many=True),),
    options=(
        Option("--limit", "maximum number of results", "-l", value="NUMBER", convert=whole_number, default=20),
        *LISTING_OPTIONS,
        *DIRECT_OPTIONS,
    ),
    examples=(
        ("ops search create issue", "best match first"),
        ("ops search invoice --json --limit 3", "as JSON"),
    ),
)
