"""The output of `--help`: all commands in groups, or one command with its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from operations.cli.arguments import COMMON, Command, Option, usage
from operations.cli.commands import GROUPS
from operations.cli.terminal import columns, paint

VERSION = Option("--version", "print the version", "-V")
EXIT_CODES = {
    "0": "ok",
    "2": "usage or validation",
    "3": "not found",
    "4": "denied or not trusted",
    "5": "operation error",
    "6": "transport",
    "7": "deadline",
    "130": "interrupted",
}


def overview() -> str:
    """Return the help of the program."""
    lines = [
        "Call Python functions, MCP tools and HTTP APIs through one registry.",
        "",
        f"{paint('bold', 'usage')}  ops COMMAND [options] ...",
    ]
    for group, commands in GROUPS.items():
        lines += ["", paint("bold", group), *_rows([(name, text) for name, text in commands.items()])]
    options = ", ".join(option.short or option.name for option in COMMON)
    codes = " · ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    lines += ["", *_wrap(f"Options of every command: {options}"), *_wrap(f"Exit codes: {codes}")]
    lines.append("Run 'ops COMMAND --help' for details, 'ops init' to begin, and 'ops -V' for the version.")
    return "\n".join(lines)


def describe(command: Command) -> str:
    """Return the help of one command."""
    summary = f"{command.summary[:1].upper()}{command.summary[1:]}."
    lines = [*_wrap(summary), "", f"{paint('bold', 'usage')}  {usage(command)}"]
    if command.parts:
        lines += ["", *_rows([(usage(part), part.summary) for part in command.parts])]
    if command.arguments:
        lines += ["", *_rows([(argument.name, argument.help) for argument in command.arguments])]
    if command.notes:
        for paragraph in command.notes.strip("\n").split("\n\n"):
            lines += ["", *_wrap(paragraph)]
    if command.forms:
        lines += ["", *_rows(command.forms)]
    if command.examples:
        lines += ["", paint("bold", "Examples"), *_rows(command.examples)]
    if command.options:
        lines += ["", paint("bold", "Options"), *_options(command.options)]
    if command.parts:
        lines += ["", *_wrap(f"Run 'ops {command.parts[0].name} --help' for its options, and so on.")]
    else:
        lines += ["", paint("bold", "Common options"), *_options(COMMON)]
    return "\n".join(lines)


def as_data(command: Command | None) -> dict[str, Any]:
    """Return the help of one command as JSON data; without a command, a summary of all commands."""
    if command is None:
        return {
            "usage": "ops COMMAND [options] ...",
            "commands": [
                {"name": name, "group": group, "summary": text}
                for group, commands in GROUPS.items()
                for name, text in commands.items()
            ],
            "options": list(map(_option_data, (*COMMON, VERSION))),
            "exitCodes": EXIT_CODES,
        }
    return {
        "name": command.name,
        "summary": command.summary,
        "usage": usage(command),
        "notes": " ".join(command.notes.split()),
        "arguments": [
            {
                "name": argument.name,
                "help": argument.help,
                "required": argument.required,
                "many": argument.many,
                "choices": list(argument.choices),
            }
            for argument in command.arguments
        ],
        "forms": [{"form": form, "help": text} for form, text in command.forms],
        "options": [] if command.parts else list(map(_option_data, command.all_options())),
        "examples": [{"command": typed, "help": text} for typed, text in command.examples],
        "commands": [{"name": part.name, "summary": part.summary, "usage": usage(part)} for part in command.parts],
    }


def _option_data(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "short": option.short or None,
        "value": option.value or None,
        "help": option.help,
        "choices": list(option.choices),
        "default": option.default,
        "variable": option.variable or None,
        "many": option.many,
    }


def _options(options: Sequence[Option]) -> list[str]:
    rows = []
    for option in options:
        names = f"{option.short}, {option.name}" if option.short else f"    {option.name}"
        text = option.help
        values = [", ".join(option.choices)] if option.choices else []
        if option.default is not None:
            default = f"{option.default:g}" if isinstance(option.default, float) else option.default
            values.append(f"default: {default}")
        if values:
            text += f" ({'; '.join(values)})"
        if option.many:
            text += "; repeatable"
        rows.append((f"{names} {option.value}".rstrip(), text))
    return _rows(rows)


def _rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Format two columns; print them below each other if the terminal is too narrow."""
    width = columns()
    first = max((len(left) for left, _ in rows), default=0)
    lines = []
    if first + 24 > width:
        for left, right in rows:
            lines += [f"  {left}", *(f"      {line}" for line in _wrap(right, width - 6))]
        return lines
    for left, right in rows:
        wrapped = _wrap(right, width - first - 4) or [""]
        lines.append(f"  {left:<{first}}  {wrapped[0]}".rstrip())
        lines += [" " * (first + 4) + line for line in wrapped[1:]]
    return lines


def _wrap(text: str, width: int | None = None) -> list[str]:
    from textwrap import wrap  # imported only for the help

    width = max(20, width or min(columns(), 100))
    return wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
