"""Which line each key of a TOML text is on, which the parser of the standard library does not tell."""

from __future__ import annotations

import json
import re

from operations.config.problems import Key

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_PART = re.compile(_KEY)
_HEADER = re.compile(rf"\[(\[)?[ \t]*({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)[ \t]*\]")
_ASSIGNMENT = re.compile(rf"({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)[ \t]*=")
_VALUE_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[\[{]|[\]}]|\n|[^"'\#\[\]{}\n]+''',
    re.S,
)


def toml_lines(text: str) -> dict[Key, int]:
    """The line of every table and key of a text that is TOML; keys of inline tables are left to what holds them."""
    lines: dict[Key, int] = {}
    counts: dict[Key, int] = {}
    prefix: Key = ()
    position, counted, line = 0, 0, 1
    while position < len(text):
        line += text.count("\n", counted, position)
        counted = position
        header = _HEADER.match(text, position)
        assignment = None if header else _ASSIGNMENT.match(text, position)
        if header is not None:
            prefix = _enter(_parts(header[2]), counts, is_item=header[1] is not None)
            _note(lines, prefix, line)
            position = header.end()
        elif assignment is not None:
            _note(lines, (*prefix, *_parts(assignment[1])), line)
            position = _skip_value(text, assignment.end())
        elif text[position] == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        else:
            position += 1
    return lines


def _note(lines: dict[Key, int], key: Key, line: int) -> None:
    """Note a key and, where they have no line of their own, the tables it makes by being there."""
    for length in range(1, len(key) + 1):
        lines.setdefault(key[:length], line)


def _enter(parts: list[str], counts: dict[Key, int], *, is_item: bool) -> Key:
    """The key of a table whose header was met; in an array of tables the newest one is meant."""
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
    return [_unquote(part) for part in _PART.findall(text)]


def _unquote(part: str) -> str:
    if part.startswith("'"):
        return part[1:-1]
    if part.startswith('"'):
        try:
            return str(json.loads(part))
        except ValueError:
            return part[1:-1]
    return part


def _skip_value(text: str, position: int) -> int:
    """The end of a value: the end of its line, unless it is in brackets or a text of several lines."""
    depth = 0
    while position < len(text):
        token = _VALUE_TOKEN.match(text, position)
        if token is None:
            return position + 1
        found = token[0]
        if found == "\n" and not depth:
            return position
        depth += (found in ("[", "{")) - (found in ("]", "}"))
        position = token.end()
    return position
