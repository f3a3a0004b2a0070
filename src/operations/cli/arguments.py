"""Declarations of commands, options and arguments, shared by parsing, help and completion.

argparse is not used: importing it takes a tenth of the program's start time, and it neither suggests the nearest option
nor shares its declarations with help and completion.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple


class UsageError(Exception):
    """A command line that cannot be parsed: the problem, and what to type instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Option(NamedTuple):
    """An option `--name VALUE`, or a flag if `value` is empty."""

    name: str
    help: str
    short: str = ""
    value: str = ""
    """Placeholder for the value in the help; empty for a flag."""
    convert: Callable[[str], Any] = str
    default: Any = None
    many: bool = False
    choices: Sequence[str] = ()
    completes: str = ""
    variable: str = ""
    """Environment variable to use if the option is missing (`--option=` is not missing); `help` names the variable."""

    @property
    def key(self) -> str:
        """The option's name in the parsed arguments."""
        return self.name.lstrip("-").replace("-", "_")


class Argument(NamedTuple):
    """A positional argument."""

    name: str
    help: str
    required: bool = True
    many: bool = False
    choices: Sequence[str] = ()
    completes: str = ""
    """The kind of completion candidates: `operation`, `stream`, `namespace`, `field`, `source` or `file`."""

    @property
    def shown(self) -> str:
        """The argument as the usage line shows it."""
        text = f"{self.name}..." if self.many else self.name
        return text if self.required else f"[{text}]"


class ParsedArguments:
    """The parsed values of a command line, as attributes."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def is_direct(self) -> bool:
        """Whether the command line names its source, by `--mcp` or `--openapi`."""
        return self._values.get("mcp") is not None or self._values.get("openapi") is not None

    def with_values(self, **values: Any) -> ParsedArguments:
        """Return a copy in which `values` replace the values of the same names."""
        return ParsedArguments({**self._values, **values})


WORD = r"(?s)^(?P<key>[^=@:]+(?::(?!=)[^=@:]*)*?)(?P<sign>:=@|=@|:=|=|@)(?P<value>.*)$"
"""Pattern of a word that specifies a field, such as `key=value`, `key:=json` or `key@file`."""
WHOLE = ("@", "{", "[")
"""First characters of a word that specifies the whole input, such as `@input.json`, instead of one field."""

Run = Callable[[ParsedArguments], "int | Awaitable[int]"]


class Command(NamedTuple):
    """A command with its arguments and function; with `parts` instead of a function, a group of subcommands."""

    name: str
    summary: str
    run: Run | None = None
    arguments: Sequence[Argument] = ()
    options: Sequence[Option] = ()
    examples: Sequence[tuple[str, str]] = ()
    """Example command lines, each with its description."""
    notes: str = ""
    forms: Sequence[tuple[str, str]] = ()
    """Accepted forms of the arguments, each with its meaning."""
    parts: Sequence[Command] = ()
    fast_loop: bool = False
    """Whether the command runs on uvloop, if uvloop is installed."""

    def all_options(self) -> Iterator[Option]:
        """Yield the command's own options, then the common ones."""
        yield from self.options
        yield from COMMON


COMMON = (
    Option(
        "--config",
        "configuration file (default: $OPERATIONS_CONFIG, or the nearest operations.toml)",
        "-c",
        value="FILE",
        completes="file",
        variable="OPERATIONS_CONFIG",
    ),
    Option("--trust", "trust the configuration for this command only"),
    Option("--json", "print JSON"),
    Option("--quiet", "print only results and errors", "-q"),
    Option("--no-color", "print no colours (default if $NO_COLOR is set)"),
    Option("--debug", "print tracebacks"),
    Option("--help", "print this help", "-h"),
)


_EXPECTED = {
    "NUMBER": "a whole number, 1 or more",
    "SECONDS": "a duration such as 5, 0.5s, 200ms or 2m",
    "PORT": "a port number",
    "[HOST:]PORT": "a port number, or HOST:PORT",
    "TYPE:ID=ACTION": "TYPE:ID=ACTION with one action, such as account:7=read",
}
"""Expected values by their placeholder in the help."""


