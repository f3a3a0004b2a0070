"""`ops rm`: remove sources from the configuration."""

from __future__ import annotations

from pathlib import Path

from operations.cli.arguments import Argument, Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import is_trusted_file, read_configuration, require_config_path, trust_as_before
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import write_either
from operations.config import Workspace, load_catalogue, store_catalogue
from operations.config.file_writer import text_without_source, write_config
from operations.errors import CallError


def run(args: ParsedArguments) -> int:
    """Remove every named source, or none of them if one cannot be removed."""
    path = require_config_path(args)
    was_trusted = is_trusted_file(path)
    before, text = load_catalogue(path), path.read_text(encoding="utf-8")
    for name in dict.fromkeys(args.name):
        try:
            text = text_without_source(path, name, text)
        except CallError as error:
            raise _explained(path, name, error) from None
    write_config(path, text)
    config = trust_as_before(path, was_trusted=was_trusted, by="ops rm")
    if config is not None and before is not None:
        store_catalogue(Workspace(config), before=before)
    names = list(dict.fromkeys(args.name))
    write_either(args, {"config": str(path), "removed": names}, f"{', '.join(names)}: removed from {path}\n")
    return OK


def _explained(path: Path, name: str, error: CallError) -> CommandError:
    """Return the error as a CommandError; if an included file defines the source, the message names that file."""
    try:
        source = read_configuration(path).sources.get(name)
    except CallError:
        source = None
    if source is not None and source.file != path:
        return CommandError(
            f"{name} is defined in {source.file}:{source.line}", "remove it there, or remove that file from include"
        )
    return CommandError(error.message, "list the sources with 'ops config show'", exit_code=NOT_FOUND)


COMMAND = Command(
    name="rm",
    summary=SUMMARIES["rm"],
    run=run,
    arguments=(Argument("NAME", "name of a source", many=True, completes="source"),),
    examples=(("ops rm pets", "remove one source; the rest of the file stays as it is"),),
)
