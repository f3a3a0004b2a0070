"""`ops stubs`: write the package `operations_env`, which types `env` for type checkers and editors."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from operations.cli.arguments import TRANSPORT_OPTIONS, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import require_config_path
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_json
from operations.cli.session import open_session
from operations.cli.stderr import warn
from operations.cli.terminal import printable, write_text
from operations.config import load_catalogue
from operations.exports.stubs import PACKAGE, Stubs, make_stubs, write_stubs

_CHECK_SECONDS = 1.0


def run(args: ParsedArguments) -> Any:
    """Write the stubs, and with `--watch` again after each change."""
    return _watch(args) if args.watch else _write_once(args)


async def _write_once(args: ParsedArguments) -> int:
    folder = _folder(args)
    async with open_session(args) as session:
        session.report_skipped()
        has_failed = any(report.state == "failed" for report in session.reports)
        stubs = await asyncio.to_thread(make_stubs, session.registry.list())
    # With --watch, a source that is being edited may be unreadable for a moment: then all stubs stay unchanged.
    if not (args.watch and has_failed):
        _report(args, folder, stubs, _write(stubs, folder))
    return OK


async def _watch(args: ParsedArguments) -> int:
    if args.url is not None:
        raise CommandError("--watch needs a configuration", "leave --url out, or run ops stubs again by hand")
    path = require_config_path(args)
    await _write_once(args)
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        catalogue = load_catalogue(path)
        if catalogue is None or catalogue.stale:
            await _write_once(args)


def _folder(args: ParsedArguments) -> Path:
    if args.output is not None:
        return Path(args.output) / PACKAGE
    return (Path.cwd() if args.url is not None else require_config_path(args).parent) / PACKAGE


def _write(stubs: Stubs, folder: Path) -> list[str]:
    try:
        return write_stubs(stubs, folder)
    except OSError as error:
        raise CommandError(f"the stubs cannot be written: {error}", "choose another directory with --output") from error


def _report(args: ParsedArguments, folder: Path, stubs: Stubs, changed: list[str]) -> None:
    for operation_id, reason in stubs.unreachable.items():
        warn(f"env has no attribute for {operation_id}: {reason}", operation=operation_id)
    if args.json:
        summary = {"directory": str(folder), "changed": changed, "unreachable": dict(stubs.unreachable)}
        write_json(summary, compact=args.watch)
    elif args.watch:
        clock = time.strftime("%H:%M:%S")
        write_text("".join(f"{clock} {printable(name)}\n" for name in changed))
    else:
        write_text("".join(f"{printable(str(folder / name))}\n" for name in changed))


COMMAND = Command(
    name="stubs",
    summary=SUMMARIES["stubs"],
    run=run,
    options=(
        Option("--output", "directory for operations_env/ (default: the configuration's directory)", "-o", value="DIR"),
        Option("--watch", "write the stubs again when a source changes", "-w"),
        *TRANSPORT_OPTIONS,
    ),
    examples=(
        ("ops stubs", "write the stubs; use them with: from operations_env import Env"),
        ("ops stubs --watch", "update the stubs while you write operations"),
    ),
)
