"""What a command takes, declared once for parsing, help and completion; knows nothing of what commands do.

An own small parser: the standard one costs a tenth of the start of the program, and neither suggests the nearest option
nor lets help and completion share its declarations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class UsageError(Exception):
    """A command line that cannot be understood: what is wrong with it, and what to type instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Option(NamedTuple):
    """`--name VALUE`, or a flag where it has no `value`."""

    name: str
    help: str
    short: str = ""
    value: str = ""
    """What stands for the value in the help; empty for a flag."""
    convert: Callable[[str], Any] = str
    default: Any = None
    many: bool = False
    choices: Sequence[str] = ()
    completes: str = ""

    @property
    def key(self) -> str:
        """The name under which its value is found."""
        return self.name.lstrip("-").replace("-", "_")


class Argument(NamedTuple):
    """A value told by its place."""

    name: str
    help: str
    required: bool = True
    many: bool = False
    choices: Sequence[str] = ()
    completes: str = ""
    """What completion offers for it: `operation`, `stream`, `namespace`, `field`, `file`."""

    @property
    def shown(self) -> str:
        """The argument as a usage line writes it."""
        text = f"{self.name}..." if self.many else self.name
        return text if self.required else f"[{text}]"


class Given:
    """The values that a command line gave, by name."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


Run = Callable[[Given], "int | Awaitable[int]"]


class Command(NamedTuple):
    """A command: what it takes, and what runs it; or, with `parts`, a word that opens further commands."""

    name: str
    summary: str
    run: Run | None = None
    arguments: Sequence[Argument] = ()
    options: Sequence[Option] = ()
    examples: Sequence[tuple[str, str]] = ()
    """What to type, and what it does."""
    notes: str = ""
    forms: Sequence[tuple[str, str]] = ()
    """What its arguments may look like."""
    parts: Sequence[Command] = ()

    def all_options(self) -> Iterator[Option]:
        """Its own options, then those that every command has."""
        yield from self.options
        yield from COMMON


COMMON = (
    Option(
        "--config", "the configuration file; else the nearest operations.toml", "-c", value="FILE", completes="file"
    ),
    Option("--trust", "use the configuration for this command although it is not trusted"),
    Option("--json", "JSON on stdout, on a terminal too"),
    Option("--quiet", "only results and errors", "-q"),
    Option("--no-color", "no colours; NO_COLOR in the environment does the same"),
    Option("--debug", "the traceback of an error"),
    Option("--help", "this text", "-h"),
)


_WANTED = {"NUMBER": "a whole number of at least 1", "SECONDS": "a time: 5, 0.5s, 200ms, 2m", "PORT": "a port"}
"""What a value should have been, by what stands for it in the help."""


def whole_number(text: str) -> int:
    """A positive whole number."""
    number = int(text)
    if number < 1:
        raise ValueError("a whole number of at least 1 is wanted")
    return number


def seconds(text: str) -> float:
    """A positive number of seconds, with or without its unit: `5`, `0.5s`, `200ms`, `2m`."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(unit):
            text, scale = text.removesuffix(unit), factor
            break
    else:
        scale = 1.0
    duration = float(text) * scale
    if not 0 < duration < 10**9:
        raise ValueError("a positive number of seconds is wanted")
    return duration


def parse(command: Command, words: Sequence[str], *, before: Mapping[str, Any] | None = None) -> Given:
    """The values in `words`; raises a UsageError for what the command does not take.

    `before` holds the common options that stood before the command's name.
    """
    reader = _Reader(command, words)
    values = reader.read()
    for name, value in (before or {}).items():
        values[name] = values[name] or value
    if values["help"]:
        return Given(values)
    values.update(_place(command, reader.placed))
    return Given(values)


def nearest(word: str, known: Sequence[str], *, count: int = 1) -> list[str]:
    """The known words most like a mistyped one."""
    from difflib import get_close_matches  # only worth its import when something went wrong

    return get_close_matches(word, known, n=count, cutoff=0.6)


def suggestion(word: str, known: Sequence[str]) -> str:
    """`; did you mean …?`, or nothing where nothing is like it."""
    found = nearest(word, known)
    return f"; did you mean {found[0]}?" if found else ""