def whole_number(text: str) -> int:
    """Parse a positive whole number."""
    number = int(text)
    if number < 1:
        raise ValueError("expected a whole number, 1 or more")
    return number


def host_and_port(text: str) -> tuple[str, int]:
    """Return the host and the port of `PORT`, `:PORT` or `HOST:PORT`; the default host is 127.0.0.1."""
    host, _, port = text.rpartition(":")
    number = int(port)
    if not 0 <= number <= 65535:
        raise ValueError("the port is not between 0 and 65535")
    return host.strip("[]") or "127.0.0.1", number


def seconds(text: str) -> float:
    """Parse a positive duration in seconds, with an optional unit: `5`, `0.5s`, `200ms`, `2m`, `1h`."""
    for unit, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(unit):
            text, scale = text.removesuffix(unit), factor
            break
    else:
        scale = 1.0
    duration = float(text) * scale
    if not 0 < duration < 10**9:
        raise ValueError("expected a positive duration")
    return duration


def is_assignment(name: str, value: str) -> bool:
    """Whether the word `name=value` is parsed as this field and this value.

    A name with special characters can turn the word into an option, a file or a JSON value.
    """
    match = None if name.startswith(("-", *WHOLE)) else re.match(WORD, f"{name}={value}")
    return match is not None and match.groups() == (name, "=", value)


def find_command(name: str) -> Command:
    """Return the declaration of a command, from its module."""
    command: Command = import_module(f"operations.cli.commands.{name}").COMMAND
    return command


def parse(command: Command, words: Sequence[str], *, before: Mapping[str, Any] | None = None) -> ParsedArguments:
    """Parse `words`; raise `UsageError` for anything the command does not accept.

    `before` has the common options that precede the command's name.
    """
    reader = _OptionParser(command, words)
    values = reader.read()
    for name, value in (before or {}).items():
        values[name] = values[name] or value
    for option in command.all_options():
        if option.variable:
            given = values[option.key]
            values[option.key] = (os.environ.get(option.variable) if given is None else given) or None
    if values["help"]:
        return ParsedArguments({**values, "words": reader.positional})
    values.update(_assign(command, reader.positional))
    return ParsedArguments(values)


