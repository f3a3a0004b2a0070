"""load_config: the file, what it includes and its variables, read and checked as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from operations.config.models import Config


def load_config(path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in a file (the nearest one if not given); `environ` in place of the process environment.

    The file is `operations.toml`, a `pyproject.toml` with `[tool.operations]`, or editors' JSON with `mcpServers` or
    `servers`. Raises `VALIDATION_ERROR`; its message has one line for each problem, `file:line: what is wrong`, and its
    `details["errors"]` the same as data.
    """
    raise NotImplementedError
