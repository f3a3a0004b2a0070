"""Writing a configuration: create a file, and add sources without changing the rest."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operations.config.documents import read_document
from operations.config.problems import ConfigProblem, problems_error
from operations.config.trust import FILE_NAME, PROJECT_FILE
from operations.config.validation import SourceTable, check_source
from operations.errors import CallError, ErrorCode

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_FIRST = """\
# Sources of operations. List operations with `ops ls`, and call one with `ops call <id>`.
# Add sources with `ops add py|mcp|openapi …`. `ops config schema` prints the JSON Schema of this file.

# [sources.local]
# python = "my_operations"            # a directory, a file or an importable package

# [sources.files]
# command = "npx"                     # an MCP server over stdio
# args = ["-y", "@modelcontextprotocol/server-filesystem", "."]

# [sources.api]
# openapi = "https://example.com/openapi.json"
# auth = { type = "bearer", token = "${API_TOKEN}" }
"""


def initialise(path: Path) -> Path:
    """Write a first configuration at `path` (for a directory, its `operations.toml`); raise if it already exists."""
    path = Path(path)
    target = path / FILE_NAME if path.is_dir() else path
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_FIRST)
    except FileExistsError:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{target} already exists") from None
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None
    return target


def add_source(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Append `[sources.<name>]` with `table` to a file, after validation.

    Comments and layout stay; a `pyproject.toml` gets `[tool.operations.sources.<name>]`. A duplicate name or an invalid
    table raises `VALIDATION_ERROR`, and the file stays unchanged.
    """
    path = Path(path).absolute()
    if path.suffix == ".json":
        message = f"{path} is an editor's file: add sources to an {FILE_NAME} that includes it"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    document = read_document(path)
    prefix = ("tool", "operations") if path.name == PROJECT_FILE else ()
    tree: Any = document.tree
    for part in prefix:
        tree = tree.get(part, {})
    if name in tree.get("sources", {}):
        line = document.line((*prefix, "sources", name))
        raise problems_error([ConfigProblem(path, line, f"sources.{name}", "duplicate source name")])
    # Validate the table alone: the file may use variables that are not set here.
    check_source(document, SourceTable(name, ("sources", name), table, path.parent))
    addition = _write_table((*prefix, "sources", name), table)
    text = document.text
    gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
    _replace(path, f"{text}{gap}{addition}")


def _write_table(key: tuple[str, ...], table: Mapping[str, Any]) -> str:
    """Return a table as TOML: plain values first, then sub-tables under their own headers."""
    lines = [f"[{'.'.join(map(_write_key, key))}]"]
    lines += [f"{_write_key(name)} = {_write_value(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def _write_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _write_text(key)


def _write_text(text: str) -> str:
    # JSON escapes are valid TOML, except surrogate pairs and the delete character.
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
    raise CallError(ErrorCode.VALIDATION_ERROR, f"cannot write a {type(value).__name__} to a configuration file")


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, keeping its permissions, if the new text is valid TOML."""
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
