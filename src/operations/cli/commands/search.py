"""`search`: operations that words describe, the likeliest first."""

from __future__ import annotations

from operations.cli.arguments import Argument, Command, Given, Option, whole_number
from operations.cli.commands import SUMMARIES
from operations.cli.commands.ls import tabbed, table
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.listing import as_data, read_listing
from operations.cli.options import LISTING_OPTIONS
from operations.cli.output import write_json
from operations.cli.ranking import rank
from operations.cli.terminal import is_terminal, results, write_text


def run(given: Given) -> int:
    """Search."""
    ranked = rank(" ".join(given.words), read_listing(given).entries)[: given.limit]
    if given.json:
        write_json([as_data(entry) for entry in ranked])
    if not ranked:
        words = " ".join(given.words)
        raise CommandError(f"nothing is like {words!r}", "ops ls lists everything", exit_code=NOT_FOUND)
    if given.json:
        return OK
    lines = table(ranked) if is_terminal(results()) else tabbed(ranked)
    write_text("".join(f"{line}\n" for line in lines))
    return OK


COMMAND = Command(
    name="search",
    summary=SUMMARIES["search"],
    run=run,
    arguments=(Argument("WORDS", "what it should be about", many=True),),
    options=(
        Option("--limit", "how many at most", "-l", value="NUMBER", convert=whole_number, default=20),
        *LISTING_OPTIONS,
    ),
    examples=(
        ("ops search create issue", "the likeliest first"),
        ("ops search invoice --json --limit 3", "for programs"),
    ),
)
