"""`ops ls`: list operations from the cache, as a tree, a table or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.direct_sources import DIRECT_OPTIONS
from operations.cli.failures import NOT_FOUND, OK, TRANSPORT, USAGE, CommandError, report_exit
from operations.cli.listing import Listing, as_data, read_listing, summary
from operations.cli.output import write_json
from operations.cli.stderr import note
from operations.cli.terminal import columns, is_terminal, one_line, paint, printable, results, write_text
from operations.config.cache import CatalogueEntry

_FAILED = "a source cannot be opened"
_COLOURS = {"query": "green", "mutation": "yellow", "subscription": "magenta"}


def run(args: ParsedArguments) -> int:
    """List operations as a tree, a table or JSON."""
    listing = read_listing(args)
    entries = [entry for entry in listing.entries if _is_listed(entry, args)]
    if args.json:
        write_json([as_data(entry) for entry in entries])
    code = _failure_code(listing, args)
    if not entries and code != OK:
        return report_exit(code, _FAILED)
    if not entries and listing.entries and (args.pattern or args.type or args.source or args.tag):
        message = f"no operations match {args.pattern!r}" if args.pattern else "no operations match the filters"
        raise CommandError(message, "search with 'ops search WORDS'", exit_code=NOT_FOUND)
    if args.json:
        return report_exit(code, _FAILED)
    if args.table:
        lines = table(entries)
    elif args.tree or is_terminal(results()):
        lines = _tree(entries, listing.kinds)
    else:
        lines = tabbed(entries)
    write_text("".join(f"{line}\n" for line in lines))
    if not entries and not args.quiet:
        more = (
            "run 'ops doctor' to see why"
            if listing.kinds
            else "add a source with 'ops add', or an operation with 'ops init'"
        )
        note(f"No operations yet: {more}.")
    return report_exit(code, _FAILED)


def _failure_code(listing: Listing, args: ParsedArguments) -> int:
    """Return the exit code for failed sources: with `--source` only this source counts, with `--refresh` every source.

    A source that cannot be opened because of its settings, such as an unset variable, does not count.
    """
    asked = {args.source} if args.source is not None else set(listing.faults) if args.refresh else set()
    faults = {fault for name, fault in listing.faults.items() if name in asked}
    if not faults:
        return OK
    return TRANSPORT if "source" in faults else USAGE


def _is_listed(entry: CatalogueEntry, args: ParsedArguments) -> bool:
    pattern = args.pattern
    if pattern and not (entry.id == pattern or entry.id.startswith(f"{pattern}.") or fnmatchcase(entry.id, pattern)):
        return False
    if args.type and entry.type != args.type:
        return False
    if args.source and entry.source != args.source:
        return False
    return not args.tag or args.tag in entry.tags


def tabbed(entries: Sequence[CatalogueEntry]) -> Iterator[str]:
    """Yield one tab-separated line per operation."""
    for entry in entries:
        yield f"{entry.id}\t{entry.type}\t{entry.source}\t{one_line(summary(entry))}"


def table(entries: Sequence[CatalogueEntry]) -> Iterator[str]:
    """Yield one line per operation, in columns."""
    widest = max((len(entry.id) for entry in entries), default=0)
    widest_source = max((len(entry.source) for entry in entries), default=0)
    width = columns() - widest - widest_source - 18
    for entry in entries:
        kind = paint(_COLOURS.get(entry.type, "dim"), f"{entry.type:<12}")
        source = paint("dim", f"{printable(entry.source):<{widest_source}}")
        description = one_line(summary(entry), max(width, 0))
        yield f"{printable(entry.id):<{widest}}  {kind}  {source}  {description}".rstrip()


def _tree(entries: Sequence[CatalogueEntry], kinds: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each namespace, with the kinds of its sources, and below it a line for each operation."""
    opened: list[str] = []
    groups: dict[str, list[CatalogueEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.id.rpartition(".")[0], []).append(entry)
    for namespace, group in groups.items():
        parts = namespace.split(".")
        for depth, part in enumerate(parts):
            if opened[: depth + 1] == parts[: depth + 1]:
                continue
            last = depth == len(parts) - 1
            sources = dict.fromkeys(each.source for each in group) if last else ()
            notes = (kinds.get(name, "") + ("" if name == parts[0] else f" {name}") for name in sources)
            yield (
                "  " * depth
                + paint("bold", printable(part))
                + paint("dim", f"  {printable(', '.join(notes))}".rstrip())
            )
            opened = parts[: depth + 1]
        opened = parts
        yield from _leaves(group, "  " * len(parts))


def _leaves(group: Sequence[CatalogueEntry], indent: str) -> Iterator[str]:
    names = [printable(entry.id.rpartition(".")[2]) for entry in group]
    widest = min(max(map(len, names)), 36)
    for entry, name in zip(group, names, strict=True):
        kind = paint(_COLOURS.get(entry.type, "dim"), f"{entry.type:<12}")
        width = columns() - len(indent) - max(widest, len(name)) - 16
        yield f"{indent}{name:<{widest}}  {kind}  {one_line(summary(entry), max(width, 0))}".rstrip()


COMMAND = Command(
    name="ls",
    summary=SUMMARIES["ls"],
    run=run,
    arguments=(Argument("PATTERN", "namespace, or pattern of ids with *", required=False, completes="namespace"),),
    options=(
        Option("--table", "print one line per operation", "-l"),
        Option("--tree", "print operations below their namespaces (default on a terminal)"),
        Option("--type", "only this type", value="TYPE", choices=tuple(_COLOURS)),
        Option("--source", "only this source", value="SOURCE"),
        Option("--tag", "only with this tag", value="TAG"),
        *LISTING_OPTIONS,
        *DIRECT_OPTIONS,
    ),
    notes="""
Operations are listed from a cache. A source is opened only if its files changed; --refresh opens every source again.
In a pipe, each line has id, type, source and title or description, separated by tabs.
""",
    examples=(
        ("ops ls", "all operations, as a tree"),
        ("ops ls shop", "one namespace"),
        ("ops ls '*issue*' --table", "ids that match a pattern"),
        ("ops ls --type subscription --json", "subscriptions, as JSON"),
        ("ops ls | cut -f1 | fzf", "choose one interactively"),
    ),
)