class _Reader:
    """Reads options out of words, wherever they stand, and keeps the rest in order."""

    def __init__(self, command: Command, words: Sequence[str]) -> None:
        self.placed: list[str] = []
        self._command = command
        self._words = list(words)
        self._options: dict[str, Option] = {}
        self._values: dict[str, Any] = {}
        for option in command.all_options():
            self._options[option.name] = option
            if option.short:
                self._options[option.short] = option
            self._values[option.key] = [] if option.many else option.default if option.value else False

    def read(self) -> dict[str, Any]:
        """The options' values; what is none is in `placed`."""
        while self._words:
            word = self._words.pop(0)
            if word == "--":
                self.placed += self._words
                break
            if word.startswith("-") and len(word) > 1:
                self._read_option(word)
            else:
                self.placed.append(word)
        return self._values

    def _read_option(self, word: str) -> None:
        name, equals, attached = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] in self._options:
            name, attached = word[:2], word[2:].removeprefix("=")
            equals = "="
        option = self._options.get(name)
        if option is None:
            known = [known for known in self._options if known.startswith("--")]
            hint = f"ops {self._command.name} --help lists the options"
            raise UsageError(f"there is no option {name}{suggestion(name, known)}", hint)
        if not option.value:
            if equals:
                raise UsageError(f"{name} takes no value")
            self._values[option.key] = True
            return
        if not equals and not self._words:
            raise UsageError(f"{name} wants a value: {name} {option.value}")
        self._keep(option, attached if equals else self._words.pop(0))

    def _keep(self, option: Option, text: str) -> None:
        if option.choices and text not in option.choices:
            wanted = ", ".join(option.choices)
            raise UsageError(f"{option.name} is one of {wanted}, not {text!r}{suggestion(text, option.choices)}")
        try:
            value = option.convert(text)
        except ValueError:
            raise UsageError(f"{option.name}: {text!r} is not {_WANTED.get(option.value, option.value)}") from None
        if option.many:
            self._values[option.key].append(value)
        else:
            self._values[option.key] = value


def _place(command: Command, words: list[str]) -> dict[str, Any]:
    """The words that are no options, by the arguments they are the values of."""
    values: dict[str, Any] = {}
    rest = list(words)
    for argument in command.arguments:
        if argument.many:
            taken, rest = rest, []
            if argument.required and not taken:
                raise _missing(command, argument)
            values[argument.name.lower()] = taken
        elif rest:
            word = rest.pop(0)
            if argument.choices and word not in argument.choices:
                wanted = ", ".join(argument.choices)
                message = f"{argument.name} is one of {wanted}, not {word!r}{suggestion(word, argument.choices)}"
                raise UsageError(message)
            values[argument.name.lower()] = word
        elif argument.required:
            raise _missing(command, argument)
        else:
            values[argument.name.lower()] = None
    if rest:
        hint = f"usage: {usage(command)}"
        raise UsageError(f"ops {command.name} takes no further argument: {rest[0]!r}", hint)
    return values


def _missing(command: Command, argument: Argument) -> UsageError:
    example = f"; for example: {command.examples[0][0]}" if command.examples else ""
    return UsageError(f"{argument.name} is missing ({argument.help})", f"usage: {usage(command)}{example}")


def usage(command: Command) -> str:
    """The usage line of a command."""
    if command.parts:
        return f"ops {command.name} {'|'.join(part.name.rpartition(' ')[2] for part in command.parts)} ..."
    options = " [options]" if command.options else ""
    return " ".join([f"ops {command.name}{options}", *(argument.shown for argument in command.arguments)])


TOKEN_VARIABLE = "OPERATIONS_TOKEN"
TRANSPORT_URLS = "ws://host:port/, redis://host:port or nats://host:port"

RESULT_OPTIONS = (
    Option("--envelope", "the whole envelope: data and meta", "-e"),
    Option("--meta", "the meta alone"),
    Option("--jq", "run the result through a jq program", value="PROGRAM"),
    Option("--raw", "texts without quotes; --json keeps them", "-r"),
)
TRANSPORT_OPTIONS = (
    Option("--url", f"over a bus: a transport of the configuration, or {TRANSPORT_URLS}", "-u", value="URL"),
    Option("--token-file", f"the file that holds the token; else {TOKEN_VARIABLE}", value="FILE", completes="file"),
)
LISTING_OPTIONS = (
    Option("--refresh", "open every source again; else only those whose files changed", "-R"),
    Option("--cached", "never open a source, even where the cache may be old"),
    *TRANSPORT_OPTIONS,
)
LOAD_OPTIONS = (
    Option("--concurrency", "how many calls at a time", value="NUMBER", convert=whole_number, default=64),
    Option("--grace", "how long running calls may take at the end", value="SECONDS", convert=seconds, default=30.0),
)
SERVING_OPTIONS = (*TRANSPORT_OPTIONS, *LOAD_OPTIONS)
