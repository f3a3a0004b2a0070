"""Completion: what may follow on a command line, from declarations and the cache; no source is opened."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from operations.cli.arguments import COMMON, Argument, Command, Given, Option
from operations.cli.commands import SUMMARIES, find_command
from operations.cli.fields import Fields
from operations.cli.terminal import write_text
from operations.config.cache import Catalogue, load_catalogue
from operations.config.trust import find_config, is_trusted, refusal

FILES = "__files__"
_MAX_OFFERED = 500
_SPECIAL = re.compile(r"[^A-Za-z0-9_./:=@%+,\u0080-\U0010ffff-]")
"""Characters that mean something to bash, or may."""


def run(given: Given) -> int:
    """Print what may come next, one candidate a line, as the shell inserts it."""
    words = _split(given.line)[1:]
    if not words:
        return 0
    # Enumerations, fields and file names come from elsewhere: what cannot be shown and typed safely is not offered.
    found = [each for each in dict.fromkeys(_candidates(words)) if each.isprintable()][:_MAX_OFFERED]
    if given.shell == "bash":
        found = [_quoted(_after_break(words[-1], each)) for each in found]
    write_text("".join(f"{each}\n" for each in found))
    return 0


def _quoted(text: str) -> str:
    """Quote a candidate for bash, which inserts it as it is; zsh and fish quote candidates themselves."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", text)


def _split(line: str) -> list[str]:
    """Return the words of a line; the last one is incomplete or empty. None where a quote is open."""
    try:
        words = shlex.split(line)
    except ValueError:
        return []  # no candidates: they would have to be quoted for the quote that is open
    return [*words, ""] if not words or line[-1:].isspace() else words


def _after_break(word: str, found: str) -> str:
    """Return what bash expects: it breaks words at `=` and `:`, and before `@`."""
    cut = max(word.rfind("=") + 1, word.rfind(":") + 1, word.rfind("@"))
    return found[cut:] if cut and found.startswith(word[:cut]) else found


def _candidates(words: list[str]) -> Iterator[str]:
    *before, word = words
    command, placed, waiting = _place(before)
    if waiting is not None:
        yield from _values(waiting, word, placed, before)
    elif command is None:
        yield from _begins(word, (option.name for option in COMMON) if word.startswith("-") else SUMMARIES)
    elif command.parts:
        yield from _begins(word, (part.name.rpartition(" ")[2] for part in command.parts))
    elif word.startswith("-"):
        yield from _begins(word, (option.name for option in command.all_options()))
    else:
        argument = _argument(command, len(placed))
        if argument is not None:
            yield from _values(argument, word, placed, before)


def _place(words: Sequence[str]) -> tuple[Command | None, list[str], Option | None]:
    """Return the command, its arguments so far, and an option that lacks its value."""
    command: Command | None = None
    placed: list[str] = []
    waiting: Option | None = None
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and len(word) > 1:
            options = COMMON if command is None else list(command.all_options())
            option = next((each for each in options if word in (each.name, each.short)), None)
            waiting = option if option is not None and option.value else None
        elif command is None:
            command = find_command(word) if word in SUMMARIES else Command(word, "")
        elif command.parts:
            command = next((part for part in command.parts if part.name.endswith(f" {word}")), Command(word, ""))
        else:
            placed.append(word)
    return command, placed, waiting


def _argument(command: Command, count: int) -> Argument | None:
    if count < len(command.arguments):
        return command.arguments[count]
    last = command.arguments[-1] if command.arguments else None
    return last if last is not None and last.many else None


def _values(declared: Argument | Option, word: str, placed: list[str], before: Sequence[str]) -> Iterator[str]:
    if declared.choices:
        yield from _begins(word, declared.choices)
    elif declared.completes == "file":
        yield FILES
    elif declared.completes in ("operation", "namespace", "stream"):
        catalogue = _catalogue(before)
        entries = catalogue.entries if catalogue is not None else ()
        only = declared.completes == "stream"
        yield from _operations(word, [each.id for each in entries if not only or each.type == "subscription"])
    elif declared.completes == "field" and placed:
        yield from _fields(word, placed, _catalogue(before))


def _operations(word: str, ids: Iterable[str]) -> Iterator[str]:
    """Yield ids that start with a word; where there are many, their namespaces."""
    found = [each for each in ids if each.startswith(word)]
    if len(found) <= 40:
        yield from found
        return
    tails = (each[len(word) :] for each in found)
    shorter = dict.fromkeys(word + tail[: tail.index(".") + 1] if "." in tail else word + tail for tail in tails)
    yield from (list(shorter) if len(shorter) > 1 else found)


def _fields(word: str, placed: list[str], catalogue: Catalogue | None) -> Iterator[str]:
    schemas = catalogue.schemas(placed[0]) if catalogue is not None else None
    if schemas is None:
        return
    key, at, path = word.partition("@")
    if at and "=" not in key.removesuffix(":=").removesuffix("="):
        yield from _paths(f"{key}@", path)
        return
    fields = Fields(schemas[0])
    name, equals, _ = word.partition("=")
    if equals:
        place = name.split(".")
        values = [str(each) for each in fields.choices(place) if isinstance(each, (str, int, float))]
        if fields.types(place) == {"boolean"}:
            values = ["true", "false"]
        yield from _begins(word, (f"{name}={value}" for value in values))
        return
    taken = {each.partition("=")[0].rstrip(":") for each in placed[1:]}
    before, dot, _ = word.rpartition(".")
    place = before.split(".") if dot else []
    for each in fields.names(place):
        full = f"{before}{dot}{each}"
        if full not in taken:
            yield from _begins(word, [f"{full}." if fields.names([*place, each]) else f"{full}="])


def _paths(prefix: str, begun: str) -> Iterator[str]:
    """Yield files that start with a path, each with the prefix of the word; a directory ends with a slash."""
    folder, name = os.path.split(begun)
    try:
        found = sorted(os.scandir(os.path.expanduser(folder) or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in found:
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
            yield prefix + os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")


def _begins(word: str, candidates: Iterable[str]) -> Iterator[str]:
    return (each for each in candidates if each.startswith(word))


def _catalogue(words: Sequence[str]) -> Catalogue | None:
    """Return what is cached for the configuration that the line names or the nearest one, where it is trusted."""
    named = next((words[index + 1] for index, each in enumerate(words[:-1]) if each in ("--config", "-c")), None)
    path = find_config() if named is None else Path(named).expanduser().absolute()
    if path is None or not path.is_file() or refusal(path) is not None:
        return None
    catalogue = load_catalogue(path)
    return catalogue if catalogue is not None and is_trusted(path, catalogue.trust) else None


COMMAND = Command(
    name="__complete",
    summary="what a shell may offer next",
    run=run,
    arguments=(Argument("SHELL", "which shell asks"), Argument("LINE", "the line so far")),
)
