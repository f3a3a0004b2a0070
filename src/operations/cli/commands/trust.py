"""`trust`: the user's consent to what a configuration would run."""

from __future__ import annotations

from operations.cli.arguments import Command, Given, Option
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import read_configuration, require_config_path
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_either
from operations.cli.terminal import printable
from operations.config.actions import actions_of, digest_actions
from operations.config.trust import revoke_trust, store_trust


def run(given: Given) -> int:
    """Store the consent, or remove it."""
    path = require_config_path(given)
    if given.revoke:
        was_trusted = revoke_trust(path)
        text = f"{path} is no longer trusted\n" if was_trusted else f"{path} was not trusted\n"
        write_either(given, {"config": str(path), "trusted": False}, printable(text))
        return OK
    config = read_configuration(path)
    actions = actions_of(config)
    try:
        store_trust(path, digest_actions(config), by="ops trust")
    except OSError as error:
        message = f"the trust in {path} cannot be stored: {error.strerror or error}"
        raise CommandError(message, "XDG_STATE_HOME names the directory for it") from None
    told = {
        "config": str(path),
        "trusted": True,
        "actions": [{"name": action.name, "action": action.text} for action in actions],
    }
    head = f"{path} is trusted: it may" if actions else f"{path} is trusted; it starts, imports and sends nothing"
    lines = [head, *(f"  {' '.join(action.text.split())}  ({action.name})" for action in actions)]
    write_either(given, told, printable("\n".join(lines) + "\n"))
    return OK


COMMAND = Command(
    name="trust",
    summary=SUMMARIES["trust"],
    run=run,
    options=(Option("--revoke", "trust it no longer"),),
    notes="""
A configuration that starts commands, imports modules, sends variables or connects to a bus is used only where its user
trusts it. Trust is given to a file at its path and to what it would run: a change of that is asked again. What
`ops init` and `ops add` write is trusted.
""",
    examples=(
        ("ops trust", "the nearest operations.toml"),
        ("ops trust -c .mcp.json", "a file"),
        ("ops trust --revoke", "no longer"),
    ),
)
