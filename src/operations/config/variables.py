"""Variables: `${NAME}`, `${NAME:-default}`, VS Code's `${env:NAME}`, and variable files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from operations.config.documents import read_text
from operations.config.problems import Key
from operations.errors import CallError, ErrorCode

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = r"(?s)(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)"
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


class Substituted(str):
    """A string that contains a variable's value; it may be converted to a number or boolean."""

    __slots__ = ()


class VariableProblem(Exception):  # noqa: N818  # a value for a list of problems
    """A variable that cannot be replaced."""

    def __init__(self, message: str, mention: str) -> None:
        super().__init__(message)
        self.message = message
        self.mention = mention
        """The variable as written in the file, such as `${NAME}`; the line of the problem is found by this text."""


class UnsupportedVariable(VariableProblem):
    """A variable that only an editor can replace."""


class UnsetVariable(VariableProblem):
    """A variable that is not set and has no default."""


class Variables:
    """Values of variables. `used` has the variables that were inserted, `missing` the names that are not set."""

    def __init__(self, values: Mapping[str, str], *, special: Mapping[str, str] | None = None) -> None:
        self._values = values
        self._special = special or {}
        self.used: dict[str, str] = {}
        self.missing: set[str] = set()

    def fill(self, text: str) -> str:
        """Return text with its variables replaced; `$${` becomes `${`. Raise if a variable cannot be replaced."""
        parts: list[str] = []
        position = 0
        filled = False
        while (start := text.find("${", position)) >= 0:
            if start > position and text[start - 1] == "$":
                parts += [text[position : start - 1], "${"]
                position = start + 2
                continue
            end = _closing(text, start)
            parts += [text[position:start], self._value(text[start + 2 : end], text[start : end + 1])]
            position = end + 1
            filled = True
        text = "".join((*parts, text[position:]))
        return Substituted(text) if filled else text

    def _value(self, inside: str, mention: str) -> str:
        if inside in self._special:
            return self._special[inside]
        name, separator, default = inside.partition(":-")
        name = name.removeprefix("env:")
        if name.startswith("input:"):
            message = f"unsupported variable {mention}: use an environment variable instead"
            raise UnsupportedVariable(message, mention)
        if re.fullmatch(_NAME, name) is None:
            # The text is not quoted: it may be part of a password.
            message = "invalid ${…}: expected ${NAME} or ${NAME:-default}; write $${ for a literal ${"
            raise VariableProblem(message, mention)
        value = self._values.get(name)
        if value or (value is not None and not separator):
            self.used[name] = value
            return value
        if value is None:
            self.missing.add(name)
        if not separator:
            raise UnsetVariable(f"variable {name} is not set: set it, or write ${{{name}:-default}}", mention)
        return self.fill(default)


def substitute_tree(value: Any, variables: Variables, key: Key, report: Callable[[Key, VariableProblem], None]) -> Any:
    """Return a tree with the variables in its strings replaced; report a string with a problem, and leave it as is."""
    if isinstance(value, str):
        try:
            return variables.fill(value) if "${" in value else value
        except VariableProblem as problem:
            report(key, problem)
            return value
    if isinstance(value, dict):
        return {name: substitute_tree(item, variables, (*key, name), report) for name, item in value.items()}
    if isinstance(value, list):
        return [substitute_tree(item, variables, (*key, number), report) for number, item in enumerate(value)]
    return value


class VariableFile(msgspec.Struct, frozen=True):
    """The content of a variable file, or the reason why the file could not be read."""

    values: Mapping[str, str] = {}
    bad_lines: Sequence[int] = ()
    unreadable: str | None = None


def read_variable_file(path: Path) -> VariableFile:
    """Read a variable file; if this fails, the result has the reason."""
    try:
        values, bad = read_variables(read_text(path))
    except OSError as error:
        return VariableFile(unreadable=f"cannot read {path}: {error.strerror or error}")
    except UnicodeDecodeError:
        return VariableFile(unreadable=f"cannot read {path}: not UTF-8")
    return VariableFile(values, bad)


def variables_in(path: Path | None) -> dict[str, str]:
    """Return the variables of a source's `env_file`; raise if the file cannot be read or has an invalid line."""
    if path is None:
        return {}
    found = read_variable_file(path)
    if found.unreadable is not None:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"env_file: {found.unreadable}")
    if found.bad_lines:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"env_file: {path}:{found.bad_lines[0]}: expected NAME=value")
    return dict(found.values)


def read_variables(text: str) -> tuple[dict[str, str], list[int]]:
    """Return the variables of `.env` text, and the numbers of invalid lines."""
    values: dict[str, str] = {}
    bad: list[int] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        first, line = number + 1, lines[number].strip()
        number += 1
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(_ASSIGNMENT, line)
        if match is None:
            bad.append(first)
            continue
        raw = match[2]
        quote = raw[:1] if raw[:1] in ("'", '"') else ""
        while quote and _end_of_quote(raw, quote) < 0 and number < len(lines):
            raw = f"{raw}\n{lines[number]}"
            number += 1
        value = _read_value(raw, quote)
        if value is None:
            bad.append(first)
        else:
            values[match[1]] = value
    return values, bad


def _closing(text: str, start: int) -> int:
    """Return the position of a variable's closing brace, even if the variable's default contains variables."""
    depth = 0
    position = start
    while position < len(text):
        if text.startswith("${", position):
            depth += 1
            position += 2
            continue
        if text[position] == "}":
            depth -= 1
            if not depth:
                return position
        position += 1
    mention = text[start:]
    raise VariableProblem("unclosed ${; write $${ for a literal ${", mention)


def _read_value(raw: str, quote: str) -> str | None:
    if not quote:
        return re.split(r"\s#", raw, maxsplit=1)[0].strip() if not raw.startswith("#") else ""
    end = _end_of_quote(raw, quote)
    if end < 0 or not re.fullmatch(r"\s*(#.*)?", raw[end + 1 :]):
        return None
    inside = raw[1:end]
    if quote == "'":
        return inside
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), inside, flags=re.S)


def _end_of_quote(raw: str, quote: str) -> int:
    position = 1
    while position < len(raw):
        if raw[position] == "\\" and quote == '"':
            position += 2
            continue
        if raw[position] == quote:
            return position
        position += 1
    return -1
