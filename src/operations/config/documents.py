"""Configuration files parsed with line numbers: TOML, and the JSON with comments that editors use."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from operations.config.problems import ConfigProblem, Key, problems_error
from operations.local_files import read_regular

_COMMENT = r'(?s)"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/'
_COMMA = r'(?s)"(?:\\.|[^"\\])*"|,(?=\s*[}\]])'
_JSON_TOKEN = r'(?s)"(?:\\.|[^"\\])*"|[{}\[\],:]|[^\s{}\[\],:"]+|\n'
_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_HEADER = rf"\[(\[)?[ \t]*({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)[ \t]*\]"
_ASSIGNMENT = rf"({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)[ \t]*="
_TOML_TOKEN = (
    r'''(?s)"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|'''
    r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[\[{]|[\]}]|\n|[^"'\#\[\]{}\n]+"""
)
_TOML_LOCATION = r" \(at (?:line (\d+), column \d+|end of document)\)$"


class ConfigDocument(msgspec.Struct, frozen=True, dict=True):
    """A parsed configuration file, with the lines of its keys."""

    path: Path
    tree: dict[str, Any]
    text: str

    @cached_property
    def lines(self) -> Mapping[Key, int]:
        """The line of each key; computed on first use, because lines are needed only to report problems."""
        return json_lines(without_comments(self.text)) if self.path.suffix == ".json" else toml_lines(self.text)

    def line(self, key: Key, mention: str = "") -> int:
        """Return the line of a key, or of its nearest parent that has a line.

        With `mention`, search from this line on, and return the first line that contains the text `mention`, if any.
        """
        while key and key not in self.lines:
            key = key[:-1]
        line = self.lines.get(key, 1)
        if mention:
            for number, text in enumerate(self.text.splitlines()[line - 1 :], start=line):
                if mention in text:
                    return number
        return line


def read_document(path: Path, text: str | None = None) -> ConfigDocument:
    """Parse a TOML or JSON file, or `text` in place of its content; raise an error with file and line."""
    text = _read_text(path) if text is None else text
    if path.suffix == ".json":
        return _read_json(path, text)
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise problems_error([ConfigProblem(path, 1, "", "invalid TOML: nested too deeply")]) from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(_TOML_LOCATION, str(error))
        line = int(place[1]) if place and place[1] else max(len(text.splitlines()), 1)
        message = f"invalid TOML: {re.sub(_TOML_LOCATION, '', str(error))}"
        raise problems_error([ConfigProblem(path, line, "", message)]) from None
    return ConfigDocument(path, tree, text)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8; raise `OSError` or `UnicodeDecodeError` if it cannot be read."""
    return read_regular(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise problems_error([ConfigProblem(path, 1, "", "file not found")]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise problems_error([ConfigProblem(path, 1, "", reason)]) from None


def _read_json(path: Path, text: str) -> ConfigDocument:
    import json  # imported lazily: most files are TOML

    try:
        tree = json.loads(without_comments(text))
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        message = f"invalid JSON: {getattr(error, 'msg', 'nested too deeply')}"
        raise problems_error([ConfigProblem(path, line, "", message)]) from None
    if not isinstance(tree, dict):
        raise problems_error([ConfigProblem(path, 1, "", "expected an object at the top level")])
    return ConfigDocument(path, tree, text)


def without_comments(text: str) -> str:
    """Return JSON text with comments and trailing commas replaced by spaces, so that positions stay the same."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return re.sub(_COMMA, blank, re.sub(_COMMENT, blank, text))


def json_lines(text: str) -> dict[Key, int]:
    """Return the line of every property and item in JSON text."""
    import json

    lines: dict[Key, int] = {}
    stack: list[str | int] = []
    line = 1
    pending: str | None = None
    for token in re.findall(_JSON_TOKEN, text):
        if token == "\n":
            line += 1
        elif token in ("{", "["):
            stack.append(0 if token == "[" else "")
            if token == "[":
                lines.setdefault(tuple(stack), line)
        elif token in ("}", "]"):
            stack.pop()
        elif token == "," and stack and isinstance(stack[-1], int):
            stack[-1] += 1
            lines.setdefault(tuple(stack), line)
        elif token == ":" and pending is not None and stack:
            stack[-1] = str(json.loads(pending))
            lines.setdefault(tuple(stack), line)
        pending = token if token.startswith('"') else pending
    return lines


class Statement(NamedTuple):
    """A table header or an assignment of TOML text."""

    key: Key
    start: int
    end: int
    line: int
    is_header: bool


def toml_statements(text: str) -> Iterator[Statement]:
    """Yield the table headers and assignments of TOML text with their positions, which `tomllib` does not report."""
    headers, assignments = re.compile(_HEADER), re.compile(_ASSIGNMENT)
    counts: dict[Key, int] = {}
    prefix: Key = ()
    position, counted, line = 0, 0, 1
    while position < len(text):
        line += text.count("\n", counted, position)
        counted = position
        header = headers.match(text, position)
        assignment = None if header else assignments.match(text, position)
        if header is not None:
            prefix = _enter(_parts(header[2]), counts, is_item=header[1] is not None)
            yield Statement(prefix, position, header.end(), line, is_header=True)
            position = header.end()
        elif assignment is not None:
            end = _skip_value(text, assignment.end())
            yield Statement((*prefix, *_parts(assignment[1])), position, end, line, is_header=False)
            position = end
        elif text[position] == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        else:
            position += 1


def toml_lines(text: str) -> dict[Key, int]:
    """Return the line of every table and key in TOML text, except in inline tables."""
    lines: dict[Key, int] = {}
    for statement in toml_statements(text):
        for length in range(1, len(statement.key) + 1):
            lines.setdefault(statement.key[:length], statement.line)
    return lines


def _enter(parts: list[str], counts: dict[Key, int], *, is_item: bool) -> Key:
    """Return the key of a table header; in an array of tables, the key of the last item."""
    key: Key = ()
    for number, part in enumerate(parts):
        key = (*key, part)
        last = number == len(parts) - 1
        if last and is_item:
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            key = (*key, counts[key])
    return key


def _parts(text: str) -> list[str]:
    return [_unquote(part) for part in re.findall(_KEY, text)]


def _unquote(part: str) -> str:
    if part.startswith("'"):
        return part[1:-1]
    if part.startswith('"'):
        import json

        try:
            return str(json.loads(part))
        except ValueError:
            return part[1:-1]
    return part


def _skip_value(text: str, position: int) -> int:
    """Return the position after a TOML value. Lists, inline tables and multi-line strings may span several lines."""
    tokens = re.compile(_TOML_TOKEN)
    depth = 0
    while position < len(text):
        token = tokens.match(text, position)
        if token is None:
            return position + 1
        found = token[0]
        if found == "\n" and not depth:
            return position
        depth += (found in ("[", "{")) - (found in ("]", "}"))
        position = token.end()
    return position
