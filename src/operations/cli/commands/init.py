"""`init`: a configuration file and a first operation, ready to be called."""

from __future__ import annotations

from pathlib import Path

from operations.cli.arguments import Argument, Command, Given
from operations.cli.commands import SUMMARIES
from operations.cli.configuration import keep_trust, read_configuration
from operations.cli.failures import OK, CommandError
from operations.cli.output import write_json
from operations.cli.terminal import paint, write_text
from operations.config import add_source, initialise
from operations.errors import CallError

_FOLDER = "ops"
_MODULE = '''"""Operations of this project: every function with @operation is one."""

from operations import operation


@operation(id="hello.greet", type="query")
async def greet(name: str, shout: bool = False) -> dict[str, str]:
    """Greet somebody.

    Args:
        name: who to greet
        shout: in capital letters
    """
    text = f"Hello, {name}!"
    return {"greeting": text.upper() if shout else text}
'''


def run(given: Given) -> int:
    """Make."""
    folder = Path(given.folder or ".")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        path = initialise(folder)
    except CallError as error:
        raise CommandError(error.message, "ops add adds a source to it, ops ls lists what it has") from None
    module = folder / _FOLDER / "hello.py"
    module.parent.mkdir(exist_ok=True)
    if not module.exists():
        module.write_text(_MODULE)
    if "[sources.own]" not in path.read_text():
        add_source(path, "own", {"python": f"./{_FOLDER}"})
    keep_trust(read_configuration(path), by="ops init")
    if given.json:
        write_json({"config": str(path), "module": str(module)})
        return OK
    write_text(f"{path}: where operations come from\n{module}: the first operation\n\n")
    if not given.quiet:
        enter = f"cd {folder} && " if given.folder else ""
        write_text(f"Next: {paint('bold', f'{enter}ops call hello.greet name=Ada')}\n")
    return OK


COMMAND = Command(
    name="init",
    summary=SUMMARIES["init"],
    run=run,
    arguments=(Argument("FOLDER", "where to; this folder unless named", required=False),),
    examples=(("ops init", "in this folder"), ("ops init shop", "in a new one")),
)
