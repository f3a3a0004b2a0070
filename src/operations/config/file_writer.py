"""Writing a configuration: create a file, add and remove sources without changing the rest."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from operations.config.documents import ConfigDocument, read_document, toml_statements
from operations.config.problems import ConfigProblem, nearest, problems_error
from operations.config.trust import FILE_NAME, PROJECT_FILE
from operations.config.validation import SourceTable, check_source
from operations.errors import CallError, ErrorCode
from operations.local_files import write_atomically

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
    """Write a first configuration and return its path; raise if the file already exists.

    `path` is the file, or a directory in which `operations.toml` is written.
    """
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


def add_source(path: Path, name: str, table: Mapping[str, Any], *, replace: bool = False) -> None:
    """Validate `table`, and append it to a file as `[sources.<name>]`.

    With `replace`, the table replaces an existing source of this name. Comments and layout stay. A `pyproject.toml`
    gets `[tool.operations.sources.<name>]`. A duplicate name without `replace`, or an invalid table, raises
    `VALIDATION_ERROR` and leaves the file unchanged.
    """
    path = Path(path).absolute()
    write_config(path, text_with_source(path, name, table, replace=replace))


def remove_source(path: Path, name: str) -> None:
    """Remove a source from a file; the rest stays unchanged. An unknown name raises `VALIDATION_ERROR`."""
    path = Path(path).absolute()
    write_config(path, text_without_source(path, name))


def text_with_source(path: Path, name: str, table: Mapping[str, Any], *, replace: bool = False) -> str:
    """Validate a source, and return the text of a file with it; if there is no file, the text of a new one."""
    document = _read(path)
    key = (*_prefix(path), "sources", name)
    present = name in _sources(document, path)
    if present and not replace:
        problem = ConfigProblem(path, document.line(key), f"sources.{name}", "duplicate source name")
        raise problems_error([problem])
    # Validate the table alone: the file may use variables that are not set here.
    check_source(document, SourceTable(name, ("sources", name), table, path.parent))
    addition = _write_table(key, table)
    if present:
        text, position = _without(document, path, name)
        return f"{text[:position]}{addition}{text[position:]}"
    return _append(document.text, addition)


def has_source(path: Path, name: str) -> bool:
    """Whether a file has a source of that name; included files are not searched."""
    return name in _sources(_read(path), path)


def text_without_source(path: Path, name: str, text: str | None = None) -> str:
    """Return the text of a file, or `text`, without a source; raise if there is no such source."""
    document = _read(path, text)
    sources = _sources(document, path)
    if name not in sources:
        raise CallError(ErrorCode.VALIDATION_ERROR, f"{path} has no source {name!r}{nearest(name, sources)}")
    text, position = _without(document, path, name)
    before, after = text[:position].rstrip("\n"), text[position:].lstrip("\n")
    return f"{before}\n\n{after}" if before and after else f"{before}\n" if before else after


def text_with_include(path: Path, names: Sequence[str]) -> str:
    """Return the text of a file with further names in `include`."""
    document = _read(path)
    prefix = _prefix(path)
    present = _own_table(document, path).get("include", [])
    line = f"include = {write_value([*present, *names])}"
    statements = list(toml_statements(document.text))
    for statement in statements:
        if statement.key == (*prefix, "include") and not statement.is_header:
            return f"{document.text[: statement.start]}{line}{document.text[statement.end :]}"
    if prefix:
        own = next((each for each in statements if each.is_header and each.key == prefix), None)
        if own is None:
            return _append(document.text, f"[{'.'.join(prefix)}]\n{line}\n")
        end = document.text.find("\n", own.end) + 1 or len(document.text)
        return f"{document.text[:end]}{line}\n{document.text[end:]}"
    first = next((each.start for each in statements if each.is_header), None)
    if first is None:
        return _append(document.text, f"{line}\n")
    return f"{document.text[:first]}{line}\n\n{document.text[first:]}"


def write_config(path: Path, text: str) -> None:
    """Write `text` to a file atomically and keep its permissions; raise if the text is invalid TOML."""
    tomllib.loads(text)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message) from None


def _read(path: Path, text: str | None = None) -> ConfigDocument:
    if path.suffix == ".json":
        message = f"{path} is an editor's file: change it in the editor, or include it in an {FILE_NAME}"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return read_document(path, _FIRST if text is None and not path.exists() else text)


def _prefix(path: Path) -> tuple[str, ...]:
    return ("tool", "operations") if path.name == PROJECT_FILE else ()


def _own_table(document: ConfigDocument, path: Path) -> dict[str, Any]:
    table: Any = document.tree
    for part in _prefix(path):
        table = table.get(part, {})
    return table if isinstance(table, dict) else {}


def _sources(document: ConfigDocument, path: Path) -> Mapping[str, Any]:
    sources = _own_table(document, path).get("sources", {})
    return sources if isinstance(sources, Mapping) else {}


def _append(text: str, addition: str) -> str:
    gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{gap}{addition}"


def _without(document: ConfigDocument, path: Path, name: str) -> tuple[str, int]:
    """Return the text without the lines of a source, and the position where these lines began.

    Raise if the source is not a separate table: for example, if it is an inline table.
    """
    key, text = (*_prefix(path), "sources", name), document.text
    parts, end, position = [], 0, None
    for statement in toml_statements(text):
        if statement.key[: len(key)] == key:
            start = text.rfind("\n", 0, statement.start) + 1
            parts.append(text[end:start])
            position = len("".join(parts)) if position is None else position
            end = text.find("\n", statement.end) + 1 or len(text)
    parts.append(text[end:])
    left = "".join(parts)
    expected = {**_sources(document, path)}
    del expected[name]
    if position is None or dict(_sources(read_document(path, left), path)) != expected:
        message = f"{path}:{document.line(key)}: {name} is not a separate table: change the file with 'ops edit'"
        raise CallError(ErrorCode.VALIDATION_ERROR, message)
    return left, position


def _write_table(key: tuple[str, ...], table: Mapping[str, Any]) -> str:
    """Return a table as TOML, under a header; tables within it are inline."""
    lines = [f"[{'.'.join(map(_write_key, key))}]"]
    lines += [f"{_write_key(name)} = {write_value(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def _write_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _write_text(key)


def _write_text(text: str) -> str:
    # JSON escapes are valid TOML, except surrogate pairs and the delete character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_value(value: Any) -> str:
    """Return a value as TOML; tables are inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _write_text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_write_key(str(name))} = {write_value(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write_value, value))}]"
    raise CallError(ErrorCode.VALIDATION_ERROR, f"cannot write a {type(value).__name__} to a configuration file")
