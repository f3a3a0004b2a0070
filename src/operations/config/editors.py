"""Editors' files of MCP servers: `mcpServers` as most write it, and VS Code's `servers`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from operations.config.checking import SourceTable
from operations.config.documents import Document
from operations.config.problems import ConfigProblem, Key, problems_error

_WHERE: tuple[Key, ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))
_KEPT = ("type", "command", "args", "env", "cwd", "url", "headers", "disabled")
_RENAMED = {
    "serverUrl": "url",
    "httpUrl": "url",
    "envFile": "env_file",
    "includeTools": "allow",
    "excludeTools": "deny",
}
_NEARLY_THE_SAME = 0.85
"""Nearer to one of these keys than any that an editor has for itself."""
_NO_SSE = "it speaks the SSE transport of 2024, which is not supported: use the server's streamable HTTP address"
_TYPES = {
    "local": "stdio",
    "remote": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
}


def editor_servers(document: Document) -> Iterator[SourceTable]:
    """The servers of a file; raises where it is no such file."""
    for where in _WHERE:
        servers: Any = document.tree
        for part in where:
            servers = servers.get(part) if isinstance(servers, Mapping) else None
        if isinstance(servers, Mapping):
            for name, entry in servers.items():
                yield _server(document, name, (*where, name), entry)
            return
    message = "neither `mcpServers` nor `servers` is in it: it is not an editor's list of MCP servers"
    raise problems_error([ConfigProblem(document.path, 1, "", message)])


def editor_folder(path: Path) -> Path:
    """Where the servers of a file run: its folder or, where that is an editor's own, the one above."""
    folder = path.parent
    return folder.parent if folder.name.startswith(".") else folder


def editor_variables(path: Path) -> dict[str, str]:
    """What VS Code fills in beside the environment."""
    folder = editor_folder(path)
    return {
        "workspaceFolder": str(folder),
        "workspaceFolderBasename": folder.name,
        "userHome": str(Path.home()),
        "pathSeparator": "/",
        "/": "/",
    }


def _server(document: Document, name: str, key: Key, entry: Any) -> SourceTable:
    if not isinstance(entry, Mapping):
        place = ConfigProblem(document.path, document.line(key), name, "a server is an object")
        raise problems_error([place])
    folder = editor_folder(document.path)
    table = {field: entry[field] for field in _KEPT if field in entry}
    table |= {ours: entry[theirs] for theirs, ours in _RENAMED.items() if theirs in entry}
    # A key that is meant for us and misspelt is kept, to be refused with the right one; an editor's own is left out.
    table |= {field: value for field, value in entry.items() if _is_misspelt(field, entry)}
    kind = table.get("type")
    if isinstance(kind, str):
        table["type"] = _TYPES.get(kind, kind)
    if isinstance(table.get("env"), Mapping):
        # Editors take numbers and truth values for texts here.
        table["env"] = {variable: _as_text(value) for variable, value in table["env"].items()}
    if kind == "sse":
        table.pop("type")
        return SourceTable(name, key, table, folder, _NO_SSE)
    return SourceTable(name, key, table, folder)


def _is_misspelt(field: str, entry: Mapping[str, Any]) -> bool:
    """Whether a key can only be meant for one of ours that is missing: the same letters, or nearly the same key."""
    known = (*_KEPT, *_RENAMED)
    if field in known:
        return False
    missing = [name for name in known if name not in entry]
    swapped = any(sorted(field.lower()) == sorted(name.lower()) for name in missing)
    return swapped or bool(difflib.get_close_matches(field, missing, n=1, cutoff=_NEARLY_THE_SAME))


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else "" if value is None else value
