"""Writing a configuration: a new file, and sources added to one without touching what stands there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def initialise(path: Path) -> Path:
    """Write a first configuration at `path` (a folder: its `operations.toml`), where there is none; its path."""
    raise NotImplementedError


def add_source(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Append `[sources.<name>]` with `table` to a file, after checking that the result is a valid configuration.

    Comments and layout stay; a `pyproject.toml` gets `[tool.operations.sources.<name>]`. A name that is there already,
    or a table that makes no sense, is a `VALIDATION_ERROR`, and the file stays as it was.
    """
    raise NotImplementedError