def suggestion(word: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean …?`, or an empty string if no known word is similar."""
    from difflib import get_close_matches  # slow to import, and needed only after an error

    found = get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"; did you mean {found[0]}?" if found else ""


class _OptionParser:
    """Separates options, at any position, from positional arguments."""

    def __init__(self, command: Command, words: Sequence[str]) -> None:
        self.positional: list[str] = []
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
        """Return the values of the options; other words are in `positional`."""
        while self._words:
            word = self._words.pop(0)
            if word == "--":
                self.positional += self._words
                break
            if word.startswith("-") and len(word) > 1:
                self._read_option(word)
            else:
                self.positional.append(word)
        return self._values

    def _read_option(self, word: str) -> None:
        name, equals, attached = word.partition("=")
        if not word.startswith("--") and len(word) > 2 and word[:2] in self._options:
            name, attached = word[:2], word[2:].removeprefix("=")
            equals = "="
        option = self._options.get(name)
        if option is None:
            known = [known for known in self._options if known.startswith("--")]
            hint = f"ops {self._command.name} --help lists its options"
            if any(argument.completes == "field" for argument in self._command.arguments) and name.startswith("--"):
                value = attached if equals else self._words[0] if self._words else "…"
                hint = f"write an input field without dashes before it: {name[2:]}={value}; {hint}"
            raise UsageError(f"unknown option {name}{suggestion(name, known, cutoff=0.75)}", hint)
        if not option.value:
            if equals:
                raise UsageError(f"{name} does not take a value")
            self._values[option.key] = True
            return
        if not equals and not self._words:
            raise UsageError(f"missing value: {name} {option.value}")
        self._store(option, attached if equals else self._words.pop(0))

    def _store(self, option: Option, text: str) -> None:
        _check_choice(option, text)
        try:
            value = option.convert(text)
        except ValueError:
            raise UsageError(
                f"invalid {option.name} {text!r}: expected {_EXPECTED.get(option.value, option.value)}"
            ) from None
        if option.many:
            self._values[option.key].append(value)
        else:
            self._values[option.key] = value


def _assign(command: Command, words: list[str]) -> dict[str, Any]:
    """Assign positional words to the command's arguments."""
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
            _check_choice(argument, word)
            values[argument.name.lower()] = word
        elif argument.required:
            raise _missing(command, argument)
        else:
            values[argument.name.lower()] = None
    if rest:
        hint = f"usage: {usage(command)}"
        raise UsageError(f"unexpected argument {rest[0]!r}", hint)
    return values


def _check_choice(declared: Option | Argument, text: str) -> None:
    choices = declared.choices
    if choices and text not in choices:
        expected = ", ".join(choices)
        raise UsageError(f"invalid {declared.name} {text!r}: expected one of {expected}{suggestion(text, choices)}")


def _missing(command: Command, argument: Argument) -> UsageError:
    example = f"; for example: {command.examples[0][0]}" if command.examples else ""
    return UsageError(f"missing {argument.name}: {argument.help}", f"usage: {usage(command)}{example}")


def usage(command: Command) -> str:
    """Return the usage line of a command."""
    if command.parts:
        return f"ops {command.name} {'|'.join(part.name.rpartition(' ')[2] for part in command.parts)} ..."
    options = " [options]" if command.options else ""
    return " ".join([f"ops {command.name}{options}", *(argument.shown for argument in command.arguments)])


TOKEN_VARIABLE = "OPERATIONS_TOKEN"
JOB_URLS = "redis://host:port or nats://host:port"
"""Addresses of transports that store jobs."""
TRANSPORT_URLS = f"ws://host:port/, {JOB_URLS}"

VERBOSE_OPTION = Option("--verbose", "print HTTP requests and responses with headers, without secrets", "-v")
RESULT_OPTIONS = (
    Option("--envelope", "print the whole envelope: data and meta", "-e"),
    Option("--meta", "print only meta"),
    Option("--jq", "filter the result with a jq program", value="PROGRAM"),
    Option("--raw", "print strings without quotes (ignored with --json)", "-r"),
)


TOKEN_FILE_OPTION = Option(
    "--token-file", f"file with the token (default: the token in ${TOKEN_VARIABLE})", value="FILE", completes="file"
)


def _transport_options(urls: str) -> tuple[Option, Option]:
    text = f"use a transport: its name in the configuration, or {urls} (default: $OPERATIONS_URL)"
    return Option("--url", text, "-u", value="URL", variable="OPERATIONS_URL"), TOKEN_FILE_OPTION


TRANSPORT_OPTIONS = _transport_options(TRANSPORT_URLS)
JOB_OPTIONS = _transport_options(JOB_URLS)
LISTING_OPTIONS = (
    Option("--refresh", "open every source again, not only those whose files changed", "-R"),
    Option("--cached", "use the cache only, even if it is out of date"),
    *TRANSPORT_OPTIONS,
)
LOAD_OPTIONS = (
    Option("--concurrency", "maximum number of concurrent calls", value="NUMBER", convert=whole_number, default=64),
    Option(
        "--grace",
        "time for running calls to finish when the command stops",
        value="SECONDS",
        convert=seconds,
        default=30.0,
    ),
)
LOG_OPTIONS = (
    Option("--log-format", "format of log records", value="FORMAT", choices=("text", "json"), default="text"),
    Option(
        "--log-level",
        "lowest level of printed log records, warning by default",
        value="LEVEL",
        choices=("debug", "info", "warning", "error"),
    ),
)
HEALTH_OPTION = Option(
    "--health",
    "serve /healthz, /readyz and /metrics at this address; HOST is 127.0.0.1 by default",
    value="[HOST:]PORT",
    convert=host_and_port,
)
AUDIT_OPTION = Option("--audit-log", "append a line of JSON to this file for each call", value="FILE", completes="file")
SERVING_OPTIONS = (*TRANSPORT_OPTIONS, *LOAD_OPTIONS, *LOG_OPTIONS, AUDIT_OPTION, HEALTH_OPTION)
