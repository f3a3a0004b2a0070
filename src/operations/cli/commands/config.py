"""`ops config`: print the configuration, its schema or its path."""

from __future__ import annotations

from operations.cli.arguments import Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import no_config, read_configuration, require_config_path, search
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import write_either, write_json
from operations.config.trust import FoundConfig


def run_show(args: ParsedArguments) -> int:
    """Print the configuration without secrets."""
    from operations.config import describe_config

    write_json(describe_config(read_configuration(require_config_path(args))))
    return OK


def run_schema(args: ParsedArguments) -> int:
    """Print the JSON Schema of the configuration."""
    from operations.config import config_schema

    write_json(config_schema())
    return OK


def run_path(args: ParsedArguments) -> int:
    """Print the path of the configuration."""
    if search(args) == FoundConfig(None):
        raise CommandError(no_config(args), "run 'ops init' to create one", exit_code=NOT_FOUND)
    path = require_config_path(args)
    write_either(args, str(path), f"{path}\n")
    return OK


COMMAND = Command(
    name="config",
    summary=SUMMARIES["config"],
    parts=(
        Command(
            "config show", "print the configuration with includes and variables resolved, without secrets", run_show
        ),
        Command("config schema", "print the JSON Schema of the file, for editors", run_schema),
        Command("config path", "print the path of the file", run_path),
    ),
    examples=(
        ("ops config show", "print the configuration"),
        ("ops config schema > operations.schema.json", "save the schema for an editor"),
    ),
)
