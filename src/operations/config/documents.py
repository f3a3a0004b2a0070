"""Configuration files as trees that remember which line each key is on: TOML, and JSON as editors write it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from operations.config.json_lines import json_lines, without_comments
from operations.config.problems import ConfigProblem, Key, problems_error
from operations.config.toml_lines import toml_lines

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


class Document(msgspec.Struct, frozen=True):
    """A file that was read."""

    path: Path
    tree: dict[str, Any]
    lines: Mapping[Key, int]
    text: str

    def line(self, key: Key, mention: str = "") -> int:
        """The line of a key, or of what holds it; `mention` is text to look for from there on."""
        while key and key not in self.lines:
            key = key[:-1]
        line = self.lines.get(key, 1)
        if mention:
            for number, text in enumerate(self.text.splitlines()[line - 1 :], start=line):
                if mention in text:
                    return number
        return line


def read_document(path: Path) -> Document:
    """A TOML or JSON file; raises one line that names the file and, where it is not well-formed, the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise problems_error([ConfigProblem(path, 1, "", "there is no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        raise problems_error([ConfigProblem(path, 1, "", reason)]) from None
    if path.suffix == ".json":
        return _read_json(path, text)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _TOML_PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else max(len(text.splitlines()), 1)
        message = f"not TOML: {_TOML_PLACE.sub('', str(error))}"
        raise problems_error([ConfigProblem(path, line, "", message)]) from None
    return Document(path, tree, toml_lines(text), text)


def _read_json(path: Path, text: str) -> Document:
    plain = without_comments(text)
    try:
        tree = json.loads(plain)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        message = f"not JSON: {getattr(error, 'msg', 'it is nested too deeply')}"
        raise problems_error([ConfigProblem(path, line, "", message)]) from None
    if not isinstance(tree, dict):
        raise problems_error([ConfigProblem(path, 1, "", "an object is wanted at the top of the file")])
    return Document(path, tree, json_lines(plain), text)
