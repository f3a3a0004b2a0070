"""`ops scan`: list the operations in Python code, and what was skipped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from operations.cli.arguments import Argument, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import write_json
from operations.cli.stderr import warn
from operations.cli.terminal import one_line, paint, printable, write_text
from operations.sources.scanner import ManifestChange, OperationManifest, Scanner, watch_operations
from operations.spec import OperationSpec


def run(args: ParsedArguments) -> Any:
    """List the operations in Python code, and what was skipped."""
    if args.watch:
        return _watch(args)
    manifest = Scanner(args.code).scan()
    if args.json:
        write_json(_as_data(manifest))
    else:
        write_text("".join(f"{line}\n" for line in _describe(manifest)))
        for skipped in manifest.skipped:
            warn(f"{skipped.path}: {one_line(skipped.reason)}")
    if not manifest.operations and not manifest.specs:
        raise CommandError(f"no operations in {args.code}", "decorate functions with @operation", exit_code=NOT_FOUND)
    return OK


async def _watch(args: ParsedArguments) -> int:
    await watch_operations(args.code, _print_change_json if args.json else _print_change)
    return OK


def _print_change(change: ManifestChange) -> None:
    clock = time.strftime("%H:%M:%S")
    for sign, ids in (("+", change.added), ("~", change.replaced), ("-", change.removed)):
        write_text("".join(f"{clock} {sign} {printable(each)}\n" for each in ids))
    for skipped in change.skipped:
        warn(f"{skipped.path}: {one_line(skipped.reason)}")


def _print_change_json(change: ManifestChange) -> None:
    skipped = [{"path": each.path, "reason": each.reason} for each in change.skipped]
    data = {"added": change.added, "replaced": change.replaced, "removed": change.removed, "skipped": skipped}
    write_json(data, compact=True)


def _describe(manifest: OperationManifest) -> Iterator[str]:
    specs = [operation.spec for operation in manifest.operations]
    for spec in [*specs, *manifest.specs]:
        origin = _relative(manifest.origins.get(spec.id, ""))
        lacks = "" if spec in specs else "  (no handler)"
        yield f"{printable(spec.id)}  {spec.type}  {paint('dim', origin)}{lacks}"


def _as_data(manifest: OperationManifest) -> dict[str, Any]:
    def listed(specs: list[OperationSpec]) -> list[dict[str, Any]]:
        return [{**spec.to_dict(), "id": spec.id, "file": manifest.origins.get(spec.id)} for spec in specs]

    return {
        "operations": listed([operation.spec for operation in manifest.operations]),
        "specs": listed(list(manifest.specs)),
        "skipped": [{"path": each.path, "reason": each.reason} for each in manifest.skipped],
    }


def _relative(name: str) -> str:
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return name


COMMAND = Command(
    name="scan",
    summary=SUMMARIES["scan"],
    run=run,
    arguments=(Argument("CODE", "directory, file or name of a package", completes="file"),),
    options=(Option("--watch", "keep running and report changes", "-w"),),
    examples=(("ops scan ./shop", "list operations"), ("ops scan ./shop --watch", "report changes while you edit")),
)
