"""Editors' MCP configuration files: `mcpServers` in most editors, `servers` in VS Code."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from operations.config.documents import ConfigDocument, read_text
from operations.config.problems import ConfigProblem, Key, problems_error
from operations.config.validation import SourceTable

_WHERE: tuple[Key, ...] = (("mcpServers",), ("servers",), ("mcp", "servers"))
_PASSED_ON = ("type", "command", "args", "env", "cwd", "url", "headers", "disabled")
_RENAMED = {
    "serverUrl": "url",
    "httpUrl": "url",
    "envFile": "env_file",
    "includeTools": "allow",
    "excludeTools": "deny",
}
_IN_PROJECT = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json", ".gemini/settings.json", ".roo/mcp.json")
_IN_HOME = (
    ".claude.json",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".codeium/windsurf/mcp_config.json",
    ".lmstudio/mcp.json",
)
_IN_SETTINGS = ("Claude/claude_desktop_config.json", "Code/User/mcp.json")
_MIN_SIMILARITY = 0.85
"""Minimum similarity at which an unknown key counts as a misspelling of a supported one."""
_TYPES = {
    "local": "stdio",
    "remote": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
}


def find_editor_files(directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the editors' files that mention MCP servers: the project's, then the user's. Files may be malformed."""
    home = Path(environ.get("HOME") or Path.home())
    settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    library = home / "Library" / "Application Support"
    users = [home / name for name in _IN_HOME]
    users += [base / name for base in (settings, library) for name in _IN_SETTINGS]
    return [path for path in (*(directory / name for name in _IN_PROJECT), *users) if _has_servers(path)]


def _has_servers(path: Path) -> bool:
    """Whether a file contains the name of a table of servers; the file is not parsed, because it may be malformed."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError):
        return False
    return any(f'"{where[-1]}"' in text for where in _WHERE)


def editor_servers(document: ConfigDocument) -> Iterator[SourceTable]:
    """Yield the servers of an editor's file; raise if the file has no table of servers."""
    for where in _WHERE:
        servers: Any = document.tree
        for part in where:
            servers = servers.get(part) if isinstance(servers, Mapping) else None
        if isinstance(servers, Mapping):
            for name, entry in servers.items():
                yield _server(document, name, (*where, name), entry)
            return
    message = "not an editor's MCP configuration: expected `mcpServers` or `servers`"
    raise problems_error([ConfigProblem(document.path, 1, "", message)])


def editor_directory(path: Path) -> Path:
    """Return the directory in which a file's servers run: the file's directory, or if this is hidden, its parent."""
    directory = path.parent
    return directory.parent if directory.name.startswith(".") else directory


def editor_variables(path: Path) -> dict[str, str]:
    """Return the predefined variables of VS Code, such as `${workspaceFolder}`, by name."""
    directory = editor_directory(path)
    return {
        "workspaceFolder": str(directory),
        "workspaceFolderBasename": directory.name,
        "userHome": str(Path.home()),
        "pathSeparator": "/",
        "/": "/",
    }


def _server(document: ConfigDocument, name: str, key: Key, entry: Any) -> SourceTable:
    if not isinstance(entry, Mapping):
        problem = ConfigProblem(document.path, document.line(key), name, "expected an object")
        raise problems_error([problem])
    directory = editor_directory(document.path)
    table = {field: entry[field] for field in _PASSED_ON if field in entry}
    table |= {ours: entry[theirs] for theirs, ours in _RENAMED.items() if theirs in entry}
    # Keep a misspelt key, so that it is reported; drop keys that only the editor uses.
    table |= {field: value for field, value in entry.items() if _is_misspelt(field, entry)}
    kind = table.get("type")
    if isinstance(kind, str):
        table["type"] = _TYPES.get(kind, kind)
    if isinstance(table.get("env"), Mapping):
        # Editors accept numbers and booleans as strings here.
        table["env"] = {variable: _as_text(value) for variable, value in table["env"].items()}
    return SourceTable(name, key, table, directory)


def _is_misspelt(field: str, entry: Mapping[str, Any]) -> bool:
    """Whether a key is unknown, but similar to a supported key that the entry lacks, or an anagram of such a key."""
    known = (*_PASSED_ON, *_RENAMED)
    if field in known:
        return False
    missing = [name for name in known if name not in entry]
    swapped = any(sorted(field.lower()) == sorted(name.lower()) for name in missing)
    return swapped or bool(difflib.get_close_matches(field, missing, n=1, cutoff=_MIN_SIMILARITY))


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else "" if value is None else value
