"""`ops add --discover`: find the MCP servers in the files of editors, and include these files in the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from operations.cli.arguments import Argument, Command, ParsedArguments
from operations.cli.configuration import (
    ask,
    can_ask,
    config_file,
    is_trusted_file,
    read_configuration,
    trust_as_before,
)
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import write_json
from operations.cli.terminal import paint, printable, write_text
from operations.config import Config, load_config
from operations.config.actions import actions_of
from operations.config.editor_files import find_editor_files
from operations.config.file_writer import text_with_include, write_config
from operations.config.trust import refusal
from operations.errors import CallError


class EditorFile(NamedTuple):
    """An editor's file with its servers, or why it cannot be used."""

    path: Path
    config: Config | None
    state: str
    """`included`, `new`, or the problem."""

    def as_data(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return {"file": str(self.path), "state": self.state, "servers": dict(self.servers())}

    def servers(self) -> list[tuple[str, str]]:
        """Return the name of each server, and the action of using it: its command or its URL."""
        if self.config is None:
            return []
        actions = {action.name: " ".join(action.text.split()) for action in actions_of(self.config)}
        return [(name, actions.get(name, f"connect to {_url(self.config, name)}")) for name in self.config.sources]


def run(args: ParsedArguments) -> int:
    """List the editors' files; include those that are named, or that the user chooses."""
    target = config_file(args)
    named = [Path(name).expanduser().absolute() for name in args.file]
    found = [_read(path, target) for path in named or find_editor_files(target.parent, os.environ)]
    if args.json:
        write_json([each.as_data() for each in found])
    if not found:
        raise CommandError(
            "no editor's file with MCP servers was found", "name one: ops add --discover FILE", exit_code=NOT_FOUND
        )
    for each in found:
        if not args.json:
            write_text("".join(f"{line}\n" for line in _lines(each)))
        chosen = bool(named) or (can_ask(args) and each.state == "new" and ask([], f"Include {each.path.name}?"))
        if chosen:
            _include(each, target, was_shown=not named)
            if not args.json:
                following = "" if not named else "; allow its servers with 'ops trust'"
                write_text(f"  included in {printable(str(target))}{following}\n")
    return OK


def _read(path: Path, target: Path) -> EditorFile:
    refused = refusal(path)
    if refused:
        return EditorFile(path, None, refused)
    try:
        config = load_config(path)
        present = read_configuration(target).files if target.exists() else ()
    except CallError as error:
        return EditorFile(path, None, error.message)
    return EditorFile(path, config, "included" if path in present else "new")


def _include(found: EditorFile, target: Path, *, was_shown: bool) -> None:
    """Add a file to `include`; it is trusted if the user has just seen what it would do and agreed."""
    if found.state != "new":
        raise CommandError(f"{found.path}: {found.state}", "nothing was added")
    was_trusted = not target.exists() or is_trusted_file(target)
    text = text_with_include(target, [_written(found.path, target.parent)])
    try:
        read_configuration(target, text)
    except CallError as error:
        raise CommandError(f"{found.path} was not included: {error.message}", "nothing was changed") from None
    write_config(target, text)
    trust_as_before(target, was_trusted=was_trusted and was_shown, by="ops add --discover")


def _written(path: Path, directory: Path) -> str:
    """Return a path for the configuration file: relative to that file, or to the user's home directory."""
    if path.is_relative_to(directory):
        return str(path.relative_to(directory))
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _lines(found: EditorFile) -> list[str]:
    servers = found.servers()
    widest = max((len(name) for name, _ in servers), default=0)
    head = f"{paint('bold', printable(str(found.path)))}  {printable(found.state)}"
    return [head, *(f"  {printable(name):<{widest}}  {paint('dim', printable(action))}" for name, action in servers)]


def _url(config: Config, name: str) -> str:
    return str(config.sources[name].written.get("url", ""))


DISCOVER = Command(
    name="add --discover",
    summary="list the MCP servers of editors, and include their files",
    run=run,
    arguments=(Argument("FILE", "include these files", required=False, many=True, completes="file"),),
    notes="""
Looks for the files of Claude, Cursor, VS Code, Gemini, Windsurf and others in this directory and in your home
directory. On a terminal it asks for each file whether to include it. A FILE is included without a question, and needs
'ops trust' afterwards.
""",
    examples=(
        ("ops add --discover", "list the servers in the files of editors"),
        ("ops add --discover .mcp.json", "include one file"),
    ),
)
