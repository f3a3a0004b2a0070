"""Configurations to load."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from operations import CallError, ErrorCode
from operations.config import Config, load_config


def write(directory: Path, text: str, name: str = "operations.toml") -> Path:
    """Write a dedented file below a directory; return its path."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


def load(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    return load_config(write(directory, text), environ=environ or {})


def problems(path: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """The lines of a file's error, without its directory."""
    with pytest.raises(CallError) as caught:
        load_config(path, environ=environ or {})
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    lines = caught.value.message.splitlines()
    assert len(lines) == len(caught.value.details["errors"])
    return [line.replace(f"{path.parent}/", "") for line in lines]
