"""`ops install`: add the operations of a configuration to an editor, as an MCP server."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from operations.cli.arguments import Argument, Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import require_configuration
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_either
from operations.cli.terminal import printable
from operations.local_files import write_atomically

EDITORS = ("claude-code", "claude-desktop", "cursor", "vscode")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def run(args: ParsedArguments) -> int:
    """Add the operations to the editor's configuration; with `--dry-run`, print the change instead."""
    if args.editor not in EDITORS:
        raise CommandError(f"unknown editor {args.editor}", f"expected one of {', '.join(EDITORS)}")
    # The editor starts the server without a terminal, where nobody can be asked: the user must trust the file now.
    config = require_configuration(args)
    name = args.name or re.sub(r"[^A-Za-z0-9_-]+", "-", config.path.parent.name).strip("-") or "operations"
    if not _NAME.fullmatch(name):
        raise CommandError(f"invalid server name {name!r}", "use 1 to 64 letters, digits, _ and -")
    path = editor_file(args.editor, config.path.parent)
    entry = server_entry(args.editor, config.path)
    before = _read(path)
    after, state = with_server(before, args.editor, name, entry, replace=bool(args.replace), path=path)
    text = json.dumps(after, indent=2, ensure_ascii=False) + "\n"
    if state != "unchanged" and not args.dry_run:
        write_editor_file(path, text)
    report = {"file": str(path), "server": name, "entry": entry, "state": state, "written": not args.dry_run}
    verb = {"added": "added to", "replaced": "replaced in", "unchanged": "already in"}[state]
    if args.dry_run:
        shown = f"{name} would be {verb} {path}:\n{json.dumps({name: entry}, indent=2)}\n"
    else:
        shown = f"{name}: {verb} {path}\n  {' '.join([entry['command'], *entry['args']])}\n"
    write_either(args, report, printable(shown))
    return OK


def editor_file(editor: str, folder: Path) -> Path:
    """Return the path of an editor's file of MCP servers: the project's, or for Claude Desktop the user's file."""
    if editor == "claude-code":
        return folder / ".mcp.json"
    if editor == "cursor":
        return folder / ".cursor" / "mcp.json"
    if editor == "vscode":
        return folder / ".vscode" / "mcp.json"
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "Claude" / "claude_desktop_config.json"


def server_entry(editor: str, config: Path) -> dict[str, Any]:
    """Return an entry for an editor's file. With the entry, the editor starts `ops serve --mcp` for a configuration."""
    program = shutil.which(sys.argv[0]) if Path(sys.argv[0]).name in ("ops", "operations") else None
    command = [str(Path(program).absolute())] if program else [sys.executable, "-m", "operations"]
    entry: dict[str, Any] = {"command": command[0], "args": [*command[1:], "serve", "--mcp", "--config", str(config)]}
    return {"type": "stdio", **entry} if editor in ("claude-code", "vscode") else entry


def with_server(
    before: Any, editor: str, name: str, entry: dict[str, Any], *, replace: bool, path: Path
) -> tuple[dict[str, Any], str]:
    """Return an editor's configuration with the server, and `added`, `replaced` or `unchanged`."""
    member = "servers" if editor == "vscode" else "mcpServers"
    servers = before.get(member, {}) if isinstance(before, dict) else None
    if not isinstance(before, dict) or not isinstance(servers, dict):
        raise CommandError(f"{path} is not a valid configuration of {editor}", "nothing was written")
    there = servers.get(name)
    if there == entry:
        return before, "unchanged"
    if there is not None and not replace:
        raise CommandError(
            f"{path} already has another server {name}", "pass --replace to replace it, or --name for another name"
        )
    return {**before, member: {**servers, name: entry}}, "added" if there is None else "replaced"


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}", "nothing was written") from None
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        hint = "it may contain comments; add the entry by hand: 'ops install --dry-run' in another directory prints it"
        raise CommandError(f"{path} is not plain JSON", hint) from None


def write_editor_file(path: Path, text: str) -> None:
    """Write an editor's file; a symbolic link stays a link."""
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text.encode())
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}", "nothing was changed") from None


COMMAND = Command(
    name="install",
    summary=SUMMARIES["install"],
    run=run,
    arguments=(Argument("EDITOR", f"one of {', '.join(EDITORS)}"),),
    options=(
        Option("--name", "server name in the editor (default: the directory name)", value="NAME"),
        Option("--replace", "replace another server with that name"),
        Option("--dry-run", "print the change without writing it", "-n"),
    ),
    notes="""
The editor starts `ops serve --mcp` with this configuration, which must be trusted. Other entries of the editor's file
are kept. Claude Code, Cursor and VS Code have one file per project, Claude Desktop one per user.
""",
    examples=(
        ("ops install claude-code", "add the server to .mcp.json"),
        ("ops install vscode --dry-run", "print the change"),
    ),
)
