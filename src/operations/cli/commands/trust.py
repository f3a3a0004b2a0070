"""`ops trust`: store the user's consent to the actions of a configuration."""

from __future__ import annotations

from operations.cli.arguments import Command, Option, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import read_configuration, require_config_path
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_either
from operations.cli.terminal import printable
from operations.config.actions import actions_of, digest_actions
from operations.config.trust import revoke_trust, store_trust


def run(args: ParsedArguments) -> int:
    """Store or remove the user's trust in a configuration."""
    path = require_config_path(args)
    if args.revoke:
        was_trusted = revoke_trust(path)
        text = f"{path} is no longer trusted\n" if was_trusted else f"{path} was not trusted\n"
        write_either(args, {"config": str(path), "trusted": False}, printable(text))
        return OK
    config = read_configuration(path)
    actions = actions_of(config)
    try:
        store_trust(path, digest_actions(config), by="ops trust")
    except OSError as error:
        message = f"cannot store trust in {path}: {error.strerror or error}"
        raise CommandError(message, "set XDG_STATE_HOME to a writable directory") from None
    data = {
        "config": str(path),
        "trusted": True,
        "actions": [{"name": action.name, "action": action.text} for action in actions],
    }
    head = (
        f"{path} is trusted. Allowed actions:"
        if actions
        else f"{path} is trusted; it has no actions that require trust"
    )
    lines = [head, *(f"  {' '.join(action.text.split())}  ({action.name})" for action in actions)]
    write_either(args, data, printable("\n".join(lines) + "\n"))
    return OK


COMMAND = Command(
    name="trust",
    summary=SUMMARIES["trust"],
    run=run,
    options=(Option("--revoke", "remove the trust"),),
    notes="""
A configuration that starts commands, imports modules, sends values of variables, stores tokens or connects to a
transport is used only if its user trusts it. Trust applies to the file's path and to the actions in the file: when the
actions change, you are asked again. Files that `ops init` and `ops add` write are trusted.
""",
    examples=(
        ("ops trust", "the nearest operations.toml"),
        ("ops trust -c .mcp.json", "a file"),
        ("ops trust --revoke", "remove the trust"),
    ),
)
