"""Completion candidates for a command line, from declarations and the cache; opens no source."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from operations.cli.arguments import COMMON, Argument, Command, Option, ParsedArguments, find_command, is_assignment
from operations.cli.commands import SUMMARIES
from operations.cli.terminal import write_text
from operations.config.cache import Catalogue, load_catalogue
from operations.config.trust import find_config, is_trusted, refusal
from operations.schema.parts import Fields

FILES = "__files__"
_MAX_OFFERED = 500
_SPECIAL = re.compile(r"[^A-Za-z0-9_./:=@%+,\u0080-\U0010ffff-]")
"""Characters that may have a meaning in bash."""


def run(args: ParsedArguments) -> int:
    """Print the candidates, one per line, as the shell inserts them."""
    words = _split(args.line)[1:]
    if not words:
        return 0
    # Enumerations, fields and file names are external data: skip candidates that are not printable, and candidates that
    # the shell would insert as an option although the user has not typed a dash.
    begun = words[-1].startswith("-")
    offered = (each for each in dict.fromkeys(_candidates(words)) if each.isprintable())
    found = [each for each in offered if begun or not each.startswith("-")][:_MAX_OFFERED]
    if args.shell == "bash":
        found = [_quoted(_after_break(words[-1], each)) for each in found]
    write_text("".join(f"{each}\n" for each in found))
    return 0


def _quoted(text: str) -> str:
    """Quote a candidate for bash, which inserts it unchanged; zsh and fish quote candidates themselves."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", text)


def _split(line: str) -> list[str]:
    """Return the words of a line, the last of them incomplete or empty; no words if a quote is open."""
    try:
        words = shlex.split(line)
    except ValueError:
        return []  # candidates would have to match the open quote
    return [*words, ""] if not words or line[-1:].isspace() else words


def _after_break(word: str, found: str) -> str:
    """Return the part of a candidate that bash inserts.

    Bash splits a word after `=` and `:` and before `@`, and replaces only the last part.
    """
    split_at = max(word.rfind("=") + 1, word.rfind(":") + 1, word.rfind("@"))
    return found[split_at:] if split_at and found.startswith(word[:split_at]) else found


def _candidates(words: list[str]) -> Iterator[str]:
    *before, word = words
    command, positional, pending = _parse_words(before)
    if pending is not None:
        yield from _values(pending, word, positional, before)
    elif command is None:
        yield from _begins(word, (option.name for option in COMMON) if word.startswith("-") else SUMMARIES)
    elif command.parts:
        names = (part.name.rpartition(" ")[2] for part in command.parts)
        yield from _begins(word, (name for name in names if name.startswith("-") == word.startswith("-")))
    elif word.startswith("-"):
        yield from _begins(word, (option.name for option in command.all_options()))
    else:
        argument = _argument(command, len(positional))
        if argument is not None:
            yield from _values(argument, word, positional, before)


def _parse_words(words: Sequence[str]) -> tuple[Command | None, list[str], Option | None]:
    """Return the command, its arguments so far, and the option whose value comes next."""
    command: Command | None = None
    positional: list[str] = []
    pending: Option | None = None
    for word in words:
        if pending is not None:
            pending = None
        elif word.startswith("-") and len(word) > 1:
            options = COMMON if command is None else list(command.all_options())
            option = next((each for each in options if word in (each.name, each.short)), None)
            pending = option if option is not None and option.value else None
        elif command is None:
            command = find_command(word) if word in SUMMARIES else Command(word, "")
        elif command.parts:
            command = next((part for part in command.parts if part.name.endswith(f" {word}")), Command(word, ""))
        else:
            positional.append(word)
    return command, positional, pending


def _argument(command: Command, count: int) -> Argument | None:
    if count < len(command.arguments):
        return command.arguments[count]
    last = command.arguments[-1] if command.arguments else None
    return last if last is not None and last.many else None


def _values(declared: Argument | Option, word: str, positional: list[str], before: Sequence[str]) -> Iterator[str]:
    if declared.choices:
        yield from _begins(word, declared.choices)
    elif declared.completes == "file":
        yield FILES
    elif declared.completes in ("operation", "namespace", "stream"):
        catalogue = _catalogue(before)
        entries = catalogue.entries if catalogue is not None else ()
        only = declared.completes == "stream"
        yield from _operations(word, [each.id for each in entries if not only or each.type == "subscription"])
    elif declared.completes == "source":
        catalogue = _catalogue(before)
        yield from _begins(word, catalogue.sources if catalogue is not None else ())
    elif declared.completes == "field" and positional:
        yield from _fields(word, positional, _catalogue(before))


def _operations(word: str, ids: Iterable[str]) -> Iterator[str]:
    """Yield the ids that start with a word.

    If there are more than 40 ids, cut each id after its next dot, unless this makes all of them equal.
    """
    found = [each for each in ids if each.startswith(word)]
    if len(found) <= 40:
        yield from found
        return
    tails = (each[len(word) :] for each in found)
    shorter = dict.fromkeys(word + tail[: tail.index(".") + 1] if "." in tail else word + tail for tail in tails)
    yield from (list(shorter) if len(shorter) > 1 else found)


def _fields(word: str, positional: list[str], catalogue: Catalogue | None) -> Iterator[str]:
    schemas = catalogue.schemas(positional[0]) if catalogue is not None else None
    if schemas is None:
        return
    key, at, file = word.partition("@")
    if at and "=" not in key.removesuffix(":=").removesuffix("="):
        yield from _paths(f"{key}@", file)
        return
    fields = Fields(schemas[0])
    name, equals, _ = word.partition("=")
    if equals:
        path = name.split(".")
        values = [str(each) for each in fields.choices(path) if isinstance(each, (str, int, float))]
        if fields.types(path) == {"boolean"}:
            values = ["true", "false"]
        yield from _begins(word, (f"{name}={value}" for value in values if is_assignment(name, value)))
        return
    taken = {each.partition("=")[0].rstrip(":") for each in positional[1:]}
    before, dot, _ = word.rpartition(".")
    path = before.split(".") if dot else []
    for each in fields.names(path):
        full = f"{before}{dot}{each}"
        if full not in taken and is_assignment(full, ""):
            yield from _begins(word, [f"{full}." if fields.names([*path, each]) else f"{full}="])


def _paths(prefix: str, start: str) -> Iterator[str]:
    """Yield the paths that begin with `start`, each after `prefix`; the path of a directory ends with a slash."""
    directory, name = os.path.split(start)
    try:
        found = sorted(os.scandir(os.path.expanduser(directory) or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
            yield prefix + os.path.join(directory, entry.name) + ("/" if entry.is_dir() else "")


def _begins(word: str, candidates: Iterable[str]) -> Iterator[str]:
    return (each for each in candidates if each.startswith(word))


def _catalogue(words: Sequence[str]) -> Catalogue | None:
    """Return the cached catalogue of the named or nearest configuration, if it is trusted."""
    given = (words[index + 1] for index, each in enumerate(words[:-1]) if each in ("--config", "-c"))
    named = next(given, os.environ.get("OPERATIONS_CONFIG") or None)
    path = find_config() if named is None else Path(named).expanduser().absolute()
    if path is None or not path.is_file() or refusal(path) is not None:
        return None
    catalogue = load_catalogue(path)
    return catalogue if catalogue is not None and is_trusted(path, catalogue.trust) else None


COMMAND = Command(
    name="__complete",
    summary="print completion candidates",
    run=run,
    arguments=(Argument("SHELL", "name of the shell"), Argument("LINE", "command line up to the cursor")),
)
