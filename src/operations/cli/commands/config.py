"""`config`: the configuration as it is read, its schema, its place."""

from __future__ import annotations

from operations.cli.arguments import Command, Given
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import no_config, read_configuration, require_config_path, search
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import write_either, write_json
from operations.config.trust import FoundConfig


def run_show(given: Given) -> int:
    """Show it, redacted."""
    from operations.config import describe_config

    write_json(describe_config(read_configuration(require_config_path(given))))
    return OK


def run_schema(given: Given) -> int:
    """Print the schema."""
    from operations.config import config_schema

    write_json(config_schema())
    return OK


def run_path(given: Given) -> int:
    """Print the path."""
    if search(given) == FoundConfig(None):
        raise CommandError(no_config(given), "ops init makes one", exit_code=NOT_FOUND)
    path = require_config_path(given)
    write_either(given, str(path), f"{path}\n")
    return OK


COMMAND = Command(
    name="config",
    summary=SUMMARIES["config"],
    parts=(
        Command("config show", "the configuration with includes and variables read; secrets are not shown", run_show),
        Command("config schema", "the JSON Schema of the file, for editors", run_schema),
        Command("config path", "which file it is", run_path),
    ),
    examples=(("ops config show", "what is read"), ("ops config schema > operations.schema.json", "for an editor")),
)
