"""`ls`: what there is, as a tree, a table or JSON, from the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from operations.cli.arguments import LISTING_OPTIONS, Argument, Command, Given, Option
from operations.cli.commands import SUMMARIES
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.listing import as_data, read_listing
from operations.cli.output import write_json
from operations.cli.stderr import note
from operations.cli.terminal import columns, is_terminal, one_line, paint, printable, results, write_text
from operations.config.cache import CatalogueEntry

_COLOURS = {"query": "green", "mutation": "yellow", "subscription": "magenta"}


def run(given: Given) -> int:
    """List."""
    listing = read_listing(given)
    entries = [entry for entry in listing.entries if _wanted(entry, given)]
    if given.json:
        write_json([as_data(entry) for entry in entries])
    if not entries and listing.entries and (given.pattern or given.type or given.source or given.tag):
        hint = f"{len(listing.entries)} operations are there; ops search finds by words"
        raise CommandError("no operation is like that", hint, exit_code=NOT_FOUND)
    if given.json:
        return OK
    if given.table:
        lines = table(entries)
    elif given.tree or is_terminal(results()):
        lines = _tree(entries, listing.kinds)
    else:
        lines = tabbed(entries)
    write_text("".join(f"{line}\n" for line in lines))
    if not entries and not given.quiet:
        more = "ops doctor says why" if listing.kinds else "ops add adds a source, ops init a first operation"
        note(f"No operations yet: {more}.")
    return OK


def _wanted(entry: CatalogueEntry, given: Given) -> bool:
    pattern = given.pattern
    if pattern and not (entry.id == pattern or entry.id.startswith(f"{pattern}.") or fnmatchcase(entry.id, pattern)):
        return False
    if given.type and entry.type != given.type:
        return False
    if given.source and entry.source != given.source:
        return False
    return not given.tag or given.tag in entry.tags


def tabbed(entries: Sequence[CatalogueEntry]) -> Iterator[str]:
    """One line for each operation, for programs."""
    for entry in entries:
        yield f"{entry.id}\t{entry.type}\t{entry.source}\t{one_line(entry.description)}"


def table(entries: Sequence[CatalogueEntry]) -> Iterator[str]:
    """One line for each operation, in columns."""
    widest = max((len(entry.id) for entry in entries), default=0)
    widest_source = max((len(entry.source) for entry in entries), default=0)
    room = columns() - widest - widest_source - 18
    for entry in entries:
        kind = paint(_COLOURS.get(entry.type, "dim"), f"{entry.type:<12}")
        source = paint("dim", f"{printable(entry.source):<{widest_source}}")
        yield f"{printable(entry.id):<{widest}}  {kind}  {source}  {one_line(entry.description, max(room, 0))}".rstrip()


def _tree(entries: Sequence[CatalogueEntry], kinds: Mapping[str, str]) -> Iterator[str]:
    """Operations below their namespaces, each namespace with the source it comes from."""
    opened: list[str] = []
    groups: dict[str, list[CatalogueEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.id.rpartition(".")[0], []).append(entry)
    for namespace, members in groups.items():
        parts = namespace.split(".")
        for depth, part in enumerate(parts):
            if opened[: depth + 1] == parts[: depth + 1]:
                continue
            last = depth == len(parts) - 1
            sources = dict.fromkeys(each.source for each in members) if last else ()
            notes = (kinds.get(name, "") + ("" if name == parts[0] else f" {name}") for name in sources)
            yield (
                "  " * depth
                + paint("bold", printable(part))
                + paint("dim", f"  {printable(', '.join(notes))}".rstrip())
            )
            opened = parts[: depth + 1]
        opened = parts
        yield from _leaves(members, "  " * len(parts))


def _leaves(members: Sequence[CatalogueEntry], indent: str) -> Iterator[str]:
    names = [printable(entry.id.rpartition(".")[2]) for entry in members]
    widest = min(max(map(len, names)), 36)
    for entry, name in zip(members, names, strict=True):
        kind = paint(_COLOURS.get(entry.type, "dim"), f"{entry.type:<12}")
        room = columns() - len(indent) - max(widest, len(name)) - 16
        yield f"{indent}{name:<{widest}}  {kind}  {one_line(entry.description, max(room, 0))}".rstrip()


COMMAND = Command(
    name="ls",
    summary=SUMMARIES["ls"],
    run=run,
    arguments=(Argument("PATTERN", "a namespace, or ids with * for any text", required=False, completes="namespace"),),
    options=(
        Option("--table", "one line for each operation, in columns", "-l"),
        Option("--tree", "below their namespaces; what a terminal shows"),
        Option("--type", "only of one type", value="TYPE", choices=tuple(_COLOURS)),
        Option("--source", "only of one source", value="SOURCE"),
        Option("--tag", "only with a tag", value="TAG"),
        *LISTING_OPTIONS,
    ),
    notes="""
What is listed comes from a cache, and no source is opened unless its files changed; --refresh opens them all again.
In a pipe there is one line for each operation: id, type, source and description, with tabs between them.
""",
    examples=(
        ("ops ls", "everything, as a tree"),
        ("ops ls shop", "one namespace"),
        ("ops ls '*issue*' --table", "ids that are like something"),
        ("ops ls --type subscription --json", "streams, as JSON"),
        ("ops ls | cut -f1 | fzf", "choose one"),
    ),
)
