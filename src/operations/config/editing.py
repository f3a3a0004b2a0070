"""Writing a configuration: a new file, and sources added to one without touching what stands there."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operations.config.checking import SourceTable, check_source
from operations.config.documents import read_document
from operations.config.problems import ConfigProblem, problems_error
from operations.config.trust import FILE_NAME, PROJECT_FILE
from operations.errors import CallError, ErrorCode

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_FIRST = """\
# Where the operations of this project come from: `ops ls` lists them, `ops call <id>` calls one.
# `ops add py|mcp|openapi …` adds a source; `ops config schema` prints the schema of this file.

# [sources.local]
# python = "my_operations"            # a folder, a file or an importable package

# [sources.files]
# command = "npx"                     # an MCP server over stdio
# args = ["-y", "@modelcontextprotocol/server-filesystem", "."]

# [sources.api]
# openapi = "https://example.com/openapi.json"
# auth = { type = "bearer", token = "${API_TOKEN}" }
"""


def initialise(path: Path) -> Path:
    """Write a first configuration at `path` (a folder: its `operations.toml`), where there is none; its path."""
    path = Path(path)
    target = path / FILE_NAME if path.is_dir() else path
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_FIRST)
    except FileExistsError:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{target} is there already") from None
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None
    return target


def add_source(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Append `[sources.<name>]` with `table` to a file, after checking that the result is a valid configuration.

    Comments and layout stay; a `pyproject.toml` gets `[tool.operations.sources.<name>]`. A name that is there already,
    or a table that makes no sense, is a `VALIDATION_ERROR`, and the file stays as it was.
    """
    path = Path(path).absolute()
    if path.suffix == ".json":
        message = f"{path} is an editor's file: sources are added to {FILE_NAME}, which may include it"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    document = read_document(path)
    prefix = ("tool", "operations") if path.name == PROJECT_FILE else ()
    tree: Any = document.tree
    for part in prefix:
        tree = tree.get(part, {})
    if name in tree.get("sources", {}):
        line = document.line((*prefix, "sources", name))
        raise problems_error([ConfigProblem(path, line, f"sources.{name}", "there is a source of this name already")])
    # The table is checked by itself: the file may hold variables that are not set here.
    check_source(document, SourceTable(name, ("sources", name), table, path.parent))
    addition = _write_table((*prefix, "sources", name), table)
    text = document.text
    gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
    _replace(path, f"{text}{gap}{addition}")


def _write_table(key: tuple[str, ...], table: Mapping[str, Any]) -> str:
    """A table as TOML: plain values first, then tables within it under headers of their own."""
    lines = [f"[{'.'.join(map(_write_key, key))}]"]
    lines += [f"{_write_key(name)} = {_write_value(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def _write_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _write_text(key)


def _write_text(text: str) -> str:
    # JSON's escapes are TOML's, but for surrogates, which JSON writes in pairs, and the delete character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _write_text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_write_key(str(name))} = {_write_value(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_write_value, value))}]"
    raise CallError(ErrorCode.VALIDATION_ERROR, f"{type(value).__name__} cannot be written to a configuration file")


def _replace(path: Path, text: str) -> None:
    """Put a new text in place of a file, all at once and with the same rights, if it is TOML."""
    tomllib.loads(text)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.chmod(path.stat().st_mode & 0o7777)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        message = f"{path} cannot be written: {error.strerror or error}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None
