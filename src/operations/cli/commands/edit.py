"""`ops edit`: open the configuration in an editor and check it afterwards."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

from operations.cli.arguments import Argument, Command, ParsedArguments, suggestion
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import is_trusted_file, read_configuration, require_config_path, trust_as_before
from operations.cli.failures import NOT_FOUND, OK, CommandError
from operations.cli.output import counted, write_either
from operations.cli.terminal import results
from operations.config.documents import read_document
from operations.errors import CallError

_LINE_OPTION = ("vi", "vim", "nvim", "nano", "emacs", "emacsclient", "micro", "kak", "joe", "ne")
"""Editors that open a file at a line with `+NUMBER`."""


def run(args: ParsedArguments) -> int:
    """Run the editor, then check the file; a configuration that was trusted before stays trusted."""
    path = require_config_path(args)
    was_trusted = is_trusted_file(path)
    line = None
    if args.name is not None:
        document = read_document(path)
        place = next((key for key in document.lines if key[-2:] == ("sources", args.name)), None)
        if place is None:
            names = [str(key[-1]) for key in document.lines if key[-2:-1] == ("sources",)]
            message = f"{path} has no source {args.name!r}{suggestion(args.name, names)}"
            raise CommandError(message, "list the sources with 'ops config show'", exit_code=NOT_FOUND)
        line = document.line(place)
    command = _editor()
    if line is not None and os.path.basename(command[0]) in _LINE_OPTION:
        command.append(f"+{line}")
    try:
        code = subprocess.run([*command, str(path)], stdout=results(), check=False).returncode
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}", "set EDITOR to an installed editor") from None
    if code:
        raise CommandError(f"{command[0]} ended with exit code {code}", "the file was not checked")
    try:
        config = trust_as_before(path, was_trusted=was_trusted, by="ops edit") or read_configuration(path)
    except CallError as error:
        raise CommandError(f"{path} is invalid now:\n{error.message}", "run 'ops edit' again") from None
    count = counted(len(config.sources), "source")
    write_either(args, {"config": str(path), "sources": list(config.sources)}, f"{path}: {count}\n")
    return OK


def _editor() -> list[str]:
    for variable in ("VISUAL", "EDITOR"):
        words = shlex.split(os.environ.get(variable, ""))
        if words:
            return words
    found = next((name for name in ("nano", "vi") if shutil.which(name)), None)
    if found is None:
        raise CommandError("no editor: VISUAL and EDITOR are not set", "for example: EDITOR=nano ops edit")
    return [found]


COMMAND = Command(
    name="edit",
    summary=SUMMARIES["edit"],
    run=run,
    arguments=(Argument("NAME", "open the file at the line of this source", required=False, completes="source"),),
    examples=(("ops edit", "the whole file"), ("ops edit pets", "at the source pets")),
    notes="""
VISUAL or EDITOR names the editor. After editing, the file is checked. A configuration that was trusted before
stays trusted.
""",
)
