"""The program: finds the command, runs it, and translates whatever it raises to an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from operations.cli import terminal
from operations.cli.arguments import COMMON, Command, Given, UsageError, parse, suggestion
from operations.cli.commands import SUMMARIES, find_command
from operations.cli.failures import INTERRUPTED, OK, Terminated, report
from operations.cli.stderr import json_on_stderr
from operations.wire import encode_json

_THREADS_WITHIN = 0.2


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    words = sys.argv[1:] if words is None else list(words)
    # So that a configuration can start Python programs that need what is installed beside this one.
    os.environ.setdefault("OPERATIONS_PYTHON", sys.executable)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal of another encoding gets question marks, not an error
    with json_on_stderr(_says(words, "--json")), terminal.results_apart():
        return _run_to_its_end(words)


def _says(words: Sequence[str], option: str) -> bool:
    """Whether an option stands among words that may yet turn out to be no command line at all."""
    before = words[: words.index("--")] if "--" in words else words
    return any(word.partition("=")[0] == option for word in before)


def _run_to_its_end(words: Sequence[str]) -> int:
    """Run what was typed; whatever it raises becomes its exit code."""
    try:
        code = _run(words)
        if terminal.results() is not None:
            terminal.results().flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated as ended:
        return ended.exit_code
    except BrokenPipeError:
        terminal.abandon_results()  # the reader has what it wanted
        return OK
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends as one clear line
        return report(error, traceback=_traceback() if _says(words, "--debug") else "")


def _traceback() -> str:
    from traceback import format_exc

    return format_exc().rstrip()


def program() -> None:
    """The installed command: ends with its exit code, whatever threads still run.

    A plain function that an operation left in a thread cannot be stopped, and the interpreter would wait for it: a
    deadline or Ctrl-C would end nothing.
    """
    terminal.claim_stdout()
    code = main()
    threading = sys.modules.get("threading")  # what nobody has imported has started nothing
    started = [] if threading is None else [each for each in threading.enumerate() if each.name != "MainThread"]
    for thread in started:
        if not thread.daemon:
            thread.join(_THREADS_WITHIN)
            if thread.is_alive():
                os._exit(code)  # all is flushed: stdout by main, stderr with each line
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    before, rest = _common_options(words)
    if before.get("no_color"):
        terminal.forbid_colours()
    if before.get("version"):
        return _show_version(as_json=_says(words, "--json"))
    if not rest or rest[0] == "help" or before.get("help"):
        _, wanted = _common_options([word for word in rest if word != "help"])
        return _show_help(_resolve(wanted, before)[0] if wanted else None, as_json=_says(words, "--json"))
    command, rest = _resolve(rest, before)
    given = parse(command, rest, before=before)
    if given.no_color:
        terminal.forbid_colours()
    if given.help or command.run is None:
        if not given.help:
            raise UsageError(f"ops {command.name} needs to know what", f"ops {command.name} --help")
        return _show_help(command, as_json=_says(words, "--json"))
    return _finish(command, given)


def _finish(command: Command, given: Given) -> int:
    from operations.cli.running import run, show_log

    assert command.run is not None
    show_log(quiet=given.quiet, debug=given.debug)
    outcome = command.run(given)
    return outcome if isinstance(outcome, int) else run(outcome)


def _common_options(words: Sequence[str], within: str = "") -> tuple[dict[str, object], list[str]]:
    """The common options that stand before a command, or within its name, and the words from there on."""
    names = {name: option for option in COMMON for name in (option.name, option.short) if name}
    values: dict[str, object] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word, equals, attached = rest.pop(0).partition("=")
        if word in ("--version", "-V"):
            return {"version": True}, rest
        option = names.get(word)
        if option is None:
            listed = f"ops {within} --help" if within else "ops --help"
            hint = f"{listed} lists the commands; options of a command come after its name"
            raise UsageError(f"there is no option {word}{suggestion(word, list(names))}", hint)
        if option.value and not equals and not rest:
            raise UsageError(f"{word} wants a value: {word} {option.value}")
        values[option.key] = (attached if equals else rest.pop(0)) if option.value else True
    return values, rest


def _resolve(words: list[str], before: dict[str, object]) -> tuple[Command, list[str]]:
    """The command that words open with, and the words after it; adds common options within its name to `before`."""
    name, rest = words[0], words[1:]
    if name == "__complete":
        from operations.cli.completing import COMMAND

        return COMMAND, rest
    if name not in SUMMARIES:
        hint = "ops --help lists the commands"
        raise UsageError(f"there is no command {name!r}{suggestion(name, list(SUMMARIES))}", hint)
    command = find_command(name)
    if command.parts:
        given, rest = _common_options(rest, within=name)
        before.update(given)
    if command.parts and rest:
        parts = {part.name.rpartition(" ")[2]: part for part in command.parts}
        if rest[0] not in parts:
            message = f"ops {name} has no {rest[0]!r}{suggestion(rest[0], list(parts))}"
            raise UsageError(message, f"there are {', '.join(parts)}")
        return parts[rest[0]], rest[1:]
    return command, rest


def _show_help(command: Command | None, *, as_json: bool) -> int:
    from operations.cli import help

    if as_json:
        terminal.write_text(encode_json(help.as_data(command)).decode() + "\n")
        return OK
    text = help.overview() if command is None else help.describe(command)
    terminal.write_text(text + "\n")
    return OK


def _show_version(*, as_json: bool) -> int:
    from importlib.metadata import version

    told = {"name": "operations", "version": version("operations")}
    terminal.write_text(encode_json(told).decode() + "\n" if as_json else "{name} {version}\n".format(**told))
    return OK
