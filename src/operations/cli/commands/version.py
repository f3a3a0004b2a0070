"""`ops version`: print the version."""

from __future__ import annotations

from importlib.metadata import version

from operations.cli.arguments import Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.failures import OK
from operations.cli.terminal import write_text
from operations.wire import encode_json


def run(args: ParsedArguments) -> int:
    """Print the version."""
    return show_version(as_json=args.json)


def show_version(*, as_json: bool) -> int:
    """Print the version and return the exit code; used by `ops version` and `ops --version`."""
    data = {"name": "operations", "version": version("operations")}
    write_text(encode_json(data).decode() + "\n" if as_json else "{name} {version}\n".format(**data))
    return OK


COMMAND = Command(name="version", summary=SUMMARIES["version"], run=run)
