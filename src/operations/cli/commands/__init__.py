"""The commands by name, one module each; a module is imported when its command is typed."""

from __future__ import annotations

from importlib import import_module

from operations.cli.arguments import Command

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "init": "make an operations.toml with a first operation",
        "add": "add a source: an MCP server, an API document, Python code",
        "trust": "allow what a configuration would run",
        "doctor": "check every source and say what to fix",
    },
    "Look": {
        "ls": "list operations",
        "search": "find operations by words",
        "show": "an operation's schemas, an example, code that calls it",
    },
    "Call": {
        "call": "call an operation and print its data",
        "sub": "follow a stream, one line for each event",
        "map": "call an operation for each line of input, in parallel",
    },
    "Run": {
        "hub": "a hub that spokes dial in to",
        "spoke": "offer these operations through a hub",
        "worker": "share the calls of a bus with other workers",
    },
    "More": {
        "scan": "what a folder of Python code offers, and what was skipped",
        "config": "the configuration as it is read, its schema, its place",
        "completion": "completion for bash, zsh or fish",
    },
}
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}


def find_command(name: str) -> Command:
    """The declaration of a command."""
    command: Command = import_module(f"operations.cli.commands.{name}").COMMAND
    return command
