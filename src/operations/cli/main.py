"""The program: find the command, run it, and translate exceptions to exit codes."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
from collections.abc import Container, Sequence

from operations.cli import terminal
from operations.cli.arguments import (
    COMMON,
    Command,
    ParsedArguments,
    UsageError,
    find_command,
    parse,
    suggestion,
    usage,
)
from operations.cli.commands import SUMMARIES
from operations.cli.failures import INTERRUPTED, OK, Terminated, report
from operations.cli.stderr import json_on_stderr

_THREADS_TIMEOUT = 0.2


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    words = sys.argv[1:] if words is None else list(words)
    # Lets a configuration start Python programs with the interpreter that has operations installed.
    os.environ.setdefault("OPERATIONS_PYTHON", sys.executable)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # print unencodable characters as question marks
    with json_on_stderr(_has_option(words, "--json")), terminal.reserve_stdout():
        return _run_to_exit_code(words)


def _has_option(words: Sequence[str], option: str) -> bool:
    """Whether an option is among the words, before they are parsed."""
    before = words[: words.index("--")] if "--" in words else words
    return any(word.partition("=")[0] == option for word in before)


def _run_to_exit_code(words: Sequence[str]) -> int:
    """Run a command line; translate any exception to its exit code."""
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
        terminal.discard_results()  # the reader closed the pipe
        return OK
    except Exception as error:  # noqa: BLE001  # every exception is reported as one line
        return report(error, traceback=_traceback() if _has_option(words, "--debug") else "")


def _traceback() -> str:
    from traceback import format_exc

    return format_exc().rstrip()


def program() -> None:
    """Entry point of the installed command: exit even if threads are still running.

    A function that an operation runs in a thread cannot be stopped. The interpreter would wait for it, so neither a
    deadline nor Ctrl-C could end the program.
    """
    terminal.claim_stdout()
    gc.disable()  # imports leave little garbage; `_finish` enables the collector again
    code = main()
    threading = sys.modules.get("threading")  # None: no threads were started
    started = [] if threading is None else [each for each in threading.enumerate() if each.name != "MainThread"]
    for thread in started:
        if not thread.daemon:
            thread.join(_THREADS_TIMEOUT)
    # Skip the interpreter's shutdown: freeing every object and module takes a sixth of a short command's time.
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or its reader is gone
            stream.flush()
    os._exit(code)


def _run(words: Sequence[str]) -> int:
    before, rest = _common_options(words)
    if before.get("no_color"):
        terminal.forbid_colours()
    if before.get("version"):
        from operations.cli.commands.version import show_version

        return show_version(as_json=_has_option(words, "--json"))
    if not rest or rest[0] == "help" or before.get("help"):
        _, command_words = _common_options([word for word in rest if word != "help"])
        return _show_help(
            _resolve(command_words, before)[0] if command_words else None, as_json=_has_option(words, "--json")
        )
    command, rest = _resolve(rest, before)
    args = parse(command, rest, before=before)
    if args.no_color:
        terminal.forbid_colours()
    if args.help or command.run is None:
        if not args.help:
            raise UsageError(f"missing subcommand of ops {command.name}", f"usage: {usage(command)}")
        if args.words and not args.json and command.name in ("call", "sub", "map"):
            from operations.cli.commands.show import call_help

            terminal.write_text(call_help(command, args, args.words[0]) + "\n")
            return OK
        return _show_help(command, as_json=_has_option(words, "--json"))
    return _finish(command, args)


def _finish(command: Command, args: ParsedArguments) -> int:
    from operations.cli.runner import run, show_log

    gc.enable()
    assert command.run is not None
    as_json, level = getattr(args, "log_format", "text") == "json", getattr(args, "log_level", None)
    show_log(quiet=args.quiet, debug=args.debug, as_json=as_json, level=level)
    outcome = command.run(args)
    return outcome if isinstance(outcome, int) else run(outcome, fast_loop=command.fast_loop)


def _common_options(
    words: Sequence[str], within: str = "", parts: Container[str] = ()
) -> tuple[dict[str, object], list[str]]:
    """Return the common options at the start of `words`, and the remaining words.

    Such options may precede a command (`ops --json config show`) or a part of its name (`ops config --json show`). In
    the second case, `within` is the first part of the name, and `parts` has the possible second parts.
    """
    names = {name: option for option in COMMON for name in (option.name, option.short) if name}
    values: dict[str, object] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in parts:
        word, equals, attached = rest.pop(0).partition("=")
        if word in ("--version", "-V"):
            return {"version": True}, rest
        option = names.get(word)
        if option is None:
            listed = f"ops {within} --help" if within else "ops --help"
            hint = f"{listed} lists the commands; put a command's options after its name"
            raise UsageError(f"unknown option {word}{suggestion(word, list(names))}", hint)
        if option.value and not equals and not rest:
            raise UsageError(f"missing value: {word} {option.value}")
        values[option.key] = (attached if equals else rest.pop(0)) if option.value else True
    return values, rest


def _resolve(words: list[str], before: dict[str, object]) -> tuple[Command, list[str]]:
    """Return the command and the words after it.

    Common options between the two parts of the command's name (`ops config --json show`) are added to `before`.
    """
    name, rest = words[0], words[1:]
    if name == "__complete":
        from operations.cli.completer import COMMAND

        return COMMAND, rest
    if name not in SUMMARIES:
        hint = "ops --help lists the commands"
        raise UsageError(f"unknown command {name!r}{suggestion(name, list(SUMMARIES))}", hint)
    command = find_command(name)
    parts = {part.name.rpartition(" ")[2]: part for part in command.parts}
    if parts:
        args, rest = _common_options(rest, within=name, parts=parts)
        before.update(args)
    if parts and rest:
        if rest[0] not in parts:
            message = f"unknown command 'ops {name} {rest[0]}'{suggestion(rest[0], list(parts))}"
            raise UsageError(message, f"expected one of {', '.join(parts)}")
        return parts[rest[0]], rest[1:]
    return command, rest


def _show_help(command: Command | None, *, as_json: bool) -> int:
    from operations.cli import help

    if as_json:
        from operations.wire import encode_json

        terminal.write_text(encode_json(help.as_data(command)).decode() + "\n")
        return OK
    text = help.overview() if command is None else help.describe(command)
    terminal.write_text(text + "\n")
    return OK
