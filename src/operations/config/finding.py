"""find_config: the configuration file of the folder one is in."""

from __future__ import annotations

from pathlib import Path

FILE_NAME = "operations.toml"
PROJECT_FILE = "pyproject.toml"


def find_config(start: Path | None = None) -> Path | None:
    """The nearest `operations.toml`, or `pyproject.toml` with `[tool.operations]`, in `start` or a folder above it."""
    folder = Path.cwd() if start is None else Path(start).absolute()
    for place in (folder, *folder.parents):
        own = place / FILE_NAME
        if own.is_file():
            return own
        project = place / PROJECT_FILE
        if project.is_file() and _mentions_operations(project):
            return project
    return None


def _mentions_operations(project: Path) -> bool:
    """Whether a pyproject file has our table; one that is not TOML, or cannot be read, has none."""
    try:
        text = project.read_bytes()
    except OSError:
        return False
    if b"operations" not in text:
        return False
    import tomllib  # not worth its import where the word does not even occur

    try:
        return isinstance(tomllib.loads(text.decode()).get("tool", {}).get("operations"), dict)
    except (ValueError, AttributeError):
        return False
