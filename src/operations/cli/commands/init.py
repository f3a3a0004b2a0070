"""`ops init`: create a configuration file and a first operation."""

from __future__ import annotations

from pathlib import Path

from operations.cli.arguments import Argument, Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import read_configuration, save_trust
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_json
from operations.cli.terminal import paint, write_text
from operations.config import add_source, initialise
from operations.errors import CallError

_DIRECTORY = "ops"
_MODULE = '''"""Operations of this project: functions decorated with @operation."""

from operations import operation


@operation(id="hello.greet", type="query")
async def greet(name: str, shout: bool = False) -> dict[str, str]:
    """Greet a person.

    Args:
        name: person to greet
        shout: use capital letters
    """
    text = f"Hello, {name}!"
    return {"greeting": text.upper() if shout else text}
'''


def run(args: ParsedArguments) -> int:
    """Create a configuration file and a first operation."""
    directory = Path(args.directory or ".")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        path = initialise(directory)
    except CallError as error:
        raise CommandError(error.message, "add a source with 'ops add', or list operations with 'ops ls'") from None
    module = directory / _DIRECTORY / "hello.py"
    module.parent.mkdir(exist_ok=True)
    if not module.exists():
        module.write_text(_MODULE)
    if "[sources.own]" not in path.read_text():
        add_source(path, "own", {"python": f"./{_DIRECTORY}"})
    save_trust(read_configuration(path), by="ops init")
    if args.json:
        write_json({"config": str(path), "module": str(module)})
        return OK
    write_text(f"{path}: configuration\n{module}: first operation\n\n")
    if not args.quiet:
        enter = f"cd {directory} && " if args.directory else ""
        write_text(f"Next: {paint('bold', f'{enter}ops call hello.greet name=Ada')}\n")
    return OK


COMMAND = Command(
    name="init",
    summary=SUMMARIES["init"],
    run=run,
    arguments=(Argument("DIRECTORY", "directory (default: the current one)", required=False),),
    examples=(("ops init", "in the current directory"), ("ops init shop", "in a new directory")),
)
