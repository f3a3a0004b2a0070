"""`ops init`: create a configuration file and a first operation."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from operations.cli.arguments import Argument, Command, ParsedArguments
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import has_trust, read_configuration, save_trust
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_json
from operations.cli.terminal import paint, printable, write_text
from operations.config import add_source, initialise
from operations.config.trust import shell_quoted
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
    code = directory / _DIRECTORY
    module = code / "hello.py"
    is_new = not code.is_symlink() and not (code.exists() and any(code.iterdir()))
    code.mkdir(exist_ok=True)
    with suppress(FileExistsError), module.open("x") as file:
        file.write(_MODULE)
    if "[sources.own]" not in path.read_text():
        add_source(path, "own", {"python": f"./{_DIRECTORY}"})
    config = read_configuration(path)
    if is_new:  # other code in the directory may be somebody else's
        save_trust(config, by="ops init")
    if args.json:
        write_json({"config": str(path), "module": str(module)})
        return OK
    write_text(printable(f"{path}: configuration\n{module}: first operation\n\n"))
    if not args.quiet:
        enter = f"cd {shell_quoted(str(directory))} && " if args.directory else ""
        following = "ops call hello.greet name=Ada" if has_trust(config) else "ops trust"
        write_text(f"Next: {paint('bold', printable(f'{enter}{following}'))}\n")
    return OK


COMMAND = Command(
    name="init",
    summary=SUMMARIES["init"],
    run=run,
    arguments=(Argument("DIRECTORY", "directory (default: the current one)", required=False),),
    examples=(("ops init", "in the current directory"), ("ops init shop", "in a new directory")),
)
